"""Guards in the loop: what a decision begins is reserved, what has no room is refused, told, and tried again."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from apps.access.models import Cluster
from apps.incidents.guard_models import GuardCounter, GuardLimit, GuardUse
from apps.incidents.models import Action, Decision, Incident, TimelineEvent
from apps.incidents.policy import current_policy
from apps.incidents.services import guarding, people
from apps.incidents.services.replaying import replay_after
from recovery.errors import InvalidTransition
from recovery.guards import Dimension, Limit, Measure
from recovery.lifecycle import ActionKind
from recovery.signals import SignalKind, Source
from tests import factories
from tests.factories import CLEAN, PlayedJob

pytestmark = pytest.mark.django_db


def limit_to(cluster: Cluster, number: int, *kinds: ActionKind) -> None:
    """So many actions in an hour, and no other guard."""
    now = factories.database_now()
    guarding.ensure_default_limits(cluster, now)
    GuardLimit.objects.filter(cluster=cluster).update(is_enabled=False)
    limit = Limit("few", Dimension.CLUSTER, Measure.WINDOW, kinds, number=number, window_seconds=3600.0)
    guarding.set_limit(cluster=cluster, limit=limit, by="test", now=now)


def fail(played: PlayedJob) -> Incident:
    """A rank is killed, and everybody stops."""
    played.kill(0)
    played.decide()
    played.everyone(SignalKind.ACK, "troubleshoot", {"checks": CLEAN, "stopped": {"seconds": 0.1}})
    return Incident.objects.get(job=played.job)


def training(cluster: Cluster, **job: Any) -> PlayedJob:
    played = PlayedJob(factories.make_job(**{"workers": 2, "cluster": cluster, **job}))
    played.start_training()
    return played


def make_room(cluster: Cluster) -> None:
    limit = GuardLimit.objects.get(cluster=cluster, name="few")
    GuardCounter.objects.filter(limit=limit).update(totals=[0] * 14, used=0)
    GuardUse.objects.filter(cluster=cluster).delete()


def look_again(played: PlayedJob) -> None:
    """The time to look again has come."""
    subject = played.subject
    assert subject.next_look_at is not None
    subject.next_look_at = factories.database_now() - timedelta(milliseconds=1)
    subject.save(update_fields=["next_look_at"])
    played.decide()


def test_restart_is_reserved_with_its_decision() -> None:
    cluster = factories.make_cluster()
    limit_to(cluster, 5, ActionKind.RESTART_PROCESS)
    played = training(cluster)
    fail(played)
    assert Action.objects.get(kind="restart_process").state == "ready"
    use = GuardUse.objects.get(cluster=cluster)
    decision = Decision.objects.latest("n")
    assert use.holder == f"{played.subject} {decision.n} {played.job.namespace}/{played.job.name}"
    assert decision.outcome["reservations"] == [
        {"kind": "restart_process", "target": f"{played.job.namespace}/{played.job.name}"}
    ]
    assert GuardCounter.objects.get(limit__cluster=cluster).used == 1


def test_restart_without_room_is_refused_with_the_numbers_and_told() -> None:
    """R25: what a guard holds back is a row that says so, in words, and is counted."""
    cluster = factories.make_cluster()
    limit_to(cluster, 1, ActionKind.RESTART_PROCESS)
    fail(training(cluster))
    second = training(cluster)
    incident = fail(second)
    action = Action.objects.get(incident=incident, kind="restart_process")
    numbers = (
        f"held by guard few: 1 of 1 action of cluster {cluster.slug} began in the last hour; limit 1 an hour"
    )
    assert (action.state, action.refused_because) == ("refused", numbers)
    assert (incident.state, incident.waiting_for) == ("waiting", "guard")
    assert incident.waiting_until_at is not None
    assert {"remedy": "restart_process", "refused_because": numbers} in incident.considered
    told = TimelineEvent.objects.get(incident=incident, kind="action_refused")
    assert told.text.startswith(f"Refused: restart process, {numbers}")
    counter = GuardCounter.objects.get(limit__cluster=cluster)
    assert (counter.used, counter.refusals) == (1, 1)
    assert Action.objects.filter(refused_because__startswith="held by guard few:").count() == 1


def test_held_restart_begins_when_there_is_room_and_waits_in_one_row() -> None:
    cluster = factories.make_cluster()
    limit_to(cluster, 1, ActionKind.RESTART_PROCESS)
    fail(training(cluster))
    played = training(cluster)
    incident = fail(played)
    look_again(played)
    look_again(played)
    assert Action.objects.filter(incident=incident, kind="restart_process").count() == 1
    incident.refresh_from_db()
    assert incident.waiting_for == "guard"
    make_room(cluster)
    look_again(played)
    assert list(
        Action.objects.filter(incident=incident, kind="restart_process").values_list("state", flat=True)
    ) == ["refused", "ready"]
    incident.refresh_from_db()
    assert (incident.state, incident.waiting_for) == ("recovering", "")


def test_decision_held_by_a_guard_is_replayed_without_the_guard() -> None:
    cluster = factories.make_cluster()
    limit_to(cluster, 1, ActionKind.RESTART_PROCESS)
    fail(training(cluster))
    played = training(cluster)
    fail(played)
    look_again(played)
    make_room(cluster)
    look_again(played)
    count, different = replay_after(0, current_policy())
    assert count == Decision.objects.count()
    assert different == []


def test_stop_that_a_person_ordered_is_told_held_and_done_when_there_is_room() -> None:
    cluster = factories.make_cluster()
    limit_to(cluster, 1, ActionKind.RESTART_PROCESS, ActionKind.STOP_JOB)
    fail(training(cluster))
    played = training(cluster)
    ann = factories.make_user()
    people.stop_job(job_id=played.job.pk, by=ann, reason="wrong data")
    incident = Incident.objects.get(job=played.job)
    action = Action.objects.get(incident=incident, kind="stop_job")
    assert action.state == "refused"
    assert action.refused_because.startswith("held by guard few: 1 of 1 action of cluster ")
    assert (incident.state, incident.waiting_for) == ("waiting", "guard")
    look_again(played)
    assert Action.objects.filter(incident=incident, kind="stop_job").count() == 1
    incident.refresh_from_db()
    assert incident.state == "waiting"
    make_room(cluster)
    look_again(played)
    newest = Action.objects.filter(incident=incident, kind="stop_job").latest("id")
    assert newest.state == "ready"
    assert "wrong data" in newest.why


def test_planned_restart_that_a_person_begins_needs_room_too() -> None:
    """D25: who is told that it begins sees it begin; who cannot have it is told the guard's numbers."""
    cluster = factories.make_cluster(mode="approve")
    limit_to(cluster, 1, ActionKind.RESTART_PROCESS)
    factories_job = training(cluster)
    incident = fail(factories_job)
    planned = Action.objects.get(incident=incident, kind="restart_process")
    assert planned.state == "planned"
    assert not GuardUse.objects.exists()
    ann = factories.make_user()
    people.do_action_now(action_id=planned.pk, by=ann)
    planned.refresh_from_db()
    assert planned.state == "ready"
    assert GuardUse.objects.count() == 1
    other = fail(training(cluster))
    held = Action.objects.get(incident=other, kind="restart_process")
    with pytest.raises(InvalidTransition, match="held by guard few: 1 of 1 action"):
        people.do_action_now(action_id=held.pk, by=ann)
    held.refresh_from_db()
    assert held.state == "planned"
    told = TimelineEvent.objects.get(incident=other, kind="action_refused")
    assert "held by guard few: 1 of 1 action" in told.text
    assert ann.get_username() in told.text


