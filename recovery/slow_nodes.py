"""A machine that makes a training job slow: suspected, confirmed, priced, told, and cleared. Source: DOMAIN section 8.

Nothing that happens here touches training: an unconfirmed suspicion changes nothing, and a confirmed one wants the
cheaper moment to evict. A failure meanwhile is recovered as always.
"""

from __future__ import annotations

from datetime import timedelta

from recovery.action_rules import NOT_BEGUN, ask
from recovery.comparisons import (
    NEEDED,
    SLOW,
    Compared,
    Comparison,
    SlowMachines,
    Told,
    judge_value,
    numbers_of,
)
from recovery.decision_prices import price_of_slow_machine
from recovery.draft import Draft
from recovery.draft_actions import change_action, want
from recovery.evidence import Fact, Role
from recovery.failures import take_evidence
from recovery.figures import Figure
from recovery.ladder import NOT_INSTALLED
from recovery.lifecycle import INSTALLED_ACTIONS, ActionKind, ActionState, IncidentState, Resolution, Severity
from recovery.phases import Phase
from recovery.placement import attempt_at
from recovery.prices import PricedChoice, SlowOption
from recovery.records import Considered, IncarnationView
from recovery.rules import ends
from recovery.signals import Signal, Use

#: A suspicion that nobody compares any more for so long has expired.
SILENT_SECONDS = 1800.0
#: Weights of the finding, chosen: that of one metric, and once confirmed that of a hang.
_SUSPECTED_WEIGHT, _CONFIRMED_WEIGHT = 0.5, ends.HANG.weight
_FOLLOWED = frozenset({IncidentState.SUSPECTED, IncidentState.OPEN, IncidentState.NEEDS_PERSON})


# Reading.


def take_metric(draft: Draft, signal: Signal) -> None:
    """A number of a machine. Where a rule calls the machine slow, it is followed from here on; else it is evidence."""
    metric, value = str(signal.data.get("name"))[:100], signal.data.get("value")
    is_number = isinstance(value, int | float) and not isinstance(value, bool) and -1e300 < value < 1e300
    if not is_number or not _may_follow(draft, signal) or metric not in numbers_of(draft.seen.rules):
        take_evidence(draft, signal)
        return
    assert isinstance(value, int | float)
    place = _place(draft, signal)
    if place is None:
        take_evidence(draft, signal)
        return
    slow = draft.slow or SlowMachines(draft.job.attempt)
    known = slow.of(metric, *place)
    verdict = judge_value(metric, float(value), 1, draft.seen.rules)
    if verdict is None and known is None:
        # No line in a timeline: of a large job all the others tell it too, again and again.
        draft.use(signal, Use.CONTEXT, f"{metric} {value:g}: no rule calls that slow")
        return
    one = known or Compared(metric, *place, rule="", reason="")
    if verdict is not None:
        one = Compared(metric, *place, verdict.rule, verdict.reason, one.looks)
    one = one.add(Comparison(signal.seen_at, float(value), verdict is not None))
    draft.slow = slow.put(one)
    draft.is_slow_new = True
    said = "slow" if verdict is not None else "well"
    draft.use(signal, Use.USED, f"{said} beside its peers; slow in {one.seen} of the last {len(one.looks)}")
    if verdict is not None and not (known and known.is_confirmed):
        _find(draft, signal, one)
        if draft.incident.is_open:  # else its opening tells it
            draft.note("evidence", _sentence(draft, one), signal=signal, actor=str(signal.source))


def _may_follow(draft: Draft, signal: Signal) -> bool:
    """Whether the job trains, the number is of this attempt, and no other trouble has its incident."""
    if draft.job.phase is not Phase.RUN_COMMAND:
        return False
    when = attempt_at(signal, draft.attempt, draft.past, draft.policy.late_uncertainty_seconds)
    if when != draft.job.attempt:
        return False
    if draft.incident.is_open:
        return draft.slow is not None and draft.slow.attempt == draft.job.attempt
    if draft.incident.was_open:
        return False  # it was closed a moment ago, in this very decision
    resolved = draft.before.incident
    return resolved is None or not (
        resolved.state is IncidentState.RESOLVED
        and resolved.resolution is Resolution.BY_PERSON
        and SLOW in resolved.causes
    )


