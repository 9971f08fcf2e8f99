"""How a cluster and the first person come in: by whoever has the machine, before anybody can log in."""

from __future__ import annotations

import getpass
import os
import secrets
from collections.abc import Sequence

from django.core.exceptions import ValidationError
from django.db import transaction

from apps.access import clock
from apps.access.models import Cluster, Role, User
from apps.access.services import audit, grant_role
from recovery.decide import Mode
from recovery.errors import BadInput, Conflict, InvalidTransition


def whoever_types() -> str:
    """The login of whoever runs a command, for the audit; its number where it has no name, as in some containers."""
    try:
        return getpass.getuser()
    except OSError:
        return f"uid {os.getuid()}"


@transaction.atomic
def register_cluster(*, slug: str, name: str, system_uid: str, actor_kind: str, actor: str) -> Cluster:
    """Make a cluster known under a slug; it starts in `observe`. Safe to call again.

    Raises BadInput when the slug is none; InvalidTransition when it is another cluster's, or the cluster has another.
    """
    known = Cluster.objects.filter(slug=slug).first() or Cluster.objects.filter(system_uid=system_uid).first()
    if known is not None:
        if (known.slug, known.system_uid) != (slug, system_uid):
            raise InvalidTransition(
                f"Cluster {known.slug} has the uid {known.system_uid}; asked for {slug} with {system_uid}. "
                "A cluster keeps its slug: choose another one."
            )
        return known
    cluster = Cluster(slug=slug, name=name, system_uid=system_uid, mode=Mode.OBSERVE)
    try:
        cluster.clean_fields()
    except ValidationError as error:
        raise BadInput(f"{slug[:80]!r} is no short name of a cluster: {' '.join(error.messages)}") from error
    cluster.save()
    audit(
        at=clock.database_now(),
        tenant_id=None,
        actor_kind=actor_kind,
        actor=actor,
        verb="register_cluster",
        target_kind="cluster",
        target=slug,
        after={"system_uid": system_uid, "mode": str(Mode.OBSERVE)},
    )
    return cluster


@transaction.atomic
def make_first_person(*, username: str, actor_kind: str, actor: str) -> str | None:
    """Make a person with every role in every tenant when there is nobody yet; the password, or None.

    The password is kept nowhere else. Raises BadInput when the name is none.
    """
    if User.objects.exists():
        return None
    return _make_person(username, tuple(Role), None, actor_kind=actor_kind, actor=actor)


@transaction.atomic
def add_person(
    *, username: str, roles: Sequence[Role], tenant_id: int | None, actor_kind: str, actor: str
) -> str:
    """Make a person with these roles in one tenant, or in every tenant with None; gives the password.

    The password is kept nowhere else. Raises Conflict when the name is taken, BadInput when it is none.
    """
    if User.objects.filter(username=username).exists():
        raise Conflict(f"There is a person {username} already; choose another name.")
    return _make_person(username, roles, tenant_id, actor_kind=actor_kind, actor=actor)


def _make_person(
    username: str, roles: Sequence[Role], tenant_id: int | None, *, actor_kind: str, actor: str
) -> str:
    try:
        User(username=username).clean_fields(exclude=["password"])
    except ValidationError as error:
        raise BadInput(
            f"{username[:80]!r} is no name of a person: {' '.join(error.messages)}", field="username"
        ) from error
    password = secrets.token_urlsafe(12)
    user = User.objects.create_user(username=username, password=password)
    for role in roles:
        grant_role(user_id=user.pk, tenant_id=tenant_id, role=role, actor_kind=actor_kind, actor=actor)
    return password
