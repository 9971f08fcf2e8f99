"""How often to save: intervals, their waste, and what they cost the store and the drives.

C is the time for which training stands still during a save, T the compute time between two saves, M the time
between failures that interrupt the job, R the time of a restart. Sources: Young 1974 (first order); Daly 2006
(higher order); DOMAIN section 11.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from recovery.figures import Basis, Figure, modelled, not_negative, positive

#: A T/M above this: the models assume that a failure within an interval is rare, and it no longer is.
MOST_INTERVAL_OVER_MTBF = 0.2
DAY_SECONDS = 86_400.0
YEAR_DAYS = 365.25


def young_seconds(checkpoint_seconds: float, mtbf_seconds: float) -> float:
    """Young's interval sqrt(2CM), first order. Raises BadInput for times that are not above 0."""
    _check(checkpoint_seconds, mtbf_seconds)
    return math.sqrt(2 * checkpoint_seconds * mtbf_seconds)


def daly_seconds(checkpoint_seconds: float, mtbf_seconds: float) -> float:
    """Daly's higher-order interval; M itself where a save takes 2M or longer. Raises BadInput like the others."""
    _check(checkpoint_seconds, mtbf_seconds)
    if checkpoint_seconds >= 2 * mtbf_seconds:
        return mtbf_seconds
    ratio = checkpoint_seconds / (2 * mtbf_seconds)
    root = math.sqrt(2 * checkpoint_seconds * mtbf_seconds)
    return root * (1 + math.sqrt(ratio) / 3 + ratio / 9) - checkpoint_seconds


def save_inclusive_seconds(checkpoint_seconds: float, mtbf_seconds: float) -> float:
    """The form sqrt(2CM + C²), often quoted as Daly's, which it is not. Raises BadInput like the others.

    It is what minimizes (T + C)/T · (1 + (T + C)/2M): first order, with failures that strike during the save too.
    """
    _check(checkpoint_seconds, mtbf_seconds)
    return math.sqrt(2 * checkpoint_seconds * mtbf_seconds + checkpoint_seconds**2)


def waste_share(
    interval_seconds: float, checkpoint_seconds: float, mtbf_seconds: float, restart_seconds: float = 0.0
) -> float:
    """Time that saving, computing again and restarting take, over useful time: C/T + (T/2 + R)/M.

    It can be above 1: then the job does not get on. Raises BadInput for times that are not above 0 (R: below 0).
    """
    _check(checkpoint_seconds, mtbf_seconds)
    positive(
        "interval_seconds",
        interval_seconds,
        "the time between two saves",
        "give the compute time between them",
    )
    not_negative(
        "restart_seconds",
        restart_seconds,
        "the time of a restart",
        "give it as measured, or 0 to leave it out",
    )
    saving = checkpoint_seconds / interval_seconds
    return saving + (interval_seconds / 2 + restart_seconds) / mtbf_seconds