def _place(draft: Draft, signal: Signal) -> tuple[str, str] | None:
    """Worker and node that a number is about, ("", "") = the job as a whole; None = no worker of it runs there."""
    names = {name: str(signal.data.get(name) or "") for name in ("pod_uid", "pod", "node")}
    if signal.worker is None and not any(names.values()):
        return "", ""
    present = [view for view in draft.before.incarnations if _is_present(draft, view)]
    found = [
        view
        for view in present
        if (signal.worker is not None and view.worker == signal.worker)
        or (names["pod_uid"] and view.pod_uid == names["pod_uid"])
    ]
    if not found and signal.worker is None and names["node"]:
        found = [view for view in present if view.node == names["node"]]
    if not found:
        return None
    first = min(found, key=lambda view: view.worker)
    return str(first.worker), first.node or names["node"]


def _is_present(draft: Draft, view: IncarnationView) -> bool:
    return view.is_current and view.ended_at is None and draft.job.worker(view.worker) is not None


def _find(draft: Draft, signal: Signal, one: Compared) -> None:
    """The finding as a fact in place of the one before: what the verdict is made of while nothing else happened."""
    draft.facts = [
        fact
        for fact in draft.facts
        if fact.category != SLOW or (fact.worker, fact.node) != (one.worker, one.node)
    ]
    draft.add_fact(
        Fact(
            signal=signal.id,
            at=one.looks[0].at,
            attempt=draft.job.attempt,
            role=Role.CAUSE,
            rule=one.rule,
            category=SLOW,
            text=_sentence(draft, one),
            weight=_CONFIRMED_WEIGHT if one.is_confirmed else _SUSPECTED_WEIGHT,
            worker=one.worker,
            node=one.node,
        )
    )


def _sentence(draft: Draft, one: Compared) -> str:
    machine = one.machine or f"a machine of {draft.job_name}, nobody tells which"
    return f"{machine[:1].upper()}{machine[1:]} is slow: {one.words}"


# Following.


def _slow_together(draft: Draft, one: Compared) -> int:
    """How many machines are slow now by the same number, where so many share what slows them; else 0."""
    assert draft.slow is not None
    alike = [each for each in draft.slow.compared if each.metric == one.metric and each.looks[-1].is_slow]
    values = [look.value for look in one.looks if look.is_slow]
    if not values or judge_value(one.metric, values[-1], len(alike), draft.seen.rules) is not None:
        return 0
    return len(alike)


def is_followed(draft: Draft) -> bool:
    """Whether the job trains and its incident is about a slow machine, and nothing else has happened since."""
    slow = draft.slow
    return (
        slow is not None
        and slow.attempt == draft.job.attempt
        and draft.job.phase is Phase.RUN_COMMAND
        and draft.incident.state in _FOLLOWED
    )


def look_at_slow(draft: Draft) -> None:
    """Bring the incident to what the comparisons say by now."""
    slow = draft.slow
    if slow is None or slow.attempt != draft.job.attempt or draft.job.phase is not Phase.RUN_COMMAND:
        return
    if not draft.incident.is_open:
        if not draft.is_slow_new or draft.incident.was_open:
            return
        _open(draft, slow)
    if not is_followed(draft):
        return
    if draft.is_slow_new:
        draft.is_evidence_new = True  # the comparisons are kept with the verdict
        slow = _without_cleared(draft, slow)
    if not slow.compared:
        _clear(draft)
        return
    for one in slow.confirmed:
        if slow.told_of(one.machine) is not None:
            _look_at_deadline(draft, one)
        elif one.looks[-1].is_slow and not _slow_together(draft, one):
            _tell(draft, one)
    if draft.incident.state is IncidentState.SUSPECTED:
        _wait_for_more(draft, slow)


def _open(draft: Draft, slow: SlowMachines) -> None:
    """A first slow comparison flags the job; nothing else is done."""
    one = slow.compared[-1]
    text = _sentence(draft, one)
    found = {(each.worker, each.node) for each in slow.compared}
    facts = [fact for fact in draft.facts if fact.category == SLOW and (fact.worker, fact.node) in found]
    draft.incident.begin(draft.now)
    draft.incident.passed(IncidentState.SUSPECTED, draft.now)
    draft.incident.join(SLOW, text)
    draft.incident.set(
        title=f"Suspected: {one.machine or 'a machine of the job'} is slow",
        severity=Severity.LOW,
        attempt=slow.attempt,
        seen_failed_at=one.looks[0].at,
    )
    draft.failed_attempt = slow.attempt
    draft.checked = {}
    draft.facts = facts  # those of an incident that is over stay there
    draft.note("incident_opened", f"Incident suspected: {text}", at=draft.now)
    draft.tell_first("incident_opened", since=len(draft.timeline) - 1)


