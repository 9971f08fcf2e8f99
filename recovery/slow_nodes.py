"""A machine that makes a training job slow: suspected, confirmed, priced, told, and cleared. Source: DOMAIN section 8.

Nothing that happens here touches training: an unconfirmed suspicion changes nothing, and a confirmed one wants the
cheaper moment to evict. A failure meanwhile is recovered as always.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

from recovery import wording
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
from recovery.prices import PricedChoice, Room, SlowOption
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
    worker, node, workers = place
    known = slow.of(metric, worker, node)
    verdict = judge_value(metric, float(value), 1, draft.seen.rules)
    if verdict is None and known is None:
        # No line in a timeline: of a large job all the others tell it too, again and again.
        draft.use(signal, Use.CONTEXT, f"{metric} {value:g}: no rule calls that slow")
        return
    one = known or Compared(metric, worker, node, rule="", reason="", workers=workers)
    if verdict is not None:
        one = replace(one, rule=verdict.rule, reason=verdict.reason)
    one = one.add(Comparison(signal.seen_at, float(value), verdict is not None))
    draft.slow = slow.put(one)
    draft.is_slow_new = True
    said = "slow" if verdict is not None else "well"
    draft.use(signal, Use.USED, f"{said} beside its peers; slow in {one.seen} of the last {len(one.looks)}")
    if verdict is not None and not (known and known.is_confirmed):
        _find(draft, signal, one)
        if draft.incident.is_open:  # else its opening tells it
            is_told = known is not None and known.seen > 0
            says = f"Slow in {one.count_words}: {metric} {value:g}" if is_told else _sentence(draft, one)
            draft.note("evidence", says, signal=signal, actor=str(signal.source))


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


def _place(draft: Draft, signal: Signal) -> tuple[str, str, int] | None:
    """Who a number is about: the worker, or all that run on the node, with the node, and how many they are.

    ("", "", 1) = the job as a whole; None = no worker of it runs there.
    """
    names = {name: str(signal.data.get(name) or "") for name in ("pod_uid", "pod", "node")}
    if signal.worker is None and not any(names.values()):
        return "", "", 1
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
    keys = sorted({view.worker for view in found})
    return wording.together(keys), found[0].node or names["node"], len(keys)


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
    slow = one.is_slow if one.machine else f"a machine of {draft.job_name}, nobody tells which, is slow"
    return f"{_first_up(slow)}: {one.words}"


def _first_up(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}"


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
            _look_again(draft, one)
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
        title=f"Suspected: {one.is_slow if one.machine else 'a machine of the job is slow'}",
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
        keep = "keeps" if one.workers == 1 else "keep"
        draft.note("evidence", f"{_first_up(one.machine)} {keep} up with the others again, by {one.metric}")
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
        draft, slowdown=slowdown, seen=one.seen, looked=len(one.looks), needed=NEEDED, room=_room(draft, one)
    )


def _room(draft: Draft, one: Compared) -> Room:
    """Where else the machine's workers could run: on no machine that is slow itself."""
    gpus = draft.before.gpus // max(1, len(draft.job.active))
    world = draft.before.world
    if world is None or world.free_places is None or not gpus or not one.node:
        return Room(one.workers, gpus)
    slow = {each.node for each in draft.slow.compared if each.seen} if draft.slow is not None else set()
    taken = sum(world.free_places_on.get(node, 0) for node in sorted(slow | {one.node}))
    return Room(one.workers, gpus, max(0, world.free_places - taken))


def _tell(draft: Draft, one: Compared) -> None:
    """Confirmed: mark the machine, evict its worker at the cheaper moment; what cannot be had is asked of a person."""
    assert draft.slow is not None
    draft.incident.set(title=_first_up(one.is_slow) if one.machine else "A machine of the job is slow")
    draft.incident.raise_severity(Severity.MEDIUM)
    draft.settle("slow.confirmed", _sentence(draft, one))
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
        why = "Nobody tells which machine is slow. Find it: compare the nodes of the job with each other"
        _hand_over(draft, one, why)
        return
    _want(draft, ActionKind.MARK_SLOW, "Others should avoid it", target=one.node or one.worker)
    _advise(draft, one)


