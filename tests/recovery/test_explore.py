"""What must always hold of jobs, actions, requests, holds and the decide loop, in every state that they can reach."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from dataclasses import fields
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError, call_command

from recovery import draft_job
from recovery import phase_events as ev
from recovery.explore import report
from recovery.explore.catalog import FIRST_PROOF_STATES, SMALL, TITLES, full, model, models
from recovery.explore.channels import Channels
from recovery.explore.engine import Walk, walk
from recovery.explore.jobs import judge_state, judge_step, remember
from recovery.explore.mutants import MUTANTS, Mutant
from recovery.explore.processes import Processes, is_at_rest
from recovery.phases import TABLE, JobState, WorkerState, renumber, step, step_over
from recovery.signals import EndCause
from tests.recovery.explored import SETTINGS, walked

PAGE = Path(__file__).parents[2] / "docs" / "design" / "phases.md"


def is_documented(walk_: Walk, bounds: Sequence[str]) -> bool:
    """Whether the page of the phases tells this walk with its numbers."""
    numbers = " | ".join(
        f"{number:,}" for number in (walk_.states, walk_.concrete, walk_.transitions, walk_.depth, walk_.cut)
    )
    return f"| {walk_.model} | {bounds[0]} | {numbers} |" in PAGE.read_text()


@pytest.mark.parametrize(("name", "n"), SETTINGS, ids=str)
def test_every_property_holds_in_every_state(name: str, n: int) -> None:
    found, made = walked(name, n)
    print(f"{name}: {'; '.join(made.bounds)}: {report.met(found)}")
    assert found.violation is None, report.trace(found.violation)
    assert found.is_complete
    assert found.unsettled > 0, "the promise of liveness was asked of some state"
    assert is_documented(found, made.bounds), f"docs/design/phases.md tells other numbers than {found}"


MUTANTS_IN_MODELS = [(mutant, name) for mutant in MUTANTS.values() for name in mutant.models]


@pytest.mark.parametrize(
    ("mutant", "name"), MUTANTS_IN_MODELS, ids=[f"{mutant.name}-{name}" for mutant, name in MUTANTS_IN_MODELS]
)
def test_fault_is_found_with_and_without_reduction(mutant: Mutant, name: str) -> None:
    found = set()
    for made in models(name, SMALL[name], mutant):
        walks = [walk(made), walk(made, reduced=False)]
        if isinstance(made, Processes):
            walks.append(walk(exact(made)))
        told = {(each.violation.name, len(each.violation.trace)) for each in walks if each.violation}
        assert len(told) == (1 if walks[0].violation else 0), "the same property, by a trace as short"
        assert len({each.violation is None for each in walks}) == 1
        found |= {violation for violation, _ in told}
    assert found, f"{mutant.name} was not found: {mutant.sentence}"
    assert found == {mutant.broken}


@pytest.mark.parametrize("name", TITLES)
def test_every_property_is_broken_by_a_fault(name: str) -> None:
    """What nothing can break says nothing. A property of jobs is broken in one of their models or in both."""
    alike = set(FIRST_PROOF_STATES) if name in FIRST_PROOF_STATES else {name}
    broken = {mutant.broken for mutant in MUTANTS.values() if alike & set(mutant.models)}
    assert set(model(name, SMALL[name][0]).properties) == broken


def exact(made: Processes) -> Processes:
    """The same model, with every field kept that no later step reads."""
    return Processes(
        workers=len(made.keys), max_retry=made.max_retry, late_causes=made.late_causes, exact=True,
        step=made.step, judgement=made.judgement,
    )  # fmt: skip


def test_fields_that_no_later_step_reads_change_no_verdict() -> None:
    whole = walk(Processes(workers=1, max_retry=2, exact=True))
    assert (whole.violation, whole.is_complete) == (None, True)
    assert whole.states > walked("processes", 0)[0].states


@pytest.mark.parametrize(
    ("name", "n"),
    [(name, n) for name, n in SETTINGS if name in FIRST_PROOF_STATES and SMALL[name][n]["workers"] > 1],
)
def test_states_without_reduction_are_those_that_the_reduced_ones_stand_for(name: str, n: int) -> None:
    unreduced = walk(model(name, SMALL[name][n]), reduced=False)
    assert unreduced.violation is None
    assert unreduced.states == walked(name, n)[0].concrete


IN_CHANNELS = [mutant for mutant in MUTANTS.values() if "channels" in mutant.models]


def with_letters(mutant: Mutant, *, sealed: bool, workers: int, rise: int = 3) -> Walk:
    made = Channels(
        workers=workers, max_retry=1, rise=rise, sealed=sealed, step=step_over(mutant.table(TABLE)),
        judgement=mutant.judgement,
    )  # fmt: skip
    return walk(made, most_states=500_000)


@pytest.mark.parametrize("mutant", IN_CHANNELS, ids=lambda mutant: mutant.name)
def test_sealed_letters_show_what_plain_ones_show(mutant: Mutant) -> None:
    """With one worker; a whole walk of plain letters with two takes minutes."""
    sealed = with_letters(mutant, sealed=True, workers=1).violation
    plain = with_letters(mutant, sealed=False, workers=1).violation
    assert (sealed and sealed.name) == (plain and plain.name)


def test_most_faults_show_with_one_worker_already() -> None:
    found = [mutant for mutant in IN_CHANNELS if with_letters(mutant, sealed=True, workers=1).violation]
    assert len(found) > len(IN_CHANNELS) / 2


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("mutant", IN_CHANNELS, ids=lambda mutant: mutant.name)
def test_plain_letters_show_every_fault_of_channels(mutant: Mutant) -> None:
    plain = with_letters(mutant, sealed=False, workers=2, rise=4).violation
    assert plain is not None
    assert plain.name == mutant.broken


def test_nothing_is_broken_where_letters_are_plain() -> None:
    plain = walk(Channels(workers=1, max_retry=1, rise=3, sealed=False))
    assert (plain.violation, plain.is_complete) == (None, True)
    assert plain.states > walk(Channels(workers=1, max_retry=1, rise=3)).states


def test_states_are_packed_without_loss() -> None:
    """What unpacking gives is production's normal form of the job; a field that is new there is missed here."""
    made = Processes(workers=2, max_retry=1, exact=True)
    seen = layer = {made.start()}
    for _ in range(8):
        layer = {move.state for state in layer for move in made.moves(state, reduced=True)} - seen
        seen = seen | layer
    assert len(seen) > 500
    assert {field.name for field in fields(JobState)} == {
        "phase", "workers", "max_retry", "recover_count", "sequence", "run", "attempt", "attempt_sequence",
        "protected", "reason", "protection_due", "quit_due", "cause_open",
    }  # fmt: skip
    assert {field.name for field in fields(WorkerState)} == {
        "key", "inner_phase", "enrolled", "finished", "retries", "restarted", "must_exit", "retired", "departed",
        "last_sequence", "handled", "last_failure_reason",
    }  # fmt: skip
    for state in seen:
        job = made.codec.job(state)
        assert made.codec.pack(job, made.codec.record(state), made.codec.extras(state)) == state
        assert renumber(job) == job


