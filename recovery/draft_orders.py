"""Orders for the agents, as the phase machine wants them, with what they tell."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agent import wire
from recovery.draft import Draft
from recovery.phases import Order, OrderKind
from recovery.records import OrderWanted

_ORDER_WORDS = {
    OrderKind.CHECK: "check the machine",
    OrderKind.RUN: "start training",
    OrderKind.STOP: "stop training, run quick checks",
    OrderKind.EXIT: "leave the container",
    OrderKind.FINISH: "all finished, leave",
}


def write_order(draft: Draft, order: Order) -> None:
    """Want the order, and say whom it tells what."""
    draft.orders.append(OrderWanted(order.sequence, order.kind.phase, order.targets, _data_of(draft, order)))
    whom = "all workers" if order.targets is None else ", ".join(str(key) for key in order.targets)
    draft.note(
        "order_written",
        f"Order {order.sequence} to {whom}: {_ORDER_WORDS[order.kind]}",
        order=str(order.kind),
        sequence=order.sequence,
    )


def _data_of(draft: Draft, order: Order) -> Mapping[str, Any]:
    match order.kind:
        case OrderKind.CHECK:
            return {"environment": True, "checks": ["quick"]}
        case OrderKind.RUN:
            resume = draft.newest_committed()
            return {
                "attempt": draft.job.attempt,
                "resume": {"step": resume.step, "path": resume.path} if resume else None,
            }
        case OrderKind.STOP:
            return {"stop": True, "checks": ["quick"], "grace_seconds": draft.before.stop_grace_seconds}
        case OrderKind.EXIT:
            return {"exit": True, "code": wire.EXIT_CHECK_FAILED, "reason": order.reason}
        case OrderKind.FINISH:
            return {"finish": True}