def _check(checkpoint_seconds: float, mtbf_seconds: float) -> None:
    positive(
        "checkpoint_seconds", checkpoint_seconds, "the time of a save",
        "give the seconds for which training stands still, as the log of a save tells them",
    )  # fmt: skip
    positive(
        "mtbf_seconds", mtbf_seconds, "the time between failures",
        "give the job's own (node MTBF / nodes), or leave it to the prior of a new cluster",
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Store:
    """What saves are written to. None = not known, then the figure that needs it is left out.

    ``kept`` is how many checkpoints stay; ``endurance_bytes`` the drive's rated total writes (TBW);
    ``drives`` over how many a save is spread; ``write_amplification`` bytes that the flash writes for one of ours.
    """

    write_bytes_per_second: float | None = None
    capacity_bytes: float | None = None
    kept: int = 1
    drives: int | None = None
    drive_bytes: float | None = None
    endurance_bytes: float | None = None
    write_amplification: float = 1.0


@dataclass(frozen=True, slots=True)
class WriteLoad:
    """What an interval writes. Shares in [0, …); None = the store does not say enough.

    ``bandwidth_share`` is the mean over time: a save itself runs at the store's full speed. A
    ``drive_writes_per_day`` of 1 fills each drive once a day.
    """

    bytes_a_day: float
    saves_a_day: float
    bandwidth_share: float | None = None
    capacity_share: float | None = None
    drive_writes_per_day: float | None = None
    endurance_share_a_year: float | None = None
    endurance_years: float | None = None


def write_load(
    interval_seconds: float, checkpoint_seconds: float, checkpoint_bytes: float, store: Store | None = None
) -> WriteLoad:
    """What saving ``checkpoint_bytes`` after every ``interval_seconds`` of compute writes. Raises BadInput."""
    store = store or Store()
    positive(
        "interval_seconds",
        interval_seconds,
        "the time between two saves",
        "give the compute time between them",
    )
    not_negative("checkpoint_seconds", checkpoint_seconds, "the time of a save", "give it as measured")
    positive("checkpoint_bytes", checkpoint_bytes, "a checkpoint's size", "give the bytes of all its shards")
    for name in ("write_bytes_per_second", "capacity_bytes", "drives", "drive_bytes", "endurance_bytes"):
        value = getattr(store, name)
        if value is not None:
            positive(name, value, "what the store can take", "give it as rated or measured, or leave it out")
    positive(
        "write_amplification", store.write_amplification, "the flash's own factor", "1 where it is not known"
    )
    not_negative("kept", store.kept, "the number of checkpoints that stay", "give how many are not deleted")
    saves = DAY_SECONDS / (interval_seconds + checkpoint_seconds)
    day = saves * checkpoint_bytes
    flash = day * store.write_amplification / store.drives if store.drives else None
    year = flash * YEAR_DAYS if flash else None
    worn = year / store.endurance_bytes if year and store.endurance_bytes else None
    return WriteLoad(
        bytes_a_day=day,
        saves_a_day=saves,
        bandwidth_share=day / DAY_SECONDS / store.write_bytes_per_second
        if store.write_bytes_per_second
        else None,
        capacity_share=store.kept * checkpoint_bytes / store.capacity_bytes if store.capacity_bytes else None,
        drive_writes_per_day=flash / store.drive_bytes if flash and store.drive_bytes else None,
        endurance_share_a_year=worn,
        endurance_years=1 / worn if worn else None,
    )


@dataclass(frozen=True, slots=True)
class IntervalForm:
    """One answer to "how often": its name, the interval, and its waste at the job's C, M and R."""

    name: str
    interval_seconds: float
    waste_share: float


@dataclass(frozen=True, slots=True)
class CheckpointPlan:
    """The interval that is advised for a job, beside the other forms and the present one.

    ``basis`` is at best estimated: the interval is a model's. ``interval_steps`` is None while no step time is
    known, and never below 1. ``present`` is how it is set now, None where that is not known.
    """

    checkpoint_seconds: Figure
    mtbf_seconds: Figure
    restart_seconds: Figure
    forms: tuple[IntervalForm, ...]
    advised: IntervalForm
    basis: Basis
    interval_steps: int | None = None
    present: IntervalForm | None = None
    load: WriteLoad | None = None
    warnings: tuple[str, ...] = ()

    @property
    def gets_on(self) -> bool:
        """Whether the job makes progress with the advised interval; without, no interval helps."""
        return self.advised.waste_share < 1

    def form(self, name: str) -> IntervalForm:
        """A form by name."""
        return next(form for form in self.forms if form.name == name)


YOUNG, DALY, SAVE_INCLUSIVE, PRESENT = "Young", "Daly, higher order", "save-inclusive", "present setting"


def plan_checkpoints(
    checkpoint_seconds: Figure,
    mtbf_seconds: Figure,
    restart_seconds: Figure,
    *,
    step_seconds: Figure | None = None,
    present_interval_seconds: Figure | None = None,
    checkpoint_bytes: Figure | None = None,
    store: Store | None = None,
) -> CheckpointPlan:
    """What to set, from what is known of a job. Daly's form is advised: it stays right where saves are long.

    Raises:
        BadInput: for a time that is not above 0 (restart: below 0), naming it and what to do.
    """
    c, m, r = checkpoint_seconds.value, mtbf_seconds.value, restart_seconds.value
    intervals = {
        YOUNG: young_seconds(c, m),
        DALY: daly_seconds(c, m),
        SAVE_INCLUSIVE: save_inclusive_seconds(c, m),
    }
    forms = tuple(IntervalForm(name, t, waste_share(t, c, m, r)) for name, t in intervals.items())
    advised = next(form for form in forms if form.name == DALY)
    present = None
    if present_interval_seconds is not None:
        t = present_interval_seconds.value
        present = IntervalForm(PRESENT, t, waste_share(t, c, m, r))
    steps = None
    if step_seconds is not None:
        positive(
            "step_seconds", step_seconds.value, "the time of a step", "give it as the training log tells it"
        )
        steps = max(1, round(advised.interval_seconds / step_seconds.value))
    load = None
    if checkpoint_bytes is not None:
        load = write_load(advised.interval_seconds, c, checkpoint_bytes.value, store)
    return CheckpointPlan(
        checkpoint_seconds=checkpoint_seconds,
        mtbf_seconds=mtbf_seconds,
        restart_seconds=restart_seconds,
        forms=forms,
        advised=advised,
        basis=modelled(checkpoint_seconds.basis, mtbf_seconds.basis, *([restart_seconds.basis] if r else [])),
        interval_steps=steps,
        present=present,
        load=load,
        warnings=tuple(_warnings(advised, present, m, load)),
    )


def _warnings(
    advised: IntervalForm, present: IntervalForm | None, mtbf_seconds: float, load: WriteLoad | None
) -> list[str]:
    found = []
    for form in (advised, present):
        if form is None:
            continue
        ratio = form.interval_seconds / mtbf_seconds
        advice = "Save more often." if form is not advised else "Make saves shorter, or the machines better."
        if ratio > MOST_INTERVAL_OVER_MTBF:
            found.append(
                f"{form.name}: the interval is {ratio:.2f} of the time between failures; above "
                f"{MOST_INTERVAL_OVER_MTBF:g} these forms no longer hold. {advice}"
            )
        if form.waste_share < 1:
            continue
        if form is advised:
            found.append(
                f"No interval helps: saving, computing again and restarting take {form.waste_share:.1f} times as long "
                "as training; the job does not get on. Make saves shorter, use fewer nodes, or better ones."
            )
        else:
            found.append(
                f"{form.name}: saving and computing again take more time than training; the job does not get on."
            )
    if load and load.bandwidth_share is not None and load.bandwidth_share > 1:
        found.append(f"The store would have to write {load.bandwidth_share:.1f} times what it can.")
    if load and load.capacity_share is not None and load.capacity_share > 1:
        found.append(f"The checkpoints that stay need {load.capacity_share:.1f} times the store's room.")
    if load and load.endurance_years is not None and load.endurance_years < 1:
        found.append(
            f"The drives reach their rated writes after {load.endurance_years * YEAR_DAYS:.0f} days."
        )
    return found
