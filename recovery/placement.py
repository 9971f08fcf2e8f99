"""In which order an inbox is read, and to which attempt a report belongs. Source: DOMAIN sections 2 and 4."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from recovery import evidence
from recovery.records import AttemptView, IncarnationView, PastAttempt, SubjectState
from recovery.signals import Signal, SignalKind, WorkerKey

AGENT_MESSAGES = frozenset(
    {SignalKind.ACK, SignalKind.ERROR, SignalKind.FINISH, SignalKind.MARK, SignalKind.HANG}
)


def in_source_order(
    inbox: Sequence[Signal], *, sequence: int, uncertainty_seconds: float
) -> tuple[Signal, ...]:
    """The inbox in the order in which things happened.

    By source time; errors of one attempt that are closer than the clocks are exact are put deaths by
    signal first, then connection errors. Messages of a sequence that a go in this inbox begins come after it.

    Args:
        inbox: In any order.
        sequence: The job's sequence before the inbox.
        uncertainty_seconds: Least uncertainty of two clocks; signals may bring a larger one.
    """
    ordered = sorted(inbox, key=lambda signal: (signal.seen_at, signal.id))
    ordered = _causes_before_symptoms(ordered, uncertainty_seconds)
    ordered = _ends_before_successors(ordered)
    begun = [
        signal for signal in ordered if signal.kind in AGENT_MESSAGES and (signal.sequence or 0) > sequence
    ]
    last_go = max(
        (n for n, signal in enumerate(ordered) if signal.kind is SignalKind.ACTION_GO), default=None
    )
    if not begun or last_go is None:
        return tuple(ordered)
    before = [signal for signal in ordered[: last_go + 1] if signal not in begun]
    held_back = [signal for signal in ordered[: last_go + 1] if signal in begun]
    return (*before, *held_back, *ordered[last_go + 1 :])


def _causes_before_symptoms(ordered: list[Signal], uncertainty_seconds: float) -> list[Signal]:
    """Errors of one sequence within each other's uncertainty change places, by what they say."""
    result = list(ordered)
    places: dict[int | None, list[int]] = {}
    for n, signal in enumerate(ordered):
        if signal.kind is SignalKind.ERROR and signal.phase == "command":
            places.setdefault(signal.sequence, []).append(n)
    for of_one_sequence in places.values():
        start = 0
        while start < len(of_one_sequence):
            first = ordered[of_one_sequence[start]]
            end = start + 1
            while end < len(of_one_sequence):
                other = ordered[of_one_sequence[end]]
                bound = max(
                    uncertainty_seconds, first.offset_uncertainty_seconds, other.offset_uncertainty_seconds
                )
                if (other.seen_at - first.seen_at).total_seconds() > bound:
                    break
                end += 1
            together = of_one_sequence[start:end]
            by_kind = sorted((ordered[n] for n in together), key=_error_key)
            for n, signal in zip(together, by_kind, strict=True):
                result[n] = signal
            start = end
    return result


def _ends_before_successors(ordered: list[Signal]) -> list[Signal]:
    """The end of a life came before its successor, whatever the clocks say."""
    result: list[Signal] = []
    for signal in ordered:
        place = len(result)
        if signal.kind is SignalKind.INCARNATION_ENDED and signal.incarnation is not None:
            place = next(
                (
                    n
                    for n, other in enumerate(result)
                    if other.kind is SignalKind.ENROLLED and other.data.get("replaces") == signal.incarnation
                ),
                place,
            )
        result.insert(place, signal)
    return result


def _error_key(signal: Signal) -> tuple[int, datetime, int]:
    rule, _ = evidence.rule_of_process(signal.data)
    return (rule.order, signal.seen_at, signal.id)


def came_before(signal: Signal, attempt: AttemptView | None, uncertainty_seconds: float) -> bool:
    """Whether a report is of a time before the attempt began; at the border it belongs to the older one."""
    if attempt is None:
        return False
    uncertainty = timedelta(seconds=max(uncertainty_seconds, signal.offset_uncertainty_seconds))
    return signal.seen_at - uncertainty <= attempt.started_at


