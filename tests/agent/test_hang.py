"""When a standstill is suspected."""

from agent.hang import CHECKPOINT_SECONDS, EVALUATION_SECONDS, UNKNOWN_STEP_SECONDS, HangWatch
from agent.progress import Progress

T = 1_000_000.0


def progress(*lines: tuple[float, str]) -> Progress:
    found = Progress(lambda mark, data, at: None, lambda data, at: None)
    for at, line in lines:
        found.feed(line.encode(), T + at)
    return found


def test_ten_step_times_and_at_least_the_minimum() -> None:
    stepping = progress((0, "step 1/9 | 5.0 s/step"))
    watch = HangWatch(min_seconds=30)
    assert watch.look(stepping, T, T + 49) is None
    assert watch.look(stepping, T, T + 50) == {
        "seconds_since_progress": 50.0,
        "step": 1,
        "confirmed": False,
        "judged_as": "step",
        "allowed_seconds": 50.0,
    }
    quick = progress((0, "step 1/9 | 0.1 s/step"))
    assert watch.look(quick, T, T + 29) is None
    assert watch.look(quick, T, T + 30) is not None


def test_each_standstill_is_told_once() -> None:
    stepping = progress((0, "step 1/9 | 1.0 s/step"))
    watch = HangWatch(min_seconds=1)
    assert watch.look(stepping, T, T + 20) is not None
    assert watch.look(stepping, T, T + 30) is None
    stepping.feed(b"step 2/9 | 1.0 s/step", T + 40)
    assert watch.look(stepping, T, T + 41) is None
    assert watch.look(stepping, T, T + 60) is not None


def test_first_step_may_take_sixty_times_as_long() -> None:
    watch = HangWatch(min_seconds=1)
    watch.look(progress((0, "step 1/9 | 1.0 s/step")), T, T)
    again = progress((0, "rendezvous complete: world 3, 0.2 s"))
    assert watch.look(again, T, T + 59) is None
    assert watch.look(again, T, T + 60) is not None


def test_first_step_ever_has_the_longest_time() -> None:
    start = progress((0, "rendezvous complete: world 3, 0.2 s"))
    watch = HangWatch(min_seconds=1)
    assert watch.look(start, T, T + UNKNOWN_STEP_SECONDS - 1) is None
    assert watch.look(start, T, T + UNKNOWN_STEP_SECONDS) is not None


def test_checkpoint_has_a_time_of_its_own() -> None:
    saving = progress((0, "step 1/9 | 1.0 s/step"), (1, "saving checkpoint step 1"))
    watch = HangWatch(min_seconds=1)
    assert watch.look(saving, T, T + CHECKPOINT_SECONDS - 1) is None
    assert watch.look(saving, T, T + CHECKPOINT_SECONDS) is not None


def test_checkpoint_that_was_begun_and_never_ended_excuses_no_later_standstill() -> None:
    """R33: a dangling begin is forgotten when its time is over, and with its run at once."""
    stepping = progress((0, "saving checkpoint step 1"), (CHECKPOINT_SECONDS, "step 2/9 | 1.0 s/step"))
    watch = HangWatch(min_seconds=1)
    assert watch.look(stepping, T, T + CHECKPOINT_SECONDS + 9) is None
    found = watch.look(stepping, T, T + CHECKPOINT_SECONDS + 10)
    assert found is not None
    assert (found["judged_as"], found["allowed_seconds"]) == ("step", 10.0)
    assert progress((0, "step 2/9 | 1.0 s/step")).saving_since is None


def test_evaluation_is_no_standstill_and_is_named_when_it_takes_too_long() -> None:
    """R34: a legitimate evaluation is not taken for a hang; what was judged is told."""
    evaluating = progress((0, "step 100/900 | 1.0 s/step"), (1, "running evaluation: 3 of 500 batches"))
    watch = HangWatch(min_seconds=1)
    assert watch.look(evaluating, T, T + 1000) is None
    found = watch.look(evaluating, T, T + EVALUATION_SECONDS)
    assert found is not None
    assert (found["judged_as"], found["allowed_seconds"]) == ("evaluation", EVALUATION_SECONDS)
    evaluating.feed(b"step 101/900 | 1.0 s/step | validation loss 2.1", T + 2000)
    assert evaluating.evaluating_since is None
    found = watch.look(evaluating, T, T + 2010)
    assert found is not None
    assert found["judged_as"] == "step"


def test_silent_command_is_not_judged() -> None:
    assert HangWatch(min_seconds=1).look(progress(), T, T + 1e6) is None
