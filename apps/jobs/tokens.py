"""Agents' tokens: signed, good for one incarnation of one job, 15 minutes, renewed by the poll.

Checked without the database, on each of hundreds of requests a second. Whether the incarnation is still
the newest of its worker is looked up there anyway, so a token needs no list of revoked ones.
"""

from __future__ import annotations

import base64
import hmac
from dataclasses import dataclass
from functools import cache

from django.conf import settings

LIFE_SECONDS = 15 * 60
_MARK = "ida1"
_PURPOSE = b"incidentdesk agent token 1"


@dataclass(frozen=True, slots=True)
class AgentToken:
    """What a valid token says. Times are Unix seconds of the desk."""

    job_id: int
    incarnation_id: int
    issued_at: int
    expires_at: int

    def is_worn(self, now: float) -> bool:
        """Whether half of its life is over, so that a poll brings a new one."""
        return now > (self.issued_at + self.expires_at) / 2


def issue(*, job_id: int, incarnation_id: int, now: float) -> tuple[str, int]:
    """A new token and the Unix time at which it expires."""
    expires_at = int(now) + LIFE_SECONDS
    content = f"{job_id}.{incarnation_id}.{int(now)}.{expires_at}"
    return f"{_MARK}.{content}.{_sign(content, settings.SECRET_KEY)}", expires_at


def read(token: str, *, now: float) -> AgentToken | None:
    """What a token says, or None when it is not ours, changed, or expired."""
    mark, _, rest = token.partition(".")
    content, _, signature = rest.rpartition(".")
    if mark != _MARK or not content or not signature.isascii():
        return None
    keys = [str(key) for key in (settings.SECRET_KEY, *settings.SECRET_KEY_FALLBACKS)]
    if not any(hmac.compare_digest(_sign(content, key), signature) for key in keys):
        return None
    job_id, incarnation_id, issued_at, expires_at = (int(part) for part in content.split("."))
    if expires_at <= now:
        return None
    return AgentToken(job_id, incarnation_id, issued_at, expires_at)


def _sign(content: str, secret: str) -> str:
    digest = hmac.digest(_key(secret), content.encode(), "sha256")
    return base64.urlsafe_b64encode(digest).decode().rstrip("=")


@cache
def _key(secret: str) -> bytes:
    """A key for this purpose only, so that no signature of Django's can be taken for a token."""
    return hmac.digest(secret.encode(), _PURPOSE, "sha256")
