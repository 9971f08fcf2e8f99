"""Numbering, repeating and bounding of messages."""

from typing import Any

from agent import wire
from agent.channel import encode
from agent.outbox import MAX_BATCH_BYTES, Outbox


def put(outbox: Outbox, type_: str = wire.MARK, **data: Any) -> None:
    outbox.put(type_, wire.COMMAND, 2, data)


def test_numbers_are_dense_and_kept_until_confirmed() -> None:
    outbox = Outbox(encode)
    outbox.begin_incarnation(1)
    outbox.name(job="llama", namespace="team-a", pod="llama-0")
    for step in range(3):
        put(outbox, step=step)
    first = outbox.batch()
    assert [(item["n"], item["data"]["step"], item["pod"]) for item in first] == [
        (1, 0, "llama-0"), (2, 1, "llama-0"), (3, 2, "llama-0")
    ]  # fmt: skip
    put(outbox, step=3)
    outbox.settle([1, 3])
    assert [(item["n"], item["data"]["step"]) for item in outbox.batch()] == [(2, 1), (4, 3)]
    assert outbox.unsent == 2
    assert not outbox.wait_until_empty(0.0)
    outbox.settle([2, 4])
    assert outbox.wait_until_empty(0.0)


def test_only_marks_are_dropped_and_counted() -> None:
    outbox = Outbox(encode, max_waiting=4)
    put(outbox, wire.ERROR)
    for step in range(4):
        put(outbox, step=step)
    put(outbox, wire.FINISH)
    put(outbox, wire.ACK)
    put(outbox, wire.QUIT)
    outbox.begin_incarnation(1)
    assert [item["type"] for item in outbox.batch()] == [wire.ERROR, wire.FINISH, wire.ACK, wire.QUIT]
    assert [item["n"] for item in outbox.batch()] == [1, 2, 3, 4]
    assert outbox.dropped == 4


def test_what_matters_is_kept_beyond_the_bound() -> None:
    outbox = Outbox(encode, max_waiting=2)
    for _ in range(5):
        put(outbox, wire.ERROR)
    assert outbox.unsent == 5
    assert outbox.dropped == 0


def test_batches_stay_below_both_limits() -> None:
    outbox = Outbox(encode)
    outbox.begin_incarnation(1)
    for _ in range(wire.MAX_MESSAGES + 1):
        put(outbox)
    assert len(outbox.batch()) == wire.MAX_MESSAGES
    outbox.settle(range(1, wire.MAX_MESSAGES + 2))
    outbox.batch()
    outbox.settle(range(1, wire.MAX_MESSAGES + 2))
    for _ in range(4):
        put(outbox, wire.ERROR, log_tail=["x" * 4000] * 64)
    sizes = []
    while batch := outbox.batch():
        sizes.append(len(encode(batch)))
        outbox.settle([item["n"] for item in batch])
    assert len(sizes) > 1
    assert max(sizes) <= MAX_BATCH_BYTES + 4096


def test_new_incarnation_numbers_the_unconfirmed_anew_in_order() -> None:
    outbox = Outbox(encode)
    outbox.begin_incarnation(1)
    for step in range(3):
        put(outbox, step=step)
    outbox.batch()
    outbox.settle([1])
    outbox.begin_incarnation(2)
    put(outbox, step=3)
    assert [(item["n"], item["data"]["step"]) for item in outbox.batch()] == [(1, 1), (2, 2), (3, 3)]
    outbox.begin_incarnation(2)
    assert [item["n"] for item in outbox.batch()] == [1, 2, 3]
