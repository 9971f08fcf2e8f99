"""Who differs, where a sentence compares: one machine with its peers, one release with the one before, one try
with the next. Source: DOMAIN section 7 ("across history"); docs/design/verdicts.md.

A comparison has two sides: a clause that says where it fails, and one that says where it does not.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass


def _set(words: str) -> frozenset[str]:
    return frozenset(words.split())


_NODE = r"(?:node|host|machine|server|vm|instance|box|blade|hypervisor|worker node)"
_RUN = r"(?:job|run|pod|task|container|workload|launch|attempt|program|process|script|replica|rank)"
_IMAGE = r"(?:image|container|release|version|build|wheel|package|branch|tag|nightly|commit|library|framework|compiler)"

#: Where a sentence puts the name of a host; the name itself holds a digit, such as gpu-88, b11 or r7n3.
_NAME = re.compile(
    r"(?:^|\b(?:on|at|to|onto|off|from|with|without|when|whenever|node|host|machine|instance|and|or"
    r"|includes?"
    r"|including|using|involving|than|via|by|only|also|of|always|the|just) )(?:the |host |node "
    r"|machine |instance )?"
    r"((?=[a-z-]{1,30}\d)[a-z][a-z0-9]{0,15}(?:-[a-z0-9]{1,12}){0,6})(?![\w…=/-]|\.\d)"
)
#: A clause that goes on with a list of names.
_ONLY_NAMES = re.compile(r"(?:and |or )?[a-z][a-z0-9-]{0,40}(?: (?:and|or) [a-z][a-z0-9-]{0,40})?")
_LETTERS = re.compile(r"[a-z]+")
#: Words before a number that make no host of it; devices, models and formats that look like one.
_NO_HOST = _set(
    "rank step epoch iter iteration seq seqnum xid sxid errno code bf fp int uint tf sm cuda rocm python py torch"
    " mlx layer shard stage part cpu port bond rail slot run job exp experiment try attempt level phase zero utf sha"
    " md ckpt checkpoint version image batch v k c e x w s r build release seed lr rc card device chip link bank"
)
_NO_HOSTS = _set(
    "h100 h200 h800 h20 a100 a800 a10 a30 a40 l4 l40 l40s b100 b200 b300 gb200 gb300 v100 t4 p100 mi300 mi300x"
    " mi250 mi250x mi325x mi355x trn1 trn2 inf2 v4 v5 v5e v5p v6e k8s s3 x86 arm64 amd64 python3 bf16 fp8 fp16 fp32"
    " int8 hl205 hl225 max1550 tp8 dp8 pp4 gpu0 gpu1 gpu2 gpu3 gpu4 gpu5 gpu6 gpu7 gpu-0 gpu-1 gpu-2 gpu-3 gpu-4"
    " gpu-5 gpu-6 gpu-7"
)


def _names(clause: str) -> set[str]:
    """The hosts that a clause names."""
    found = set()
    for name in _NAME.findall(clause):
        letters = _LETTERS.match(name)
        alone = letters is None or (
            letters[0] in _NO_HOST and name.removeprefix(letters[0]).strip("-").isdigit()
        )
        is_called_host = f"host {name}" in clause or f"node {name}" in clause
        if (not alone or is_called_host) and name not in _NO_HOSTS:
            found.add(name)
    return found


_THIS = re.compile(
    rf"\b[a-z]{{1,12}} ?\d{{1,5}}'s {_NODE}\b|"
    r"\b(?:this|that) one\b|"
    rf"\b(?:this|that|one|the same|the very same|a single|its) (?:\w{{1,20}} )?(?:{_NODE})\b(?! (?:type"
    rf"|pool|group))"
    r"|\b(?:placed|scheduled|sent|started|starts|put|lands?|landed|launched|assigned|goes|runs?) (?:on"
    r"|onto|to|there|here"
    r"|at|in) ?(?:it\b)?(?:this|that|there|here)?|\b(?:placed|runs?|starts|lands?|places) there\b"
    r"|\bthere\b(?! (?:is|are|was|were)\b)"
)
_PLACED = re.compile(
    rf"\b(?:every|each|all|any|whatever|whichever|only|always|different|two|three|four|five|several"
    rf"|unrelated)"
    rf" [^;]{{0,60}}\b(?:on|to|onto|at|in) (?:this|that|the same|one) (?:\w{{1,20}} )?{_NODE}\b"
)
_PEERS = re.compile(
    rf"\b\d{{1,5}} of (?:the |its |all )?\d{{1,5}} (?:\w{{1,20}} )?{_NODE}s\b|\ball but (?:one|this)\b"
    rf"|\bnone of the {_NODE}s (?:that|which|with)\b|"
    rf"\b(?:peers?|neighbou?rs?|sisters?|siblings?|twins?)\b(?! (?:project|team|user|tenant|group"
    rf"|account))|\b(?:other|another|remaining|identical"
    rf"|all other|any other"
    rf"|the rest of (?:the|its)) (?:\w{{1,20}} )?{_NODE}s?\b|\bothers\b|\b(?:rest|remainder) of (?:the"
    rf"|its) (?:\w{{1,20}} )?"
    rf"(?:pool|partition|cluster|fleet|rack|nodes|hosts|machines|group|zone|row|site|queue|island|pod"
    rf"|superpod|block)"
    rf"|\belsewhere\b|\bevery(?:where|one) else\b|\bwherever else\b|\bany other (?:place|node|host)"
    rf"|\b\d{{1,5}} (?:\w{{1,20}} )?{_NODE}s (?:of|in) (?:the|its|this) "
    rf"|\bother (?:vm|node|host|machine|server|instance|member)s? of\b|\bnext to it\b|\bbeside it\b"
)
#: "Others" of these are people and programs, which say nothing about machines.
_NOT_MACHINES = re.compile(
    rf"\b(?:other|another|others'?|different) (?!{_NODE}s?\b)(?:\w{{1,20}} )?(?:jobs?|users?|teams?"
    rf"|projects?|images?|tenants?|people"
    r"|namespaces?|accounts?|versions?|releases?|runs?|models?|programs?)\b"
    r"|\b(?:jobs|runs|pods|workloads) (?:of|from|by) (?!this|that|our"
    r"|my)(?:the )?(?:\w{1,20} )?(?:projects?|teams?|users?|groups?"
    r"|tenants?|colleagues|people|others)\b|\bcolleagues\b"
)
_WITHOUT = re.compile(r"\b(?:without|excluding|minus|leaving out|except|less)\b")
_SAME_MACHINES = re.compile(
    rf"\b(?:same|this|that|these|those|very) (?:\w{{1,20}} )?{_NODE}s?\b|\bthere\b|\bhere\b"
)
_PASSES = re.compile(
    r"\b(?:c[ao]mes? up|uses?|good|quiet|enumerates?|exposes?|offers?|boots?|joins?|returns?|produces?"
    r"|removes?|removed|resolves?"
    r"|resolved"
    r"|fixe[sd]|avoids?|serves?|carry|carries"
    r"|fine|clean|ok|okay|pass(?:es|ed)?|works?|worked|succeeds?|succeeded|healthy|normal"
    r"|unaffected|sees?|finds?|lists?"
    r"|shows? (?:all|its|the|every|eight|8|them)|detects?|(?:is|are) (?:there|present|visible|found)"
    r"|has (?:it|them|all)"
    r"|have (?:it|them|all)|runs?|ran|starts?|started|completes?|completed|finish(?:es|ed)?|trains?|trained"
    r"|goes? through"
    r"|without (?:it|trouble|error|problem|complaint|this)|no (?:trouble|problem|error|issue|such)"
    r"|never (?:had|seen|saw)"
    r"|loads?|reads?|mounts?|pulls?|opens?|launch(?:es|ed)?|does not|do not|don't|doesn't|did not"
    r"|didn't|none|not seen"
    r"|come through|comes through|get through|gets through|green|cures?|cured|helps?|helped|goes away"
    r"|went away|gone)\b"
)
_NO_FAILURE = re.compile(
    r"\b(?:without|no|zero|0|never (?:an?|any)) (?:an? |any |further |such "
    r"|more )?(?:\w{1,20} )?(?:errors?|failures?|crash(?:es)?"
    r"|hangs?|aborts?|stalls?|kills?|losses)\b"
)
_FAILS = re.compile(
    r"\b(?:fail\w{0,4}|crash\w{0,3}|hangs?|hung|dies|died|dead|errors?|aborts?|aborted|stalls?|stuck"
    r"|breaks?|broke|bl[eo]ws? up|(?:goes|went|turns|turned) (?:nan|inf|wrong|bad)|diverges?|freezes?|froze"
    r"|refus\w{0,3}|reports?|ends? (?:so|here|like|with|within|after|the)|lost|loses?|missing|stops?"
    r"|stopped"
    r"|cannot|can't"
    r"|never (?:find|finds|see|sees|start|starts|come|comes)|seen on|happens|began|begins|started on"
    r"|shows? it)\b"
)
_ONLY = re.compile(
    rf"\bof (?:the |all )?\d{{1,5}} {_NODE}s only\b|"
    rf"\bonly (?:when|on|if|after|for|with)\b|\balways (?:on|when)\b|\b(?:nowhere|not) (?:else"
    rf"|elsewhere)\b|\bnone elsewhere\b|\bnever (?:on (?:the |any )?other|elsewhere)|\bno other {_NODE}"
)
_ALONE = re.compile(
    rf"\bonly (?:{_NODE} )?[a-z]{{1,12}}(?:-[a-z]{{1,10}}){{0,2}}-?\d|"
    rf"\bonly (?:when|on|if|after|for|with|(?:jobs?|runs?|pods?|tasks?|those|it) (?:that|which|with|on"
    rf"|if|when|including))\b"
    rf"|\b(?:nowhere|not) (?:else|elsewhere)\b|\bnone elsewhere\b"
    rf"|\bnever (?:on (?:the |any )?other|elsewhere)|\bno other {_NODE}"
)
_ONE_OF = re.compile(rf"\b(?:of|among|in) (?:the |all |our )?\d{{1,5}} (?:\w{{1,20}} )?{_NODE}s,? only\b")
_OLD = re.compile(
    r"\b(?:with|under|on|using) (?:the )?(?:driver|kernel|firmware|release|version|image|build|rocm"
    r"|cuda|torch|pytorch|jax"
    r"|nccl|rccl|cann|oneapi|ipex|libtpu|neuron|sdk|framework) v?\d"
    rf"|\b(?:previous|former|old|older|earlier|prior|last|original|preceding|known good"
    rf"|known-good) (?:\w{{1,20}} ){{0,2}}"
    rf"(?:{_IMAGE}s?|stack|one|ones|driver|environment|code)\b"
    r"|\b(?:with|under|on|using|runs of|release|version|image|jobs on|runs on|pinned to|back (?:to|on)"
    r"|downgraded to) v?\d{1,4}(?:\.\d{1,4}){1,3}\b"
    r"|^(?:\w{1,20} )?v?\d{1,3}(?:\.\d{1,4}){1,3}(?:\.\w{1,4})? (?:runs?|ran|works?|worked|pass\w{0,3}"
    r"|is|was|trains?|completes?|does|did|starts?)\b"
    r"|\b(?:roll(?:ing|ed)? ?back|downgrad\w{1,3}|going back|went back|revert\w{0,3}|pinning)\b"
)
_VERSION = re.compile(
    r"(?<![\w.])v?(\d{1,4}(?:\.\d{1,4}){1,3})(?![\w.]|\.?\d| ?(?:s|h|min|hours?|days?|gib|gb|tb|mb|k|m"
    r"|%|x|times)\b)"
)
_SINCE_RELEASE = re.compile(
    rf"\b(?:since|with|after|from|under|only (?:with|on|in)|began with|started with|came with"
    rf"|(?:the day|once|when|since|after) (?:we|they|i) (?:moved|switched|upgraded|updated|went"
    rf"|changed)(?: to| over to)?)"
    rf" (?:[\w'+-]{{1,20}} ){{0,4}}(?:{_IMAGE}|upgrad\w{{1,4}}|updat\w{{1,4}}|rollout|roll-out"
    rf"|bump\w{{0,4}}"
    rf"|migration|switching|moving|deploy\w{{0,4}}|v?\d{{1,4}}(?:\.\d{{1,4}}){{1,3}})\b"
    r"|\bnew (?:image|release|version|build|stack|library|framework|wheel|compiler)\b"
)
_MACHINE_SET_UP = re.compile(
    r"\b(?:kernel|bios|firmware|uefi|grub|iommu|smmu|vt-d|acs|machine (?:set-?up|settings"
    r"|configuration)|set-?up of the (?:machines|nodes|hosts)|sr-iov|microcode|boot(?:ed|ing)? (?:options"
    r"|parameters|line|option"
    r"|parameter|image)"
    r"|command line|reinstall\w{0,6}|re-?imag\w{1,4}|node image|host image|base os|os (?:image|update"
    r"|upgrade|patch)"
    r"|operating system|driver|nodes? (?:was|were)|hosts? (?:was|were)|machines? (?:was|were)"
    r"|maintenance|provision\w{0,6}"
    r"|patch(?:ed|ing)? (?:day|night|the nodes|of the nodes)|hypervisor|golden image|security update"
    r"|hardening|selinux"
    r"|apparmor|containerd|kubelet|cri-o|runtime (?:upgrade|update)|ansible|puppet|site's"
    r"|cluster (?:upgrade|update)"
    r"|upgrade of the (?:nodes|hosts|machines|cluster))\b"
)
_SINCE = re.compile(r"\b(?:since|after|from|began with|started with|(?:with|on|under) the new)\b")
_SAME_ONES = re.compile(
    rf"\b(?:same|these|those|all|both|each) (?:\w{{1,20}} ){{0,2}}(?:{_NODE}s|pairs|slices|pods|vms)\b"
    rf"|\bon (?:them|the same (?:two|three"
    rf"|four|five|six|seven|eight|\d{{1,4}}))\b|\b{_NODE}s (?:pinned|that|with|on|which)\b"
)
_OUR_IMAGE = re.compile(
    rf"\b(?:our|my|the job's|their|this) (?:new |own |latest |updated )?(?:container )?(?:image"
    rf"|environment|conda env|venv|dockerfile|requirements)\b"
    rf"|\b(?:our|my|own) (?:\w{{1,20}} )?(?:upgrade|update|bump|{_IMAGE})\b|\bnew image\b"
    r"|\b(?:other|older|old|former|previous|stock|standard) (?:\w{1,20} )?images? (?:run|work|start"
    r"|are fine|pass|is fine|do)"
)
_ANY_PERSON = re.compile(
    r"\b(?:any|every|each|all|whichever|unrelated|both) (?:\w{1,20} )?(?:user"
    r"|team|tenant|project|person|people"
    r"|namespace|account)s?\b|\b(?:everybody|everyone)\b(?! else)"
)
_ANYBODY = re.compile(
    r"\b(?:any|every|each|all|whatever|whichever|no matter (?:what|which)|regardless of (?:the )?"
    r"|different|unrelated"
    r"|no|both|several|independent of (?:the )?) ?(?:of (?:the )?)?(?:[\w-]{1,20} )?(?:image|container|job"
    r"|pod|workload|user|framework"
    r"|tenant|team|project|person|program)s?\b"
    r"|\b(?:everybody|everyone|whoever|nobody|no one)\b|\beven (?:a |the )?(?:plain|stock|empty|minimal"
    r"|hello"
    r"|trivial)\b"
)
_ALL_NODES = re.compile(
    r"\b(?:on|in|of|across) the (?:whole |entire )?(?:cluster|partition|pool|fleet|site|rack)\b|"
    rf"\b(?:all|every|each|any|whichever|whole|entire|no"
    rf"|most) (?:of )?(?:the )?(?:\w{{1,20}} )?(?:{_NODE}s?|cluster|pool|partition|fleet|rack|site)\b"
    r"|\beverywhere\b|\b(?:cluster|fleet|pool|site|partition)[- ]?wide\b|\bacross the\b"
)
_SAME_TIME = re.compile(
    r"\b(?:after|at|within|by) (?:exactly |precisely |always |just |about "
    r"|almost exactly )?(?:the same (?:time|number of"
    r"|duration|interval|\d)|\d{1,5}(?:\.\d{1,3})? ?(?:s|sec|secs|seconds?|min|minutes?|h|hours?)\b"
    r"|(?:a|one|half an|an) (?:minute|hour)\b)"
)
_EACH_TRY = re.compile(
    r"\b(?:every|each|always|all|any|without exception|again and again|every single)\b|\bin a row\b"
)
_LASTS = re.compile(
    r"\b(?:for|since) (?:\w{1,10} ){0,2}(?:days?|weeks?|months?|yesterday|monday|tuesday|wednesday"
    r"|thursday|friday|saturday|sunday)\b|\bdays\b|\ball (?:day|week|month)\b"
)
_SMALL = re.compile(
    r"\b(?:small|smaller|short|shorter|tiny|little|lesser|quick|brief) (?:\w{1,20} )?(?!node|host"
    r"|machine|model|batch)\w{2,20}\b"
)
_OLDER_CHECKPOINT = re.compile(
    r"\bsame (?:\w{1,20} ){0,2}(?:with|from|for|at) (?:the|an|one) checkpoint (?:before|earlier|older)|"
    r"\b(?:older|earlier|previous|other|another|any|every|each|all|two|three"
    r"|both) (?:\w{1,20} ){0,2}checkpoints?\b[^;]{0,60}\b(?:same"
    r"|alike|too|also|as well|likewise|equally|fail\w{0,3}|identical)|\bsame (?:\w{1,20} ){0,4}(?:older"
    r"|earlier|previous|other|every|any)"
    r" (?:\w{1,20} )?checkpoint"
)
_ONE_HAS_IT = re.compile(
    rf"\b(?:only|just) (?:on )?(?:the )?(?:first |writing |master |head )?(?:{_NODE}"
    rf"|rank 0)[^;]{{0,40}}\b(?:has|have|sees?|finds?|wrote|holds?|reads?|exists?)"
    rf"|\b(?:exists?|lies|is there|present|found|written|visible) only (?:on|at)\b"
    rf"|\b(?:on|at) the (?:{_NODE} of rank 0|first {_NODE}|master|head {_NODE}"
    rf"|{_NODE} that wrote)[^;]{{0,30}}\b(?:is there|exists?|found|fine|reads?)"
    rf"|\brank 0 (?:\w{{1,20}} )?(?:reads?|finds?|sees?|loads?|has)\b|\bnot (?:a )?shared\b|\b(?:each"
    rf"|every) {_NODE} (?:has|keeps|sees) its own\b"
)


@dataclass(frozen=True, slots=True)
class Compared:
    """What a sentence compares. False = it does not say so."""

    node_differs: bool = False
    release_differs: bool = False
    release_suspected: bool = False
    set_up_differs: bool = False
    any_image: bool = False
    our_image: bool = False
    machine_change: bool = False
    fixed_time: bool = False
    same_time: bool = False
    older_alike: bool = False
    one_has_it: bool = False
    peers_pass: bool = False
    other_nodes: bool = False
    one_name: bool = False


def names_host(clause: str) -> bool:
    """Whether a clause names a host, such as "on gpu-88"."""
    return bool(_names(clause))


def without_denials(clause: str) -> str:
    """A clause without what it says did not happen, such as "without error"."""
    return _NO_FAILURE.sub(" ", clause)


def fails(clause: str) -> bool:
    """Whether a clause tells of a failure; "without error" does not."""
    return _FAILS.search(without_denials(clause)) is not None


def passes(clause: str) -> bool:
    """Whether a clause tells of success and of no failure."""
    return not fails(clause) and _ONLY.search(clause) is None and _PASSES.search(clause) is not None


def passes_on_peers(clause: str) -> bool:
    """Whether a clause says that other machines do the same without trouble."""
    is_bad = fails(clause) or _ONLY.search(clause) is not None
    return (
        not is_bad
        and _PASSES.search(clause) is not None
        and _PEERS.search(clause) is not None
        and _NOT_MACHINES.search(clause) is None
        and _OLD.search(clause) is None
    )


def passes_for_others(clause: str) -> bool:
    """Whether a clause says that other jobs or people do it without trouble on the same machines."""
    return (
        not fails(clause)
        and _ONLY.search(clause) is None
        and _PASSES.search(clause) is not None
        and _NOT_MACHINES.search(clause) is not None
        and _SAME_MACHINES.search(clause) is not None
    )


def passes_for_other_work(clause: str) -> bool:
    """Whether a clause says that other jobs, models or images do it without trouble, wherever they run."""
    return (
        not fails(clause)
        and _ONLY.search(clause) is None
        and _PASSES.search(clause) is not None
        and _NOT_MACHINES.search(clause) is not None
        and _PEERS.search(clause) is None
    )


def read(text: str, clauses: Sequence[str], *, on_several: bool) -> Compared:
    """Comparisons in a sentence in small letters.

    Args:
        clauses: Its clauses, in order.
        on_several: Whether the sentence says that several machines show the failure.
    """
    here = passes_elsewhere = old_passes = small_passes = only = False
    since_release = set_up = ours = anybody = False
    failing: set[str] = set()
    versions: set[str] = set()
    passing: set[str] = set()
    was_passing = False
    for clause in clauses:
        if _ONLY_NAMES.fullmatch(clause) and (more := _names(clause)):
            passing, failing = (passing | more, failing) if was_passing else (passing, failing | more)
            continue
        was_passing = False
        is_bad = fails(clause) or _ONLY.search(clause) is not None
        passes = not is_bad and _PASSES.search(clause) is not None
        names = _names(clause)
        told = set(_VERSION.findall(clause))
        old = _OLD.search(clause) is not None or (passes and bool(versions) and bool(told - versions))
        if passes and old:
            old_passes = True
            continue
        if passes and names & failing and _WITHOUT.search(clause):
            passes_elsewhere = True
            continue
        if passes and _SMALL.search(clause):
            small_passes = True
            continue
        peers = _PEERS.search(clause) is not None and _NOT_MACHINES.search(clause) is None
        if passes and (peers or (names and not names & failing)):
            passes_elsewhere = was_passing = True
            passing |= names
            continue
        versions |= told
        only |= _ALONE.search(clause) is not None
        if not (passes and _NOT_MACHINES.search(clause)):
            here |= bool(names) or _THIS.search(clause) is not None or _PLACED.search(clause) is not None
            failing |= names
        ours |= _OUR_IMAGE.search(clause) is not None and not passes
        if _SINCE.search(clause) or _SINCE_RELEASE.search(clause):
            since_release |= _SINCE_RELEASE.search(clause) is not None
            set_up |= _MACHINE_SET_UP.search(clause) is not None
        anybody |= _ANYBODY.search(clause) is not None
    ours = ours and _ANY_PERSON.search(text) is None
    everywhere = _ALL_NODES.search(text) is not None
    is_one_of = len(failing) == 1 and _ONE_OF.search(text) is not None
    several = (on_several and not is_one_of) or len(failing - passing) > 1
    node_differs = here and (passes_elsewhere or (only and bool(failing))) and not several and not old_passes
    on_one = len(failing - passing) == 1 and not several
    release = since_release and old_passes and not set_up and not node_differs
    return Compared(
        node_differs=node_differs,
        release_differs=release and (several or _SAME_ONES.search(text) is not None) and not on_one,
        release_suspected=release and not on_one,
        set_up_differs=set_up and old_passes and not node_differs,
        any_image=anybody and (everywhere or set_up) and not node_differs and not ours and not old_passes,
        our_image=ours,
        machine_change=set_up and not node_differs,
        same_time=_SAME_TIME.search(text) is not None and _EACH_TRY.search(text) is not None,
        fixed_time=_SAME_TIME.search(text) is not None
        and _EACH_TRY.search(text) is not None
        and (small_passes or _LASTS.search(text) is not None),
        older_alike=_OLDER_CHECKPOINT.search(text) is not None,
        one_has_it=_ONE_HAS_IT.search(text) is not None,
        peers_pass=passes_elsewhere and not several and not old_passes,
        other_nodes=len(failing - passing) > 1,
        one_name=len(failing - passing) == 1 and not several,
    )
