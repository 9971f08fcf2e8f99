"""Numbers and paths that programs announce, compared: who joined of how many, and which machine has a file.

Source: DOMAIN section 7 ("across ranks"); texts of rendezvous, barriers and loaders of files.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from recovery.observed import Evidence
from recovery.rules.rule import FactValue

MAX_LINES = 400
#: Of ranks are read: so many, and so many lines of each.
MAX_RANKS = 256
MAX_LINES_OF_RANK = 40
_MAX_LENGTH = 1000
#: An attempt ends where its last lines are.
_LAST_LINES = 12
_WHOLE = re.compile(r"(?<![\w.:/-])\d{2,12}(?![\w.:-]|\.\d)")

_MEMBER = (
    r"(?:clients?|nodes?|tasks?|workers?|hosts?|ranks?|process(?:es)?|peers?|members?|participants?"
    r"|replicas?"
    r"|pods?|slots?|agents?)"
)
_JOINED = re.compile(
    rf"\b(\d{{1,5}}) ?/ ?(\d{{1,5}}) (?:{_MEMBER} )?(?:have |had |are |has |were |of them )?(?:joined"
    rf"|connected|arrived|registered|reached|ready|reported|present|here|checked in|{_MEMBER})"
    rf"|\b(?:only |just )?(\d{{1,5}}) (?:out )?of (?:the "
    rf"|all )?(\d{{1,5}}) (?:expected )?(?:{_MEMBER} )?(?:have |had |are |has |were )?(?:joined"
    rf"|connected|arrived|registered|reached|ready|reported|present|here|checked in|{_MEMBER})"
    rf"|\b(?:joined|connected|arrived|registered|ready|present)[:=]? ?(\d{{1,5}}) ?(?:/|of"
    rf"|out of) ?(\d{{1,5}})"
)
_JOINED_ALONE = re.compile(
    rf"\b(\d{{1,5}}) (?:{_MEMBER} )?(?:have |had |are |has |were )?(?:joined|connected|arrived"
    rf"|registered|checked in)\b"
    rf"|\b(?:joined|connected|arrived|registered)(?: {_MEMBER})?[:=] ?(\d{{1,5}})\b"
)
_WORLD = re.compile(
    rf"\b(?:world[_ -]?size|num_processes|num_nodes|nnodes|num_hosts|process_count|n_procs|nprocs"
    rf"|num_workers_expected|num_tasks|expected_{_MEMBER})[ =:]{{1,3}}(\d{{1,6}})\b"
    rf"|\b(?:waiting|expecting|expects?|expected|need|needs|wants?"
    rf"|require[sd]?) (?:for )?(?:all )?(\d{{1,6}}) {_MEMBER}\b"
)
_WAITS = re.compile(
    r"timed? ?out|refused|deadline|barrier|rendezvous|waiting for|not (?:all )?(?:joined|ready|connected)"
    r"|failed to (?:join|form|connect)|gave up|giving up|never came|did not (?:join|come|register)"
)
_COORDINATOR = re.compile(
    r"\b(?:remote|peer|connect(?:ed|ing)? to|address"
    r"|addr)[^a-z0-9]{1,8}(?:127\.\d{1,3}\.\d{1,3}\.\d{1,3}|localhost)\b|"
    r"\b(?:coordinator|master|rdzv|rendezvous|head|chief|leader|init_method|dist_url|store|root"
    r"|scheduler)[\w ]{0,24}[ =:@/'\"]{1,6}(?:tcp://|http://|grpc://)?"
    r"(?:127\.\d{1,3}\.\d{1,3}\.\d{1,3}|localhost|\[?::1\]?)\b"
)
_COUNTS = re.compile(
    r"\b(?:expect\w{0,3}|configured|defines?|declares?|should (?:be|have)|wants?|needs?"
    r"|requires?)[^0-9]{0,32}?(\d{1,4})\b[^0-9]{1,40}?"
    r"\b(?:got|found|but|have|has|only|detected|detects?|sees?|saw|reports?|visible|present|available"
    r"|received)\D{0,12}(\d{1,4})\b"
    r"|\bconfigured[^0-9]{0,16}(\d{1,4})\b[^0-9]{1,12}(\d{1,4}) (?:\w{1,20} ){0,3}(?:found|present"
    r"|detected|visible)\b"
    r"|\bcount (\d{1,4}), [^0-9]{0,24}(?:wants|expects|expected|has|configured)[^0-9]{0,12}(\d{1,4})\b"
    r"|\b(?:only )?(\d{1,4}) (?:out )?of (?:the )?(\d{1,4})\b"
)
#: A counter of errors with its labels: of an exporter, "name{device="x"} 7", or of a tool, "x: name 7".
_COUNTER = re.compile(
    r"([a-z0-9_]*(?:err|replay|crc|discard|recover|flap|downed|retrans|drop)[a-z0-9_]*)(?:(\{[^}]{1,200}\})"
    r"|[ \[(]{1,2}([\w/:.-]{1,40})[\])]?)?"
    r"[ =:]{1,3}(\d{1,15})\s*$"
)
_OF_FABRIC = re.compile(r"nvlink|xgmi|nvswitch|c2c")
_UNITS = {"m": 60.0, "s": 1.0, "h": 3600.0}
#: "attempt 2 started", "[attempt 2]"; the tries of a client are told as "attempt 2/5".
_ATTEMPT = re.compile(
    r"\b(?:attempt|incarnation|restart count|relaunch|generation)(?: no\.?"
    r"| number)?[ #=:]{1,3}(\d{1,4})\b(?! ?(?:/|of\b|out of))",
    re.IGNORECASE,
)
#: A line without one of these tells of no attempt; with or without a capital letter.
_ATTEMPT_WORDS = ("ttempt", "ncarnation", "estart count", "elaunch", "eneration")
_UNIT = r"(ms|milliseconds?|min|minutes?|m|s|sec|seconds?|h|hours?)\b"
_LIMIT = re.compile(
    r"(?:timed? ?-?out(?: after| of|=|:)?|ran for|waited|deadline(?: of|=|:)?|limit(?: of|=|:)?"
    r"|timeout\(ms\)=)[^0-9]{0,24}"
    rf"(\d{{1,9}}(?:\.\d{{1,3}})?) ?(?=[a-z]){_UNIT}"
)
_LEFT = re.compile(
    rf"(?:\b(\d{{1,6}}(?:\.\d{{1,2}})?) ?{_UNIT} (?:left|remaining|to go)\b"
    r"|\b(?:eta|left|remaining)[:= ]{1,3}(\d{1,3}(?::\d{2}){1,2})\b|<(\d{1,3}(?::\d{2}){1,2}),)"
)
_DEVICES = re.compile(
    r"gpus?\b|\bdevices?\b|\bchips?\b|\bcards?\b|accelerators?\b|[hntx]pus?\b|\bipus?\b"
    r"|neuron ?cores?\b|ngpus"
)
_MISSING = re.compile(
    r"no such file|does not exist|doesn't exist|not found|cannot find|can't find|could not find"
    r"|couldn't find|missing|is not there|no checkpoint|not a directory|unable to (?:open|find)"
    r"|failed to open"
)
_PATH = re.compile(r"(?<![\w:/])/[\w@%+=.,-]{1,100}(?:/[\w@%+=.,-]{1,100}){1,12}")
#: Directories that each machine mostly has for itself. Source: Filesystem Hierarchy Standard; names of local disks.
_LOCAL = re.compile(
    r"/(?:tmp|var|dev/shm|run|local\w{0,8}|l?scratch\w{0,8}|nvme\w{0,4}|raid\w{0,4}|ssd\w{0,4}"
    r"|ephemeral|instance_store"
    r"|mnt/(?:nvme|local|ssd|disk|scratch|ephemeral|raid)\w{0,8}|data/local|opt|home|root|workspace"
    r"|workdir|data|output"
    r"|cache|checkpoints?|ckpts?)(?:/|$)"
)


def facts_of(evidence: Evidence) -> dict[str, FactValue]:
    """The facts ``join.*`` and ``path.*``, where they are so."""
    facts: dict[str, FactValue] = {}
    lines = _small(evidence.log)
    if any(_WAITS.search(line) for line in lines):
        if _is_short(lines, evidence):
            facts["join.short"] = True
        if _several_machines(lines, evidence) and any(_COORDINATOR.search(line) for line in lines):
            facts["join.loopback"] = True
    if len(lines) + len(evidence.kernel) > 1:
        _counting_links([*lines, *_small(evidence.kernel)], facts)
    if _prepares_too_long(lines, evidence):
        facts["prepare.too_long"] = True
    expected, running = _metric(evidence, "pods_expected"), _metric(evidence, "pods_running")
    if expected is not None and running is not None and running >= expected > 0:
        facts["join.all_started"] = True
    for line in lines:
        if (match := _COUNTS.search(line)) and _DEVICES.search(line):
            first, second = _number(match)
            wanted, found = (first, second) if match[1] else (second, first)
            facts["count.short"] = found < wanted
            facts["count.few_lost" if 0 < wanted - found <= max(1, wanted // 8) else "count.many_less"] = True
    if len(evidence.ranks) > 1 and _one_host(evidence):
        facts["path.one_host"] = True
    return facts


def ends_at(evidence: Evidence, places: Sequence[int]) -> bool:
    """Whether this attempt's last lines tell one of the places where earlier attempts are said to have ended."""
    lines = [*evidence.log[-_LAST_LINES:]]
    for view in evidence.ranks[:MAX_RANKS]:
        lines += view.log[-_LAST_LINES:]
    wanted = {str(place) for place in places}
    return any(number in wanted for line in lines for number in _WHOLE.findall(line[:_MAX_LENGTH]))