@pytest.mark.parametrize(
    ("workers", "layers", "fault"),
    [(1, 13, ""), (1, 13, "late-cause-ignored"), (2, 6, ""), (2, 6, "must-exit-ignored")],
)
def test_what_is_kept_of_a_job_for_all_its_records_changes_no_move(
    workers: int, layers: int, fault: str
) -> None:
    """The model asks production once for each job and event; here it is asked anew for each record, too."""
    setting = {"workers": workers, "max_retry": 2}
    made = model("processes", setting, MUTANTS[fault] if fault else None)
    assert isinstance(made, Processes)
    seen = layer = {made.start()}
    for _ in range(layers):
        following = {move.state for state in layer for move in made.moves(state, reduced=True)}
        layer = {made.canonical(state) for state in following} - seen
        seen = seen | layer
    assert len({made.codec.job_part(state) for state in seen}) < len(seen), (
        "jobs are met with several records"
    )
    for state in seen:
        job, record = made.codec.job(state), made.codec.record(state)
        for move in made.moves(state, reduced=False):
            assert isinstance(move.label, ev.Event)
            result = made.step(job, move.label)
            after = remember(record, job, move.label, result)
            assert move.state == made.codec.pack(result.state, after)
            assert move.broken == (
                judge_step(made.judgement, record, job, move.label, result)
                or judge_state(made.judgement, after, result.state)
            )
            if move.state != state:
                assert move.at_rest is is_at_rest(job, record, move.label)


def test_step_that_is_walked_is_the_one_that_decisions_call() -> None:
    assert draft_job.step is step
    assert Processes().step is step
    assert Channels().step is step


NEVER_COUNT = [cause for cause in EndCause if not cause.counts and cause is not EndCause.COMPLETED]
COUNT = [cause for cause in EndCause if cause.counts and cause is not EndCause.REPLACED]


@pytest.mark.parametrize(
    ("walked_cause", "alike"), [(EndCause.PREEMPTED, NEVER_COUNT), (EndCause.CRASHED, COUNT)]
)
def test_cause_that_is_walked_stands_for_all_that_count_alike(
    walked_cause: EndCause, alike: list[EndCause]
) -> None:
    made = Processes(workers=1, max_retry=2)
    seen = layer = {made.start()}
    while layer:
        layer = {move.state for state in layer for move in made.moves(state, reduced=True)} - seen
        seen = seen | layer
    assert len(alike) > 3

    def told(state: int, cause: EndCause) -> tuple[Any, ...]:
        result = step(made.codec.job(state), ev.IncarnationEnded(made.keys[0], cause))
        return renumber(result.state), result.orders, result.count is None, result.use, result.row

    for state in seen:
        assert {told(state, cause) for cause in alike} == {told(state, walked_cause)}


