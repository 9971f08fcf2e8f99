"""What an agent shows at enrolment: a projected service-account token, or a job's enrolment secret.

A token is checked against the cluster's public keys as the watch stored them, so a web process needs no
cluster to answer.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import jwt

from apps.access.models import Cluster
from apps.jobs.models import EnrolmentSecret, Job

AUDIENCE = "incidentdesk"
SECRET_MARK = "ide_"  # noqa: S105 - how every secret begins
_ALGORITHMS = ("RS256", "RS384", "RS512", "ES256", "ES384", "ES512", "EdDSA")
_LEEWAY_SECONDS = 10


class CredentialRefused(Exception):
    """It does not prove what it must; asking again with the same one changes nothing."""


class CredentialUnclear(Exception):
    """It cannot be judged now (keys not read yet, or rotated, or the token is about to be renewed)."""


@dataclass(frozen=True, slots=True)
class PodClaims:
    """What a projected token proves: this pod of this cluster."""

    cluster: Cluster
    namespace: str
    pod_uid: str
    pod_name: str
    service_account: str
    issued_at: datetime


def pod_claims(bearer: str, *, now: datetime) -> PodClaims:
    """Check a projected token: signature, issuer, audience, expiry, and that it is bound to a pod.

    Raises CredentialRefused or CredentialUnclear, with the reason in words.
    """
    try:
        header = jwt.get_unverified_header(bearer)
        unproven = jwt.decode(bearer, options={"verify_signature": False})
    except jwt.InvalidTokenError:
        raise CredentialRefused("The token is no service-account token.") from None
    cluster = _cluster_of(unproven.get("iss"))
    key = _key(cluster, header.get("kid"))
    try:
        claims = jwt.decode(
            bearer,
            key,
            algorithms=list(_ALGORITHMS),
            audience=AUDIENCE,
            issuer=cluster.token_issuer,
            options={
                "require": ["exp", "iat"],
                "verify_exp": False,
                "verify_iat": False,
                "verify_nbf": False,
            },
        )
        expires_at, issued_at = float(claims["exp"]), float(claims["iat"])
    except jwt.InvalidAudienceError:
        raise CredentialRefused(f"The token is not for the audience {AUDIENCE}.") from None
    except (jwt.InvalidTokenError, TypeError, ValueError) as error:
        raise CredentialRefused(f"The token does not prove itself: {error}.") from None
    if expires_at + _LEEWAY_SECONDS < now.timestamp():
        raise CredentialUnclear("The token has expired; the kubelet renews it.")
    return _pod_claims(cluster, claims, now - timedelta(seconds=max(0.0, now.timestamp() - issued_at)))


def _pod_claims(cluster: Cluster, claims: dict[str, Any], issued_at: datetime) -> PodClaims:
    bound = _object(claims, "kubernetes.io")
    pod, account = _object(bound, "pod"), _object(bound, "serviceaccount")
    namespace, uid, name = bound.get("namespace"), pod.get("uid"), pod.get("name")
    if not (isinstance(namespace, str) and isinstance(uid, str) and uid and isinstance(name, str)):
        raise CredentialRefused("The token is not bound to a pod; mount a projected token.")
    return PodClaims(cluster, namespace, uid, name, str(account.get("name", "")), issued_at)


def _object(outer: dict[str, Any], name: str) -> dict[str, Any]:
    inner = outer.get(name)
    return inner if isinstance(inner, dict) else {}


def _cluster_of(issuer: object) -> Cluster:
    """The one cluster whose API server signs as this issuer."""
    if not isinstance(issuer, str) or not issuer:
        raise CredentialRefused("The token names no issuer.")
    found = list(Cluster.objects.filter(token_issuer=issuer)[:2])
    if len(found) == 1:
        return found[0]
    if found:
        raise CredentialRefused("Two clusters of this desk have the same token issuer; give each its own.")
    if Cluster.objects.filter(token_issuer="").exists():
        raise CredentialUnclear("A cluster's token issuer has not been read yet.")
    raise CredentialRefused("The token's issuer is no cluster of this desk.")


def _key(cluster: Cluster, key_id: object) -> jwt.PyJWK:
    """The cluster's public key by its id. One that is not there may have been made a moment ago."""
    for entry in cluster.token_keys.get("keys", []):
        if isinstance(entry, dict) and entry.get("kid") == key_id and entry.get("kty") != "oct":
            try:
                return jwt.PyJWK(entry)
            except jwt.PyJWTError as error:
                raise CredentialUnclear(f"Key {key_id} of {cluster.slug} is not usable: {error}.") from None
    raise CredentialUnclear(f"Cluster {cluster.slug} has no key {key_id} yet, as last read.")


def new_secret() -> tuple[str, str]:
    """An enrolment secret and what is kept of it (SHA-256; 256 random bits need no slow hash)."""
    plain = SECRET_MARK + secrets.token_urlsafe(32)
    return plain, secret_sha256(plain)


def secret_sha256(plain: str) -> str:
    """What is kept of an enrolment secret."""
    return hashlib.sha256(plain.encode()).hexdigest()


def job_of_secret(plain: str, *, now: datetime) -> Job:
    """The one job that an enrolment secret is good for. Raises CredentialRefused."""
    digest = secret_sha256(plain)
    row = EnrolmentSecret.objects.select_related("job__cluster", "job__tenant").filter(sha256=digest).first()
    if row is None or not hmac.compare_digest(row.sha256, digest):
        raise CredentialRefused("The enrolment secret is unknown.")
    if row.revoked_at is not None or (row.expires_at is not None and row.expires_at <= now):
        raise CredentialRefused("The enrolment secret is revoked or expired; register the job again.")
    return row.job
