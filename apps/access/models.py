"""Tenants, clusters as scope, people, roles, tokens and the audit. Source: DOMAIN sections 2 and 13."""

from __future__ import annotations

import uuid
from enum import StrEnum

from django.contrib.auth.models import AbstractUser
from django.contrib.postgres.fields import ArrayField
from django.db import models
from django.db.models import Q

from recovery.decide import Mode


class Role(StrEnum):
    """What a person may do in a tenant. A role does not contain another; people may have several."""

    VIEWER = "viewer"
    OPERATOR = "operator"
    APPROVER = "approver"
    ADMIN = "admin"


class Tenant(models.Model):
    """A team whose rows nobody else sees. ``unassigned`` holds what no map row claims, for admins only."""

    slug = models.SlugField(max_length=63, unique=True)
    name = models.CharField(max_length=200)
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ["slug"]

    def __str__(self) -> str:
        return self.slug


class Cluster(models.Model):
    """A cluster as scope: slug and the uid of its namespace kube-system. Another uid there: stop and say so."""

    slug = models.SlugField(max_length=63, unique=True)
    name = models.CharField(max_length=200)
    system_uid = models.CharField(max_length=64, unique=True)
    mode = models.CharField(max_length=16, choices=[(m, m) for m in Mode], default=Mode.OBSERVE)
    is_simulated = models.BooleanField(default=False)
    token_issuer = models.CharField(max_length=500, blank=True)
    token_keys = models.JSONField(default=dict, blank=True)  # JWKS as last read by the watch
    token_keys_read_at = models.DateTimeField(null=True, blank=True)
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ["slug"]
        constraints = [
            models.CheckConstraint(name="cluster_mode_known", condition=Q(mode__in=[str(m) for m in Mode]))
        ]

    def __str__(self) -> str:
        return self.slug

    @property
    def is_retired(self) -> bool:
        """Whether it is gone and has given its slug up: then the slug ends with the start of its uid."""
        return self.slug.endswith(self.system_uid[:8])


class NamespaceMap(models.Model):
    """(cluster, namespace pattern) -> tenant; ``*`` matches any run of characters, most exact wins."""

    cluster = models.ForeignKey(Cluster, on_delete=models.CASCADE, related_name="namespace_maps")
    pattern = models.CharField(max_length=253)
    tenant = models.ForeignKey(Tenant, on_delete=models.PROTECT, related_name="namespace_maps")

    class Meta:
        constraints = [models.UniqueConstraint(name="one_tenant_per_pattern", fields=["cluster", "pattern"])]

    def __str__(self) -> str:
        return f"{self.cluster_id}/{self.pattern}"


class User(AbstractUser):
    """A person. Times are shown in the one zone chosen here."""

    time_zone = models.CharField(max_length=64, default="UTC")
    theme = models.CharField(
        max_length=8, default="system", choices=[("system", "system"), ("light", "light"), ("dark", "dark")]
    )
    single_keys = models.BooleanField(default=True)


class RoleBinding(models.Model):
    """A role of a person in a tenant; without tenant it holds in every tenant."""

    user = models.ForeignKey(User, on_delete=models.CASCADE, related_name="role_bindings")
    tenant = models.ForeignKey(
        Tenant, on_delete=models.CASCADE, related_name="role_bindings", null=True, blank=True
    )
    role = models.CharField(max_length=16, choices=[(r, r) for r in Role])

    class Meta:
        constraints = [
            models.UniqueConstraint(
                name="role_once_per_tenant", fields=["user", "tenant", "role"], nulls_distinct=False
            ),
            models.CheckConstraint(name="role_known", condition=Q(role__in=[str(r) for r in Role])),
        ]

    def __str__(self) -> str:
        return f"{self.user_id} {self.role}"


class Token(models.Model):
    """A machine's token: shown once, kept as SHA-256. With ``job_uid`` it is good for that job only."""

    tenant = models.ForeignKey(Tenant, on_delete=models.CASCADE, related_name="tokens")
    cluster = models.ForeignKey(
        Cluster, on_delete=models.CASCADE, related_name="tokens", null=True, blank=True
    )
    name = models.CharField(max_length=200)
    prefix = models.CharField(max_length=16, unique=True)
    sha256 = models.CharField(max_length=64)
    scopes = ArrayField(models.CharField(max_length=64), default=list)
    job_uid = models.CharField(max_length=64, blank=True)
    created_by = models.ForeignKey(
        User, on_delete=models.SET_NULL, related_name="tokens", null=True, blank=True
    )
    created_at = models.DateTimeField(auto_now_add=True)
    expires_at = models.DateTimeField(null=True, blank=True)
    revoked_at = models.DateTimeField(null=True, blank=True)
    last_used_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering = ["-created_at"]

    def __str__(self) -> str:
        return f"{self.name} ({self.prefix}…)"


class IdempotencyKey(models.Model):
    """A request that was answered under a key of the caller's own: asked again it gets the same answer.

    Rows are kept a day. ``answer`` holds no secret, also when the first answer did.
    """

    tenant = models.ForeignKey(Tenant, on_delete=models.CASCADE, related_name="+")
    endpoint = models.CharField(max_length=64)
    key = models.CharField(max_length=200)
    body_sha256 = models.CharField(max_length=64)
    status = models.PositiveIntegerField(default=0)
    answer = models.JSONField(default=dict)
    created_at = models.DateTimeField(db_index=True)

    class Meta:
        constraints = [
            models.UniqueConstraint(name="idempotency_key_once", fields=["tenant", "endpoint", "key"])
        ]

    def __str__(self) -> str:
        return f"{self.endpoint} {self.key}"


class AuditEntry(models.Model):
    """Who did what to what, and why. Append-only: a trigger refuses update and delete."""

    id = models.BigAutoField(primary_key=True)
    uid = models.UUIDField(default=uuid.uuid4, unique=True, editable=False)
    at = models.DateTimeField(db_index=True)
    tenant = models.ForeignKey(
        Tenant, on_delete=models.PROTECT, related_name="audit_entries", null=True, blank=True
    )
    actor_kind = models.CharField(max_length=16)  # person | token | policy | demo | command
    actor = models.CharField(max_length=200)
    verb = models.CharField(max_length=64)
    target_kind = models.CharField(max_length=32)
    target = models.CharField(max_length=300)
    reason = models.TextField(blank=True)
    before = models.JSONField(null=True, blank=True)
    after = models.JSONField(null=True, blank=True)
    remote_address = models.GenericIPAddressField(null=True, blank=True)

    class Meta:
        ordering = ["-id"]
        indexes = [models.Index(name="audit_by_target", fields=["target_kind", "target", "-id"])]

    def __str__(self) -> str:
        return f"{self.actor} {self.verb} {self.target}"
