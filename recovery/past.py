"""What earlier attempts and the rest of the fleet say about a failure: structured, or read from a sentence.

A sentence is read clause by clause: a clause that tells of success ("other nodes are fine") says where it does
*not* happen, and nothing else. Source: DOMAIN section 7 ("across history", "across the cluster").
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from recovery import compared, counted, tried

MAX_SENTENCE = 1000


@dataclass(frozen=True, slots=True)
class History:
    """Claims about the past of a job and its machines; each is one fact ``past.NAME``. False and 0 = not known."""

    told: bool = False
    first_time: bool = False
    count: int = 0  # how often this was seen, this time included
    every: bool = False
    same_point: bool = False
    same_sequence: bool = False
    changing_point: bool = False
    same_node: bool = False
    same_device: bool = False
    same_rank: bool = False
    other_nodes: bool = False
    all_nodes: bool = False
    other_jobs: bool = False
    only_here: bool = False
    fine_elsewhere: bool = False
    after_change: bool = False
    ran_long: bool = False
    after_restart: bool = False
    option: bool = False
    growing: bool = False
    random: bool = False
    others_pass: bool = False
    passed: bool = False
    everybody: bool = False
    only_ours: bool = False
    first_start: bool = False
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
    at_once: bool = False
    clean_control: bool = False
    setting_differs: bool = False
    class_differs: bool = False
    pair_node: bool = False
    in_vain: bool = False
    sibling: bool = False
    standing: bool = False
    new_nodes: bool = False
    only_large: bool = False
    size_new: bool = False
    at_boundary: bool = False
    owners: bool = False
    ratio_here: bool = False
    container_alone: bool = False
    no_update: bool = False
    never_worked: bool = False
    group_for_long: bool = False
    places: tuple[int, ...] = ()  # numbers that are told as places where an attempt ended
    said: str = ""  # the sentence itself, where there is one

    @property
    def repeated(self) -> bool:
        """Seen at least twice."""
        return self.count >= 2 or self.every or self.other_jobs


_WORD_NUMBERS: Mapping[str, int] = {
    "once": 1, "twice": 2, "second": 2, "third": 3, "fourth": 4, "fifth": 5, "sixth": 6, "two": 2, "three": 3,
    "four": 4, "five": 5, "six": 6, "seven": 7, "eight": 8, "nine": 9, "ten": 10, "eleven": 11, "twelve": 12,
    "fifteen": 15, "twenty": 20, "thirty": 30, "forty": 40, "dozen": 12, "dozens": 24, "several": 3, "many": 5,
    "multiple": 3, "hundreds": 100, "thousands": 1000, "repeatedly": 3,
    "again": 2, "both": 2, "repeated": 2, "repeats": 2, "recurring": 3, "keeps": 3, "also": 2,
    "retry": 2, "retries": 2, "rerun": 2,
}  # fmt: skip
_NUMBER = rf"(?:\d{{1,6}}|{'|'.join(_WORD_NUMBERS)})"

_NODE = r"(?:node|host|machine|server|vm|instance|box|blade|hypervisor)"
_DEVICE = (
    r"(?:gpu|chip|device|accelerator|card|nic|hca|adapter|port|link|dimm|slot|tray|chassis|rack position"
    r"|board|bank|pci address|cable|rail)"
)
_TRY = (
    r"(?:run|start|launch|resume|attempt|restart|try|tries|boot|retry|retries|rerun|submission|relaunch"
    r"|allocation|"
    r"container|pod|save|load|job|compile|startup|resumption|requeue|redeploy|rescheduling|placement)"
)
_POINT = (
    r"(?:step|iteration|iter|batch|sample|point|epoch|phase|stage|place|line|layer|exception|error"
    r"|traceback|shard|file|"
    r"seqnum|sequence|seq|collective|op|position|index|kernel|message|record|seed|call|tensor|stack"
    r"|checkpoint|size|"
    r"offset|moment|spot|barrier|operation|module|function|address|microbatch)"
)
_PEOPLE = r"(?:projects?|users?|teams?|tenants?|namespaces?|accounts?|groups?|people|colleagues|customers)"
#: Whoever uses the machines meets it, so it is nobody's own setting.
_EVERYBODY = re.compile(
    rf"\b(?:all|every|each|any|no|several|many|most|other|unrelated|different|multiple|both|dozens of"
    rf"|hundreds of) (?:of )?(?:the |our |other )?(?:\w{{1,20}} )?{_PEOPLE}\b(?! of (?:this|that|the"
    rf"|our|my)\b)"
    r"|\b(?:everyone|everybody)\b(?! else)|\b(?:nobody|no one|no-one) (?:can|could|gets?|is able)\b"
    r"|\b(?:anonymous|unauthenticated|public|without (?:a )?(?:login|credentials?"
    r"|password)) ?(?:\w{1,20} )?(?:too|also"
    r"|as well|alike)\b|\b(?:also|even) (?:for |of |on |with )?(?:anonymous|unauthenticated|public)\b"
    r"|\b(?:need|require)s? no (?:login|credentials?|password)\b"
)
#: Others than this project, user or account do not meet it: what is compared is people, not machines.
_ONLY_OURS = re.compile(
    rf"\bonly (?:on |for |in |with )?(?:this|that|my|our|one|a single"
    rf"|the same) (?:\w{{1,20}} )?(?:{_PEOPLE}|job|model|queue)\b"
    rf"|\b(?:one|this|that|my|our|a single) (?:\w{{1,20}} )?{_PEOPLE} (?:only|alone)\b"
    rf"|\bno other (?:\w{{1,20}} )?{_PEOPLE}\b|\busers of (?:our|this|that|one|my) {_PEOPLE}\b"
    rf"|\b(?:nobody|no one) else\b"
)
_OTHER_PEOPLE = re.compile(
    rf"\b(?:others?|another|all other|every other|remaining|the rest of the"
    rf"|any other) (?:\w{{1,20}} )?{_PEOPLE}\b"
    rf"|\bother people'?s|\b(?:everyone|everybody) else\b|\b(?:jobs|runs"
    rf"|pods) of (?:the )?other (?:\w{{1,20}} )?{_PEOPLE}\b"
)
_MACHINE = re.compile(rf"\b{_NODE}s?\b|\belsewhere\b|\b{_DEVICE}s?\b|\bpool\b|\brack\b|\bfleet\b")
_HERE = re.compile(
    rf"\b(?:same|this|that|one|single|the very|its) (?:\w{{1,20}} )?{_NODE}\b"
    rf"|\b[a-z]{{1,12}}-?{_NODE}-?\d{{1,6}}\b"
    rf"|\b(?:always|only|again) (?:on|with|at|when) [a-z]{{1,20}}-[a-z0-9-]{{1,20}}\b"
    rf"|(?<!stop )(?<!stops )(?<!end )(?<!ends )(?<!ended )(?<!stall )(?<!stalls )(?<!freezes )\bhere\b"
    rf"|\bwhenever this\b"
)
_NAMED_DEVICE = re.compile(
    rf"(?<!with )(?<!on a )(?<!needs )\b(?:same|this|that|one|the very"
    rf"|its) (?:\w{{1,20}} ){{0,2}}{_DEVICE}\b|\b{_DEVICE} ?\d{{1,4}}\b"
    rf"|\b[0-9a-f]{{4}}:[0-9a-f]{{2}}:[0-9a-f]{{2}}"
    rf"|\bof (?:one|the same|this) {_DEVICE}|\b(?:vm|node|host) and (?:\w{{1,20}} )?{_DEVICE}"
)
_EVERYWHERE = re.compile(
    rf"\b(?:all|every|each|both|any|whole|entire|most) (?:of )?(?:the )?(?:\w{{1,20}} )?(?:{_NODE}s?"
    rf"|cluster|fleet|pool|rack|zone|region|partition|"
    r"ranks?|pairs?|teams?|tenants?|users?|projects?|namespaces?|workers)\b|\b(?:cluster|fleet|pool"
    r"|zone|region"
    r"|site)[- ]?wide\b|\beverywhere\b"
    r"|\bacross the (?:cluster|fleet|pool|site|region|zone)|\ball (?:\w{1,20} )?(?:jobs|pods|workloads"
    r"|runs) (?:of|in|on|across) the (?:cluster|fleet|pool|site|zone|region)"
    r"|\ball (?:jobs|pods|workloads) (?:since|at once|alike|are)|^all (?:other )?(?:jobs|users|teams|runs"
    r"|workloads)$|\b(?:other|many|several|all) users (?:report|see|since|have|too)|\b(?:many|dozens of"
    r"|hundreds of|several) jobs at (?:once|the same)"
)
_OTHER_NODES = re.compile(
    rf"\b(?:different|other|several|various|unrelated|multiple|distinct|disjoint|changing|new|fresh"
    rf"|replacement|healthy|another|second|{_NUMBER})"
    rf" (?:sets? of )?(?:(?!of )\w{{1,20}} )?{_NODE}s?\b|\bmoved to (?:an?other|different|a new)"
    rf"|\bregardless of (?:the )?{_NODE}|\bwhichever {_NODE}|\bon any {_NODE}"
    rf"|\bafter (?:a )?(?:{_NODE} )?(?:swap|replacement|migration|move)\b|\belsewhere too\b|\balso (?:on"
    rf"|elsewhere)|\b(?:each|every|any) {_NODE} (?:it|that|the job|they) |\balso fails (?:on|with)"
    rf"|\b(?:replaced|swapped|changed|moved) (?:the )?{_NODE}\b"
    rf"|\breplacing (?:the )?{_NODE}|\bmoving to an?other|\bon a (?:laptop|workstation)|\b(?:also"
    rf"|even) (?:with|on) (?:one|a single|1) (?:gpu|{_NODE})"
)
_OTHER_JOBS = re.compile(
    rf"\b(?:different|other|unrelated|separate|several|various|multiple|distinct|all|every|each|any"
    rf"|{_NUMBER}) (?:\w{{1,20}} ){{0,2}}"
    r"(?:jobs?|users?|images?|pods?|workloads?|tenants?|teams?|processes|tasks|containers?|owners?)\b"
    r"|\bfailed pods\b|\bwhichever job\b"
)
_SUCCESS = re.compile(
    r"\b(?:fine|clean|cleanly|ok|okay|agrees?|works?|worked|working|pass|passes|passed|succeeds?"
    r"|succeeded|healthy"
    r"|unaffected|normal|normally|"
    r"no (?:problems?|trouble|failures?|errors?|issues?)|went away|goes away|disappear\w{0,3}"
    r"|vanish\w{0,2}|is gone|was gone|cured|it ran|came up|reach(?:es|ed)? it|gets? through|"
    r"finish(?:ed|es)|completed|got through|trains?|trained|resumed"
    r"|(?<!\d )(?<!our )(?<!my )(?<!all )(?<!both )runs on|runs? (?:well"
    r"|through|clean|fine)"
    r"|ran (?:well|through|clean|fine|without)|"
    rf"(?:others|everyone else|everybody else|other {_PEOPLE}|(?:rest"
    rf"|remainder) of the (?:\w{{1,20}} )?\w{{1,20}}|{_NODE}s) "
    r"(?:still |can |all )?(?:pull|read|load|use|run|start|get|reach|launch|mount|write)s?\b"
    r"|(?:start|run|load|use)s? (?:the |this |that )?(?:very )?same (?:image|container|version|build"
    r"|job|code|script)"
    r"|(?:start|run|load)s? (?:this|that) (?:image|container|version|build|job|code|script)"
    r"|goes? through|went through|got past|went past|without (?:it|trouble|error|problem)|starts? (?:fine"
    r"|the same|normally)|(?:image|job|it|code|container|pod|version|script) (?:starts|loads"
    r"|runs) (?:on|there|everywhere)"
    r"|green|steady|stable)\b"
)
_FAILURE = re.compile(
    r"\b(?:fail\w{0,4}|crash\w{0,3}|hang\w{0,2}|hung|dies|died|error\w{0,2}|stops|stopped|stuck"
    r"|kill\w{0,3}|abort\w{0,3}|never|not|lost|broke\w{0,1}|without success)\b"
)
_ONLY_HERE = re.compile(
    rf"\bnone elsewhere\b|\bnever elsewhere\b|\bnever on (?:the |any )?other|\bnowhere else\b"
    rf"|\bnot elsewhere\b|\b(?:only|just) (?:on )?(?:this|that|one|the same"
    rf"|here)\b|\b(?:this|that|one) (?:{_NODE}|{_DEVICE}) (?:only|alone)\b"
    rf"|\bno other (?:{_NODE}|rank|pod|{_DEVICE})|\bonly (?:on )?(?!rank|step|gpu"
    rf"|epoch)[a-z]{{1,12}}-?\d{{1,6}}$|\bonly {_NODE}\b|\b[a-z]{{1,12}}-?\d{{1,6}} (?:only|alone)\b"
    rf"|\bnot on (?:the )?other"
)
_ELSEWHERE = re.compile(
    rf"\b(?:other|others|another|different|elsewhere|rest|remaining|all other|every other"
    rf"|neighbou?r\w{{0,3}}|peers?|former|any other|new|replacement) ?(?:\w{{1,20}} )?(?:{_NODE}s?)?\b"
    rf"|\bexclud\w{{1,3}} |\bexcluded\b|\bwithout (?:it|this|that|the) ?{_NODE}?"
    rf"|\bwithout [a-z]{{1,12}}-{_NODE}|\buntil (?:it|(?:this|that|the) {_NODE}) was"
    rf"|\b(?:after|once|since|when) (?:the |this |that |its )?{_NODE} (?:was |had been |is "
    rf"|got )?(?:replaced|removed|drained|swapped|taken out|cordoned|left out)"
)
#: A later attempt got past the failure, with nothing changed.
_PASSED = re.compile(
    r"\b(?:on|at|after) (?:the )?(?:retry|second|2nd|next|another|a second|third|following|one retry"
    r"|a retry|rerun)\b|\b(?:retry|retries|rerun|re-run|restart|resume"
    r"|relaunch)\w{0,3} (?:of it )?(?:succeeded|passed|worked|ran|completed|went|fine|is fine|was fine|ok)"
    r"|\blater (?:it |the same )?(?:worked|passed|ran|succeeded|went)|\bresumed (?:fine|attempt went"
    r"|and (?:went|ran|passed))|\bno (?:repeat|recurrence)\b|\bnot (?:seen )?again\b|\b(?:went|got"
    r"|gone) (?:past|through)\b"
    r"|\bworked (?:again )?(?:on|after|an hour|minutes|later)"
    r"|\bresumed (?:\w{1,20} ){1,3}(?:fine|and (?:went|ran|passed|made))"
)
_LATER_TRY = re.compile(
    r"\b(?:the|a|one|its|next|second|2nd|later|another|following) (?:\w{1,20} )?(?:retry|rerun"
    r"|re-run|attempt|try|restart|resume)\b"
)
#: The failure left together with a machine.
_AWAY_WITH_NODE = re.compile(
    rf"\b(?:after|once|since|when|without) (?:the |this |that |its )?(?:{_NODE}"
    rf"|[a-z]{{1,12}}-?{_NODE}-?\d{{1,6}})"
    rf" (?:was |had been |is |got )?(?:replaced|removed|drained|swapped|taken out|cordoned|left out"
    rf"|excluded)"
    r"|\bexclud\w{2,3} [a-z]"
)
#: The failing part is told apart from the same without this machine.
_NOT_WITHOUT = re.compile(
    rf"\bwithout (?:it|this|that|the|[a-z]{{1,12}}-?{_NODE}-?\d{{1,6}}) ?(?:{_NODE} )?(?:they |it "
    rf"|the job |runs )?(?:did not|didn't|do not|don't|does not|none|never)"
)

#: Fact -> what a clause about failures says when it is so.
_CLAIMS: Mapping[str, re.Pattern[str]] = {
    "first_time": re.compile(
        r"\bfirst in \d|\binitial (?:failure|occurrence)|\b(?:is|was) the first\b"
        r"|\bnot happened before\b|\bnever happened\b"
        r"|\bnothing like (?:it|this)\b|\bfirst (?:time|occurrence|failure|seen|such|attempt|incident"
        r"|submission|start"
        r"|restart|crash|event|report|launch|one|try|sighting|run|resume|save|job)|^first$|\b1st\b"
        r"|\bnever (?:seen |happened )?before\b|\bno earlier\b|\bnot seen before\b|\bonce only\b"
        r"|\bonly once\b|\bsingle (?:event|occurrence)"
        r"|\bno (?:repeat|recurrence|previous|prior|history)|\bone[- ]off\b|\bisolated event"
        r"|\bnew (?:today|failure)\b|\bseen once\b|^once$"
    ),
    "every": re.compile(
        rf"\b(?:every|each|all|any) (?:single |of (?:the |our |its )?)?(?:[\w-]{{1,20}} )?{_TRY}(?:e?s)?\b"
        rf"|\balways\b|\bdeterministic"
        rf"|\breproduc|\bevery time\b|\bconsistently\b"
        rf"|\bnever (?:formed|started|came up|worked|succeeded|connected|got (?:past|beyond)|comes up"
        rf"|starts)\b"
        rf"|\b(?:every|each) (?:one )?of (?:the )?{_NUMBER}\b|\bevery one of\b"
        rf"|\b(\d{{1,3}}) ?(?:of|out of|/) ?\1\b|\b({_NUMBER}) (?:of"
        rf"|out of) (?:the )?\2\b|\bwithout exception\b|\b100 ?%|\bin a row\b|\bon both (?:attempt|run"
        rf"|start)|\bin both\b"
    ),
    "same_point": re.compile(
        rf"\b(?:same|identical|this|fixed|exact) (?:\w{{1,20}} ){{0,2}}{_POINT}\b"
        rf"|\bsame (?:\w{{1,20}} )?(?:and )?(?:\w{{1,20}} )?{_POINT}\b"
        rf"|\b(?:stop|fail|die|crash|end|hang|abort|stuck|break|diverge|oom)\w{{0,4}} (?:always )?(?:at|in"
        rf"|after|on|near|around) (?:the )?(?:same |first |(?:\w{{1,20}} ){{0,3}}{_POINT})"
        rf"|\b{_POINT} (?:no\.? ?)?[#\d]\d{{0,12}} (?:on|in|at|for|each|every|again|both|of)"
        r"|\bduring (?:every|each)\b|\bat (?:dataset|the|data|model) load"
        r"|\bidentical(?:ly)?\b|\b(?:ended|failed|died|crashed|stopped) (?:in )?the same way\b"
    ),
    "same_sequence": re.compile(
        r"\bsame (?:collective )?(?:seq|sequence)|\bseq(?:num|uence)?(?: number)? ?[=#]? ?\d{1,15} (?:on"
        r"|in|at|for|each|every|again|both)"
    ),
    "changing_point": re.compile(
        rf"\b(?:different|changing|varying|other|random|another|new"
        rf"|various) (?:\w{{1,20}} ){{0,2}}{_POINT}s?\b|\b{_POINT}s (?:numbers? )?(?:differ|vary|change)"
        r"|\b(?:an)?other rank each\b|\b(?:seq\w{0,8}|step|iteration|rank|place|point"
        r"|collective)s? (?:numbers? )?(?:differs|varies|changes|moves|was another|is another)"
        r"|\bdifferent ranks?\b|\bnever (?:at )?the same\b|\bnot (?:at )?the same\b|\ba new one\b"
        r"|\beach time (?:at )?(?:a|an)other"
    ),
    "same_rank": re.compile(r"\b(?:same|this|that) rank\b|\balways rank \d"),
    "after_change": re.compile(
        r"\bsince (?:the |a |an |last \w{1,10} )?(?:[\w']{1,20} ){0,3}(?:maintenance|change|upgrade|update"
        r"|image|driver|deploy|rollout|roll-out|release|switch|bump|version|patch|migration|install|commit"
        r"|merge|rebuild)"
        r"|\bsince (?:the |our )?(?:\w{1,20} )?(?:cluster|fleet|pool|site|partition) (?:grew|doubled)"
        r"|\bsince the (?:expansion|extension|growth)\b|\bsince we (?:doubled|grew|extended|enlarged"
        r"|expanded|added)\b"
        r"|\bsince [^;,.]{1,40} (?:was|were|got) (?:added|extended|enlarged|expanded|upgraded|updated"
        r"|changed|replaced|switched|patched|moved|enabled)"
        r"|\bafter (?:the |a |an |last \w{1,10}'?s? )?(?:\w{1,20} ){0,2}(?:change|upgrade|update|rollout"
        r"|roll-out|deploy|bump|patch|migration|rebuild)|\bnew (?:image|driver|version|release|commit|code"
        r"|plugin)|\bwith image\b|\bwith the new\b"
    ),
    "ran_long": re.compile(
        r"\b(?:previous|for|after|ran|about every|every"
        r"|each) (?:\w{1,20} )?(?:fine )?(?:for )?\d{1,5}(?:\.\d)? ?(?:h|hours?|d|days?|weeks?|k steps"
        r"|steps|iterations)\b"
        r"|\b\d{1,5} ?(?:h|hours|days|d) (?:fine|ok|of|without|clean|into|later|after|in)"
        r"|\bafter (?:many )?(?:hours|days|weeks)\b|\blong (?:good|fine) run"
        r"|\bin (?:the (?:last|past) )?\d{1,6} (?:days|weeks|months|hours|steps|iterations)\b"
    ),
    "after_restart": re.compile(
        r"\bafter (?:an? |the |each |every )?(?:in-place |process |quick |fast |local )?(?:restart"
        r"|recovery|relaunch|requeue)|\bfirst restart\b|\bin-place restart|\bafter restarting"
    ),
    "option": re.compile(
        r"\bonly (?:when|if|at|for|above|beyond|in combination) (?:\w{1,20} ){0,3}(?:batch|size|length"
        r"|context|global"
        r"|micro|sequence|tokens|precision|bf16|fp8|fp16|compile|offload|parallel|world|workers|ranks"
        r"|gpus|nodes"
        r"|option|flag|setting)|\b(?:goes|went) away (?:with|without|when)|\bdisappears? (?:with|without"
        r"|when)"
        r"|\bnever happen\w{0,4} with|\bwith \d{1,5} (?:nodes|ranks|gpus|workers) or more"
        r"|\bfails on [a-z]{1,3}\d{2,4}\b|\bworks on [a-z]{1,3}\d{2,4}\b"
        r"|\bwith (?!this\b|that\b|it\b)\w{1,40}(?:=| on\b| off\b| enabled| disabled)|\bnever with"
        r"|\bonly with|\bwithout the option"
        r"|\bwhen (?:enabled|disabled)|\bdepends on"
    ),
    "growing": re.compile(
        r"\b(?:leak|grow|rising|rises|increas|climb|creep|slowly)\w{0,8}\b|\blater each\b"
        r"|\bevery \d{1,6}(?: ?(?:to|-|or) ?\d{1,6})? ?(?:h|hours|epochs|steps|days)\b"
        r"|\bevery (?:few|couple of|other|some) (?:hours|epochs|days?|weeks?|nights?)\b"
        r"|\babout (?:daily|weekly)\b|\bonce an? (?:day|night|week)\b"
    ),
    "first_start": re.compile(
        r"\bfirst (?:start|launch|submission|run|attempt)\b(?! (?:after|since|that|to|with))"
        r"|\bnothing (?:was |has been )?(?:ever )?(?:saved|written)\b|\bnever (?:saved|written|wrote)\b"
    ),
    "random": re.compile(
        r"\brandom|\bsporadic|\bintermittent|\bflaky|\bsometimes|\boccasional|\bnot reproduc|\birregular"
        r"|\bnow and then"
    ),
}  # fmt: skip

_ALWAYS_AT = re.compile(r"\balways (?:\w{1,20} ){0,2}(?:at|after|during|right|in|when|before|while)\b")
_COUNT = re.compile(
    rf"\b(\d{{1,6}})(?:st|nd|rd|th)\b|\b(\d{{1,6}}) ?(?:x\b|times\b)|\b(\d{{1,6}}) (?:of|out of"
    rf"|/) ?\d{{1,6}}\b"
    rf"|\b(?:on|in|over|across|after|for) (?:all |the last |last |the )?(\d{{1,6}}) (?:\w{{1,20}} )?{_TRY}"
    r"|\b(\d{1,6}) (?:\w{1,20} ){0,3}(?:attempt|run|start|restart|retr|launch|crash|failure|eviction|event"
    r"|job|process|error|reset|pod|hang|kill|xid|occurrence|time|incident|node|machine|instance|host"
    r"|reboot|repeat|allocation|container|death|abort|timeout)"
)
_DURATION = re.compile(
    r"\b\d{1,6} ?(?:h|hours?|d|days?|weeks?|min|minutes?|s|seconds?|ms|gib|gb|k steps|steps|iterations"
    r"|ranks|gpus)\b"
)
#: Spans of time and sizes of a job; a number of them counts no attempts.
_NO_ATTEMPTS = re.compile(
    rf"\b{_NUMBER} (?:of (?:the |our |its )?)?(?:{_NUMBER} )?(?:\w{{1,12}} )?(?:seconds|minutes|hours|days"
    rf"|weeks|months|years|ranks|members"
    r"|workers|processes|clients|peers|gpus|steps|iterations|epochs)\b"
)
_NUMBERED = re.compile(
    rf"\b(?:{_POINT}|rank|{_DEVICE}|version|port|errno|xid|sxid|code"
    rf"|=) ?(?:no\.? ?)?[#=]? ?\d{{1,15}}\b(?! of \d| ?/)"
)
_AGAIN = re.compile(
    r"\bidentical|\bpersist|\bstill (?:fail|crash|there|the same|happen)\w{0,3}|\bsame (?:failure|error"
    r"|crash|problem|result|way|thing|end)|\bprevious (?:\w{1,20} )?(?:attempt|run|start)s? (?:also "
    r"|too )?(?:ended|failed|died|crashed|hung|did)"
    r"|\b(?:steps?|iterations?|epochs?|at) \d{1,9} and \d{1,9}\b|\bcame back\b"
    r"|\breplac\w{1,5} [^;.]{1,30}, same\b"
)
_FIXED_POINT = re.compile(rf"\b{_POINT} (?:no\.? ?)?#?\d{{1,15}}\b")
_WORDS = re.compile(rf"\b({'|'.join(_WORD_NUMBERS)})\b")
_NEGATED = re.compile(
    r"\b(?:not|no longer|never) (?:\w{1,20} )?(?:reproduc|the same|on (?:the )?same|deterministic)"
)
_OTHERS_ARE_FINE = re.compile(
    rf"\b(?:the )?(?:other|others|rest of the|remaining|neighbou?ring) (?:\w{{1,20}} )?{_NODE}s? "
    r"(?:are |were |is |run |stay )?(?:all )?(?:fine|ok|okay|clean|healthy|unaffected|normal|green"
    r"|good|stable)\b"
)
_CLAUSES = re.compile(
    r"[;,()]|\.(?!\d)| but | while | whereas | yet | though | although | - | and (?=other|the other"
    r"|none|those"
    r"|all other|a \w{1,20} )"
)


_FIELDS = {field.name for field in fields(History)}
#: What is taken over as it is told; the rest changes claims.
_OF_COMPARED = tuple(
    field.name for field in fields(compared.Compared) if field.name in _FIELDS - {"other_nodes"}
)
_OF_TRIED = tuple(field.name for field in fields(tried.Tried) if field.name in _FIELDS)
_OF_COUNTED = tuple(field.name for field in fields(counted.Counted) if field.name in _FIELDS)


def read_recurrence(sentence: str) -> History:
    """Claims out of a free sentence about earlier attempts; "" gives none. Never raises."""
    text = " ".join(sentence[:MAX_SENTENCE].lower().split()).replace("..", "…")
    if not text:
        return History()
    text = tried.in_plain_words(text)
    claims = dict.fromkeys(
        (
            *_CLAIMS,
            "same_node",
            "same_device",
            "other_nodes",
            "all_nodes",
            "other_jobs",
            "only_here",
            "fine_elsewhere",
            "others_pass",
            "passed",
            "everybody",
            "only_ours",
        ),
        False,
    )
    count = 0
    clauses = [clause for part in _CLAUSES.split(text) if (clause := part.strip())]
    if any(kept := [tried.clears(clause) for clause in clauses]):
        clauses = [clause for clause, is_cleared in zip(clauses, kept, strict=True) if not is_cleared]
        text = "; ".join(clauses)
    for clause in clauses:
        count = max(count, _read_clause(clause, claims))
    if _AGAIN.search(text):
        count = max(count, 2)
    if claims["every"] and not claims["changing_point"] and _FIXED_POINT.search(text):
        claims["same_point"] = True
    if _NEGATED.search(text):
        claims["every"] = claims["same_point"] = False
    claims["changing_point"] |= claims["random"] and not claims["same_point"]
    if claims["changing_point"]:
        claims["same_point"] = claims["same_sequence"]
    of_people = claims["only_ours"] and not _MACHINE.search(text)
    if of_people:
        claims["fine_elsewhere"] = False  # "others are fine" goes on about people
    if count >= 2 and _OTHERS_ARE_FINE.search(text) and not (claims["other_nodes"] or claims["all_nodes"]):
        claims["same_node"] = True  # again and again, and not there: so here
    attempts = tried.read(text, clauses)
    numbers = counted.read(text, clauses)
    if numbers.owners or numbers.ratio_here:
        attempts = replace(attempts, at_once=False)  # jobs that end within a minute do not end at one moment
    count = _of_attempts(attempts, claims, count)
    count = counted.overrule(numbers, claims, count)
    several = claims["other_nodes"] or claims["all_nodes"]
    told = compared.read(text, clauses, on_several=of_people or (several and not claims["only_here"]))
    if claims["first_time"] and not claims["every"] and count < 2:
        told = replace(told, node_differs=False, peers_pass=False, one_name=False)  # once is no comparison
    claims["same_node"] |= told.one_name
    if attempts.clean_control and not (claims["same_node"] or claims["only_here"]):
        claims["passed"] = True  # the control passed, and nothing else points at this machine
    if told.node_differs:
        claims["same_node"] = claims["fine_elsewhere"] = True
    claims["other_nodes"] |= told.other_nodes and not told.node_differs
    found = {name: getattr(told, name) for name in _OF_COMPARED}
    found |= {name: getattr(numbers, name) for name in _OF_COUNTED}
    if numbers.ratio_here or numbers.owners:
        found |= {"any_image": False, "node_differs": found["node_differs"] or numbers.ratio_here}
    if attempts.pair_node:
        found |= {"node_differs": False, "any_image": False}
    if attempts.new_nodes:
        found["our_image"] = False  # the image is that of the machines
    return replace(
        _settled(claims, count), said=sentence[:MAX_SENTENCE], **found, **_of_tried(attempts, claims)
    )


def _of_attempts(attempts: tried.Tried, claims: dict[str, bool], count: int) -> int:
    """Let what is told of attempts overrule what single clauses seem to claim; gives how often it was seen."""
    if attempts.at_once:
        for name in ("other_nodes", "all_nodes", "same_node", "only_here", "every", "other_jobs"):
            claims[name] = False
        count = min(count, 1)
    if attempts.intermittent or attempts.success_between:
        claims["every"] = claims["same_point"] = False
        claims["random"] = claims["changing_point"] = True
        claims["passed"] |= attempts.success_between
    elif attempts.same_place:
        claims["same_point"], claims["changing_point"] = True, False
        count = max(count, 2)
    if attempts.clean_control:
        claims["other_nodes"] = claims["all_nodes"] = claims["same_point"] = claims["every"] = False
        claims["fine_elsewhere"] = True
        claims["same_node"] |= claims["same_device"] or claims["other_jobs"]
    if attempts.pair_node:
        claims["all_nodes"] = claims["other_nodes"] = claims["everybody"] = claims["only_ours"] = False
        claims["same_node"] = claims["fine_elsewhere"] = True
    if attempts.sibling:
        claims["same_node"] = claims["only_here"] = False
    if attempts.setting_differs:
        claims["option"], claims["passed"] = True, False
    return count


def _of_tried(attempts: tried.Tried, claims: dict[str, bool]) -> dict[str, Any]:
    """The fields of History that are told of attempts as such, made to agree with the claims."""
    found = {name: getattr(attempts, name) for name in _OF_TRIED}
    is_varied = not (claims["random"] or claims["only_here"] or attempts.pair_node)
    found["setting_differs"] &= is_varied
    found["class_differs"] &= is_varied
    found["standing"] &= not (claims["only_ours"] or claims["only_here"] or claims["first_time"])
    found["new_nodes"] &= not (claims["only_ours"] or claims["only_here"])
    return found


def _read_clause(clause: str, claims: dict[str, bool]) -> int:
    """Add what one clause says; gives how often it says that it failed."""
    if _ONLY_OURS.search(clause):
        claims["only_ours"] = claims["others_pass"] = True
    elif _ONLY_HERE.search(clause):
        claims["only_here"] = True
    if tried.never_elsewhere(clause):
        claims["fine_elsewhere"] = True
        return 0
    if _NOT_WITHOUT.search(clause):
        claims["fine_elsewhere"] = claims["same_node"] = True
        return 0
    if _SUCCESS.search(clause) and not _FAILURE.search(compared.without_denials(clause)):
        if _AWAY_WITH_NODE.search(clause):
            claims["same_node"] = claims["fine_elsewhere"] = True
            return 0
        claims["passed"] |= _PASSED.search(clause) is not None and not _ELSEWHERE.search(clause)
        if _OTHER_PEOPLE.search(clause) and not _MACHINE.search(clause):
            claims["only_ours"] = claims["others_pass"] = True
            return 0
        claims["ran_long"] |= (
            _CLAIMS["ran_long"].search(clause) is not None
            or re.search(
                r"\bbefore\b|\byesterday\b|\blast (?:week|night|month)\b|\bearlier\b|\bpreviously\b",
                clause,
            )
            is not None
        )
        claims["only_ours"] |= compared.passes_for_others(clause)
        claims["option"] |= _CLAIMS["option"].search(clause) is not None
        claims["fine_elsewhere"] |= _ELSEWHERE.search(clause) is not None and not re.search(
            r"\b(?:former|other|older|old|previous) (?:image|jobs?|version|commit|driver)",
            clause,
        )
        claims["others_pass"] |= (
            re.search(
                r"\b(?:other|former|older|old|previous|same) (?!node|host|machine|server"
                r"|vm)(?:\w{1,20} )?(?:image|jobs?|version|commit"
                r"|driver|runs?|models?|config\w{0,10}|code|script)|\b(?:jobs|runs|pods|launches) with\b"
                r"|^(?:\w{1,20} )?\d{1,3}\.\d",
                clause,
            )
            is not None
        )
        claims["changing_point"] |= re.search(r"\b(?:went|got|gone) past\b", clause) is not None
        return 0
    if compared.passes_for_others(clause):
        claims["only_ours"] = claims["others_pass"] = True
        return 0
    if _LATER_TRY.search(clause) and compared.passes(clause):
        claims["passed"] = True
        return 0
    if compared.passes_for_other_work(clause):
        claims["others_pass"] = True
        return 0
    if compared.passes_on_peers(clause):
        claims["fine_elsewhere"] = True
        return 0
    for name, pattern in _CLAIMS.items():
        claims[name] |= pattern.search(clause) is not None
    claims["everybody"] |= _EVERYBODY.search(clause) is not None
    here = _HERE.search(clause) is not None
    claims["same_node"] |= here
    claims["same_point"] |= not here and _ALWAYS_AT.search(clause) is not None
    claims["same_device"] |= _NAMED_DEVICE.search(clause) is not None
    claims["other_jobs"] |= _OTHER_JOBS.search(clause) is not None
    if not claims["only_here"]:
        claims["all_nodes"] |= _EVERYWHERE.search(clause) is not None
        claims["other_nodes"] |= _OTHER_NODES.search(clause) is not None and "none" not in clause
    counted = _NUMBERED.sub(" ", _DURATION.sub(" ", _NO_ATTEMPTS.sub(" ", clause)))
    numbers = [int(next(group for group in match.groups() if group)) for match in _COUNT.finditer(counted)]
    return max([0, *numbers, *(_WORD_NUMBERS[match[1]] for match in _WORDS.finditer(counted))])


def _settled(claims: dict[str, bool], count: int) -> History:
    """Claims made to agree with each other."""
    claims["passed"] &= not claims["every"]
    if claims["first_time"] and (claims["every"] or count > 1) and not claims["after_restart"]:
        claims["first_time"] = False
    if claims["first_time"]:
        count, claims["every"] = 1, False
    elif claims["other_nodes"]:
        count = max(count, 2)  # two machines are two failures
    claims["everybody"] &= not (
        claims["only_ours"] or claims["only_here"] or claims["same_node"] or claims["same_device"]
    )
    claims["other_jobs"] &= claims["same_node"] or claims["same_device"] or claims["only_here"]
    if claims["only_here"]:
        claims["all_nodes"] = claims["other_nodes"] = False
        claims["same_node"] = True
    if claims["all_nodes"] or claims["other_nodes"]:
        claims["same_node"] = claims["same_node"] and claims["fine_elsewhere"]
    found: dict[str, Any] = dict(claims)
    return History(told=True, count=count, **found)
