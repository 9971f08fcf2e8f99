"""What programs tell over the REST API: once each, for their own tenant, placed where it belongs."""

from __future__ import annotations

import re
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from django.test import Client

import recovery
from apps.access.clock import database_now
from apps.access.models import AuditEntry, IdempotencyKey, Role
from apps.access.services import forget_idempotency_keys
from apps.incidents.models import InboxEntry, Signal
from apps.incidents.rules import metrics_read
from apps.incidents.services import intake, reporting
from apps.jobs.models import Checkpoint, EnrolmentSecret, Job, Worker
from apps.jobs.services.credentials import job_of_secret
from tests.factories import make_cluster, make_user
from tests.incidents.api.conftest import Team

pytestmark = pytest.mark.django_db

JSON = "application/json"


def post(client: Client, path: str, body: Any, *, key: str = "", status: int = 200) -> Any:
    headers = {"Idempotency-Key": key} if key else {}
    response = client.post(f"/api/v1/{path}/", body, content_type=JSON, headers=headers)
    assert response.status_code == status, response.content
    return response.json()


def subjects_of(signal: Signal) -> list[int]:
    return list(signal.inbox_entries.values_list("subject__job_id", flat=True))


# Signals


def test_signal_about_a_pod_reaches_its_job(
    team: Team, woken: list[int], django_capture_on_commit_callbacks: Any
) -> None:
    body = {
        "key": "k1",
        "kind": "log",
        "source": "api",
        "about": {"namespace": team.job.namespace, "pod": team.pod.name},
        "body": {"lines": ["password=hunter22", "boom"]},
        "seen_at": "2026-11-29T10:00:00Z",
    }
    with django_capture_on_commit_callbacks(execute=True):
        answer = post(team.client(), "signals", body, status=201)
    assert answer["is_new"]
    assert not answer["is_unplaced"]
    signal = Signal.objects.get(uid=answer["uid"])
    assert subjects_of(signal) == [team.job.pk]
    assert signal.seen_at == datetime(2026, 11, 29, 10, tzinfo=UTC)
    assert "hunter22" not in str(signal.body)
    assert woken == [signal.inbox_entries.get().subject_id]


def test_same_signal_again_is_known_and_another_under_its_key_is_409(team: Team) -> None:
    client = team.client()
    body = {"kind": "alert", "body": {"a": 1}}
    first = post(client, "signals", body, key="k", status=201)
    again = post(client, "signals", body, key="k", status=200)
    assert again == {**first, "is_new": False}
    refused = post(client, "signals", {**body, "body": {"a": 2}}, key="k", status=409)
    assert refused["detail"].startswith("The key k was used before with another body: use a new key")
    assert Signal.objects.count() == 1


def test_key_belongs_to_its_tenant(team: Team, others: Team) -> None:
    for side, number in ((team, 1), (others, 2)):
        post(side.client(), "signals", {"kind": "alert", "key": "k", "body": {"n": number}}, status=201)
    assert Signal.objects.count() == 2


def test_signal_about_anothers_job_is_unplaced(team: Team, others: Team) -> None:
    about = {"namespace": others.job.namespace, "pod": others.pod.name, "pod_uid": others.pod.uid}
    answer = post(team.client(), "signals", {"kind": "alert", "key": "k", "about": about}, status=201)
    assert answer["is_unplaced"]
    assert not InboxEntry.objects.exists()


def test_token_of_one_job_tells_about_that_job_only(team: Team, cluster: Any) -> None:
    second = Team(cluster, tenant=team.tenant)
    client = team.client(job_uid=team.job.owner_uid)
    for number, (side, is_unplaced) in enumerate([(team, False), (second, True)]):
        body = {"kind": "log", "key": str(number), "about": {"pod_uid": side.pod.uid}}
        assert post(client, "signals", body, status=201)["is_unplaced"] is is_unplaced


