"""Tokens whose signature the desk cannot check itself are shown to their cluster (TokenReview).

A web process has no way to a cluster. It writes a row with the token's hash and tells the watch by a
notification that carries the token, sealed; the watch asks the API server and writes the answer into the row.
The token is never stored: a notification that nobody heard is sent again when the agent asks again, and
its answer is kept by the hash and good until the token expires.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import jwt
import msgspec
from cryptography.fernet import Fernet, InvalidToken, MultiFernet
from django.conf import settings
from django.db import connection

from apps.access.models import Cluster
from apps.jobs.models import ReviewedToken, ReviewState
from recovery.errors import DeskError
from recovery.ports import TokenReview

CHANNEL = "incidentdesk_token_reviews"
ASK_AGAIN_SECONDS = 2.0  # an agent asks twice a second
OPEN_SECONDS = 60  # then the question is forgotten; an agent gives up after as long
REFUSED_SECONDS = 60  # an API server that lags behind may yet learn of the pod
MOST_LIFE_SECONDS = 24 * 3600  # what is believed of a token's own expiry
MOST_TOKEN_BYTES = (
    4000  # sealed it must fit into a notification (8,000 bytes); projected ones have 1,000 to 1,600
)
MOST_OPEN = 2000  # questions of a cluster
MOST_OPEN_OF_POD = 3
_PURPOSE = b"incidentdesk token review 1"


class NotSealedHere(DeskError):
    """A question that this process cannot read."""

    code = "not_sealed_here"


@dataclass(frozen=True, slots=True)
class Question:
    """A token to be shown to its cluster."""

    cluster_id: int
    sha256: str
    token: str


class _Note(msgspec.Struct):
    cluster: int
    sha256: str
    sealed: str


def ask_once(*, cluster: Cluster, token: str, claimed_pod_uid: str, now: datetime) -> ReviewedToken | None:
    """What the cluster says of a token, asking if nobody has. Inside the caller's transaction.

    Returns:
        The answer, or an unanswered row whose ``reason`` may say what keeps the cluster from being asked;
        None when too many questions are open.
    """
    sha256 = hashlib.sha256(token.encode()).hexdigest()
    row = ReviewedToken.objects.filter(cluster=cluster, sha256=sha256).first()
    if row is None:
        return _ask_first(cluster, token, sha256, claimed_pod_uid, now)
    if row.state != ReviewState.ASKED and row.expires_at > now:
        return row
    # In the state that was read, or an answer that came meanwhile would be lost.
    present = ReviewedToken.objects.filter(pk=row.pk, state=row.state)
    if row.state != ReviewState.ASKED:
        row.state, row.reason = ReviewState.ASKED, ""
    row.expires_at = now + timedelta(seconds=OPEN_SECONDS)
    asked = present.filter(asked_at__lte=now - timedelta(seconds=ASK_AGAIN_SECONDS)).update(
        state=row.state, reason=row.reason, asked_at=now, expires_at=row.expires_at
    )
    if asked:  # of many that ask at once, one
        _tell(cluster, sha256, token)
    return row


def _ask_first(
    cluster: Cluster, token: str, sha256: str, claimed_pod_uid: str, now: datetime
) -> ReviewedToken | None:
    """Bounded, for whoever can reach the desk can send tokens: one pod's cannot crowd out another's."""
    open_rows = ReviewedToken.objects.filter(cluster=cluster, state=ReviewState.ASKED, expires_at__gt=now)
    if (
        open_rows.filter(claimed_pod_uid=claimed_pod_uid).count() >= MOST_OPEN_OF_POD
        or open_rows.count() >= MOST_OPEN
    ):
        return None
    row = ReviewedToken(
        cluster=cluster,
        sha256=sha256,
        claimed_pod_uid=claimed_pod_uid,
        state=ReviewState.ASKED,
        asked_at=now,
        expires_at=now + timedelta(seconds=OPEN_SECONDS),
    )
    ReviewedToken.objects.bulk_create([row], ignore_conflicts=True)
    _tell(cluster, sha256, token)
    return row


def _tell(cluster: Cluster, sha256: str, token: str) -> None:
    note = _Note(cluster.pk, sha256, _box().encrypt(token.encode()).decode())
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_notify(%s, %s)", [CHANNEL, msgspec.json.encode(note).decode()])


def question_of(payload: str, *, cluster: Cluster) -> Question | None:
    """The question in a notification, or None: it is another cluster's, or answered by now.

    Raises NotSealedHere.
    """
    try:
        note = msgspec.json.decode(payload, type=_Note)
    except msgspec.DecodeError as error:
        raise NotSealedHere(f"a notification on {CHANNEL} is no question of ours: {error}") from None
    if note.cluster != cluster.pk:
        return None
    waiting = ReviewedToken.objects.filter(cluster=cluster, sha256=note.sha256, state=ReviewState.ASKED)
    if not waiting.exists():
        return None
    try:
        token = _box().decrypt(note.sealed.encode())
    except InvalidToken:
        raise NotSealedHere(
            "a token to be reviewed was sealed with another key: give web and watch the same SECRET_KEY"
        ) from None
    if not hmac.compare_digest(hashlib.sha256(token).hexdigest(), note.sha256):
        raise NotSealedHere("a token to be reviewed is not the one that was asked about")
    return Question(cluster.pk, note.sha256, token.decode())


def store_review(*, question: Question, review: TokenReview, audience: str, now: datetime) -> str:
    """Keep what the cluster said; what proves the token is good until that expires. Safe to repeat.

    Returns why it is refused, or "" where it is proven.
    """
    reason = refusal(review, audience=audience)
    expires_at = now + timedelta(seconds=REFUSED_SECONDS) if reason else _expiry(question.token, now)
    ReviewedToken.objects.filter(cluster_id=question.cluster_id, sha256=question.sha256).update(
        state=ReviewState.REFUSED if reason else ReviewState.PROVEN,
        reason=reason,
        namespace=review.namespace,
        service_account=review.service_account,
        pod_name=review.pod_name,
        pod_uid=review.pod_uid,
        answered_at=now,
        expires_at=expires_at,
    )
    return reason


def _expiry(token: str, now: datetime) -> datetime:
    """When a token that its cluster has proven expires, by its own word."""
    latest = now + timedelta(seconds=MOST_LIFE_SECONDS)
    try:
        seconds = float(jwt.decode(token, options={"verify_signature": False})["exp"])
        return min(latest, datetime.fromtimestamp(seconds, UTC))
    except (jwt.InvalidTokenError, KeyError, TypeError, ValueError, OverflowError, OSError):
        return now + timedelta(seconds=REFUSED_SECONDS)


def refusal(review: TokenReview, *, audience: str) -> str:
    """Why a review does not prove a pod to us; "" when it does."""
    if not review.is_authentic:
        return f"The cluster does not accept the token: {review.error or 'it gives no reason'}."
    if audience not in review.audiences:
        return f"The cluster does not confirm that the token is for the audience {audience}."
    if not review.namespace:
        return "The cluster says that the token is no service account's."
    if not (review.pod_uid and review.pod_name):
        return "The token is not bound to a pod; mount a projected token."
    return ""


def note_trouble(*, question: Question, reason: str) -> None:
    """Say why the cluster could not be asked. The question stays open."""
    ReviewedToken.objects.filter(
        cluster_id=question.cluster_id, sha256=question.sha256, state=ReviewState.ASKED
    ).update(reason=reason)


def forget_old_reviews(*, now: datetime) -> int:
    """Delete what has expired."""
    deleted, _ = ReviewedToken.objects.filter(expires_at__lt=now).delete()
    return deleted


def _box() -> MultiFernet:
    """Seals with today's key, opens with any."""
    keys = [str(key) for key in (settings.SECRET_KEY, *settings.SECRET_KEY_FALLBACKS)]
    return MultiFernet(
        [Fernet(base64.urlsafe_b64encode(hmac.digest(key.encode(), _PURPOSE, "sha256"))) for key in keys]
    )
