"""The demo prepares the desk for its own simulated cluster, and touches no other."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError, call_command

from apps.access import services
from apps.access.clock import database_now
from apps.access.models import AuditEntry, Cluster, Role, RoleBinding, Tenant, User
from apps.incidents.models import GuardLimit, Signal
from apps.incidents.services import guarding
from apps.incidents.services.retiring import hand_settings_over
from incidentdesk.frontdoor.places import CHECKOUT
from recovery.errors import InvalidTransition
from tests.factories import make_cluster, make_job

pytestmark = pytest.mark.django_db


@pytest.fixture(scope="module")
def endpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A simulated cluster that runs."""
    directory = tmp_path_factory.mktemp("sim")
    command = [sys.executable, "-m", "sim", "serve", "--dir", str(directory), "--nodes", "1"]
    process = subprocess.Popen(command, cwd=CHECKOUT, env={**os.environ, "PYTHONPATH": str(CHECKOUT)})
    try:
        deadline = time.monotonic() + 30
        while not (directory / "endpoint.json").exists():
            assert process.poll() is None, "the simulated cluster ended"
            assert time.monotonic() < deadline, "the simulated cluster did not start"
            time.sleep(0.02)
        yield directory / "endpoint.json"
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(20)


def set_up(endpoint: Path, **options: Any) -> str:
    said = io.StringIO()
    call_command("demo_setup", endpoint=endpoint, stdout=said, **options)
    return said.getvalue()


@pytest.fixture(autouse=True)
def state_dir(settings: Any, tmp_path: Path) -> None:
    settings.STATE_DIR = tmp_path


def test_two_people_may_act_and_the_cluster_is_armed(endpoint: Path) -> None:
    said = set_up(endpoint)
    cluster = Cluster.objects.get(slug="demo")
    assert cluster.is_simulated
    assert cluster.mode == "auto"
    assert AuditEntry.objects.get(verb="set_mode").actor == "demo"
    lines = said.strip().splitlines()
    assert len(lines) == 2
    for user, line in zip(User.objects.order_by("username"), lines, strict=True):
        assert user.username in line
        assert user.check_password(line.split("/")[1].split()[0])
        roles = set(RoleBinding.objects.filter(user=user, tenant=None).values_list("role", flat=True))
        assert roles == {Role.OPERATOR, Role.APPROVER}


def test_second_start_finds_everything_and_says_the_same(endpoint: Path) -> None:
    first = set_up(endpoint)
    audited = AuditEntry.objects.count()
    hashes = list(User.objects.values_list("password", flat=True))
    assert set_up(endpoint) == first
    assert AuditEntry.objects.count() == audited
    assert list(User.objects.values_list("password", flat=True)) == hashes, "nobody is logged out"


def test_given_password_is_taken(endpoint: Path) -> None:
    set_up(endpoint)
    assert "battery staple" in set_up(endpoint, password="battery staple")
    assert User.objects.get(username="alex").check_password("battery staple")


def test_cluster_that_was_started_anew_takes_the_slug(
    endpoint: Path, django_capture_on_commit_callbacks: Any
) -> None:
    old = make_cluster(slug="demo", is_simulated=True)
    job = make_job(cluster=old)
    set_up(endpoint)
    old.refresh_from_db()
    job.refresh_from_db()
    assert old.slug == f"demo-{old.system_uid[:8]}"
    assert Cluster.objects.get(slug="demo").pk != old.pk
    assert job.gone_at is not None
    assert Signal.objects.get(kind="job_deleted").inbox_entries.get().subject.job == job