def test_offset_of_the_senders_clock_is_taken_off(team: Team) -> None:
    ahead = database_now() + timedelta(hours=1)
    body = {
        "kind": "alert",
        "key": "k",
        "sent_at": ahead.isoformat(),
        "seen_at": (ahead - timedelta(seconds=30)).isoformat(),
    }
    post(team.client(), "signals", body, status=201)
    signal = Signal.objects.get()
    assert 29 < (signal.received_at - signal.seen_at).total_seconds() < 35


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"kind": "error"}, "kind"),
        ({"kind": "incarnation_ended"}, "kind"),
        ({"source": "agent"}, "source"),
        ({"source": "person"}, "source"),
        ({"body": []}, "body"),
        ({"about": {"pod": "x" * 300}}, "about.pod"),
        ({"seen_at": "now"}, "seen_at"),
        ({"seen_at": "0001-01-01T00:00:00Z"}, "seen_at"),
        ({"sent_at": "9999-12-31T23:59:59Z"}, "sent_at"),
        ({"cluster": "none"}, "cluster"),
        ({"key": ""}, "key"),
        ({"kind": "metric", "body": {"name": "step_time_ratio", "value": "slow"}}, "body.value"),
        ({"kind": "metric", "body": {"name": "step_time_ratio", "value": True}}, "body.value"),
        ({"kind": "metric", "body": {"name": "step_time_ratio", "value": 1e301}}, "body.value"),
        ({"kind": "metric", "body": {"name": "step_time_ratio"}}, "body.value"),
        ({"kind": "metric", "body": {"name": ["x"], "value": 1}}, "body.name"),
        ({"kind": "metric", "body": {"value": 1}}, "body.name"),
    ],
)
def test_wrong_signal_names_the_field(team: Team, change: dict[str, Any], field: str) -> None:
    answer = post(team.client(), "signals", {"kind": "alert", "key": "k", **change}, status=400)
    assert list(answer["fields"]) == [field]
    assert not Signal.objects.exists()


def test_metric_that_no_rule_reads_is_kept_and_its_sender_told(team: Team) -> None:
    client = team.client()
    about = {"pod_uid": team.pod.uid}
    notes = {}
    for name in ("step_time_ratio", "step_time_ratioo", "coffee"):
        body = {"key": name, "kind": "metric", "about": about, "body": {"name": name, "value": 1.4}}
        answer = post(client, "signals", body, status=201)
        notes[name] = answer["note"]
        assert client.get(f"/api/v1/signals/{answer['uid']}/").json()["note"] == answer["note"]
    assert notes["step_time_ratio"] == ""
    assert notes["step_time_ratioo"].startswith("No rule reads a metric step_time_ratioo: it is kept")
    assert notes["step_time_ratioo"].endswith("Was step_time_ratio meant?")
    assert notes["coffee"].endswith("no verdict is made of it.")
    assert InboxEntry.objects.count() == 3


def test_numbers_that_facts_are_made_of_are_known_as_read() -> None:
    core = Path(recovery.__file__).parent
    source = "".join((core / name).read_text() for name in ("facts.py", "announced.py"))
    named = set(re.findall(r'metrics\.get\("(\w+)"\)|_metric\(evidence, "(\w+)"\)', source))
    names = {first or second for first, second in named}
    assert {"sm_clock_mhz", "pods_expected"} <= names <= metrics_read()


def test_signal_without_any_key_is_400(team: Team) -> None:
    assert "key" in post(team.client(), "signals", {"kind": "alert"}, status=400)["fields"]


def test_person_tells_no_signals(team: Team) -> None:
    client = Client()
    user = make_user(tenant=team.tenant, roles=tuple(Role))
    client.force_login(user, "django.contrib.auth.backends.ModelBackend")
    post(client, "signals", {"kind": "alert", "key": "k"}, status=403)


def test_full_inbox_is_429_with_retry_after(team: Team, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reporting, "MAX_WAITING_SIGNALS", 0)
    client = team.client()
    about = {"pod_uid": team.pod.uid}
    post(client, "signals", {"kind": "alert", "key": "1", "about": about}, status=201)
    response = client.post(
        "/api/v1/signals/", {"kind": "alert", "key": "2", "about": about}, content_type=JSON
    )
    assert response.status_code == 429
    assert response.json()["code"] == "inbox_full"
    assert int(response["Retry-After"]) >= 1
    assert Signal.objects.count() == 1