def _advise(draft: Draft, one: Compared) -> None:
    """Want the eviction, or say that it has no place to go to, and hand over to a person."""
    chosen = _want_eviction(draft, one)
    room = _room(draft, one)
    if room.is_missing:
        advice = (
            f"{_first_up(room.words)}: keep {'it' if one.workers == 1 else 'them'} there until that changes: "
            "evicted before, the whole job would stand still"
        )
    else:
        when = "now" if chosen == SlowOption.EVICT_NOW else "right after the next checkpoint"
        cheapest = f"Cheapest: {chosen}. " if chosen else ""
        if room.places is None:
            first = f"Make sure first that {room.needed} is there: without one the job stands still until there is. "
        else:
            first = f"{_first_up(room.words)}. "
        advice = f"{cheapest}{first}Evicting is not installed: {_by_hand(draft, one, when)}"
    _hand_over(draft, one, f"{_costs(one)}{advice}")


def _by_hand(draft: Draft, one: Compared, when: str) -> str:
    """What a person does in place of the desk. An eviction says that it is one, so it costs no retry."""
    name = draft.job_name.rpartition("/")[2]
    how = f" (kubectl drain {one.node} --pod-selector=job-name={name})" if one.node else ""
    if one.workers == 1:
        return f"evict its pod {when}{how}, do not delete it: a deleted pod counts as a failure"
    return f"evict their pods {when}{how}, do not delete them: a deleted pod counts as a failure"


def _hand_over(draft: Draft, one: Compared, why: str) -> None:
    confirmed = f"confirmed by {one.seen} of the last {len(one.looks)} comparisons"
    if draft.is_observing:
        draft.bring_incident(IncidentState.OPEN, f"{confirmed}; nobody obeys: {draft.observing_because}")
        return
    draft.bring_incident(IncidentState.OPEN, confirmed)
    ask(draft, why)
    draft.settle("slow.confirmed", why)


def _costs(one: Compared) -> str:
    share = one.slowdown
    costs = "costs" if one.workers == 1 else "cost"
    return (
        f"{'It' if one.workers == 1 else 'They'} {costs} the job {share.value:.0%} of its time. "
        if share is not None
        else ""
    )


def _want_eviction(draft: Draft, one: Compared) -> str:
    """Want it with its price, and remember what was said. Returns the option that was chosen, "" = not priced."""
    assert draft.slow is not None
    room = _room(draft, one)
    priced, missing = _price(draft, one, draft.slow)
    if priced is not None:
        says = _first_up(priced.why)
    else:
        says = f"{f'{_first_up(room.words)}. ' if room.is_missing else ''}Not priced: {missing}"
    deadline = priced.deadline if priced is not None else None
    _want(
        draft, ActionKind.EVICT_WORKER, says, target=one.worker, priced=priced,
        deadline_seconds=(deadline - draft.now).total_seconds() if deadline is not None else 0.0,
        refused_because=room.words if room.is_missing else "",
    )  # fmt: skip
    chosen = str(priced.chosen) if priced is not None else str(SlowOption.KEEP) if room.is_missing else ""
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
    refused_because: str = "",
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
        refused_because=refused_because or refused,
    )


def _look_again(draft: Draft, one: Compared) -> None:
    """What was told holds until a place comes or goes, or the safe point that was waited for is overdue."""
    assert draft.slow is not None
    told = draft.slow.told_of(one.machine)
    if told is None or not one.machine:
        return
    room = _room(draft, one)
    was_missing = told.chosen == SlowOption.KEEP
    if room.places is not None and room.is_missing is not was_missing and one.looks[-1].is_slow:
        draft.is_evidence_new = True
        draft.note("waiting", _first_up(room.words))
        for action in draft.open_actions(ActionKind.ASK_PERSON):
            change_action(draft, action, ActionState.SUPERSEDED, room.words)
        _advise(draft, one)
        return
    if told.deadline is None:
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
        draft.note("waiting", f"Still slow. Priced anew: {priced.words}")
        if priced.deadline is not None:
            draft.look_at(max(priced.deadline, draft.now + timedelta(seconds=60)))
    draft.settle("slow.priced_anew", missing or (priced.why if priced is not None else ""))
