"""Who asks, and what they may. One value for people and for machines' tokens, free of HTTP."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeVar

from django.contrib.auth.models import AnonymousUser
from django.db.models import Model, QuerySet

from apps.access import selectors
from apps.access.models import Role, Token, User

Row = TypeVar("Row", bound=Model)


class PermissionMissing(Exception):
    """The caller may see the row, but not do this to it. Answered as 403."""


@dataclass(frozen=True, slots=True)
class Caller:
    """Somebody who asks: a person or a token. ``tenant_ids`` None = every tenant."""

    kind: str  # person | token
    name: str
    tenant_ids: tuple[int, ...] | None
    user: User | None = None
    token: Token | None = None

    @classmethod
    def person(cls, user: User | AnonymousUser) -> Caller:
        """The caller that a logged-in person is; somebody unknown sees nothing."""
        visible = selectors.visible_tenant_ids(user)
        return cls(
            kind="person",
            name=user.get_username(),
            tenant_ids=None if visible is None else tuple(visible),
            user=user if isinstance(user, User) else None,
        )

    @classmethod
    def machine(cls, token: Token) -> Caller:
        """The caller that a token is: one tenant, and perhaps one job or cluster of it."""
        return cls(
            kind="token",
            name=f"{token.name} ({token.prefix})",
            tenant_ids=(token.tenant_id,),
            token=token,
        )

    @property
    def job_uid(self) -> str:
        """Owner uid of the one job that a token is good for; empty = no such limit."""
        return self.token.job_uid if self.token is not None else ""

    @property
    def cluster_id(self) -> int | None:
        """The one cluster that a token is good for; None = no such limit."""
        return self.token.cluster_id if self.token is not None else None

    def limit(
        self,
        rows: QuerySet[Row],
        *,
        tenant: str = "tenant",
        cluster: str | None = "cluster",
        job: str | None = None,
    ) -> QuerySet[Row]:
        """The rows that this caller may see.

        The names are lookups from the row to its tenant, its cluster and its job (``""`` when the row is a
        job itself, None when rows have none: then a token of one job or cluster sees none of them).
        """
        wanted: dict[str, Any] = {}
        if self.tenant_ids is not None:
            wanted[f"{tenant}__in"] = self.tenant_ids
        if self.cluster_id is not None:
            if cluster is None:
                return rows.none()
            wanted[cluster] = self.cluster_id
        if self.job_uid:
            if job is None:
                return rows.none()
            wanted[f"{job}__owner_uid" if job else "owner_uid"] = self.job_uid
        return rows.filter(**wanted)

    def sees_tenant(self, tenant_id: int) -> bool:
        """Whether rows of a tenant show to this caller at all."""
        return self.tenant_ids is None or tenant_id in self.tenant_ids

    def require_role(self, tenant_id: int, *roles: Role) -> None:
        """Raise PermissionMissing unless the person has one of the roles in the tenant.

        A token needs no role: its scope was checked before, and its tenant by ``limit``.
        """
        if self.token is not None:
            return
        if self.user is None or not selectors.roles_of(self.user, tenant_id) & set(roles):
            names = " or ".join(roles)
            raise PermissionMissing(f"This needs the role {names} in the row's tenant.")