def test_too_many_unplaced_are_429(team: Team, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(intake, "MAX_UNPLACED", 0)
    client = team.client()
    post(client, "signals", {"kind": "alert", "key": "1"}, status=201)
    post(client, "signals", {"kind": "alert", "key": "2"}, status=429)


def test_signal_is_read_again_with_its_use(team: Team, others: Team) -> None:
    answer = post(
        team.client(),
        "signals",
        {"kind": "alert", "key": "k", "about": {"pod_uid": team.pod.uid}},
        status=201,
    )
    InboxEntry.objects.update(use="context", reason="joined INC-1", decision_n=3)
    url = f"/api/v1/signals/{answer['uid']}/"
    shown = team.client().get(url).json()
    assert shown["uses"] == [
        {"subject": "job", "job_id": team.job.pk, "decision_n": 3, "use": "context", "reason": "joined INC-1"}
    ]
    assert others.client().get(url).status_code == 404
    assert team.client(job_uid="another").get(url).status_code == 404


# Alertmanager


def alertmanager(team: Team, **alert: Any) -> dict[str, Any]:
    return {
        "version": "4",
        "groupKey": "{}",
        "status": "firing",
        "receiver": "desk",
        "alerts": [
            {
                "status": "firing",
                "labels": {"alertname": "PodDied", "namespace": team.job.namespace, "pod": team.pod.name},
                "annotations": {"summary": "died"},
                "startsAt": "2026-11-29T10:00:00.123Z",
                "endsAt": "0001-01-01T00:00:00Z",
                "generatorURL": "http://prometheus/graph",
                "fingerprint": "abc",
                **alert,
            }
        ],
    }


def test_alert_is_stored_once_by_fingerprint_start_and_status(team: Team) -> None:
    client = team.client()
    for _ in range(2):
        post(client, "signals/alertmanager", alertmanager(team))
    signal = Signal.objects.get()
    assert (signal.source, signal.kind) == ("alertmanager", "alert")
    assert subjects_of(signal) == [team.job.pk]
    assert signal.seen_at == datetime(2026, 11, 29, 10, 0, 0, 123000, tzinfo=UTC)
    post(client, "signals/alertmanager", alertmanager(team, status="resolved", endsAt="2026-11-29T10:05:00Z"))
    assert Signal.objects.count() == 2


def test_alert_repeated_by_another_group_is_no_conflict(team: Team) -> None:
    body = alertmanager(team)
    body["alerts"] *= 2
    assert len(post(team.client(), "signals/alertmanager", body)["results"]) == 1


@pytest.mark.parametrize(
    ("labels", "is_placed"),
    [
        ({"node": "{node}"}, True),
        ({"namespace": "{namespace}", "job_name": "{job}", "job": "kube-state-metrics"}, True),
        ({"namespace": "{namespace}", "job": "{job}"}, True),
        ({"namespace": "{namespace}", "job": "kubelet"}, False),
        ({"instance": "10.0.0.1"}, False),
    ],
)
def test_alert_is_placed_by_its_labels(team: Team, labels: dict[str, str], is_placed: bool) -> None:
    names = {"node": team.machine.name, "namespace": team.job.namespace, "job": team.job.name}
    filled = {key: value.format(**names) for key, value in labels.items()}
    (told,) = post(team.client(), "signals/alertmanager", alertmanager(team, labels=filled))["results"]
    assert told["is_unplaced"] is not is_placed


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"version": "3", "alerts": []}, "version"),
        ({"version": "4", "alerts": []}, "alerts"),
        ({"version": "4", "alerts": [{}]}, "alerts.0.status"),
        ({"version": "4", "alerts": "x"}, "alerts"),
    ],
)
def test_wrong_notification_names_the_field(team: Team, body: dict[str, Any], field: str) -> None:
    assert field in post(team.client(), "signals/alertmanager", body, status=400)["fields"]


# Pod ends


def pod_end(team: Team, **overrides: Any) -> dict[str, Any]:
    return {"pod_uid": team.pod.uid, "container": "train", "restart": 0, "exit_code": 137, **overrides}


def test_pod_end_names_the_life_that_ended(team: Team) -> None:
    post(team.client(), "hooks/pod-ends", {"ends": [pod_end(team)]})
    signal = Signal.objects.get()
    assert (signal.source, signal.kind) == ("hook", "incarnation_ended")
    assert signal.source_key == f"{team.pod.uid}/train/0"
    assert (signal.role, signal.index, signal.incarnation_id) == ("worker", 0, team.life.pk)
    assert signal.body["cause"] == "crashed"
    assert signal.body["exit_code"] == 137
    assert subjects_of(signal) == [team.job.pk]


