"""How a cluster and the first person come in: by whoever has the machine, before anybody can log in."""

from __future__ import annotations

import secrets

from django.db import transaction

from apps.access import clock
from apps.access.models import Cluster, Role, User
from apps.access.services import audit, grant_role
from recovery.decide import Mode
from recovery.errors import InvalidTransition


@transaction.atomic
def register_cluster(*, slug: str, name: str, system_uid: str, actor_kind: str, actor: str) -> Cluster:
    """Make a cluster known under a slug; it starts in `observe`. Safe to call again.

    Raises InvalidTransition when the slug is another cluster's, or the cluster has another slug.
    """
    known = Cluster.objects.filter(slug=slug).first() or Cluster.objects.filter(system_uid=system_uid).first()
    if known is not None:
        if (known.slug, known.system_uid) != (slug, system_uid):
            raise InvalidTransition(
                f"Cluster {known.slug} has the uid {known.system_uid}; asked for {slug} with {system_uid}. "
                "A cluster keeps its slug: choose another one."
            )
        return known
    cluster = Cluster.objects.create(slug=slug, name=name, system_uid=system_uid, mode=Mode.OBSERVE)
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

    The password is kept nowhere else.
    """
    if User.objects.exists():
        return None
    password = secrets.token_urlsafe(12)
    user = User.objects.create_user(username=username, password=password)
    for role in Role:
        grant_role(user_id=user.pk, tenant_id=None, role=role, actor_kind=actor_kind, actor=actor)
    return password
