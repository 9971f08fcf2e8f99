"""Names of the facts that conditions may speak of, with what each means."""

from __future__ import annotations

from collections.abc import Mapping

NAMES: Mapping[str, str] = {
    "exit.code": "exit code as told",
    "exit.signal": "signal's name, also read from exit codes above 128",
    "exit.ended": "the process or container has ended in error",
    "exit.running": "nothing has ended",
    "pod.reason": "reason of pod, container or scheduler, in small letters",
    "phase": "bootcheck, run or troubleshoot",
    "metric.*": "a number, or a text in small letters",
    "check.*": "pass, fail or timeout of a check by name",
    "checks.clean": "checks ran and none failed or timed out",
    "checks.run": "how many ran",
    "checks.hardware_failed": "gpu or rdma failed",
    "nodes.affected": "how many nodes show the same now",
    "nodes.many": "several nodes show the same now",
    "nodes.one": "one node shows it, others do not",
    "past.told": "something is known of earlier attempts",
    "past.first_time": "not seen before",
    "past.count": "how often it was seen, this time included",
    "past.repeated": "seen at least twice",
    "past.every": "at every start or run",
    "past.same_point": "at the same step, sample, sequence or stage",
    "past.same_sequence": "at the same collective sequence number",
    "past.changing_point": "at changing steps or sequence numbers",
    "past.same_node": "again on this node",
    "past.same_device": "again on this very device",
    "past.same_rank": "again at the same rank",
    "past.other_nodes": "the same on different nodes",
    "past.all_nodes": "on all nodes",
    "past.other_jobs": "different jobs fail on this node",
    "past.only_here": "this node only",
    "past.fine_elsewhere": "works on other nodes",
    "past.after_change": "since a change of image, driver, configuration or code",
    "past.ran_long": "ran well for a long time before",
    "past.after_restart": "right after a restart in place",
    "past.option": "depends on an option or input",
    "past.growing": "memory or time grows slowly",
    "past.random": "at random places",
    "past.others_pass": "other jobs of the same kind pass",
    "past.everybody": "every user, project or tenant meets it, or one without credentials does",
    "past.first_start": "the job starts for the first time, or nothing was ever saved",
    "past.only_ours": "this project, user or job only; others do not meet it",
    "past.passed": "a later attempt got past it with nothing changed",
    "ranks.told": "how many ranks are shown",
    "ranks.nodes": "on how many nodes they are",
    "here.nodes": "nodes whose ranks show this very hit",
    "here.ranks": "ranks that show this very hit",
    "pair.dead": "one node fails the pairwise check with every partner",
    "pair.slow": "one node is slow in the pairwise check with every partner",
    "rank.named": "a tool names the rank that was missing or wrong",
    "rank.missing": "one rank does not wait in the collective in which all others time out",
    "rank.sequences_differ": "ranks wait at different sequence numbers",
    "clock.below_median": "the clock of a GPU is below 0.85 of its peers' median",
    "log.empty": "nothing was written",
    "log.silent": "the log ends in training steps and tells of no error",
    "seen.*": "a rule by id, or a tag, has a line that matches",
}

_PREFIXES = tuple(name[:-1] for name in NAMES if name.endswith("*"))


def is_known_fact(name: str) -> bool:
    """Whether conditions may speak of it."""
    return name in NAMES or any(name.startswith(prefix) and len(name) > len(prefix) for prefix in _PREFIXES)