@pytest.mark.parametrize(
    ("told", "cause"),
    [
        ({"exit_code": 0}, "completed"),
        ({"reason": "OOMKilled"}, "out_of_memory"),
        ({"cause": "preempted"}, "preempted"),
        ({"exit_code": None, "signal": 9}, "crashed"),
    ],
)
def test_cause_is_told_or_read_from_the_status(team: Team, told: dict[str, Any], cause: str) -> None:
    post(team.client(), "hooks/pod-ends", {"ends": [pod_end(team, **told)]})
    assert Signal.objects.get().body["cause"] == cause


def test_batch_of_ends_is_stored_once(team: Team, django_assert_max_num_queries: Any) -> None:
    client = team.client()
    ends = [pod_end(team, restart=number) for number in range(50)]
    with django_assert_max_num_queries(25):
        first = post(client, "hooks/pod-ends", {"ends": ends})
    again = post(client, "hooks/pod-ends", {"ends": ends[:10]})
    assert [item["is_new"] for item in first["results"]] == [True] * 50
    assert [item["is_new"] for item in again["results"]] == [False] * 10
    assert Signal.objects.count() == 50


def test_same_end_with_another_story_is_409(team: Team) -> None:
    client = team.client()
    post(client, "hooks/pod-ends", {"ends": [pod_end(team)]})
    post(client, "hooks/pod-ends", {"ends": [pod_end(team, exit_code=1)]}, status=409)


def test_end_told_again_after_the_pod_moved_is_the_same(team: Team) -> None:
    client = team.client()
    post(client, "hooks/pod-ends", {"ends": [pod_end(team)]})
    team.pod.node_name = "elsewhere"
    team.pod.save()
    assert post(client, "hooks/pod-ends", {"ends": [pod_end(team)]})["results"][0]["is_new"] is False


def test_end_of_anothers_pod_takes_no_key_and_reaches_nobody(team: Team, others: Team) -> None:
    answer = post(team.client(), "hooks/pod-ends", {"ends": [pod_end(others, exit_code=1)]})
    assert answer["results"][0]["is_unplaced"]
    post(others.client(), "hooks/pod-ends", {"ends": [pod_end(others)]})
    assert InboxEntry.objects.get().signal.tenant == others.tenant


def test_batch_under_a_used_key_is_409(team: Team) -> None:
    client = team.client()
    first = post(client, "hooks/pod-ends", {"ends": [pod_end(team)]}, key="batch-1")
    assert post(client, "hooks/pod-ends", {"ends": [pod_end(team)]}, key="batch-1") == first
    post(client, "hooks/pod-ends", {"ends": [pod_end(team, restart=1)]}, key="batch-1", status=409)
    assert Signal.objects.count() == 1


def test_failed_request_keeps_no_key(team: Team) -> None:
    client = team.client()
    post(client, "hooks/pod-ends", {"ends": [pod_end(team)]})
    post(client, "hooks/pod-ends", {"ends": [pod_end(team, exit_code=1)]}, key="k", status=409)
    assert not IdempotencyKey.objects.exists()


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"restart": -1}, "ends.0.restart"),
        ({"cause": "ordered"}, "ends.0.cause"),
        ({"exit_code": 300}, "ends.0.exit_code"),
        ({"pod_uid": ""}, "ends.0.pod_uid"),
    ],
)
def test_wrong_end_names_the_field_and_stores_nothing(team: Team, change: dict[str, Any], field: str) -> None:
    answer = post(team.client(), "hooks/pod-ends", {"ends": [pod_end(team, **change)]}, status=400)
    assert field in answer["fields"]
    assert not Signal.objects.exists()


# Checkpoints


def test_checkpoint_is_told_and_never_goes_back(team: Team) -> None:
    client = team.client()
    body = {"job_id": team.job.pk, "step": 200, "path": "/c/200", "shards": 3, "shards_expected": 3}
    for state, shown in [("written", "written"), ("committed", "committed"), ("written", "committed")]:
        assert post(client, "checkpoints", {**body, "state": state})["state"] == shown
    assert Checkpoint.objects.filter(job=team.job, step=200).count() == 1
    kinds = Signal.objects.values_list("source", "kind", "body__state")
    assert sorted(kinds) == [("hook", "checkpoint", "committed"), ("hook", "checkpoint", "written")]


