"""What an agent shows at enrolment: a projected service-account token, or a job's enrolment secret.

A token is checked against the cluster's public keys as the watch stored them, so a web process needs no
cluster to answer. Where there is no such key, the watch shows the token to the cluster itself: ``token_reviews``.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import jwt
from django.db.models import Q

from apps.access.models import Cluster
from apps.jobs.models import EnrolmentSecret, Job, Pod, ReviewState
from apps.jobs.services import token_reviews

AUDIENCE = "incidentdesk"
SECRET_MARK = "ide_"  # noqa: S105 - how every secret begins
_ALGORITHMS = ("RS256", "RS384", "RS512", "ES256", "ES384", "ES512", "EdDSA")
_LEEWAY_SECONDS = 10
_MOST_AGE_SECONDS = 365 * 86400.0  # an unproven token may say anything


class CredentialRefused(Exception):
    """It does not prove what it must; asking again with the same one changes nothing."""


class CredentialUnclear(Exception):
    """It cannot be judged now: its cluster is asked about it, or it is about to be renewed."""


class PodNotSeen(CredentialUnclear):
    """The watch has not shown the pod that a token names; ``issued_at`` is the token's own word."""

    def __init__(self, cluster: Cluster, issued_at: datetime) -> None:
        super().__init__("The watch has not seen this pod yet.")
        self.cluster = cluster
        self.issued_at = issued_at


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
    cluster = _cluster_of(unproven.get("iss"), _claimed_pod_uid(unproven))
    key = _key(cluster, header.get("kid"))
    if key is None:
        return _reviewed(cluster, bearer, unproven, now)
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


def _claimed_pod_uid(claims: dict[str, Any]) -> str:
    uid = _object(_object(claims, "kubernetes.io"), "pod").get("uid")
    return uid if isinstance(uid, str) and uid.isprintable() else ""


def _cluster_of(issuer: object, pod_uid: str) -> Cluster:
    """The cluster whose API server must have signed this: the one that runs the pod, else the one of this issuer.

    Nothing is proven by it: the token is then checked by that cluster's keys, or by that cluster.
    """
    if not isinstance(issuer, str) or not issuer or not issuer.isprintable():
        raise CredentialRefused("The token names no issuer.")
    found = list(Cluster.objects.filter(Q(token_issuer=issuer) | Q(token_issuer="")))
    if not found:
        raise CredentialRefused("The token's issuer is no cluster of this desk.")
    if len(found) == 1:
        return found[0]
    pod = Pod.objects.filter(cluster__in=found, uid=pod_uid).first() if pod_uid else None
    if pod is not None:
        return next(cluster for cluster in found if cluster.pk == pod.cluster_id)
    named = [cluster for cluster in found if cluster.token_issuer]
    if len(named) == 1:
        return named[0]
    raise CredentialUnclear("The watch has not seen this pod yet, so its cluster is not known.")


def _key(cluster: Cluster, key_id: object) -> jwt.PyJWK | None:
    """The cluster's public key by its id; None where none is known that can be used."""
    for entry in cluster.token_keys.get("keys", []):
        if isinstance(entry, dict) and entry.get("kid") == key_id and entry.get("kty") != "oct":
            try:
                return jwt.PyJWK(entry)
            except jwt.PyJWTError:
                return None
    return None


def _reviewed(cluster: Cluster, bearer: str, unproven: dict[str, Any], now: datetime) -> PodClaims:
    """What the cluster itself says of a token, asking it where nobody has.

    The token's own word can only speak against it here: then nobody needs to be asked.
    """
    audiences = unproven.get("aud")
    if AUDIENCE not in (audiences if isinstance(audiences, list) else [audiences]):
        raise CredentialRefused(f"The token is not for the audience {AUDIENCE}.")
    if len(bearer) > token_reviews.MOST_TOKEN_BYTES:
        raise CredentialRefused(f"The token is longer than {token_reviews.MOST_TOKEN_BYTES} bytes.")
    try:
        expires_at, issued_at = float(unproven["exp"]), float(unproven["iat"])
    except (KeyError, TypeError, ValueError):
        raise CredentialRefused("The token does not say from when to when it is good.") from None
    if expires_at + _LEEWAY_SECONDS < now.timestamp():
        raise CredentialUnclear("The token has expired; the kubelet renews it.")
    begun_at = now - timedelta(seconds=min(_MOST_AGE_SECONDS, max(0.0, now.timestamp() - issued_at)))
    pod_uid = _claimed_pod_uid(unproven)
    if not pod_uid:
        raise CredentialRefused("The token is not bound to a pod; mount a projected token.")
    if not Pod.objects.filter(cluster=cluster, uid=pod_uid).exists():
        raise PodNotSeen(cluster, begun_at)
    row = token_reviews.ask_once(cluster=cluster, token=bearer, claimed_pod_uid=pod_uid, now=now)
    if row is None:
        raise CredentialUnclear(f"Too many tokens wait for cluster {cluster.slug} to review them.")
    if row.state == ReviewState.REFUSED:
        raise CredentialRefused(row.reason)
    if row.state != ReviewState.PROVEN:
        trouble = f" It could not be asked: {row.reason}" if row.reason else ""
        raise CredentialUnclear(
            f"Cluster {cluster.slug} has published no key for this token and is asked about it.{trouble}"
        )
    return PodClaims(cluster, row.namespace, row.pod_uid, row.pod_name, row.service_account, begun_at)


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
