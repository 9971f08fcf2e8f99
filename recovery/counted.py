"""What a sentence about the past counts: owners on one machine, tries here against tries elsewhere, and for how long.

Jobs, users and projects that are counted on one machine are repeats there by different owners. Tries that fail on a
machine and tries that do not fail elsewhere are a comparison with both sides. What has failed in one container on
many machines follows the container. Source: DOMAIN section 7 ("across history", "across the cluster").
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from recovery.compared import fails, names_host, passes

#: Of the tries on the machine fail at least, and of those elsewhere at most.
FAILS_HERE = 0.8
FAILS_ELSEWHERE = 0.1
#: Shares that differ by no more than this factor show no difference.
ALIKE = 3.0
#: Tries that a side of a comparison needs.
MIN_TRIES = 2

_NODE = r"(?:node|host|machine|server|vm|instance|box|blade|hypervisor)"
_WORDS = {
    "two": 2, "three": 3, "four": 4, "five": 5, "six": 6, "seven": 7, "eight": 8, "nine": 9, "ten": 10, "eleven": 11,
    "twelve": 12, "fifteen": 15, "nineteen": 19, "twenty": 20, "thirty": 30, "forty": 40, "fifty": 50, "sixty": 60,
}  # fmt: skip
_SOME = rf"(?:\d{{1,6}}|{'|'.join(_WORDS)})"
_SEVERAL = rf"(?:{_SOME}|several|many|different|various|unrelated|distinct|dozens of|multiple|other)"
_JOB = r"(?:jobs?|runs?|pods?|tasks?|workloads?|trainings?|experiments?|attempts?|launch(?:es)?|processes|containers?)"
_OWNER = r"(?:users?|teams?|projects?|owners?|tenants?|groups?|people|persons|namespaces?|accounts?|customers?|labs?)"
#: "7 jobs of 4 users", "nine runs by unrelated teams", "jobs of 3 projects".
_OWNERS = re.compile(
    rf"\b{_JOB}(?: \w{{1,12}})? (?:of|from|by|across|belonging to|owned by|for) (?:\w{{1,12}} )?{_SEVERAL}"
    rf" (?:[a-z]\w{{0,20}} ){{0,2}}{_OWNER}\b"
    rf"|\b{_SEVERAL} (?:[a-z]\w{{0,20}} )?{_OWNER}\b[^;]{{0,24}}\b(?:lost|had|saw|reported|with"
    rf"|whose) (?:\w{{1,12}} )?{_JOB}\b"
    rf"|\b{_SEVERAL} {_JOB} and {_SEVERAL} (?:[a-z]\w{{0,20}} )?{_OWNER}\b"
    rf"|\bfailures of {_SEVERAL} (?:\w{{1,16}} )?{_OWNER}\b"
)
#: Beside a clause about this machine: owners do not matter.
_WHOEVER = re.compile(
    rf"\b(?:who(?:so)?ever (?:owns?|runs?|starts?|submits?|sends?|uses?)|whosever|whichever {_OWNER}"
    rf"|no matter (?:whose|which {_OWNER})"
    rf"|(?:regardless|independent) of (?:the )?{_OWNER})\b"
)
#: "every job placed here", "whatever lands on it", "no job that starts there".
_WHATEVER = re.compile(
    rf"\b(?:every(?:thing)?|each|any(?:thing)?|all|whatever|whichever|no|nothing"
    rf"|none)\b(?: of)?(?: the)?(?: \w{{1,16}}){{0,2}}?"
    rf"(?: {_JOB})?(?: that| which| it)?(?: is| are| was| gets?| has been)?"
    r" (?:placed|lands?|landed|scheduled|start(?:ed|s)?|put|sent|runs?|ran|assigned|launched|given)"
    rf" (?:here|there|(?:on|to|onto|at) (?:it|(?:this|that|the same) (?:\w{{1,16}} )?{_NODE}"
    rf"|(?=[a-z-]{{0,30}}\d)[a-z][\w-]{{1,30}}))\b"
)
_SURVIVES = re.compile(
    r"\b(?:surviv\w{1,3}|live[sd]?|lasts?|lasted|outlive[sd]?|(?:gets?|got|gotten) (?:past|beyond"
    r"|through|further)|makes? it|made it"
    r"|reach(?:es|ed)?|(?:comes?|came) (?:through|up)|completes?|completed|finish(?:es|ed)?)\b"
)
_NOTHING = re.compile(r"\b(?:no|nothing|none|not (?:a|one)(?: single)?)\b")
_ENDS = re.compile(
    r"\b(?:dead|gone|dies?|died|ends?|ended|fail\w{0,4}|crash\w{0,3}|stops?|stopped|hangs?|hung|stalls?"
    r"|aborts?"
    r"|is lost|are lost|freezes?|breaks?"
    r"|kill\w{0,2})\b"
)
_HERE = re.compile(
    rf"\b(?:this|that|the same|one|a single|the very same|its) (?:\w{{1,16}} )?{_NODE}\b"
    rf"|(?<!\w )\bhere\b|\bhere\b|\bon it\b"
    rf"|\b(?:with|including|holding) (?:this|that|it)\b|\b(?:when|if"
    rf"|whenever) [a-z][\w-]{{1,30}} (?:takes part|is in the job)\b"
)
_OTHER = re.compile(
    rf"\belsewhere\b|\bothers?\b|\banother\b|\b(?:the )?(?:rest|remaining|remainder)\b|\bneighbou?rs?\b"
    rf"|\bpeers?\b|\bsiblings?\b"
    rf"|\bwithout\b|\botherwise\b|\bexclud\w{{2,3}}\b|\bany other\b|\b(?:different|spare"
    rf"|healthy) {_NODE}s?\b"
    rf"|\ball other\b|\bsisters?\b"
)
_SPLIT = re.compile(
    r"[;,():]|\.(?!\d)| but | while | whereas | yet | against | versus | vs\.? | compared (?:to|with) "
    r"| though | although"
    r"| and (?=\d|none|zero|no |not |never|elsewhere|other|the other|all |" + "|".join(_WORDS) + r")"
)
_OF = re.compile(
    rf"\b({_SOME}|0|zero|none|not one|no) ?(?:of|out of|/|in) ?(?:the |its |all |about |our |last "
    rf"|those )*({_SOME})\b"
)
_ALL_OF = re.compile(
    rf"\b(?:all|every one of|each of|every \w{{2,10}} of) (?:of )?(?:the |its |our "
    rf"|last )*({_SOME})\b(?! \w{{0,16}} ?{_NODE}s?\b)"
)
_NONE_OF = re.compile(r"\b(?:0|zero|none|not one|never one)\b(?! ?(?:,|\.)\d)")
_SUCCEEDS = re.compile(
    r"\b(?:pass\w{0,3}|succe\w{2,6}|worked|works?|complet\w{1,3}|finish\w{0,3}|surviv\w{1,3}"
    r"|went through|came up|comes? up"
    r"|are fine|were fine|ran through|(?:gets?|got) (?:past|through|beyond)|makes? it|made it"
    r"|reach\w{0,3}|trains?|trained|good|ok)\b"
)
_TRY_WORD = re.compile(
    rf"\b(?:{_JOB}|tr(?:y|ies)|starts?|times|restarts?|boots?|tests?|iterations of the test)\b"
)
#: A ratio of devices, ranks or steps is none of tries.
_NO_TRY = re.compile(
    r"\b(?:gpus?|devices?|ranks?|steps?|shards?|links?|ports?|cards?|chips?|nodes? (?:joined|connected"
    r"|ready)|clients?|workers?)\b"
)

_CONTAINER = re.compile(
    r"\b(?:this|that|our|my|the same|same|one|the user's|the job's|their|his|her"
    r"|its) (?:[a-z]\w{0,16} )?(?:container|image|environment|env|venv"
    r"|conda|sandbox|virtualenv|docker)\b(?! image of the)"
)
_ON_SEVERAL = re.compile(
    rf"\b(?:{_SOME}|several|different|many|all|every|each|both|various|whichever|any|multiple"
    rf"|other) (?:of )?(?:the )?(?:\w{{1,16}} )?{_NODE}s?\b"
    r"|\bwherever\b|\beverywhere\b"
)
_OTHER_CONTAINERS = re.compile(
    r"\b(?:other|others|another|stock|standard|default|vanilla|unmodified|former|previous|different"
    r"|all other) ?(?:\w{1,16} )?"
    r"(?:containers?|images?|environments?|envs?|venvs?|pods?|jobs?|users?|people|teams?|projects?)?\b"
)
_NOT_IN_OTHERS = re.compile(
    r"\b(?:not|never|none)(?: seen)? (?:in|with|for|under|of) (?:the |any )?(?:other|others|stock"
    r"|standard|default)\b"
)
_THERE = re.compile(
    rf"\bthere\b|\bon (?:them|those|these|the same|that|all of them)\b|\b(?:same|those|these"
    rf"|that) (?:\w{{1,16}} )?{_NODE}s?\b|\ball {_NODE}s\b|\bside by side\b"
)

_UPDATE = (
    r"(?:steps?|updates?|batch(?:es)?|iterations?|microbatch(?:es)?|optimi[sz]er steps?|samples?|windows?"
    r"|sequences?|examples?|gradients?|chunks?)"
)
_REFUSED = re.compile(
    r"\b(?:skip\w{0,4}|reject\w{0,3}|discard\w{0,3}|drop\w{0,4}|refus\w{1,3}|retr(?:y|ied|ies|ying)"
    r"|overflow\w{0,3}|thrown away|rolled back|undone"
    r"|not (?:accepted|applied|counted|taken)|ignored|clipped to zero)\b"
)
_ALL_STEPS = re.compile(
    rf"\b(?:all|every(?: single)?(?: one)?|each)(?: of)?(?: the| its| our)?(?: last| past| previous"
    rf"| latest| recent| following)?(?: {_SOME})? {_UPDATE}\b"
    rf"|\b(?:the )?(?:last|past|latest) {_SOME} {_UPDATE} (?:\w{{1,10}} ){{0,2}}(?:all"
    rf"|without exception)\b"
    rf"|\bnothing but (?:skipped|rejected|discarded) {_UPDATE}\b|\b{_SOME} {_UPDATE} in a row\b"
    rf"|\b{_SOME} consecutive {_UPDATE}\b"
)
_THOUSANDS = re.compile(r"(?<=\d),(?=\d{3}\b)")
_NO_STEP = re.compile(
    rf"\b(?:no|not a single|not one|none of the(?: last)?(?: {_SOME})?|never an?"
    rf"|without a single) (?:\w{{1,16}} )?{_UPDATE}\b[^;]{{0,30}}"
    r"\b(?:accepted|applied|taken|counted|through|kept|succeeded|passed)\b"
)
_AFTER_RESTART = re.compile(
    r"\b(?:restart\w{0,3}|resum\w{1,4}|relaunch\w{0,3}|requeue\w{0,1}|rerun|new attempt|second attempt"
    r"|other attempts?|next attempt)\b"
)
_LAST_MANY = re.compile(
    rf"\b(?:last|past|latest|previous|since)\b|\bin a row\b|\bconsecutive\b|\bsince step\b"
    rf"|\b\d{{2,6}} {_UPDATE}\b"
)

_CREATED = re.compile(
    r"\bsince [^;,.]{1,50}\b(?:created|creation|set up|set-up|setup|provisioned|built|installed"
    r"|launched|deployed|ordered|bound|registered|exist\w{0,2}"
    r"|day one|beginning|made|commissioned|handed over|introduced)\b|\bfrom (?:the )?(?:day one"
    r"|first day|start|very beginning|beginning)\b"
    r"|\bsince day one\b|\bever since it exists\b"
)
_BEGAN = re.compile(
    r"\bsince [^;,.]{1,40}\b(?:came up|is up|was up|started|start|formed|began|joined|opened|went live"
    r"|in service)\b"
)
_NEVER_ONCE = re.compile(
    r"\b(?:never|not)(?: even)?(?: a single)? (?:once|one time|a single time)\b|\bhas (?:never"
    r"|not) (?:yet )?(?:ever )?(?:once )?(?:worked|mounted|succeeded|come up"
    r"|been (?:up|reachable|mounted|attached|bound)|connected|answered|resolved|attached|started"
    r"|passed)\b|\bnever (?:once )?(?:worked|mounted|attached|bound|"
    r"came up|succeeded|answered|connected)\b|\bno \w{1,16} (?:has |have )?ever (?:worked|mounted"
    r"|started|succeeded|got|came|come)\b"
)
_WORKED = re.compile(
    r"\b(?:worked|fine|ran|ok|mounted|was up|had no trouble) (?:\w{1,16} )?(?:before|until|till"
    r"|earlier|yesterday|last)\b|\b(?:until|till|before) \d|\b(?:before|until) (?:that|then|today"
    r"|yesterday|this)\b"
)
_BREADTH = re.compile(
    rf"\b(?:every|all|any|each|no|whichever|both)(?: of the| the)? (?:[\w-]{{1,16}} ){{0,2}}(?:pods?"
    rf"|{_NODE}s?|members?|users?|jobs?|tenants?|teams?|workers?|ranks?|projects?"
    r"|namespaces?)\b|\beverywhere\b|\beverybody\b|\beveryone\b|\bnobody\b|\bnowhere\b"
)

_AGAIN_AND_AGAIN = re.compile(
    r"\breplace(?:d|ments?)\b|\bsuccessors?\b|\brecreat\w{1,3}\b|\b(?:new|fresh|next|each new"
    r"|every new|rescheduled) (?:pods?|containers?|workers?|ones?)\b|\bin a loop\b|\bloops?\b"
    r"|\bover and over\b|\bagain and again\b|\bone after (?:an|the )?other\b|\bevict\w{1,5} (?:again"
    r"|each|every|all)\b|\bpod after pod\b"
)
_GROUP = re.compile(
    rf"\b(?:all|every|each|any|whichever|whole"
    rf"|entire)(?: of)?(?: the)? (?:\w{{1,16}} ){{0,2}}(?:{_NODE}s?|pool|group|node ?group|partition"
    rf"|cluster|fleet|zone)\b|\beverywhere\b"
    rf"|\b(?:group's|pool's|cluster's) {_NODE}s\b|\b{_NODE}s of the (?:\w{{1,12}} )?(?:group|pool"
    rf"|cluster) all\b"
    rf"|\b(?:pool|group|cluster|fleet|partition)[- ]?wide\b|\bacross the (?:pool|group|cluster|fleet"
    rf"|partition)\b"
)
_FOR_LONG = re.compile(
    rf"\b(?:for|since|over|in|during|already|now)(?: about| the| last| past| more than| over| some"
    rf"| many| several| two| three)* ?(?:{_SOME}|several|many|some|a few)? ?"
    r"(?:h\b|hours?|days?|the night|night)\b|\bsince (?:this |yesterday|last |the )?(?:morning|noon"
    r"|night|evening|midnight|yesterday|\w{2,5}day)\b|\bfor (?:half )?a day\b|\ball (?:day|night"
    r"|morning)\b"
    rf"|\b{_SOME} ?(?:h|hours|days)\b"
)

_MODEL = (
    r"(?:[abhlvpt]\d{2,3}[a-z]?|gb\d{3}|mi\d{2,3}[a-z]?|trn\d|inf\d|(?:tpu )?v\d[ep]|l40s|rtx ?\w{3,6}"
    r"|gaudi ?\d|hl-?\d{3}|910[bc]?"
    r"|ampere|hopper|blackwell|ada|volta|turing|nvidia|amd|intel|cpus?|gpus?)"
)
_DEVICE_KINDS = re.compile(
    rf"\b(?!(?:cpus?|gpus?) and (?:cpus?|gpus?))({_MODEL})s?(?: {_NODE}s?| cards?| gpus?)?(?: and| or"
    rf"| as well as| plus| &|/|,) (?:on |the |also )*({_MODEL})s?\b"
    rf"|\b(?:both|all|two|three|several|different|either|each|every|any) (?:of )?(?:the "
    rf"|our )?(?:\w{{1,16}} )?(?:generations?|kinds?|types?|models?|vendors?|architectures?)"
    rf"(?: of (?:accelerators?|gpus?|cards?|devices?|{_NODE}s?|hardware|chips?|machines?))?\b"
)
_OF_DEVICES = re.compile(
    rf"\b(?:generations?|vendors?|architectures?|accelerators?|gpus?|cards?|devices?|chips?|hardware"
    rf"|{_NODE}s?)\b|{_MODEL}"
)


@dataclass(frozen=True, slots=True)
class Counted:
    """What a sentence counts. False = it does not say so."""

    owners: bool = False
    ratio_here: bool = False
    ratio_alike: bool = False
    ratio_all: bool = False
    container_alone: bool = False
    no_update: bool = False
    never_worked: bool = False
    group_for_long: bool = False
    device_kinds: bool = False


def read(text: str, clauses: Sequence[str]) -> Counted:
    """Claims of a sentence in small letters, cut into its clauses. Never raises."""
    here: list[float] = []
    elsewhere: list[float] = []
    if _OTHER.search(text) and (_OF.search(text) or _ALL_OF.search(text) or _NONE_OF.search(text)):
        here, elsewhere = _shares([part for piece in _SPLIT.split(text) if (part := piece.strip())])
    return Counted(
        owners=any(_is_of_owners(clause) for clause in clauses) or _whoever(text, clauses),
        ratio_here=max(here, default=0.0) >= FAILS_HERE and min(elsewhere, default=1.0) <= FAILS_ELSEWHERE,
        ratio_alike=bool(here and elsewhere) and max(here) <= ALIKE * max(elsewhere),
        ratio_all=bool(here and elsewhere) and min(max(here), max(elsewhere)) >= FAILS_HERE,
        container_alone=_CONTAINER.search(text) is not None and _container_alone(clauses),
        no_update=_no_update(text),
        never_worked=_never_worked(text),
        group_for_long=_AGAIN_AND_AGAIN.search(text) is not None
        and _GROUP.search(text) is not None
        and _FOR_LONG.search(text) is not None,
        device_kinds=any(_names_kinds(clause) for clause in clauses),
    )


def overrule(numbers: Counted, claims: dict[str, bool], count: int) -> int:
    """Let owners and tries that are counted overrule single clauses; gives how often it was seen."""
    if numbers.ratio_here or numbers.owners:
        for name in ("other_nodes", "all_nodes", "everybody", "only_ours", "random", "passed"):
            claims[name] = False
        claims["same_node"] = True
        claims["fine_elsewhere"] |= numbers.ratio_here
        claims["other_jobs"] |= numbers.owners
        return max(count, 2)
    if numbers.ratio_alike:
        claims["same_node"] = claims["only_here"] = claims["fine_elsewhere"] = claims["other_jobs"] = False
        claims["other_nodes"] = True
        claims["every" if numbers.ratio_all else "random"] = True
    if numbers.container_alone:
        claims["same_node"] = claims["only_here"] = claims["fine_elsewhere"] = False
        claims["only_ours"] = claims["others_pass"] = claims["other_nodes"] = True
    if numbers.device_kinds and not (claims["only_here"] or claims["same_node"]):
        claims["other_nodes"] = True
    return count


def _is_here(clause: str) -> bool:
    return (_HERE.search(clause) is not None or names_host(clause)) and _OTHER.search(clause) is None


def _is_of_owners(clause: str) -> bool:
    """Whether jobs of several owners, or whatever is placed, fail on one machine."""
    if _WHATEVER.search(clause):
        if _NOTHING.search(clause):
            return _SURVIVES.search(clause) is not None or (fails(clause) and " but " in clause)
        return _ENDS.search(clause) is not None
    if _OWNERS.search(clause) is None or _ON_SEVERAL.search(clause):
        return False
    return _is_here(clause) and not passes(clause)


def _whoever(text: str, clauses: Sequence[str]) -> bool:
    """Whether jobs end on one machine whoever owns them."""
    if _WHOEVER.search(text) is None or any(_ON_SEVERAL.search(clause) for clause in clauses):
        return False
    return any(
        _is_here(clause) and _ENDS.search(clause) is not None and not passes(clause) for clause in clauses
    )


def _shares(parts: Sequence[str]) -> tuple[list[float], list[float]]:
    """The shares of tries that failed on one machine, and of those elsewhere.

    A part that names no place counts at the place of the part before.
    """
    here: list[float] = []
    elsewhere: list[float] = []
    place: list[float] | None = None
    is_good = False
    for part in parts:
        if _OTHER.search(part):
            place = elsewhere
        elif _HERE.search(part) or names_host(part):
            place = here
        found = _share(part)
        if found is None or place is None or 0 < found[1] < MIN_TRIES or (not found[1] and place is here):
            continue
        is_good = _is_success(part, is_good)
        place.append(1.0 - found[0] if is_good else found[0])
    return here, elsewhere


def _share(part: str) -> tuple[float, int] | None:
    """The share of tries that a part counts, and of how many; 0 tries where only "none" is said."""
    if match := _OF.search(part):
        if _NO_TRY.search(part) and not _TRY_WORD.search(part):
            return None
        some, whole = _number(match[1]), _number(match[2])
        return (some / whole, whole) if 0 <= some <= whole and whole else None
    if match := _ALL_OF.search(part):
        return 1.0, _number(match[1])
    if _NONE_OF.search(part) and _OTHER.search(part):
        return 0.0, 0
    return None


def _is_success(part: str, before: bool) -> bool:
    """Whether a part counts tries that came out well; one without a verb goes on as the part before."""
    if _SUCCEEDS.search(part) and not fails(part):
        return True
    return before and not fails(part) and _ENDS.search(part) is None


def _number(word: str) -> int:
    return _WORDS[word] if word in _WORDS else int(word) if word.isdigit() else 0


def _container_alone(clauses: Sequence[str]) -> bool:
    """Whether it fails in one container on several machines where other containers do not."""
    fails_inside = others_pass = several = False
    for clause in clauses:
        is_good = _NOT_IN_OTHERS.search(clause) is not None or (not fails(clause) and passes(clause))
        if is_good and _OTHER_CONTAINERS.search(clause):
            others_pass |= (
                _THERE.search(clause) is not None
                or not _OTHER.search(clause)
                or _ON_SEVERAL.search(clause) is not None
            )
        elif not is_good:
            fails_inside |= _CONTAINER.search(clause) is not None
            several |= _ON_SEVERAL.search(clause) is not None
    return fails_inside and others_pass and several


def _no_update(text: str) -> bool:
    """Whether a loop refuses all of its last steps, over many of them or also after a restart."""
    text = _THOUSANDS.sub("", text)
    if _NO_STEP.search(text):
        return True
    match = _ALL_STEPS.search(text)
    if match is None or (_AFTER_RESTART.search(text) is None and _LAST_MANY.search(text) is None):
        return False
    return _REFUSED.search(text) is not None or not passes(text)


def _never_worked(text: str) -> bool:
    """Whether nobody has ever got it to work since it was made."""
    if _WORKED.search(text) or _BREADTH.search(text) is None:
        return False
    if _CREATED.search(text):
        return True
    return _NEVER_ONCE.search(text) is not None and _BEGAN.search(text) is not None


def _names_kinds(clause: str) -> bool:
    """Whether a clause about failures names several kinds of device as the places."""
    match = _DEVICE_KINDS.search(clause)
    if match is None or passes(clause):
        return False
    if match[1]:
        return match[1] != match[2]
    return _OF_DEVICES.search(clause) is not None