def test_wish_that_is_not_installed_uses_no_guard() -> None:
    cluster = factories.make_cluster()
    played = PlayedJob(factories.make_job(workers=2, cluster=cluster))
    played.record(SignalKind.JOB_KNOWN, Source.WATCH, f"{played.job.owner_uid}:known", {"suspended": False})
    for index in range(2):
        played.enrol(index)
    played.decide()
    failed = [{"check": "gpu", "result": "fail", "seconds": 0.1}]
    played.say(0, SignalKind.ERROR, "bootcheck", {"checks": failed, "exit_code": 1, "log_tail": []})
    played.decide()
    wish = Action.objects.filter(kind="hold_node").first()
    assert wish is not None
    assert (wish.state, wish.refused_because) == ("refused", "remedy not installed")
    assert not GuardUse.objects.filter(kind="hold_node").exists()


def test_jobs_that_fail_together_wait_for_one_window_and_no_row_is_lost() -> None:
    """R35, R40 in part: jobs that fail together are let in at the guard's pace, each told why it waits."""
    cluster = factories.make_cluster()
    limit_to(cluster, 2, ActionKind.RESTART_PROCESS)
    jobs = [training(cluster, workers=1) for _ in range(4)]
    for played in jobs:
        fail(played)
    states = list(
        Action.objects.filter(kind="restart_process").order_by("id").values_list("state", flat=True)
    )
    assert states == ["ready"] * 2 + ["refused"] * 2
    assert GuardUse.objects.filter(cluster=cluster).count() == 2
    looks = {played.subject.next_look_at for played in jobs[2:]}
    assert len(looks) == 2  # not all in one second: each has its own jitter
