"""One signal after another: what each does to the draft of a decision. Source: DOMAIN sections 2 to 5.

Only two kinds of witness can move a job: an agent's message, whose sequence names the attempt, and the end
of an incarnation that is really gone. Everything else joins as evidence.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from recovery import fold_actions, fold_agents, fold_job, fold_lives
from recovery.draft import Draft
from recovery.failures import take_evidence
from recovery.signals import Signal, SignalKind
from recovery.slow_nodes import take_metric

_HANDLERS: Mapping[SignalKind, Callable[[Draft, Signal], None]] = {
    **fold_agents.HANDLERS,
    **fold_lives.HANDLERS,
    **fold_job.HANDLERS,
    **fold_actions.HANDLERS,
    SignalKind.METRIC: take_metric,
}


def fold(draft: Draft, signal: Signal) -> None:
    """Let one signal have its effect, and say what became of it. Never raises, whatever it holds."""
    _HANDLERS.get(signal.kind, take_evidence)(draft, signal)