def _without_cleared(draft: Draft, slow: SlowMachines) -> SlowMachines:
    """Numbers that were well often enough in a row are followed no more."""
    cleared = [one for one in slow.compared if one.is_cleared]
    if not cleared:
        return slow
    left = tuple(one for one in slow.compared if not one.is_cleared)
    machines = {one.machine for one in left}
    told = tuple(each for each in slow.told if each.machine in machines)
    draft.slow = slow = SlowMachines(slow.attempt, left, told)
    for one in cleared:
        if one.machine in machines or not left:
            continue  # by another number it is slow still, or all of it is over and said
        draft.facts = [
            fact
            for fact in draft.facts
            if fact.category != SLOW or (fact.worker, fact.node) != (one.worker, one.node)
        ]
        draft.note("evidence", f"{one.machine} keeps up with its peers again, by {one.metric}")
    return slow


def _clear(draft: Draft) -> None:
    """As fast as its peers again: nobody needs to look any more."""
    was_told = draft.incident.state is not IncidentState.SUSPECTED
    why = f"the last {NEEDED} comparisons in a row find no machine slow"
    for action in draft.open_actions():
        is_begun = action.state not in NOT_BEGUN
        change_action(draft, action, ActionState.DONE if is_begun else ActionState.CANCELLED, why)
    draft.bring_incident(
        IncidentState.RESOLVED, why,
        resolution=Resolution.RECOVERED if was_told else Resolution.FALSE_ALARM,
    )  # fmt: skip
    draft.settle("slow.cleared", why)


def _wait_for_more(draft: Draft, slow: SlowMachines) -> None:
    """Unconfirmed: nothing is done, and that is said with what it would cost."""
    one = slow.compared[-1]
    newest = max(each.looks[-1].at for each in slow.compared)
    due = newest + timedelta(seconds=SILENT_SECONDS)
    if draft.now >= due:
        why = f"nobody has compared it for {(draft.now - newest).total_seconds():.0f} s"
        draft.bring_incident(IncidentState.RESOLVED, why, resolution=Resolution.EXPIRED)
        draft.settle("slow.expired", why)
        return
    draft.look_at(due)
    if not draft.is_slow_new:
        return
    if together := _slow_together(draft, one):
        why = f"{together} machines of the job are slow at once by {one.metric}: they share what slows them"
        draft.incident.set(title=f"Suspected: {together} machines of the job are slow")
        draft.considered.append(Considered(str(ActionKind.EVICT_WORKER), why))
        draft.settle("slow.shared", why)
        return
    priced, missing = _price(draft, one, slow)
    if priced is not None:
        refused = f"{priced.why}: {priced.words}"
    else:
        refused = f"not confirmed, {NEEDED} slow comparisons are needed: {one.words}; not priced: {missing}"
    draft.considered.append(Considered(str(ActionKind.EVICT_WORKER), refused))
    draft.settle("slow.suspected", _sentence(draft, one))


def _price(draft: Draft, one: Compared, slow: SlowMachines) -> tuple[PricedChoice | None, str]:
    """The job is as slow as its slowest machine: what that costs is what is priced."""
    shares = [each.slowdown for each in slow.confirmed if each.slowdown is not None]
    if one.slowdown is not None:
        shares.append(one.slowdown)
    slowdown: Figure | None = max(shares, key=lambda figure: figure.value, default=None)
    return price_of_slow_machine(
        draft, slowdown=slowdown, seen=one.seen, looked=len(one.looks), needed=NEEDED
    )


