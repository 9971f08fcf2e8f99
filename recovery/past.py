"""What earlier attempts and the rest of the fleet say about a failure: structured, or read from a sentence.

Source: DOMAIN section 7 ("across history", "across the cluster").
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

MAX_SENTENCE = 1000


@dataclass(frozen=True, slots=True)
class History:
    """Claims about the past of a job and its machines. False and 0 = not known; each is one fact ``past.NAME``."""

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

    @property
    def repeated(self) -> bool:
        """Seen at least twice."""
        return self.count >= 2 or self.every


_WORD_NUMBERS: Mapping[str, int] = {
    "once": 1, "twice": 2, "second": 2, "third": 3, "fourth": 4, "fifth": 5, "two": 2, "three": 3, "four": 4,
    "five": 5, "six": 6, "seven": 7, "eight": 8, "nine": 9, "ten": 10, "dozens": 24, "several": 3, "many": 5,
    "hundreds": 100, "thousands": 1000, "repeatedly": 3, "again": 2, "both": 2, "repeated": 2, "recurring": 3,
}  # fmt: skip

_UNIT = r"(?:node|host|machine|server|vm|worker|instance|box)s?"
_DEVICE = r"(?:gpu|chip|device|tpu|accelerator|card|nic|hca|port|link|dimm|slot|pci address|bank)s?"
_START = r"(?:run|start|launch|resume|attempt|restart|time|try|boot|retry|rerun|submission|container|pod|job|save|load)"

#: Fact -> what a sentence about the past says when it is so. Bounded repeats only.
_CLAIMS: Mapping[str, re.Pattern[str]] = {
    "first_time": re.compile(
        r"\bfirst (?:time|occurrence|failure|seen|such|attempt|incident|start|restart|crash|event|report|launch)"
        r"|\bnever (?:seen )?before\b|\bno earlier\b|\bnot seen before\b|\bonce only\b|\bonly once\b|\bsingle (?:event|occurrence)"
        r"|\bno (?:repeat|recurrence|previous|prior)"
    ),
    "every": re.compile(
        rf"\b(?:every|each|all) (?:single )?(?:\w{{1,20}} )?{_START}s?\b|\balways\b|\bdeterministic|\breproduc"
        r"|\bany machine\b|\bevery time\b|\b(\d{1,3}) of \1\b|\bconsistently\b|\bwithout exception\b|\b100 ?%"
    ),
    "same_point": re.compile(
        r"\b(?:same|identical|this|fixed|exactly at|also at) (?:\w{1,20} ){0,2}(?:step|iteration|batch|sample|point|epoch|phase|stage|place|"
        r"line|layer|exception|error|traceback|shard|file|seqnum|sequence|seq|collective|op|position|index|kernel|message|record|seed|"
        r"call|tensor|stack|checkpoint|size|offset|allocation)"
        r"|\b(?:stops|fails|dies|crashes|ends|hangs|stuck) (?:always )?(?:at|in|after|on) (?:batch|step|iteration|sample|epoch|seqnum|the same)"
        r"|\balways (?:\w{1,20} ){0,2}(?:at|after|during|right|in|on|when|before|while)\b|\bduring (?:every|each)\b|\bat (?:dataset|the|data) load"
    ),
    "same_sequence": re.compile(r"\bsame (?:collective )?(?:seq|sequence)|\bseq(?:num|uence)?(?: number)?\s?=? ?\d{1,12} (?:on|in|at|for|each|every|again)"),
    "changing_point": re.compile(
        r"\b(?:different|changing|varying|other|random|another|new) (?:\w{1,20} ){0,2}(?:step|iteration|batch|seq|sequence|point|place|"
        r"moment|time|stage|collective)s?\b|\bseqnums? (?:differ|vary|change)|\b(?:step|sequence|seqnum)s? (?:differ|vary|change)"
    ),
    "same_node": re.compile(
        rf"\b(?:same|this|one|that|the|single) (?:\w{{1,20}} )?{_UNIT}\b(?! (?:shared|class))|\btrn-node-\d"
    ),
    "same_device": re.compile(rf"\b(?:same|this|one|that) (?:\w{{1,20}} )?(?:and )?(?:\w{{1,20}} )?{_DEVICE}\b|\bgpu ?\d{{1,2}}\b|\bof (?:one|the same|this) {_DEVICE}"),
    "same_rank": re.compile(r"\b(?:same|this|that) rank\b|\balways rank \d"),
    "other_nodes": re.compile(
        rf"\b(?:different|other|several|various|unrelated|multiple|another|distinct|two|three|four|five|new|changing|fresh|\d{{1,4}})"
        rf" (?:\w{{1,20}} )?{_UNIT}\b|\bon any {_UNIT}|\bmoved to (?:another|other)|\bregardless of {_UNIT}|\bafter (?:a )?(?:node )?(?:swap|replacement)"
    ),
    "all_nodes": re.compile(
        rf"\b(?:all|every|each|whole|entire) (?:\w{{1,20}} ){{0,2}}(?:{_UNIT}|cluster|fleet|pool|rack|zone|region|ranks?|pairs?|pods?|jobs?|tenants?)\b"
        r"|\b(?:cluster|fleet|pool|zone|region)[- ]wide\b"
    ),
    "other_jobs": re.compile(
        r"\b(?:different|other|unrelated|separate|several|various|multiple|distinct|two|three|four|five|six|\d{1,4}) (?:\w{1,20} ){0,2}"
        r"(?:jobs?|users?|pods?|workloads?|tenants?|processes|tasks?|containers?)\b|\bany job\b|\bfailed pods\b"
    ),
    "only_here": re.compile(
        rf"\bnone elsewhere\b|\bnowhere else\b|\bonly (?:on )?(?:this|that|one|the same|here)\b|\b(?:this|that|one) {_UNIT} only\b"
        r"|\bnot elsewhere\b|\bno other (?:node|host|machine|vm|rank)"
    ),
    "fine_elsewhere": re.compile(
        rf"\b(?:fine|works|passes|ok|healthy|succeeds|runs|clean|unaffected|normal) (?:\w{{1,20}} ){{0,2}}(?:on|with|at|elsewhere)"
        rf" ?(?:the |all |any )?(?:other|others|another|different|elsewhere)?|\bother {_UNIT} (?:are |is |were )?(?:fine|ok|unaffected|healthy|normal|pass)"
        rf"|\bexcluding (?:it|this|the|that)|\buntil (?:it|that {_UNIT}|this {_UNIT}|the {_UNIT}) was (?:excluded|removed|replaced|drained)"
    ),
    "after_change": re.compile(
        r"\bsince (?:the |a |an )?(?:\w{1,20} ){0,3}(?:change|upgrade|update|image|driver|deploy|rollout|release|switch|bump|version|patch|migration|install)"
        r"|\bafter (?:the |a |an )?(?:\w{1,20} ){0,2}(?:change|upgrade|update|rollout|deploy|bump|patch|migration)|\bnew (?:image|driver|version|release)"
    ),
    "ran_long": re.compile(
        r"\b(?:previous|for|after|ran|in|first|within|past|last|about|of|over) (?:\w{1,20} )?(?:fine )?(?:for )?\d{1,4}(?:\.\d)? ?(?:h|hour|hours|d|day|days|week|weeks|k steps)\b"
        r"|\b\d{1,4} ?(?:h|hours|days|d) (?:fine|ok|of|without|clean|into|later|after|in)|\bfine (?:for|before|until|since)|\bafter (?:hours|days|weeks)\b"
        r"|\bprevious .{0,30}fine\b"
    ),
    "after_restart": re.compile(r"\bafter (?:an? |the )?(?:in-place |process |quick |fast |local )?(?:restart|recovery|relaunch|requeue)|\bfirst restart\b|\bin-place restart"),
    "option": re.compile(r"\bwith \w{1,40}(?:=| on| off| enabled| disabled)|\bnever with|\bonly with|\bwithout (?:it|the option)|\bwhen (?:enabled|disabled)"),
    "growing": re.compile(r"\b(?:leak|grow|rising|rises|increas|climb|creep|slowly)\w{0,8}\b|\blater each\b|\bevery \d{1,3} ?(?:h|hours)\b"),
    "random": re.compile(r"\brandom|\bsporadic|\bintermittent|\bflaky|\bsometimes|\boccasional|\bnot reproduc|\birregular|\bnow and then"),
    "others_pass": re.compile(r"\bother jobs (?:\w{1,20} ){0,4}(?:pass|fine|ok|run|work|got|unaffected)|\bsame (?:commit|image|config)\w{0,4} (?:\w{1,20} ){0,3}(?:pass|works|fine|got|elsewhere)"),
}  # fmt: skip

_COUNT = re.compile(
    r"\b(\d{1,6})(?:st|nd|rd|th)\b|\b(\d{1,6}) ?(?:x|times)\b|\b(\d{1,6}) (?:of|out of|/) ?\d{1,6}\b"
    r"|\b(?:on|in|over|across|after) (?:all |the last |last )?(\d{1,6}) (?:\w{1,20} )?(?:attempt|run|start|restart|retr|launch|resume|job|time|tri)"
    r"|\b(\d{1,6}) (?:\w{1,20} ){0,3}(?:attempt|run|start|restart|retr|launch|crash|failure|eviction|event|job|process|error|reset|pod|hang|kill|xid|occurrence|time|incident|node|reboot|repeat)"
)
_WORDS = re.compile(rf"\b({'|'.join(_WORD_NUMBERS)})\b")
_NEGATED = re.compile(
    r"\b(?:not|no longer|never) (?:\w{1,20} )?(?:reproduc|the same|on (?:the )?same|deterministic)"
)


def read_recurrence(sentence: str) -> History:
    """Claims out of a free sentence about earlier attempts; "" gives none. Never raises."""
    text = " ".join(sentence[:MAX_SENTENCE].lower().split())
    if not text:
        return History()
    claims = {name: pattern.search(text) is not None for name, pattern in _CLAIMS.items()}
    count = max((int(next(g for g in m.groups() if g)) for m in _COUNT.finditer(text)), default=0)
    count = max([count, *(_WORD_NUMBERS[m[1]] for m in _WORDS.finditer(text))])
    if _NEGATED.search(text):
        claims["every"] = claims["same_point"] = False
    if claims["first_time"] and not claims["every"]:
        count = 1
    elif claims["first_time"]:
        claims["first_time"] = False
    if count > 1 or claims["every"]:
        claims["first_time"] = False
    if claims["other_nodes"] or claims["all_nodes"]:
        claims["same_node"] = claims["same_node"] and claims["fine_elsewhere"]
    return History(told=True, count=count, **claims)