def test_trace_is_a_table_of_what_happened() -> None:
    made = next(iter(models("processes", ({"workers": 1, "max_retry": 2},), MUTANTS["preemption-counts"])))
    found = walk(made).violation
    assert found is not None
    text = report.trace(found)
    assert [line.event for line in found.trace] == [
        "",
        "worker 0 enrolls a new life",
        "worker 0 sends ACK bootcheck of sequence 2",
        "worker 0 ends: preempted",
    ] or found.trace[-1].event.startswith("worker 0 ends: crashed")
    rows = text.splitlines()[4:]
    assert len(rows) == len(found.trace)
    assert rows[0].startswith("0 | (start)")
    assert "RunCommand" in rows[2]
    assert text.startswith("BROKEN: counted_by_cause: preemption, maintenance, our own ends,")


def test_cycle_is_told_with_the_row_from_which_it_repeats() -> None:
    made = next(
        iter(models("processes", ({"workers": 1, "max_retry": 1},), MUTANTS["checked-again-and-again"]))
    )
    found = walk(made).violation
    assert found is not None
    assert found.name == "trains_or_ends"
    assert "The rows marked > repeat for ever" in report.trace(found) or found.cycle_from is None


# The command.


def run(**options: Any) -> str:
    out = StringIO()
    call_command("explore", stdout=out, **options)
    return out.getvalue()


def test_command_says_states_transitions_depth_and_seconds() -> None:
    text = run(small=True, model="actions")
    assert re.search(
        r"\n  2,179 states, [\d,]+ transitions, depth \d+, [\d.]+ s\n  7 properties hold\n", text
    )
    assert "two executors, at most 2 tries" in text
    assert text.endswith("every property holds in every state that was met\n")


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (
            {"small": True, "workers": 5, "model": "processes"},
            "--small walks settings of its own: leave --workers out",
        ),
        ({"small": True, "max_retry": 2}, "leave --max-retry out"),
        ({"mutant": "must-exit-ignored", "workers": 3}, "--mutant walks settings of its own"),
        (
            {"model": "holds", "workers": 2, "max_retry": 1},
            "one size whatever the job's: leave --workers and --max",
        ),
    ],
)
def test_a_size_that_would_say_nothing_is_refused(options: dict[str, Any], says: str) -> None:
    with pytest.raises(CommandError, match=says):
        run(**options)


def test_walk_is_told_beside_the_first_proof_and_with_what_is_cut() -> None:
    found, made = walked("channels", 0)
    assert re.fullmatch(
        r"[\d,]+ states for [\d,]+ that differ by the names of workers, [\d,]+ transitions, depth \d+, "
        r"[\d,]+ cut at the bound, 1\.5 s",
        report.met(found, 1.5),
    )
    beside = report.beside_first_proof(found)
    assert beside.startswith(
        "the first proof of this design met 44,826 states in this model, this walk 6,027; fewer, because"
    )
    assert "at most 2 messages in flight a worker" in made.bounds[1]
    assert "sequences up to first + 4 = 5" in made.bounds


def test_command_finds_a_mutant_and_prints_its_trace() -> None:
    text = run(mutant="no-second-look")
    assert "BROKEN: no_wake_lost" in text
    assert "finds the subject held and leaves" in text
    assert "found, as no_wake_lost" in text


def test_command_lists_every_mutant() -> None:
    text = run(mutants=True)
    assert [name for name in MUTANTS if f"| {name} |" not in text] == []


def test_command_refuses_what_would_not_end() -> None:
    with pytest.raises(CommandError, match="1 to 5 workers"):
        run(workers=9)


def test_command_names_where_a_mutant_belongs() -> None:
    with pytest.raises(CommandError, match="requester-counts is a fault of requests"):
        run(mutant="requester-counts", model="holds")


# Full size.


@pytest.mark.long
@pytest.mark.timeout(4 * 3600)
@pytest.mark.parametrize("name", TITLES)
def test_every_property_holds_in_every_state_at_full_size(name: str) -> None:
    for made in models(name, full(name, workers=3, max_retry=2)):
        started = time.process_time()
        found = walk(made)
        told = report.met(found, time.process_time() - started)
        print(f"{name}: {'; '.join(made.bounds)}: {told}; {report.beside_first_proof(found)}")
        assert found.violation is None, report.trace(found.violation)
        assert found.is_complete
        assert found.concrete >= FIRST_PROOF_STATES.get(name, 0)
        assert is_documented(found, made.bounds), f"docs/design/phases.md tells other numbers than {found}"


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_several_workers_with_several_retries_are_sound_without_reduction_too() -> None:
    made = Processes(workers=2, max_retry=1, exact=True)
    assert walk(made, reduced=False).violation is None