def _tell(draft: Draft, one: Compared) -> None:
    """Confirmed: mark the machine, evict its worker at the cheaper moment; what cannot be had is asked of a person."""
    assert draft.slow is not None
    sentence = _sentence(draft, one)
    draft.incident.set(
        title=f"{one.machine[:1].upper()}{one.machine[1:]} is slow"
        if one.machine
        else "A machine of the job is slow"
    )
    draft.incident.raise_severity(Severity.MEDIUM)
    draft.settle("slow.confirmed", sentence)
    draft.considered.append(
        Considered(str(ActionKind.RESTART_PROCESS), "it would be as slow again on the same machine")
    )
    draft.considered.append(
        Considered(str(ActionKind.HOLD_NODE), "slow is no failure: no failed check, no device error")
    )
    if not one.machine:
        draft.slow = draft.slow.tell(Told(one.machine, ""))
        draft.considered.append(
            Considered(str(ActionKind.EVICT_WORKER), "nobody tells which machine is slow")
        )
        _hand_over(draft, one, f"{sentence}. Find the machine: compare the nodes of the job with each other")
        return
    brief = _brief(one)
    _want(draft, ActionKind.MARK_SLOW, f"{brief}. Others should avoid it", target=one.node or one.worker)
    chosen = _want_eviction(draft, one)
    when = "now" if chosen == SlowOption.EVICT_NOW else "right after the next checkpoint"
    cheapest = f" Cheapest: {chosen}." if chosen else ""
    cordon = f"cordon {one.node}, then " if one.node else ""
    _hand_over(
        draft,
        one,
        f"{brief}.{cheapest} Evicting is not installed: {cordon}delete the pod of {one.worker} {when}",
    )


def _hand_over(draft: Draft, one: Compared, why: str) -> None:
    confirmed = f"confirmed by {one.seen} of the last {len(one.looks)} comparisons"
    if draft.is_observing:
        draft.bring_incident(IncidentState.OPEN, f"{confirmed}; nobody obeys: {draft.observing_because}")
        return
    draft.bring_incident(IncidentState.OPEN, confirmed)
    ask(draft, why)
    draft.settle("slow.confirmed", why)


def _brief(one: Compared) -> str:
    share = one.slowdown
    costs = f" and costs the job {share.value:.0%} of its time" if share is not None else ""
    return f"{one.machine[:1].upper()}{one.machine[1:]} is slow{costs}"


def _want_eviction(draft: Draft, one: Compared) -> str:
    """Want it with its price, and remember what was said. Returns the option that was chosen, "" = not priced."""
    assert draft.slow is not None
    priced, missing = _price(draft, one, draft.slow)
    says = f"{priced.why[:1].upper()}{priced.why[1:]}" if priced is not None else f"Not priced: {missing}"
    why = f"{_brief(one)}. {says}"
    deadline = priced.deadline if priced is not None else None
    _want(
        draft, ActionKind.EVICT_WORKER, why, target=one.worker, priced=priced,
        deadline_seconds=(deadline - draft.now).total_seconds() if deadline is not None else 0.0,
    )  # fmt: skip
    chosen = str(priced.chosen) if priced is not None else ""
    draft.slow = draft.slow.tell(Told(one.machine, chosen, deadline))
    if deadline is not None:
        draft.look_at(deadline)
    return chosen


def _want(
    draft: Draft,
    kind: ActionKind,
    why: str,
    *,
    target: str,
    priced: PricedChoice | None = None,
    deadline_seconds: float = 0.0,
) -> None:
    refused = (
        draft.observing_because if draft.is_observing else "" if kind in INSTALLED_ACTIONS else NOT_INSTALLED
    )
    want(
        draft,
        kind,
        why,
        target=target,
        priced=priced,
        deadline_seconds=deadline_seconds,
        refused_because=refused,
    )


def _look_at_deadline(draft: Draft, one: Compared) -> None:
    """The safe point that was waited for has not come, or nobody used it: both moments are priced anew."""
    assert draft.slow is not None
    told = draft.slow.told_of(one.machine)
    if told is None or told.deadline is None:
        return
    if draft.now < told.deadline:
        draft.look_at(told.deadline)
        return
    draft.is_evidence_new = True
    priced, missing = _price(draft, one, draft.slow)
    if priced is None or priced.chosen != told.chosen:
        _want_eviction(draft, one)
    else:
        draft.slow = draft.slow.tell(Told(one.machine, str(priced.chosen), priced.deadline))
        draft.note("waiting", f"{one.machine} is still slow. Priced anew: {priced.words}")
        if priced.deadline is not None:
            draft.look_at(max(priced.deadline, draft.now + timedelta(seconds=60)))
    draft.settle("slow.priced_anew", missing or (priced.why if priced is not None else ""))
