"""What whoever has the machine can do without a page: arm a cluster, give away namespaces, make tokens."""

from __future__ import annotations

import os
from io import StringIO
from typing import Any

import pytest
from django.core.management import CommandError, call_command

from apps.access import services
from apps.access.models import AuditEntry, Cluster, Tenant, Token, User
from tests.factories import make_cluster, make_tenant

pytestmark = pytest.mark.django_db


def say(command: str, *words: str, **options: Any) -> str:
    said = StringIO()
    call_command(command, *words, stdout=said, **options)
    return said.getvalue().strip()


@pytest.fixture
def cluster() -> Cluster:
    return make_cluster(slug="east", mode="observe")


def test_cluster_is_armed_with_a_reason_that_the_audit_keeps(cluster: Cluster) -> None:
    said = say("set_cluster_mode", slug="east", mode="auto", reason="watched it for a week")
    assert said == "Cluster east is in mode auto."
    cluster.refresh_from_db()
    assert cluster.mode == "auto"
    entry = AuditEntry.objects.get(target_kind="cluster")
    assert (entry.actor_kind, entry.reason) == ("command", "watched it for a week")


def test_unknown_cluster_names_those_that_there_are(cluster: Cluster) -> None:
    with pytest.raises(CommandError, match="registered: east"):
        say("set_cluster_mode", slug="west", mode="auto", reason="x")
    with pytest.raises(CommandError, match="west"):
        say("map_namespace", cluster="west", pattern="nlp-*", tenant="nlp")
    assert not Tenant.objects.filter(slug="nlp").exists()


def test_namespaces_of_a_pattern_get_a_tenant(cluster: Cluster) -> None:
    for _ in range(2):
        say("map_namespace", cluster="east", pattern="nlp-*", tenant="nlp", create=True)
    assert services.tenant_for(cluster.pk, "nlp-large").slug == "nlp"
    assert AuditEntry.objects.filter(verb="map_namespace").count() == 1


def test_unknown_tenant_is_made_only_when_that_was_asked_for(cluster: Cluster) -> None:
    make_tenant(slug="nlp")
    with pytest.raises(
        CommandError, match=r"no tenant 'nlpp' \(there are: nlp, unassigned\); --create makes it"
    ):
        say("map_namespace", cluster="east", pattern="nlp-*", tenant="nlpp")
    with pytest.raises(CommandError, match=r"^'n l p' is no short name of a tenant: "):
        say("map_namespace", cluster="east", pattern="nlp-*", tenant="n l p", create=True)
    assert set(Tenant.objects.values_list("slug", flat=True)) == {"nlp", "unassigned"}
    assert not AuditEntry.objects.exists()
    said = say("map_namespace", cluster="east", pattern="nlp-*", tenant="nlp")
    assert said == "New jobs in east/nlp-* belong to nlp."


def test_token_is_printed_once_and_works_within_its_scopes(cluster: Cluster) -> None:
    tenant = make_tenant(slug="nlp")
    plain = say(
        "create_token", tenant="nlp", name="alertmanager", scopes=["signals:write"], cluster="east", days=30
    )
    token = services.authenticate_token(plain)
    assert token is not None
    assert (token.tenant_id, token.cluster_id, token.scopes) == (tenant.pk, cluster.pk, ["signals:write"])
    assert token.expires_at is not None


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"scopes": ["everything"]}, "signals:write"),
        ({"tenant": "x"}, "nlp"),
        ({"cluster": "x"}, "'x'"),
        ({"cluster": ""}, "no cluster ''"),
        ({"days": 0}, "1 to 3650"),
        ({"days": 99999999999}, "1 to 3650"),
        ({"name": " "}, "needs a name"),
        ({"name": "n" * 201}, "at most 200"),
    ],
    ids=["scope", "tenant", "cluster", "no cluster", "days", "too many days", "no name", "long name"],
)
def test_token_that_cannot_be_is_refused_with_what_could(
    cluster: Cluster, wrong: dict[str, Any], says: str
) -> None:
    make_tenant(slug="nlp")
    with pytest.raises(CommandError, match=says):
        say(
            "create_token",
            **{"tenant": "nlp", "name": "n", "scopes": ["signals:read"], "cluster": None, "days": 1, **wrong},
        )
    assert not Token.objects.exists()


@pytest.mark.parametrize(
    ("command", "wrong", "says"),
    [
        ("first_person", {"username": ""}, "'' is no name of a person"),
        ("first_person", {"username": "n" * 151}, "is no name of a person"),
        ("map_namespace", {"pattern": ""}, "'' matches no namespace"),
        ("map_namespace", {"pattern": "n" * 254}, "matches no namespace"),
        ("map_namespace", {"pattern": "a b"}, "'a b' matches no namespace"),
        ("map_namespace", {"cluster": ""}, r"no cluster '' is registered \(registered: east\)"),
    ],
)
def test_names_that_cannot_be_are_refused_and_nothing_stays(
    cluster: Cluster, command: str, wrong: dict[str, Any], says: str
) -> None:
    whole: dict[str, dict[str, Any]] = {
        "first_person": {},
        "map_namespace": {"cluster": "east", "pattern": "nlp-*", "tenant": "nlp", "create": True},
    }
    with pytest.raises(CommandError, match=says):
        say(command, **{**whole[command], **wrong})
    assert not User.objects.exists()
    assert not Tenant.objects.filter(slug="nlp").exists()
    assert not AuditEntry.objects.exists()


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("",), "'' is no name of a person"),
        (("an n",), "'an n' is no name of a person"),
        (("ann", "--tenant", ""), r"no tenant '' \(there are: "),
    ],
)
def test_person_without_a_name_or_for_a_tenant_without_one_is_refused(
    words: tuple[str, ...], says: str
) -> None:
    """An empty tenant is a variable that was not set, and must not come out as every tenant."""
    with pytest.raises(CommandError, match=says):
        say("add_person", *words, "--role", "operator")
    assert not User.objects.exists()


def test_audit_of_an_account_without_a_name_has_its_number(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    def nobody() -> str:
        raise OSError("No username set in the environment")

    monkeypatch.setattr("getpass.getuser", nobody)
    say("set_cluster_mode", slug="east", mode="auto", reason="watched it for a week")
    assert AuditEntry.objects.get(target_kind="cluster").actor == f"uid {os.getuid()}"
