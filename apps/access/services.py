"""Writes of the access app: audit, modes, the namespace map and tokens."""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from django.db import transaction
from django.db.models import Q

from apps.access import clock, selectors
from apps.access.models import (
    AuditEntry,
    Cluster,
    IdempotencyKey,
    NamespaceMap,
    Role,
    RoleBinding,
    Tenant,
    Token,
    User,
)
from recovery.decide import Mode
from recovery.errors import BadInput, Conflict, InvalidTransition, NotFound

MOST_TOKEN_NAME = 200
_PATTERN = re.compile(r"[a-z0-9*-]{1,253}")
TOKEN_MARK = "idk"  # noqa: S105 - the public beginning of a token, by which scanners find a leaked one
_LAST_USED_EVERY = timedelta(minutes=1)
IDEMPOTENCY_KEPT = timedelta(days=1)

#: What a token may do. The word before the colon is the resource, as in the paths of the REST API.
SCOPES = frozenset(
    {
        "signals:read",
        "signals:write",
        "jobs:read",
        "jobs:write",
        "incidents:read",
        "incidents:write",
        "nodes:read",
        "metrics:read",
    }
)


_LESS_TO_MORE = (Mode.OBSERVE, Mode.APPROVE, Mode.AUTO)


def audit(
    *,
    at: datetime,
    tenant_id: int | None,
    actor_kind: str,
    actor: str,
    verb: str,
    target_kind: str,
    target: str,
    reason: str = "",
    before: Mapping[str, Any] | None = None,
    after: Mapping[str, Any] | None = None,
    remote_address: str | None = None,
) -> AuditEntry:
    """Write who did what to what, in the caller's transaction, so that neither is there without the other."""
    return AuditEntry.objects.create(
        at=at,
        tenant_id=tenant_id,
        actor_kind=actor_kind,
        actor=actor,
        verb=verb,
        target_kind=target_kind,
        target=target,
        reason=reason,
        before=None if before is None else dict(before),
        after=None if after is None else dict(after),
        remote_address=remote_address,
    )


@transaction.atomic
def set_cluster_mode(
    *,
    cluster_id: int,
    mode: Mode,
    actor_kind: str,
    actor: str,
    reason: str,
    before_arming: Callable[[Cluster, Mode], None],
) -> Cluster:
    """Say what the desk may do by itself in a cluster. Audited; the mode it has already changes nothing.

    ``before_arming`` is asked, with the cluster locked, before a mode in which the desk may do more, and raises where
    the cluster is not ready. Less is never refused. Raises NotFound; BadInput without a reason; InvalidTransition when
    the demo asks for a cluster that is not simulated, or one that is gone is to be armed.
    """
    if not reason.strip():
        raise BadInput("Say why the mode changes; the audit keeps it.", field="reason")
    cluster = Cluster.objects.select_for_update(no_key=True).filter(id=cluster_id).first()
    if cluster is None:
        raise NotFound(f"There is no cluster {cluster_id}.")
    if actor_kind == "demo" and not cluster.is_simulated:
        raise InvalidTransition(
            f"Cluster {cluster.slug} is not simulated: only a person sets its mode, the demo does not."
        )
    before = cluster.mode
    if before == mode:
        return cluster
    if _LESS_TO_MORE.index(mode) > _LESS_TO_MORE.index(Mode(before)):
        if cluster.is_retired:
            raise InvalidTransition(f"Cluster {cluster.slug} is gone: there is nothing to arm.")
        before_arming(cluster, mode)
    cluster.mode = mode
    cluster.save(update_fields=["mode"])
    audit(
        at=clock.database_now(),
        tenant_id=None,
        actor_kind=actor_kind,
        actor=actor,
        verb="set_mode",
        target_kind="cluster",
        target=cluster.slug,
        reason=reason,
        before={"mode": before},
        after={"mode": str(mode)},
    )
    return cluster