def test_verified_is_nobodys_to_tell(team: Team) -> None:
    body = {"job_id": team.job.pk, "step": 1, "path": "/c", "state": "verified"}
    assert "state" in post(team.client(), "checkpoints", body, status=400)["fields"]


# Jobs


def registration(**overrides: Any) -> dict[str, Any]:
    return {"namespace": "slurm", "name": "bert", "world_size": 4, **overrides}


def test_registered_job_has_workers_and_a_secret_that_is_told_once(team: Team) -> None:
    client = team.client()
    answer = post(client, "jobs", registration(max_retry=3), key="submit-1", status=201)
    job = Job.objects.get(pk=answer["id"])
    assert (job.tenant, job.owner_kind, job.max_retry, job.is_protected) == (team.tenant, "", 3, True)
    assert Worker.objects.filter(job=job).count() == 4
    assert job_of_secret(answer["enrolment_secret"], now=database_now()) == job
    assert Signal.objects.get().kind == "job_known"
    assert AuditEntry.objects.filter(verb="register_job").count() == 1

    again = post(client, "jobs", registration(max_retry=3), key="submit-1", status=201)
    assert again == {**answer, "enrolment_secret": None}
    assert Job.objects.filter(name="bert").count() == 1
    kept = str(list(IdempotencyKey.objects.values())) + str(list(EnrolmentSecret.objects.values()))
    assert answer["enrolment_secret"] not in kept
    post(client, "jobs", registration(world_size=5), key="submit-1", status=409)


def test_uid_that_is_taken_is_409(team: Team) -> None:
    client = team.client()
    post(client, "jobs", registration(uid="u"), status=201)
    post(client, "jobs", registration(uid="u"), status=409)


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"name": "a b"}, "name"),
        ({"name": "be\nrt"}, "name"),
        ({"namespace": "../x"}, "namespace"),
        ({"world_size": 0}, "world_size"),
        ({"world_size": 10**6}, "world_size"),
        ({"max_retry": -1}, "max_retry"),
        ({"cluster": "none"}, "cluster"),
    ],
)
def test_wrong_registration_names_the_field(team: Team, change: dict[str, Any], field: str) -> None:
    answer = post(team.client(), "jobs", registration(**change), status=400)
    assert list(answer["fields"]) == [field]
    assert not Job.objects.filter(owner_kind="").exists()


def test_registration_says_which_cluster_when_there_are_several(team: Team) -> None:
    other = make_cluster()
    client = team.client()
    assert "cluster" in post(client, "jobs", registration(), status=400)["fields"]
    answer = post(client, "jobs", registration(cluster=other.slug), status=201)
    assert Job.objects.get(pk=answer["id"]).cluster == other


def test_program_asks_a_job_to_stop_once(team: Team) -> None:
    client = team.client()
    body = {"reason": "maintenance tonight", "at_safe_point": True}
    for _ in range(2):
        answer = client.post(f"/api/v1/jobs/{team.job.pk}/stop/", body, content_type=JSON)
        assert answer.status_code == 202
    signal = Signal.objects.get()
    assert (signal.kind, signal.source) == ("quit", "api")
    assert signal.body["at_safe_point"] is True
    assert subjects_of(signal) == [team.job.pk]


def test_job_that_has_ended_is_not_stopped(team: Team) -> None:
    Job.objects.update(phase="Succeeded")
    response = team.client().post(f"/api/v1/jobs/{team.job.pk}/stop/", {"reason": "x"}, content_type=JSON)
    assert response.status_code == 409
    assert response.json()["present"]["phase"] == "Succeeded"


def test_old_keys_are_forgotten(team: Team) -> None:
    post(team.client(), "hooks/pod-ends", {"ends": [pod_end(team)]}, key="k")
    assert forget_idempotency_keys(now=database_now()) == 0
    assert forget_idempotency_keys(now=database_now() + timedelta(days=2)) == 1


def test_time_is_the_databases(team: Team) -> None:
    post(team.client(), "signals", {"kind": "alert", "key": "k"}, status=201)
    assert abs(Signal.objects.get().received_at.timestamp() - time.time()) < 60
