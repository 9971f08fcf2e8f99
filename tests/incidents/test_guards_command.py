"""`manage.py guards`: what is used, and limits that are refused when they are set."""

from __future__ import annotations

from io import StringIO

import pytest
from django.core.management import CommandError, call_command
from django.db import transaction

from apps.access.clock import database_now
from apps.access.models import AuditEntry, Cluster
from apps.incidents.guard_models import GuardLimit
from apps.incidents.services import arming, guarding
from apps.incidents.tasks import recount_guards, sweep
from apps.nodes.models import Machine
from recovery.decide import Mode
from recovery.errors import InvalidTransition
from recovery.guards import DEFAULT_LIMITS
from recovery.lifecycle import ActionKind
from tests import factories

pytestmark = pytest.mark.django_db


def guards(*words: str) -> str:
    out = StringIO()
    call_command("guards", *words, stdout=out)
    return out.getvalue()


def make_rack(cluster: Cluster, machines: int) -> None:
    now = database_now()
    Machine.objects.bulk_create(
        Machine(
            cluster=cluster, hardware_key=f"hw-{n}", name=f"gpu-{n}", rack="r01", first_seen_at=now, last_seen_at=now
        )
        for n in range(machines)
    )  # fmt: skip


def arm(cluster: Cluster, mode: Mode = Mode.AUTO) -> Cluster:
    return arming.set_cluster_mode(
        cluster_id=cluster.pk, mode=mode, actor_kind="person", actor="ann", reason="watched it"
    )


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
        (("--set", "isolated-of-rack", "--share", "0.1"), "10 % of rack r01 with 8 machines is 0.8"),
        (("--set", "isolated-of-rack", "--share", "1.0"), "it would never hold anything back"),
        (("--set", "isolated-of-rack", "--share", "0.5", "--at-least", "500"), "set at most 7"),
        (("--set", "actions-a-minute", "--number", "0"), "limit 0 a minute: no action could ever begin"),
        (("--set", "actions-a-minute", "--number", "1000000000"), "not under the 52800 that 8 machines"),
        (("--set", "actions-a-minute", "--number", "99999999999"), "99999999999 is no number of actions"),
        (
            ("--set", "n" * 64, "--by", "rack", "--actions", "hold_node", "--number", "1"),
            "no name of a guard",
        ),
        (
            ("--set", "", "--by", "rack", "--actions", "hold_node", "--number", "1"),
            "'' is no name of a guard",
        ),
        (
            ("--set", "isolated-of-rack", "--window", "60"),
            "isolated-of-rack is a standing limit, of the machines that are out now, and stays one",
        ),
        (("--set", "actions-a-minute", "--window", "0"), "actions-a-minute is a window limit"),
        (("--set", "isolated-an-hour", "--window", "0"), "isolated-an-hour is a window limit"),
        (("--set", "nix", "--off"), "there is no guard nix to switch off"),
        (("--set", "new", "--number", "3"), "new is a new guard: say --by and --actions"),
        (
            ("--set", "new", "--by", "rack", "--actions", "release_node", "--number", "3"),
            "release_node cannot be guarded",
        ),
    ],
)
@pytest.mark.parametrize("mode", [Mode.OBSERVE, Mode.AUTO])
def test_limit_that_could_never_work_is_refused(mode: Mode, words: tuple[str, ...], says: str) -> None:
    cluster = factories.make_cluster(mode=mode)
    make_rack(cluster, 8)
    with pytest.raises(CommandError, match=says) as caught:
        guards("--cluster", cluster.slug, *words)
    assert caught.value.returncode == 1
    assert not GuardLimit.objects.filter(cluster=cluster, changed_by="").exists()
    assert not AuditEntry.objects.filter(target_kind="guard").exists()


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--number", "5"), "--number of which guard"),
        (("--by", "rack", "--off"), "--by, --off of which guard"),
        (("--set", "isolated-of-rack"), "nothing to change of isolated-of-rack"),
    ],
)
def test_words_about_no_guard_are_not_ignored(words: tuple[str, ...], says: str) -> None:
    cluster = factories.make_cluster()
    with pytest.raises(CommandError, match=says) as caught:
        guards("--cluster", cluster.slug, *words)
    assert caught.value.returncode == 2


