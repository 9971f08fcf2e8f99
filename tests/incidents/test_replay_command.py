"""`manage.py replay`: what differs as a table, and the exit code that tells."""

from __future__ import annotations

from dataclasses import replace
from io import StringIO

import pytest
from django.core.management import CommandError, call_command

from apps.incidents.management.commands import replay as command
from apps.incidents.models import Decision
from apps.incidents.policy import current_policy
from recovery.signals import SignalKind
from tests import factories
from tests.factories import CLEAN, PlayedJob

pytestmark = pytest.mark.django_db


@pytest.fixture
def played() -> PlayedJob:
    job = PlayedJob(factories.make_job(workers=2))
    job.start_training()
    job.kill(0)
    job.decide()
    job.everyone(SignalKind.ACK, "troubleshoot", {"checks": CLEAN, "stopped": {"seconds": 0.25}})
    return job


def replay(*words: str) -> tuple[int, str]:
    out = StringIO()
    try:
        call_command("replay", *words, stdout=out)
    except SystemExit as ended:
        return int(str(ended.code)), out.getvalue()
    return 0, out.getvalue()


def test_no_difference_under_the_policy_in_force_then(played: PlayedJob) -> None:
    code, text = replay("--policy", "stored")
    assert code == 0
    assert text == f"{played.subject.decision_n} decisions replayed under the stored policy, no differences\n"


def test_other_policy_shows_what_it_would_do_and_the_exit_code_tells(
    played: PlayedJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = replace(current_policy(), backoff_free_restarts=0, backoff_base_seconds=50.0)
    monkeypatch.setattr(command, "current_policy", lambda: other)
    code, text = replay()
    assert code == 1
    rows = text.splitlines()
    assert "1 difference" in rows[0]
    assert rows[2].split() == [
        "subject",
        "decision",
        "made",
        "at",
        "was",
        "comes",
        "out",
        "first",
        "difference",
    ]
    assert "ladder.restart_in_place" in rows[3]
    assert "incident waiting" in rows[3]
    _, full = replay("--full")
    assert len(full.splitlines()) > len(rows)


def test_changed_row_is_found_also_under_the_stored_policy(played: PlayedJob) -> None:
    last = Decision.objects.latest("n")
    last.outcome["rule"] = "another"
    last.save(update_fields=["outcome"])
    code, text = replay("--policy", "stored")
    assert code == 1
    assert "outcome.rule was 'another'" in text


def test_field_that_a_newer_version_has_added_is_no_difference(played: PlayedJob) -> None:
    for decision in Decision.objects.all():
        del decision.state_before["world_running_at"]
        del decision.outcome["ended_incarnations"]
        decision.save(update_fields=["state_before", "outcome"])
    assert replay("--policy", "stored")[0] == 0


def test_subject_and_age_narrow(played: PlayedJob) -> None:
    other = PlayedJob(factories.make_job(workers=1))
    other.start_training()
    name = f"{other.job.namespace}/{other.job.name}"
    _, text = replay("--subject", name, "--policy", "stored")
    assert text.startswith(f"{other.subject.decision_n} decisions")
    _, same = replay("--subject", str(other.subject), "--policy", "stored")
    assert same == text
    _, none = replay("--since", "2099-01-01T00:00Z")
    assert none.startswith("0 decisions")
    _, all_of_them = replay("--since", "2h", "--policy", "stored")
    assert all_of_them.startswith(f"{played.subject.decision_n + other.subject.decision_n} decisions")


@pytest.mark.parametrize(
    "words",
    [
        ("--since", "yesterday"),
        ("--since", "2026-13-01T00:00Z"),
        ("--since", "99999999999d"),
        ("--since", "9999999d"),
        ("--since", "9" * 5000 + "d"),
        ("--since", ""),
        ("--subject", "no/such"),
        ("--subject", ""),
    ],
)
def test_question_that_cannot_be_answered_is_no_success(words: tuple[str, str]) -> None:
    with pytest.raises(CommandError) as caught:
        call_command("replay", *words)
    assert caught.value.returncode == 2
