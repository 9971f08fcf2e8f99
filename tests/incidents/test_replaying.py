"""A replay of stored decisions finds no difference, and finds one where there is one."""

from __future__ import annotations

from dataclasses import replace

import pytest

from apps.incidents.models import Decision, PolicyVersion
from apps.incidents.policy import current_policy
from apps.incidents.services.deciding import decide_subject
from apps.incidents.services.replaying import differences, replay_after, stored_policy
from recovery.rules import registry
from recovery.serialize import fingerprint
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


def test_stored_decisions_come_out_again(played: PlayedJob) -> None:
    count, different = replay_after(0)
    assert count == played.subject.decision_n
    assert different == []


def test_decision_is_replayed_under_the_policy_of_its_time(played: PlayedJob) -> None:
    """The settings change: what was decided stays explained, and what they would do now can be asked."""
    policy = replace(current_policy(), backoff_free_restarts=0, backoff_base_seconds=50.0)
    before = Decision.objects.latest("n")
    job = PlayedJob(factories.make_job(workers=2))
    job.start_training()
    job.kill(0)
    decide_subject(subject_id=job.subject.pk, policy=policy)
    job.everyone(SignalKind.ACK, "troubleshoot", {"checks": CLEAN, "stopped": {"seconds": 0.25}})
    assert replay_after(0)[1] == []
    under = Decision.objects.get(subject=job.subject, rule="message.error")
    assert under.policy is not None
    assert under.policy_version == under.policy.version == fingerprint(policy) != before.policy_version
    assert stored_policy(under) == replace(policy, version=under.policy_version)
    assert PolicyVersion.objects.count() == 2, "one row a policy, however many decisions"


def test_other_policy_and_other_row_are_found(played: PlayedJob) -> None:
    policy = replace(current_policy(), backoff_free_restarts=0, backoff_base_seconds=50.0)
    _, different = replay_after(0, policy)
    assert any("not_before" in place for each in different for place in each.places)
    last = Decision.objects.latest("n")
    last.outcome["rule"] = "another"
    last.save(update_fields=["outcome"])
    _, different = replay_after(last.pk - 1)
    assert [(each.n, len(each.places)) for each in different] == [(last.n, 1)]
    assert "outcome.rule was 'another'" in str(different[0])


def test_decision_that_cannot_be_read_is_a_difference_and_not_the_end_of_the_replay(
    played: PlayedJob,
) -> None:
    first = Decision.objects.earliest("n")
    first.state_before["subject"]["kind"] = "planet"
    first.save(update_fields=["state_before"])
    count, different = replay_after(0)
    assert count == played.subject.decision_n
    assert [each.n for each in different] == [first.n]
    assert different[0].places == (
        "cannot be replayed: SubjectState.subject.kind: 'planet' is no SubjectKind",
    )


def test_difference_under_rules_that_are_not_known_any_more_says_so(played: PlayedJob) -> None:
    """What a policy was is kept, and of its rules only the digest: another release may have others."""
    last = Decision.objects.latest("n")
    assert last.policy is not None
    last.policy.content["rules"] = "0" * 12
    last.policy.save(update_fields=["content"])
    assert replay_after(0)[1] == [], "the same comes out, so nothing is said"
    last.outcome["rule"] = "another"
    last.save(update_fields=["outcome"])
    (different,) = replay_after(0)[1]
    assert different.places[-1] == "its rules 000000000000 are not known here: judged by those of today"


def test_rules_of_another_digest_that_judge_the_same_are_no_difference(played: PlayedJob) -> None:
    """A rule was added meanwhile: whoever asks what today's policy would do reads only what comes out otherwise."""
    judged = [each for each in Decision.objects.order_by("n") if each.outcome["verdict"].get("diagnosis")]
    assert any((each.outcome["incident"] or {}).get("verdict") for each in judged)
    for each in judged:
        each.outcome["verdict"]["diagnosis"]["rules"] = "0" * 12
        if (each.outcome["incident"] or {}).get("verdict"):
            each.outcome["incident"]["verdict"]["diagnosis"]["rules"] = "0" * 12
        each.save(update_fields=["outcome"])
    assert replay_after(0, current_policy()) == (played.subject.decision_n, [])
    judged[0].outcome["verdict"]["diagnosis"]["category"] = "another"
    judged[0].save(update_fields=["outcome"])
    (different,) = replay_after(0, current_policy())[1]
    assert [place.partition(" was ")[0] for place in different.places] == [
        "outcome.verdict.diagnosis.category"
    ]


def test_rules_of_today_are_known_to_a_process_that_only_replays(
    played: PlayedJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`replay --policy stored` asks for no policy of today, and the operator's rules are of today."""
    monkeypatch.setattr(registry, "_KNOWN", {})
    assert replay_after(0)[1] == []
    policy = Decision.objects.latest("n").policy
    assert policy is not None
    assert registry.is_known(policy.content["rules"])


def test_differences_name_the_place() -> None:
    found = list(differences({"a": [1, {"b": 2}], "c": 3}, {"a": [1, {"b": 4}], "d": 3}, "x"))
    assert found == ["x.a[1].b was '2', is '4'", "x.c is gone", "x.d is new"]