def test_what_people_set_holds_for_the_cluster_of_the_next_start(endpoint: Path) -> None:
    old = make_cluster(slug="demo", is_simulated=True, mode="approve")
    for name in ("nlp", "vision"):
        call_command("map_namespace", cluster="demo", pattern=f"{name}-*", tenant=name, create=True)
    call_command(
        "guards", cluster="demo", name="two_restarts", by="cluster", actions=["restart_process"], number=2,
        window=600.0, stdout=io.StringIO(),
    )  # fmt: skip
    tenant = Tenant.objects.get(slug="nlp")
    tokens = [
        services.create_token(
            tenant_id=tenant.pk, name="n", scopes=["jobs:read"], actor_kind="command", actor="test",
            cluster_id=old.pk, job_uid=job_uid,
        )[0]
        for job_uid in ("", "a-job-that-is-gone")
    ]  # fmt: skip
    said = set_up(endpoint)
    assert "The cluster is in mode approve, as it was set before; ./desk manage set_cluster_mode" in said
    new = Cluster.objects.get(slug="demo")
    assert (new.pk != old.pk, new.mode) == (True, "approve")
    assert {(row.pattern, row.tenant.slug) for row in new.namespace_maps.all()} == {
        ("nlp-*", "nlp"),
        ("vision-*", "vision"),
    }
    limits = [
        set(GuardLimit.objects.filter(cluster=each).values_list("name", "number")) for each in (old, new)
    ]
    assert limits[0] == limits[1]
    assert ("two_restarts", 2) in limits[1]
    for token, cluster in zip(tokens, (new, old), strict=True):
        token.refresh_from_db()
        assert token.cluster_id == cluster.pk
    shown = io.StringIO()
    call_command("guards", cluster="demo", stdout=shown)
    assert "two_restarts: " in shown.getvalue()
    call_command("set_cluster_mode", slug="demo", mode="auto", reason="seen enough", stdout=io.StringIO())
    assert "mode" not in set_up(endpoint)


def test_cluster_of_the_next_start_is_not_armed_with_a_guard_that_could_not_work(endpoint: Path) -> None:
    old = make_cluster(slug="demo", is_simulated=True, mode="auto")
    guarding.ensure_default_limits(old, database_now())
    GuardLimit.objects.filter(cluster=old, name="actions-a-minute").update(number=0)
    said = set_up(endpoint)
    assert "Cluster demo stays in mode observe: a guard could not work in mode auto." in said
    assert Cluster.objects.get(slug="demo").mode == "observe"


def test_settings_of_a_real_cluster_are_handed_to_nobody() -> None:
    real, simulated = make_cluster(is_simulated=False, mode="auto"), make_cluster(is_simulated=True)
    for one, other in ((real, simulated), (simulated, real)):
        with pytest.raises(InvalidTransition, match="Only simulated clusters"):
            hand_settings_over(retired=one, successor=other, actor_kind="demo", actor="demo")
    assert not AuditEntry.objects.exists()


def test_real_cluster_is_not_armed(endpoint: Path) -> None:
    real = make_cluster(slug="demo", is_simulated=False, mode="observe")
    with pytest.raises(CommandError, match="not simulated"):
        set_up(endpoint)
    real.refresh_from_db()
    assert (real.slug, real.mode) == ("demo", "observe")
    assert not User.objects.exists()


def test_same_cluster_registered_as_real_is_not_armed(endpoint: Path) -> None:
    set_up(endpoint)
    Cluster.objects.update(is_simulated=False, mode="observe")
    with pytest.raises(CommandError, match="not simulated"):
        set_up(endpoint)
    assert Cluster.objects.get().mode == "observe"


def test_wrong_token_and_nobody_there_are_one_sentence(endpoint: Path, tmp_path: Path) -> None:
    told = json.loads(endpoint.read_text())
    wrong = tmp_path / "wrong.json"
    wrong.write_text(json.dumps({**told, "admin_token": "x"}))
    with pytest.raises(CommandError, match="no simulated cluster"):
        set_up(wrong)
    wrong.write_text(json.dumps({**told, "url": "http://127.0.0.1:9"}))
    with pytest.raises(CommandError, match="No simulated cluster answers"):
        set_up(wrong)
    with pytest.raises(CommandError, match="No simulated cluster answers"):
        set_up(tmp_path / "missing.json")
    assert not Cluster.objects.exists()