def unassigned_tenant() -> Tenant:
    """The tenant of everything that no map row claims. A migration makes it; restored data may lack it."""
    tenant, _ = Tenant.objects.get_or_create(slug=selectors.UNASSIGNED, defaults={"name": "Unassigned"})
    return tenant


def tenant_for(cluster_id: int, namespace: str) -> Tenant:
    """Tenant of a namespace: that of the most exact pattern, else ``unassigned``."""
    tenant_id = selectors.mapped_tenant_id(cluster_id, namespace)
    return unassigned_tenant() if tenant_id is None else Tenant.objects.get(id=tenant_id)


@transaction.atomic
def map_namespace(
    *, cluster_id: int, pattern: str, tenant_id: int, actor_kind: str, actor: str
) -> NamespaceMap:
    """Give the namespaces that match ``pattern`` to a tenant. Rows that exist already keep their tenant.

    Raises BadInput for a pattern that no namespace can match: these have small letters, digits and ``-``.
    """
    if not _PATTERN.fullmatch(pattern):
        raise BadInput(
            f"{pattern[:80]!r} matches no namespace: give 1 to 253 small letters, digits, - and *.",
            field="pattern",
        )
    row = NamespaceMap.objects.filter(cluster_id=cluster_id, pattern=pattern).first()
    before = None if row is None else {"tenant": row.tenant.slug}
    if row is not None and row.tenant_id == tenant_id:
        return row
    row, _ = NamespaceMap.objects.update_or_create(
        cluster_id=cluster_id, pattern=pattern, defaults={"tenant_id": tenant_id}
    )
    audit(
        at=clock.database_now(),
        tenant_id=tenant_id,
        actor_kind=actor_kind,
        actor=actor,
        verb="map_namespace",
        target_kind="namespace",
        target=f"{row.cluster.slug}/{pattern}",
        before=before,
        after={"tenant": row.tenant.slug},
    )
    return row


@transaction.atomic
def grant_role(
    *, user_id: int, tenant_id: int | None, role: Role, actor_kind: str, actor: str
) -> RoleBinding:
    """Give a person a role in a tenant, or in every tenant with None. Audited when it is new."""
    tenant = None if tenant_id is None else Tenant.objects.get(id=tenant_id)
    binding, is_new = RoleBinding.objects.get_or_create(user_id=user_id, tenant=tenant, role=role)
    if is_new:
        audit(
            at=clock.database_now(),
            tenant_id=tenant_id,
            actor_kind=actor_kind,
            actor=actor,
            verb="grant_role",
            target_kind="user",
            target=User.objects.values_list("username", flat=True).get(id=user_id),
            after={"role": str(role), "tenant": tenant_id},
        )
    return binding


def token_sha256(plain: str) -> str:
    """What is kept of a token. Plain SHA-256: its 256 random bits need no slow hash."""
    return hashlib.sha256(plain.encode()).hexdigest()


@transaction.atomic
def create_token(
    *,
    tenant_id: int,
    name: str,
    scopes: Sequence[str],
    actor_kind: str,
    actor: str,
    expires_at: datetime | None = None,
    job_uid: str = "",
    cluster_id: int | None = None,
    created_by: User | None = None,
) -> tuple[Token, str]:
    """Make a machine's token and return it with its plain text, which is nowhere else and never again.

    ``job_uid`` makes it good for that job only, ``cluster_id`` for that cluster only. Raises BadInput for a name or
    scope that cannot be.
    """
    if not name.strip() or len(name) > MOST_TOKEN_NAME:
        raise BadInput(f"A token needs a name, of at most {MOST_TOKEN_NAME} characters.", field="name")
    if unknown := sorted(set(scopes) - SCOPES):
        raise BadInput(
            f"There is no scope {', '.join(unknown)}; choose of {', '.join(sorted(SCOPES))}.",
            field="scopes",
        )
    prefix = secrets.token_hex(6)
    plain = f"{TOKEN_MARK}_{prefix}_{secrets.token_urlsafe(32)}"
    token = Token.objects.create(
        tenant_id=tenant_id,
        cluster_id=cluster_id,
        name=name,
        prefix=prefix,
        sha256=token_sha256(plain),
        scopes=sorted(set(scopes)),
        job_uid=job_uid,
        expires_at=expires_at,
        created_by=created_by,
    )
    audit(
        at=clock.database_now(),
        tenant_id=tenant_id,
        actor_kind=actor_kind,
        actor=actor,
        verb="create_token",
        target_kind="token",
        target=prefix,
        after={
            "name": name,
            "scopes": token.scopes,
            "job_uid": job_uid,
            "expires_at": _text(expires_at),
        },
    )
    return token, plain