def attempt_at(
    signal: Signal, present: AttemptView | None, past: Sequence[PastAttempt], uncertainty_seconds: float
) -> int:
    """Number of the attempt in which something was seen, by its time; at a border the older one.

    Args:
        present: The newest attempt, None where none has begun (then 0).
        past: Attempts that have ended, oldest first.
    """
    if present is None:
        return 0
    if not came_before(signal, present, uncertainty_seconds):
        return present.n
    uncertainty = timedelta(seconds=max(uncertainty_seconds, signal.offset_uncertainty_seconds))
    older = [each for each in past if each.n < present.n]
    for each in reversed(older):
        if signal.seen_at - uncertainty > each.started_at:
            return each.n
    return older[0].n - 1 if older else present.n - 1


def attempt_of_sequence(sequence: int, present: AttemptView | None, past: Sequence[PastAttempt]) -> int:
    """Number of the attempt in which an order set was current: its own, or one that followed in it."""
    if present is None:
        return 0
    if sequence >= present.sequence:
        return present.n
    begun = [each.n for each in past if each.n < present.n and 0 < each.sequence <= sequence]
    return max(begun, default=present.n - 1)


def came_clearly_before(signal: Signal, attempt: AttemptView | None, uncertainty_seconds: float) -> bool:
    """Whether it is of a time before the attempt began, whatever the clocks are worth."""
    if attempt is None:
        return False
    uncertainty = timedelta(seconds=max(uncertainty_seconds, signal.offset_uncertainty_seconds))
    return signal.seen_at + uncertainty < attempt.started_at


@dataclass
class Lives:
    """Which incarnation of each worker is the present one, as the inbox is read."""

    views: dict[int, IncarnationView]
    present: dict[WorkerKey, int]

    @classmethod
    def before(cls, state: SubjectState, inbox: Sequence[Signal]) -> Lives:
        """The incarnations as they were before the inbox: enrolments in it are still to come."""
        coming = {signal.incarnation for signal in inbox if signal.kind is SignalKind.ENROLLED}
        views = {view.id: view for view in state.incarnations}
        present: dict[WorkerKey, int] = {}
        for view in sorted(state.incarnations, key=lambda view: view.id):
            if view.enrolled_at is not None and view.id not in coming:
                present[view.worker] = view.id
        return cls(views, present)

    def view(self, signal: Signal) -> IncarnationView | None:
        """The incarnation that a signal speaks of, by row id, else by pod uid and restart count."""
        if signal.incarnation is not None:
            return self.views.get(signal.incarnation)
        pod_uid, restart = signal.data.get("pod_uid"), signal.data.get("restart")
        of_pod = [view for view in self.views.values() if pod_uid and view.pod_uid == pod_uid]
        exact = [view for view in of_pod if view.restart_count == restart]
        unknown = [view for view in of_pod if view.restart_count is None]
        found = exact or unknown
        return max(found, key=lambda view: view.id) if found else None

    def is_fenced(self, worker: WorkerKey, incarnation: int | None) -> bool:
        """Whether a newer incarnation of the worker is there."""
        return incarnation is not None and incarnation < self.present.get(worker, incarnation)

    def of(self, worker: WorkerKey) -> IncarnationView | None:
        """The present incarnation of a worker; of one without agent the newest that the watch knows."""
        if worker in self.present:
            return self.views.get(self.present[worker])
        mine = [view for view in self.views.values() if view.worker == worker and view.is_current]
        return max(mine, key=lambda view: view.id) if mine else None

    def node(self, worker: WorkerKey, signal: Signal) -> str:
        """The node where it happened, "" when unknown."""
        view = self.view(signal) or self.of(worker)
        return view.node if view is not None else str(signal.data.get("node") or "")

    def end(self, incarnation: int, at: datetime) -> None:
        """Remember that this one has ended."""
        if view := self.views.get(incarnation):
            self.views[incarnation] = replace(view, ended_at=view.ended_at or at, is_running=False)