def test_cluster_is_not_armed_while_a_guard_could_not_work_and_each_is_named_with_what_mends_it() -> None:
    cluster = factories.make_cluster(mode="observe")
    make_rack(cluster, 8)
    guards("--cluster", cluster.slug, "--set", "isolated-of-rack", "--number", "4")
    guards("--cluster", cluster.slug, "--set", "isolated-of-pool", "--off")
    arm(cluster, Mode.APPROVE)
    # What was set before this was refused, and a rack that shrank.
    GuardLimit.objects.filter(cluster=cluster, name="actions-a-minute").update(number=0)
    GuardLimit.objects.filter(cluster=cluster, name="isolated-of-pool").update(number=0)  # off: says nothing
    Machine.objects.filter(cluster=cluster, name__in=["gpu-4", "gpu-5", "gpu-6", "gpu-7"]).update(
        gone_at=database_now()
    )
    with pytest.raises(InvalidTransition) as caught:
        arm(cluster)
    whole = "limit 4 lets every rack be isolated whole, the largest has 4 machines: it would never hold anything back"
    nothing = "limit 0 a minute: no action could ever begin; set at least 1, or mode observe to do nothing"
    begin = f"    manage.py guards --cluster {cluster.slug} --set "
    assert str(caught.value).splitlines() == [
        f"Cluster {cluster.slug} stays in mode approve: 2 guards could not work in mode auto.",
        f"  isolated-of-rack: {whole}; set at most 3",
        f"{begin}isolated-of-rack --number 3",
        f"  actions-a-minute: {nothing}",
        f"{begin}actions-a-minute --number 1",
        "Set each, for example as shown, or switch it off by --off instead of its numbers; then arm again.",
    ]
    shown = guards("--cluster", cluster.slug)
    assert shown.count("    CANNOT WORK: limit ") == 2
    cluster.refresh_from_db()
    assert cluster.mode == Mode.APPROVE
    guards("--cluster", cluster.slug, "--set", "isolated-of-rack", "--number", "3")
    shown = guards("--cluster", cluster.slug, "--set", "actions-a-minute", "--off")
    assert "CANNOT WORK" not in shown
    assert arm(cluster).mode == Mode.AUTO


def test_guard_that_an_older_version_let_in_is_shown_and_can_be_switched_off() -> None:
    cluster = factories.make_cluster(mode="observe")
    GuardLimit.objects.create(
        cluster=cluster, name="my guard", dimension="rack", measure="window", actions=["stop_job"], number=0,
        window_seconds=60.0, changed_at=database_now(),
    )  # fmt: skip
    shown = guards("--cluster", cluster.slug)
    assert "CANNOT WORK: stop_job is of a job and not of one machine" in shown
    assert f"manage.py guards --cluster {cluster.slug} --set 'my guard' --off" in shown
    with pytest.raises(InvalidTransition, match="--off"):
        arm(cluster)
    assert "CANNOT WORK" not in guards("--cluster", cluster.slug, "--set", "my guard", "--off")


def test_command_that_arms_says_what_is_in_the_way() -> None:
    cluster = factories.make_cluster(mode="observe")
    guarding.ensure_default_limits(cluster, database_now())
    GuardLimit.objects.filter(cluster=cluster, name="isolated-of-rack").update(number=0)
    with pytest.raises(CommandError, match=r"--set isolated-of-rack --number 1 --share 0\.25 --at-least 1"):
        call_command("set_cluster_mode", slug=cluster.slug, mode="auto", reason="x")
    cluster.refresh_from_db()
    assert cluster.mode == Mode.OBSERVE


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