def began_at(log: Sequence[str]) -> int:
    """The place of the line at which the last attempt told in a log began, 0 where only one is told."""
    begun, last = 0, None
    for n, line in enumerate(log[:MAX_LINES]):
        if any(word in line for word in _ATTEMPT_WORDS) and (match := _ATTEMPT.search(line[:_MAX_LENGTH])):
            number = int(match[1])
            if last is not None and number > last:
                begun = n
            last = number if last is None else max(last, number)
    return begun


def _counting_links(lines: Sequence[str], facts: dict[str, FactValue]) -> None:
    """Error counters of links as an exporter or tool prints them: one that counts beside others that do not."""
    counts: dict[str, dict[str, int]] = {}
    for line in lines:
        if line[-1:].isdigit() and (match := _COUNTER.search(line)):
            counts.setdefault(match[1], {})[match[2] or match[3] or ""] = int(match[4])
    told = [(name, links) for name, links in counts.items() if len(links) > 1]
    if not told:
        return
    if all(not any(links.values()) for _, links in told):
        facts["link.all_zero"] = True
    for name, links in told:
        if sum(count > 0 for count in links.values()) == 1 and len(links) > 1:
            facts["link.one_counts"] = "fabric" if _OF_FABRIC.search(name) else "port"
            return


def _small(log: Sequence[str]) -> list[str]:
    return [line[:_MAX_LENGTH].lower() for line in log[-MAX_LINES:]]


