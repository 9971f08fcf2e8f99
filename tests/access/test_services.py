"""Tenants, modes, tokens and the audit."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.db import InternalError, connection, transaction
from django.db.utils import IntegrityError

from apps.access import clock, selectors, services
from apps.access.models import AuditEntry, Cluster, Role, Tenant, Token, User
from recovery.decide import Mode
from recovery.errors import BadInput, InvalidTransition

pytestmark = pytest.mark.django_db


@pytest.fixture
def cluster() -> Cluster:
    return Cluster.objects.create(slug="east", name="East", system_uid="uid-east", is_simulated=True)


@pytest.fixture
def team() -> Tenant:
    return Tenant.objects.create(slug="team", name="Team")


def test_clock_moves_inside_a_transaction() -> None:
    with transaction.atomic():
        first = clock.database_now()
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_sleep(0.01)")
        assert clock.database_now() - first >= timedelta(milliseconds=10)
    assert first.tzinfo is not None


@pytest.mark.parametrize(
    "statement", ["UPDATE access_auditentry SET actor = 'x'", "DELETE FROM access_auditentry"]
)
def test_audit_entry_is_neither_changed_nor_deleted(statement: str) -> None:
    services.audit(
        at=clock.database_now(),
        tenant_id=None,
        actor_kind="person",
        actor="ada",
        verb="look",
        target_kind="desk",
        target="desk",
    )
    with (
        pytest.raises((InternalError, IntegrityError), match="append-only"),
        transaction.atomic(),
        connection.cursor() as cursor,
    ):
        cursor.execute(statement)
    assert AuditEntry.objects.get().actor == "ada"


def ready(cluster: Cluster, mode: Mode) -> None:
    """Nothing speaks against arming."""


def test_mode_change_is_audited_once(cluster: Cluster) -> None:
    for _ in range(2):
        services.set_cluster_mode(
            cluster_id=cluster.id,
            mode=Mode.AUTO,
            actor_kind="person",
            actor="ada",
            reason="armed",
            before_arming=ready,
        )
    entry = AuditEntry.objects.get()
    assert (entry.actor, entry.before, entry.after) == ("ada", {"mode": "observe"}, {"mode": "auto"})
    cluster.refresh_from_db()
    assert cluster.mode == Mode.AUTO


def test_demo_arms_no_real_cluster(cluster: Cluster) -> None:
    cluster.is_simulated = False
    cluster.save()
    with pytest.raises(InvalidTransition, match="not simulated"):
        services.set_cluster_mode(
            cluster_id=cluster.id,
            mode=Mode.AUTO,
            actor_kind="demo",
            actor="demo",
            reason="demo",
            before_arming=ready,
        )
    cluster.refresh_from_db()
    assert cluster.mode == Mode.OBSERVE
    assert not AuditEntry.objects.exists()


def test_mode_change_needs_a_reason(cluster: Cluster) -> None:
    with pytest.raises(BadInput):
        services.set_cluster_mode(
            cluster_id=cluster.id,
            mode=Mode.AUTO,
            actor_kind="person",
            actor="ada",
            reason=" ",
            before_arming=ready,
        )


def test_only_a_mode_in_which_the_desk_may_do_more_is_asked_about(cluster: Cluster) -> None:
    asked: list[str] = []
    for mode in (Mode.APPROVE, Mode.AUTO, Mode.APPROVE, Mode.OBSERVE):
        services.set_cluster_mode(
            cluster_id=cluster.id, mode=mode, actor_kind="person", actor="ada", reason="r",
            before_arming=lambda locked, to: asked.append(f"{locked.mode} to {to}"),
        )  # fmt: skip
    assert asked == ["observe to approve", "approve to auto"]


def test_cluster_that_is_gone_is_not_armed(cluster: Cluster) -> None:
    Cluster.objects.filter(pk=cluster.pk).update(slug=f"east-{cluster.system_uid[:8]}")
    with pytest.raises(InvalidTransition, match="gone"):
        services.set_cluster_mode(
            cluster_id=cluster.id, mode=Mode.AUTO, actor_kind="person", actor="ada", reason="r",
            before_arming=ready,
        )  # fmt: skip


@pytest.mark.parametrize(
    ("namespace", "slug"),
    [
        ("training", "exact"),
        ("training-vision", "prefix"),
        ("training-vision-a", "longer"),
        ("other", "any"),
    ],
)
def test_most_exact_pattern_gives_the_tenant(cluster: Cluster, namespace: str, slug: str) -> None:
    for pattern, name in [("*", "any"), ("training*", "prefix"), ("training-vision-*", "longer")]:
        tenant = Tenant.objects.create(slug=name, name=name)
        services.map_namespace(
            cluster_id=cluster.id, pattern=pattern, tenant_id=tenant.id, actor_kind="command", actor="t"
        )
    exact = Tenant.objects.create(slug="exact", name="exact")
    services.map_namespace(
        cluster_id=cluster.id, pattern="training", tenant_id=exact.id, actor_kind="command", actor="t"
    )
    assert services.tenant_for(cluster.id, namespace).slug == slug


def test_namespace_without_pattern_is_unassigned(cluster: Cluster) -> None:
    assert services.tenant_for(cluster.id, "nobody").slug == selectors.UNASSIGNED


def test_pattern_letters_mean_themselves() -> None:
    assert selectors.pattern_matches("a.b*", "a.bc")
    assert not selectors.pattern_matches("a.b*", "axbc")
    assert not selectors.pattern_matches("train", "training")


def test_roles_show_their_tenant_only(team: Tenant) -> None:
    Tenant.objects.create(slug="other", name="Other")
    ada = User.objects.create_user("ada")
    assert selectors.visible_tenant_ids(ada) == []
    services.grant_role(
        user_id=ada.id, tenant_id=team.id, role=Role.OPERATOR, actor_kind="command", actor="t"
    )
    assert selectors.visible_tenant_ids(ada) == [team.id]
    assert selectors.roles_of(ada, team.id) == {Role.OPERATOR}
    assert selectors.roles_of(ada, Tenant.objects.get(slug="other").id) == frozenset()


def test_unassigned_shows_to_admins_only(team: Tenant) -> None:
    ada, root = User.objects.create_user("ada"), User.objects.create_user("root")
    services.grant_role(user_id=ada.id, tenant_id=None, role=Role.VIEWER, actor_kind="command", actor="t")
    services.grant_role(user_id=root.id, tenant_id=None, role=Role.ADMIN, actor_kind="command", actor="t")
    unassigned = services.unassigned_tenant()
    visible = selectors.visible_tenant_ids(ada)
    assert visible is not None
    assert team.id in visible
    assert unassigned.id not in visible
    assert selectors.visible_tenant_ids(root) is None


def test_inactive_person_sees_nothing(team: Tenant) -> None:
    ada = User.objects.create_user("ada", is_active=False, is_superuser=True)
    assert selectors.visible_tenant_ids(ada) == []


def make_token(team: Tenant, **overrides: object) -> tuple[Token, str]:
    values: dict[str, object] = {"tenant_id": team.id, "name": "ci", "scopes": ["signals:write"]}
    return services.create_token(**(values | overrides), actor_kind="person", actor="ada")  # type: ignore[arg-type]


def test_token_is_kept_as_digest_only(team: Tenant) -> None:
    token, plain = make_token(team)
    assert services.authenticate_token(plain) == token
    row = Token.objects.filter(id=token.id).values().get()
    assert plain not in str(row)
    assert plain.split("_", 2)[2] not in str(list(AuditEntry.objects.values()))


def test_wrong_expired_and_revoked_tokens_are_nobody(team: Tenant) -> None:
    token, plain = make_token(team)
    assert services.authenticate_token(plain + "x") is None
    assert services.authenticate_token("idk_nothing") is None
    assert services.authenticate_token("") is None
    _, old = make_token(team, expires_at=clock.database_now() - timedelta(seconds=1))
    assert services.authenticate_token(old) is None
    services.revoke_token(token_id=token.id, actor_kind="person", actor="ada", reason="left the team")
    assert services.authenticate_token(plain) is None


def test_unknown_scope_is_refused_with_the_ones_there_are(team: Tenant) -> None:
    with pytest.raises(BadInput, match="incidents:read"):
        make_token(team, scopes=["all"])
