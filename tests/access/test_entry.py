"""The first cluster and the first person."""

from __future__ import annotations

from io import StringIO

import pytest
from django.core.management import CommandError, call_command

from apps import wiring
from apps.access import entry
from apps.access.models import AuditEntry, Cluster, RoleBinding, User
from recovery.decide import Mode
from recovery.errors import ClusterUnavailable, InvalidTransition

pytestmark = pytest.mark.django_db


def register(slug: str = "east", system_uid: str = "uid-east") -> Cluster:
    return entry.register_cluster(
        slug=slug, name="East", system_uid=system_uid, actor_kind="command", actor="test"
    )


def test_new_cluster_starts_in_observe_and_is_audited_once() -> None:
    """R26: a fresh install touches nothing."""
    first, second = register(), register()
    assert first.pk == second.pk
    assert first.mode == Mode.OBSERVE
    assert not first.is_simulated
    assert AuditEntry.objects.filter(verb="register_cluster", target="east").count() == 1


@pytest.mark.parametrize(("slug", "uid"), [("east", "uid-west"), ("west", "uid-east")], ids=["slug", "uid"])
def test_slug_and_cluster_stay_together(slug: str, uid: str) -> None:
    register()
    with pytest.raises(InvalidTransition, match="A cluster keeps its slug"):
        register(slug, uid)


class Answering:
    def identity(self) -> str:
        return "uid-of-kube-system"


class Silent:
    def identity(self) -> str:
        raise ClusterUnavailable("the cluster does not answer")


def test_command_registers_the_cluster_of_the_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wiring, "cluster", Answering)
    said = StringIO()
    call_command("register_cluster", slug="east", stdout=said)
    assert said.getvalue() == "Cluster east is in mode observe.\n"
    assert Cluster.objects.get(slug="east").system_uid == "uid-of-kube-system"


def test_command_says_when_the_cluster_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wiring, "cluster", Silent)
    with pytest.raises(CommandError, match="does not answer"):
        call_command("register_cluster", slug="east")
    assert not Cluster.objects.exists()


def test_first_person_can_do_everything_and_there_is_only_one() -> None:
    said = StringIO()
    call_command("first_person", stdout=said)
    name, _, password = said.getvalue().split()[:3]
    user = User.objects.get(username=name)
    assert user.check_password(password)
    roles = RoleBinding.objects.filter(user=user, tenant=None).values_list("role", flat=True)
    assert sorted(roles) == ["admin", "approver", "operator", "viewer"]
    again = StringIO()
    call_command("first_person", username="second", stdout=again)
    assert again.getvalue() == ""
    assert User.objects.count() == 1


def test_one_more_person_gets_the_roles_that_were_named_and_a_password_once() -> None:
    said = StringIO()
    call_command("add_person", "li", "--role", "operator", "--role", "approver", stdout=said)
    name, _, password = said.getvalue().split()[:3]
    person = User.objects.get(username=name)
    assert person.check_password(password)
    assert sorted(person.role_bindings.values_list("role", "tenant")) == [
        ("approver", None),
        ("operator", None),
    ]
    with pytest.raises(CommandError, match="already"):
        call_command("add_person", "li", "--role", "viewer")


def test_person_for_a_tenant_that_is_not_there_is_refused_with_those_that_are() -> None:
    with pytest.raises(CommandError, match="unassigned"):
        call_command("add_person", "li", "--role", "viewer", "--tenant", "nobody")
    assert not User.objects.exists()
