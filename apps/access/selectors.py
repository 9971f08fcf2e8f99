"""Who may see what. Source: DOMAIN section 13."""

from __future__ import annotations

import re

from django.contrib.auth.models import AnonymousUser

from apps.access.models import NamespaceMap, Role, RoleBinding, Tenant, User

UNASSIGNED = "unassigned"


def _bindings(user: User | AnonymousUser) -> list[tuple[int | None, Role]]:
    """(tenant or None for every tenant, role) of a person; nothing for somebody inactive or unknown."""
    if not isinstance(user, User) or not user.is_active:
        return []
    rows = RoleBinding.objects.filter(user=user).values_list("tenant_id", "role")
    return [(tenant_id, Role(role)) for tenant_id, role in rows]


def visible_tenant_ids(user: User | AnonymousUser) -> list[int] | None:
    """Tenants whose rows a person sees, ascending; None = all of them, ``unassigned`` too.

    Any role lets see. ``unassigned`` shows to a role that names it and to whoever is admin everywhere.
    """
    if isinstance(user, User) and user.is_active and user.is_superuser:
        return None
    bindings = _bindings(user)
    if (None, Role.ADMIN) in bindings:
        return None
    named = {tenant_id for tenant_id, _ in bindings if tenant_id is not None}
    if any(tenant_id is None for tenant_id, _ in bindings):
        named |= set(Tenant.objects.exclude(slug=UNASSIGNED).values_list("id", flat=True))
    return sorted(named)


def roles_of(user: User | AnonymousUser, tenant_id: int) -> frozenset[Role]:
    """Roles that a person has in a tenant. A superuser has all of them."""
    if isinstance(user, User) and user.is_active and user.is_superuser:
        return frozenset(Role)
    return frozenset(role for bound_to, role in _bindings(user) if bound_to in (None, tenant_id))


def _exactness(pattern: str) -> tuple[int, int, str]:
    """Sort key, most exact last: letters that must stand there, then few stars, then the text itself."""
    stars = pattern.count("*")
    return len(pattern) - stars, -stars, pattern


def pattern_matches(pattern: str, namespace: str) -> bool:
    """Whether a namespace pattern claims the namespace; ``*`` matches any run of characters, also none."""
    expression = ".*".join(re.escape(part) for part in pattern.split("*"))
    return re.fullmatch(expression, namespace) is not None


def mapped_tenant_id(cluster_id: int, namespace: str) -> int | None:
    """Tenant of the most exact pattern that claims the namespace, or None.

    A pattern without star beats every pattern with one, however long.
    """
    rows = NamespaceMap.objects.filter(cluster_id=cluster_id).values_list("pattern", "tenant_id")
    hits = [(pattern, tenant_id) for pattern, tenant_id in rows if pattern_matches(pattern, namespace)]
    if not hits:
        return None
    return max(hits, key=lambda hit: ("*" not in hit[0], _exactness(hit[0])))[1]
