"""`manage.py guards`: what is used, and limits that are refused when they are set."""

from __future__ import annotations

from io import StringIO

import pytest
from django.core.management import CommandError, call_command
from django.db import transaction

from apps.access.clock import database_now
from apps.access.models import AuditEntry, Cluster
from apps.incidents.guard_models import GuardLimit
from apps.incidents.services import guarding
from apps.incidents.tasks import recount_guards, sweep
from recovery.guards import DEFAULT_LIMITS
from recovery.lifecycle import ActionKind
from tests import factories

pytestmark = pytest.mark.django_db


def guards(*words: str) -> str:
    out = StringIO()
    call_command("guards", *words, stdout=out)
    return out.getvalue()


def restart(cluster: Cluster, holder: str) -> guarding.Refusal | None:
    want = guarding.Want(ActionKind.RESTART_PROCESS, holder, "llm")
    with transaction.atomic():
        return guarding.reserve(cluster=cluster, wants=[want], now=database_now())[0]


def test_new_cluster_shows_its_limits_and_what_is_used() -> None:
    cluster = factories.make_cluster()
    text = guards("--cluster", cluster.slug)
    assert all(f"  {limit.name}: " in text for limit in DEFAULT_LIMITS)
    assert restart(cluster, "a-1") is None
    assert "    llm: 1 of 60 (0 machines), refused 0" in guards("--cluster", cluster.slug)


def test_group_is_told_in_words_and_a_cluster_that_is_not_there_by_those_that_are() -> None:
    cluster = factories.make_cluster()
    text = guards("--cluster", cluster.slug)
    assert "by power unit" in text
    assert "power_unit" not in text
    with pytest.raises(
        CommandError, match=rf"there is no cluster 'nix' \(there are: .*{cluster.slug}"
    ) as caught:
        guards("--cluster", "nix")
    assert caught.value.returncode == 2


def test_limit_is_set_changed_and_switched_off() -> None:
    cluster = factories.make_cluster()
    words = ("--cluster", cluster.slug, "--set", "restarts")
    guards(*words, "--by", "tenant", "--actions", "restart_process", "--number", "1", "--window", "3600")
    assert restart(cluster, "a-1") is None
    refusal = restart(cluster, "a-2")
    assert str(refusal) == (
        "held by guard restarts: 1 of 1 action of tenant llm began in the last hour; limit 1 an hour"
    )
    assert "    llm: 1 of 1 (0 machines), refused 1" in guards("--cluster", cluster.slug)
    guards(*words, "--number", "2")  # what began is counted under the new limit too
    assert restart(cluster, "a-2") is None
    assert restart(cluster, "a-3") is not None
    assert "  restarts: 2 an hour by tenant  (off)" in guards(*words, "--off")
    assert restart(cluster, "a-3") is None
    changes = AuditEntry.objects.filter(target_kind="guard", target=f"{cluster} restarts").order_by("id")
    assert [entry.reason for entry in changes] == ["1 an hour", "2 an hour", "switched off"]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--set", "isolated-of-rack", "--number", "0"), "no machine could ever be isolated"),
        (("--set", "actions-a-minute", "--number", "0"), "limit 0 a minute with mode auto"),
        (("--set", "new", "--number", "3"), "new is a new guard: say --by and --actions"),
        (
            ("--set", "new", "--by", "rack", "--actions", "release_node", "--number", "3"),
            "release_node cannot be guarded",
        ),
    ],
)
def test_limit_that_could_never_work_is_refused(words: tuple[str, ...], says: str) -> None:
    cluster = factories.make_cluster()
    with pytest.raises(CommandError, match=says):
        guards("--cluster", cluster.slug, *words)
    assert not GuardLimit.objects.filter(cluster=cluster, changed_by="").exists()
    assert not AuditEntry.objects.filter(target_kind="guard").exists()


def test_tasks_recount_every_cluster_and_forget_old_uses() -> None:
    cluster = factories.make_cluster()
    recount_guards()
    assert GuardLimit.objects.filter(cluster=cluster).count() == len(DEFAULT_LIMITS)
    restart(cluster, "a-1")
    old = database_now() - guarding.KEEP_USES * 2
    cluster.refresh_from_db()
    guarding.GuardUse.objects.filter(cluster=cluster).update(at=old)
    sweep()
    assert not guarding.GuardUse.objects.filter(cluster=cluster).exists()
