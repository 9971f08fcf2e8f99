"""What a choice costs, in GPU-seconds: a restart, waiting against acting, resizing against waiting for a replacement.

Each option is a sum of named parts, so that a person can check it; money is added only where a price per GPU-hour
was given. Sources: DOMAIN sections 8, 11 and 12.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from enum import StrEnum
from typing import Any

from recovery.errors import BadInput
from recovery.figures import Basis, Figure, hours_in_words, modelled, not_negative, positive, share, weakest

HOUR_SECONDS = 3600.0


@dataclass(frozen=True, slots=True)
class GpuPrice:
    """What an hour of one GPU of a type costs: as of when, and who says so."""

    gpu_type: str
    per_gpu_hour: float
    currency: str
    as_of: date
    source: str


@dataclass(frozen=True, slots=True)
class Money:
    """An amount, and the price it was computed with."""

    amount: float
    price: GpuPrice

    def __str__(self) -> str:
        price = self.price
        return (
            f"{self.amount:,.2f} {price.currency} ({price.gpu_type} at {price.per_gpu_hour:g} per GPU-hour, "
            f"{price.source}, {price.as_of.isoformat()})"
        )


def money(gpu_hours: float, gpu_type: str, prices: Mapping[str, GpuPrice]) -> Money | None:
    """What so many GPU-hours cost; None where no price is given for the type."""
    price = prices.get(gpu_type)
    return None if price is None else Money(gpu_hours * price.per_gpu_hour, price)


@dataclass(frozen=True, slots=True)
class PricePart:
    """Seconds for which so many GPUs give nothing (or ``weight`` of it, in [0, 1])."""

    name: str
    seconds: float
    gpus: int
    basis: Basis
    weight: float = 1.0

    @property
    def gpu_seconds(self) -> float:
        """Its size."""
        return self.seconds * self.gpus * self.weight


@dataclass(frozen=True, slots=True)
class Price:
    """The price of one option: parts that add up. ``refused_because``: it cannot be had, whatever it costs."""

    option: str
    parts: tuple[PricePart, ...]
    refused_because: str = ""

    @property
    def gpu_seconds(self) -> float:
        """The sum of its parts."""
        return sum(part.gpu_seconds for part in self.parts)

    @property
    def gpu_hours(self) -> float:
        """The same in hours."""
        return self.gpu_seconds / HOUR_SECONDS

    @property
    def basis(self) -> Basis:
        """A price is a forecast: at best estimated."""
        return modelled(*(part.basis for part in self.parts))

    def as_plain(self) -> dict[str, Any]:
        """As JSON, for a stored decision."""
        plain: dict[str, Any] = {
            "option": self.option,
            "gpu_seconds": round(self.gpu_seconds, 3),
            "gpu_hours": round(self.gpu_hours, 6),
            "basis": str(self.basis),
            "parts": [
                {
                    "name": part.name,
                    "seconds": round(part.seconds, 3),
                    "gpus": part.gpus,
                    "basis": str(part.basis),
                    **({"weight": round(part.weight, 4)} if part.weight != 1 else {}),
                }
                for part in self.parts
            ],
        }
        if self.refused_because:
            plain["refused_because"] = self.refused_because
        return plain


@dataclass(frozen=True, slots=True)
class PricedChoice:
    """Options with their prices, and which is taken. ``chosen`` is an option's name, "" when none can be had.

    ``deadline``: when the chosen option must have had its effect; then it is priced again.
    """

    chosen: str
    why: str
    prices: tuple[Price, ...]
    deadline: datetime | None = None

    def price(self, option: str) -> Price:
        """The price of an option."""
        return next(price for price in self.prices if price.option == option)

    @property
    def words(self) -> str:
        """Every option with its GPU-hours and how they are known, for a sentence."""
        return ", ".join(
            f"{price.option.replace('_', ' ')} {hours_in_words(price.gpu_hours)} GPU-hours ({price.basis})"
            for price in self.prices
        )

    def as_plain(self) -> dict[str, Any]:
        """As JSON, for a stored decision: every option's price, not only the chosen one's."""
        return {
            "chosen": self.chosen,
            "why": self.why,
            "deadline": self.deadline.isoformat() if self.deadline else None,
            "options": [price.as_plain() for price in self.prices],
        }


def _gpus(gpus: int, name: str = "gpus") -> int:
    positive(name, gpus, "a number of GPUs", "give the GPUs that the job holds")
    return gpus


def _seconds(name: str, figure: Figure, meaning: str) -> float:
    return not_negative(name, figure.value, meaning, "give seconds, or 0 where there are none")


def _hours(cost: Price | PricePart) -> str:
    return hours_in_words(cost.gpu_seconds / HOUR_SECONDS)


# A restart.


def restart_price(
    *, gpus: int, steps_lost: Figure, step_seconds: Figure, restart_seconds: Figure, wait_seconds: float = 0.0,
    option: str = "restart_process",
) -> Price:  # fmt: skip
    """What a restart of all workers costs: what is computed again, the restart itself, and an ordered wait.

    Args:
        gpus: Of the whole job: none of them trains meanwhile.
        steps_lost: Since the newest committed checkpoint.
        step_seconds: Time of one step.
        restart_seconds: From the order until the last worker's first step.
        wait_seconds: Backoff or queue before it.
    Raises:
        BadInput: for a number below 0, or no GPU.
    """
    _gpus(gpus)
    again = _seconds("steps_lost", steps_lost, "the number of steps lost") * _seconds(
        "step_seconds", step_seconds, "the time of a step"
    )
    parts = [
        PricePart("computed again", again, gpus, weakest(steps_lost.basis, step_seconds.basis)),
        PricePart(
            "restart",
            _seconds("restart_seconds", restart_seconds, "the time of a restart"),
            gpus,
            restart_seconds.basis,
        ),
    ]
    if wait_seconds > 0:
        parts.append(PricePart("wait before it", wait_seconds, gpus, Basis.MEASURED))
    return Price(option, tuple(parts))


# A slow node.


class SlowOption(StrEnum):
    """What can be done about a slow node."""

    EVICT_NOW = "evict now"
    EVICT_AT_CHECKPOINT = "evict at the next safe point"
    KEEP = "keep it"


@dataclass(frozen=True, slots=True)
class Room:
    """What ``workers`` of ``gpus`` each need, and how many ``places`` for them are free elsewhere; None = not known."""

    workers: int
    gpus: int
    places: int | None = None

    @property
    def is_missing(self) -> bool:
        """Whether it is known that there is not enough."""
        return self.places is not None and self.places < self.workers

    @property
    def needed(self) -> str:
        """What must be free, in words."""
        one = f"a node with {self.gpus} free GPUs" if self.gpus else "a free place"
        return one if self.workers == 1 else f"room for {self.workers} workers of {self.gpus} free GPUs each"

    @property
    def words(self) -> str:
        """What is free, in words."""
        if self.places is None:
            return f"whether {self.needed} is there is not known"
        if not self.is_missing:
            return f"{self.needed} is there, as far as the desk sees"
        if self.workers == 1 or not self.places:
            return f"no other node has {self.gpus} free GPUs"
        return f"other nodes have room for {self.places} of the {self.workers} workers, {self.gpus} free GPUs each"


@dataclass(frozen=True, slots=True)
class SlowNode:
    """A node that makes a job slow.

    ``slowdown_share`` is the share of the job's time that it costs, in [0, 1): 1 - (step time of peers / step
    time now). ``seen`` of the last ``looked`` comparisons found it slow; ``needed`` of them confirm it. ``room`` for
    its workers elsewhere: None = not known.
    """

    gpus: int
    slowdown_share: Figure
    since_checkpoint_seconds: Figure  # progress that an eviction now would throw away
    to_checkpoint_seconds: Figure  # until the next one is committed, at the present pace
    restart_seconds: Figure
    seen: int
    looked: int
    needed: int = 3
    room: Room | None = None


def price_slow_node(slow: SlowNode, now: datetime, *, grace_share: float = 0.5) -> PricedChoice:
    """Evict a slow node now, or at the next safe point: the cheaper moment, both priced.

    Unconfirmed, nothing is evicted; nor where it is known that no other place is free, for then the whole job would
    stand still until one is. Where that is not known, a wait for a place is in no price, and that is said. The deadline
    of waiting is the expected commit plus ``grace_share`` of the wait: a checkpoint that is not there by then will
    perhaps never come, and the prices are computed again.

    Raises:
        BadInput: for shares outside of [0, 1] (a slowdown of 1 is a hang), times below 0, or no GPU.
    """
    gpus = _gpus(slow.gpus)
    slowdown = share(
        "slowdown_share",
        slow.slowdown_share.value,
        "the share of time that it costs",
        "1 would be a hang: price that",
    )
    since = _seconds("since_checkpoint_seconds", slow.since_checkpoint_seconds, "the time since a checkpoint")
    until = _seconds("to_checkpoint_seconds", slow.to_checkpoint_seconds, "the time to a checkpoint")
    restart = PricePart(
        "restart", _seconds("restart_seconds", slow.restart_seconds, "the time of a restart"), gpus,
        slow.restart_seconds.basis,
    )  # fmt: skip
    evict_now = Price(
        SlowOption.EVICT_NOW,
        (
            PricePart("progress since the last checkpoint", since, gpus, slow.since_checkpoint_seconds.basis),
            restart,
        ),
    )
    waiting = PricePart(
        "slow until the next checkpoint", until, gpus,
        weakest(slow.to_checkpoint_seconds.basis, slow.slowdown_share.basis), slowdown,
    )  # fmt: skip
    wait = Price(SlowOption.EVICT_AT_CHECKPOINT, (waiting, restart))
    if slow.seen < slow.needed:
        why = f"not confirmed: slow in {slow.seen} of the last {slow.looked} comparisons, {slow.needed} are needed"
        unconfirmed = tuple(Price(price.option, price.parts, why) for price in (evict_now, wait))
        return PricedChoice(SlowOption.KEEP, why, (Price(SlowOption.KEEP, (waiting,)), *unconfirmed))
    confirmed = f"confirmed: slow in {slow.seen} of the last {slow.looked} comparisons"
    deadline = now + timedelta(seconds=until * (1 + grace_share))
    room = slow.room
    if room is not None and room.is_missing:
        refused = tuple(Price(price.option, price.parts, room.words) for price in (evict_now, wait))
        why = f"{confirmed}; {room.words}: evicted, the whole job would stand still until there is"
        return PricedChoice(SlowOption.KEEP, why, (Price(SlowOption.KEEP, (waiting,)), *refused), deadline)
    unknown = (
        f"; {room.words}, and no wait for it is in these prices"
        if room is not None and room.places is None
        else ""
    )
    if evict_now.gpu_seconds < wait.gpu_seconds:
        why = (
            f"{confirmed}; waiting {until:.0f} s at {slowdown:.0%} slowdown costs {_hours(waiting)} GPU-hours, "
            f"what is computed again only {_hours(evict_now.parts[0])} GPU-hours{unknown}"
        )
        return PricedChoice(SlowOption.EVICT_NOW, why, (evict_now, wait))
    why = (
        f"{confirmed}; waiting {until:.0f} s at {slowdown:.0%} slowdown costs {_hours(waiting)} GPU-hours, "
        f"acting now {_hours(evict_now.parts[0])} GPU-hours that would be computed again{unknown}"
    )
    return PricedChoice(SlowOption.EVICT_AT_CHECKPOINT, why, (evict_now, wait), deadline)


# A hang.


class HangOption(StrEnum):
    """What can be done about a job that may hang."""

    ACT_NOW = "stop and restart now"
    WAIT = "wait for confirmation"


@dataclass(frozen=True, slots=True)
class Hang:
    """A job that makes no progress. ``judged_as`` names the stage of training by whose allowance it was judged.

    ``hang_chance`` in [0, 1]: that it is one, and not a long step; a confirmed one counts as 1.
    """

    gpus: int
    since_checkpoint_seconds: Figure
    restart_seconds: Figure
    still_seconds: Figure  # without progress so far
    confirm_after_seconds: Figure  # of standstill, when it counts as confirmed
    hang_chance: Figure
    is_confirmed: bool = False
    judged_as: str = "step"


def price_hang(hang: Hang, now: datetime) -> PricedChoice:
    """Act on a suspected hang now, or wait until it is confirmed. No checkpoint is coming, so waiting saves no work.

    Acting costs what is computed again and the restart, always; waiting costs the time until confirmation and then the
    same, if it is a hang, and nothing if it is not. The deadline of waiting is the moment of confirmation.

    Raises:
        BadInput: for a chance outside of [0, 1], times below 0, or no GPU.
    """
    gpus = _gpus(hang.gpus)
    chance = 1.0 if hang.is_confirmed else share(
        "hang_chance", hang.hang_chance.value, "the chance of a hang", "0.5 where nothing is known"
    )  # fmt: skip
    chance_basis = Basis.MEASURED if hang.is_confirmed else hang.hang_chance.basis
    still = _seconds("still_seconds", hang.still_seconds, "the time without progress")
    confirm = _seconds("confirm_after_seconds", hang.confirm_after_seconds, "the time until it is confirmed")
    left = confirm if hang.is_confirmed else max(0.0, confirm - still)  # confirmed: as long again
    again = _seconds("since_checkpoint_seconds", hang.since_checkpoint_seconds, "the time since a checkpoint")
    restart = _seconds("restart_seconds", hang.restart_seconds, "the time of a restart")

    def parts(weight: float, basis: Basis) -> tuple[PricePart, ...]:
        progress = weakest(hang.since_checkpoint_seconds.basis, basis)
        return (
            PricePart("progress since the last checkpoint", again, gpus, progress, weight),
            PricePart("restart", restart, gpus, weakest(hang.restart_seconds.basis, basis), weight),
        )

    waiting = PricePart(
        "standing still until it is confirmed", left, gpus,
        weakest(hang.confirm_after_seconds.basis, chance_basis), chance,
    )  # fmt: skip
    act = Price(HangOption.ACT_NOW, parts(1.0, Basis.MEASURED))
    wait = Price(HangOption.WAIT, (waiting, *parts(chance, chance_basis)))
    what = f"no progress for {still:.0f} s, judged as {hang.judged_as}"
    if hang.is_confirmed:
        return PricedChoice(
            HangOption.ACT_NOW, f"{what}: confirmed, and no checkpoint is coming", (act, wait)
        )
    if act.gpu_seconds < wait.gpu_seconds:
        why = f"{what}: at a chance of {chance:.0%}, waiting {left:.0f} s more costs more than acting now"
        return PricedChoice(HangOption.ACT_NOW, why, (act, wait))
    why = f"{what}: at a chance of {chance:.0%}, acting now costs more than waiting {left:.0f} s for confirmation"
    return PricedChoice(HangOption.WAIT, why, (act, wait), now + timedelta(seconds=left))


def confirmation_share(*, wait_seconds: float, act_seconds: float) -> float:
    """The chance of a hang above which acting now is cheaper than waiting ``wait_seconds`` for confirmation.

    ``act_seconds`` is what acting costs: progress since the checkpoint plus the restart. Raises BadInput below 0.
    """
    wait = not_negative("wait_seconds", wait_seconds, "the wait", "give what is left until confirmation")
    act = not_negative("act_seconds", act_seconds, "what acting costs", "give progress lost plus restart")
    return act / (act + wait) if act + wait else 0.0


# An elastic job.


class ElasticOption(StrEnum):
    """How an elastic job goes on after a loss."""

    PAUSE_AND_RESUME = "pause and resume"
    REPLICA_RESIZE = "replica resize"
    FULL_RESTART = "full restart"


@dataclass(frozen=True, slots=True)
class ElasticLoss:
    """A slice (or the head) of an elastic job is lost.

    ``replicas`` of them were training, each of ``gpus_per_replica``; ``lost`` of those are gone. ``tries`` of
    ``max_retries`` are used; ``timeout_seconds`` is how long the framework waits for a replacement, of which
    ``waited_seconds`` are over. With fewer than ``min_replicas`` it cannot train.
    ``batch_per_replica`` None = not known, then the batch after a resize is not shown.
    """

    replicas: int
    gpus_per_replica: int
    lost: int
    replacement_seconds: Figure
    since_checkpoint_seconds: Figure
    restore_seconds: Figure  # load the state, build the world, first step
    full_restart_seconds: Figure  # tear down, reschedule everything, restore, first step
    max_retries: int = 10
    tries: int = 0
    timeout_seconds: float = 300.0
    waited_seconds: float = 0.0
    can_reshard: bool = False
    min_replicas: int = 1
    is_head_lost: bool = False
    batch_per_replica: int | None = None


@dataclass(frozen=True, slots=True)
class ElasticChoice(PricedChoice):
    """Also the global batch before and after a resize, None while it is not known."""

    batch_before: int | None = None
    batch_after: int | None = None

    def as_plain(self) -> dict[str, Any]:
        """As JSON, for a stored decision."""
        return {
            **PricedChoice.as_plain(self),
            "batch_before": self.batch_before,
            "batch_after": self.batch_after,
        }


def price_elastic(loss: ElasticLoss, now: datetime) -> ElasticChoice:
    """Wait for the replacement, or go on smaller: the cheaper inside the framework's own limits, all priced.

    A resize goes without the lost replicas until their replacement is there, and restores a second time to take it in.
    Where neither can be had, a full restart is what is left; a lost head always means one.

    Raises:
        BadInput: for counts that do not fit, times below 0, or no GPU.
    """
    if not 0 <= loss.lost <= loss.replicas or (not loss.lost and not loss.is_head_lost):
        raise BadInput(
            f"{loss.lost} of {loss.replicas} replicas are lost: give between 1 and all of them, or a lost head",
            field="lost",
        )
    gpus = _gpus(loss.replicas * loss.gpus_per_replica)
    left = (loss.replicas - loss.lost) * loss.gpus_per_replica
    wait = _seconds("replacement_seconds", loss.replacement_seconds, "the time of a replacement")
    again = PricePart(
        "progress since the last checkpoint",
        _seconds("since_checkpoint_seconds", loss.since_checkpoint_seconds, "the time since a checkpoint"),
        gpus, loss.since_checkpoint_seconds.basis,
    )  # fmt: skip
    restore = _seconds("restore_seconds", loss.restore_seconds, "the time of a restore")
    waited = PricePart("wait for the replacement", wait, gpus, loss.replacement_seconds.basis)
    restored = PricePart("restore and first step", restore, gpus, loss.restore_seconds.basis)
    pause = Price(ElasticOption.PAUSE_AND_RESUME, (waited, restored, again), _no_pause(loss, wait))
    resize = Price(
        ElasticOption.REPLICA_RESIZE,
        (
            PricePart(
                "lost part, until its replacement is there", wait, gpus - left, loss.replacement_seconds.basis
            ),
            restored,
            PricePart("second restore, to take it in", restore, gpus, loss.restore_seconds.basis),
            again,
        ),
        _no_resize(loss, left),
    )
    full = Price(
        ElasticOption.FULL_RESTART,
        (
            PricePart(
                "full restart", _seconds("full_restart_seconds", loss.full_restart_seconds, "the time of a restart"),
                gpus, loss.full_restart_seconds.basis,
            ),
            again,
        ),
    )  # fmt: skip
    prices = (pause, resize, full)
    open_ = [price for price in (pause, resize) if not price.refused_because]
    before = loss.batch_per_replica * loss.replicas if loss.batch_per_replica else None
    after = before
    if not open_:
        why = (
            f"{pause.refused_because}; {resize.refused_because}"
            if not loss.is_head_lost
            else "the head is lost"
        )
        return ElasticChoice(ElasticOption.FULL_RESTART, why, prices, None, before, after)
    best = min(open_, key=lambda price: price.gpu_seconds)
    deadline = None
    if best is resize:
        after = loss.batch_per_replica * (loss.replicas - loss.lost) if loss.batch_per_replica else None
    else:
        deadline = now + timedelta(seconds=max(0.0, loss.timeout_seconds - loss.waited_seconds))
    return ElasticChoice(best.option, _elastic_why(best, pause, resize), prices, deadline, before, after)


def _no_pause(loss: ElasticLoss, wait: float) -> str:
    if loss.is_head_lost:
        return "the head is lost"
    if loss.tries >= loss.max_retries:
        return f"{loss.tries} of {loss.max_retries} retries are used"
    if wait + loss.waited_seconds > loss.timeout_seconds:
        so_far = f" more after {loss.waited_seconds:.0f} s" if loss.waited_seconds else ""
        return f"a replacement takes {wait:.0f} s{so_far}, the framework waits {loss.timeout_seconds:.0f} s"
    return ""


def _no_resize(loss: ElasticLoss, left: int) -> str:
    if loss.is_head_lost:
        return "the head is lost"
    if loss.tries >= loss.max_retries:
        return f"{loss.tries} of {loss.max_retries} retries are used"
    if not left:
        return "no replica is left"
    if (replicas := loss.replicas - loss.lost) < loss.min_replicas:
        return f"{replicas} of {loss.replicas} replicas left, it needs {loss.min_replicas}"
    if not loss.can_reshard:
        return "the checkpoint cannot be resharded"
    return ""


def _elastic_why(best: Price, pause: Price, resize: Price) -> str:
    other = resize if best is pause else pause
    if other.refused_because:
        return f"{other.option} cannot be had: {other.refused_because}"
    return f"{_hours(best)} GPU-hours against {_hours(other)} for {other.option}"