@transaction.atomic
def revoke_token(*, token_id: int, actor_kind: str, actor: str, reason: str = "") -> Token:
    """Make a token worthless from now on. May be called twice; raises NotFound."""
    token = Token.objects.select_for_update(no_key=True).filter(id=token_id).first()
    if token is None:
        raise NotFound(f"There is no token {token_id}.")
    if token.revoked_at is None:
        token.revoked_at = clock.database_now()
        token.save(update_fields=["revoked_at"])
        audit(
            at=token.revoked_at,
            tenant_id=token.tenant_id,
            actor_kind=actor_kind,
            actor=actor,
            verb="revoke_token",
            target_kind="token",
            target=token.prefix,
            reason=reason,
        )
    return token


def authenticate_token(plain: str) -> Token | None:
    """The token that this text is, or None when it is unknown, expired or revoked.

    ``last_used_at`` is written at most once a minute, because a busy token would write on every request.
    """
    parts = plain.split("_", 2)
    if len(parts) != 3 or parts[0] != TOKEN_MARK:
        return None
    token = Token.objects.select_related("tenant").filter(prefix=parts[1], revoked_at__isnull=True).first()
    if token is None or not hmac.compare_digest(token.sha256, token_sha256(plain)):
        return None
    now = clock.database_now()
    if token.expires_at is not None and token.expires_at <= now:
        return None
    if token.last_used_at is None or now - token.last_used_at > _LAST_USED_EVERY:
        Token.objects.filter(id=token.id).filter(
            Q(last_used_at__isnull=True) | Q(last_used_at__lt=now - _LAST_USED_EVERY)
        ).update(last_used_at=now)
    return token


@transaction.atomic
def answer_once(
    *,
    tenant_id: int,
    endpoint: str,
    key: str,
    body: bytes,
    answer: Callable[[], tuple[int, dict[str, Any]]],
) -> tuple[int, dict[str, Any]]:
    """Do a request once for a key of the caller's own, and give its first answer again after that.

    Two at the same time wait for each other. Without a key it is simply done. ``answer`` does the work in
    this transaction and gives HTTP status and body; an error in it keeps nothing.

    Raises:
        Conflict: The key was used before for another body.
    """
    if not key:
        return answer()
    if len(key) > 200 or not key.isprintable():
        raise BadInput("At most 200 printable characters.", field="Idempotency-Key")
    digest = hashlib.sha256(body).hexdigest()
    own = {"tenant_id": tenant_id, "endpoint": endpoint, "key": key}
    IdempotencyKey.objects.bulk_create(
        [IdempotencyKey(**own, body_sha256=digest, created_at=clock.database_now())], ignore_conflicts=True
    )
    row = IdempotencyKey.objects.select_for_update(no_key=True).get(**own)
    if row.body_sha256 != digest:
        raise Conflict(f"The key {key} was used before with another body; use a new key for a new request.")
    if not row.status:  # 0 is seen by the transaction that made the row only
        row.status, row.answer = answer()
        row.save(update_fields=["status", "answer"])
    return row.status, row.answer


def forget_idempotency_keys(*, now: datetime) -> int:
    """Delete keys older than a day. Returns how many."""
    deleted, _ = IdempotencyKey.objects.filter(created_at__lt=now - IDEMPOTENCY_KEPT).delete()
    return deleted


def _text(moment: datetime | None) -> str | None:
    return None if moment is None else moment.isoformat()