def _number(match: re.Match[str]) -> list[int]:
    return [int(group) for group in match.groups() if group]


def _metric(evidence: Evidence, name: str) -> float | None:
    value = evidence.metrics.get(name)
    return value if isinstance(value, float) else None


def _is_short(lines: Sequence[str], evidence: Evidence) -> bool:
    """Whether whoever was started has joined, and the program waits for more."""
    expected, running = _metric(evidence, "pods_expected"), _metric(evidence, "pods_running")
    if expected is not None and running is not None and running < expected:
        return False  # somebody is still to come
    started = running if running is not None else _metric(evidence, "workers")
    if started is None:
        return False
    joined, world = _announced(lines)
    world = world if world is not None else _metric(evidence, "world_size")
    if world is None or world <= started:
        return False
    if joined is not None:
        return joined == started or (joined < world and joined % started == 0)
    return world == _metric(evidence, "world_size") and world < 8 * started


def _announced(lines: Sequence[str]) -> tuple[float | None, float | None]:
    """How many joined, and how many were to."""
    joined: float | None = None
    world: float | None = None
    for line in lines:
        if match := _JOINED.search(line):
            joined, world = map(float, _number(match)[:2])
            continue
        if joined is None and (match := _JOINED_ALONE.search(line)):
            joined = float(_number(match)[0])
        if world is None and (match := _WORLD.search(line)):
            world = float(_number(match)[0])
    return joined, world


def _prepares_too_long(lines: Sequence[str], evidence: Evidence) -> bool:
    """Whether one member estimates more time for its preparation than the others are told to wait."""
    told = list(lines)
    for view in evidence.ranks[:MAX_RANKS]:
        told += _small(view.log[-MAX_LINES_OF_RANK:])
    left = [_left(match) for line in told if _may_be_left(line) and (match := _LEFT.search(line))]
    if not left:
        return False
    limits = [_seconds(match[1], match[2]) for line in told if (match := _LIMIT.search(line))]
    return bool(limits) and max(left) > min(limits)


def _may_be_left(line: str) -> bool:
    return "left" in line or "remaining" in line or "to go" in line or "eta" in line or "<" in line


def _seconds(number: str, unit: str) -> float:
    return float(number) * (0.001 if unit.startswith(("ms", "milli")) else _UNITS[unit[0]])


def _left(match: re.Match[str]) -> float:
    if match[1]:
        return _seconds(match[1], match[2])
    parts = [int(part) for part in (match[3] or match[4]).split(":")]
    return float(sum(part * 60**n for n, part in enumerate(reversed(parts))))


def _several_machines(lines: Sequence[str], evidence: Evidence) -> bool:
    _, world = _announced(lines)
    counts = [
        world,
        *(_metric(evidence, name) for name in ("workers", "world_size", "pods_expected", "pods_running")),
    ]
    return any(count is not None and count > 1 for count in counts)


def _one_host(evidence: Evidence) -> bool:
    """Whether a machine misses a path of its own disks which another speaks of without trouble."""
    lost: dict[str, set[str]] = {}
    has: dict[str, set[str]] = {}
    for view in evidence.ranks[:MAX_RANKS]:
        small = _small(view.log[-MAX_LINES_OF_RANK:])
        lost.setdefault(view.node, set()).update(_found(small, is_missing=True))
        has.setdefault(view.node, set()).update(_found(small, is_missing=False))
    return any(
        _LOCAL.match(path) is not None and any(_shares(path, has[other]) for other in has if other != node)
        for node, paths in lost.items()
        for path in paths
    )


def _found(lines: Iterable[str], *, is_missing: bool) -> set[str]:
    return {
        path.rstrip(".,:;")
        for line in lines
        if (_MISSING.search(line) is not None) is is_missing
        for path in _PATH.findall(line)
    }


def _shares(path: str, known: set[str]) -> bool:
    """Whether another machine speaks well of this path, or of what lies above or below it."""
    return any(
        path == other or path.startswith(other + "/") or other.startswith(path + "/") for other in known
    )
