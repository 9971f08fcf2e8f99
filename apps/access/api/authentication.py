"""Tokens for machines (``Authorization: Bearer idk_…``) and scopes. People come by session.

DRF loads this module while it loads its own views, so nothing here imports those.
"""

from __future__ import annotations

from typing import Any, cast

from django.contrib.auth.models import AnonymousUser
from rest_framework.authentication import BaseAuthentication, get_authorization_header
from rest_framework.exceptions import AuthenticationFailed
from rest_framework.permissions import BasePermission
from rest_framework.request import Request

from apps.access import services
from apps.access.models import Token, User
from apps.access.permissions import Caller


class TokenUser(AnonymousUser):
    """What stands in ``request.user`` for a token: authenticated, but no person."""

    def __init__(self, token: Token) -> None:
        super().__init__()
        self.token = token

    def __str__(self) -> str:
        return str(self.token)

    @property
    def is_authenticated(self) -> Any:
        return True

    @property
    def is_anonymous(self) -> Any:
        return False

    def get_username(self) -> str:
        return self.token.name


class TokenAuthentication(BaseAuthentication):
    """Bearer tokens of machines. First in the list, so that a request without any credential gets 401."""

    def authenticate(self, request: Request) -> tuple[TokenUser, Token] | None:
        words = get_authorization_header(request).split()
        if not words or words[0].lower() != b"bearer":
            return None
        if len(words) != 2:
            raise AuthenticationFailed("The Authorization header must be 'Bearer' and one token.")
        token = services.authenticate_token(words[1].decode("ascii", "replace"))
        if token is None:
            raise AuthenticationFailed("The token is unknown, expired or revoked; ask for a new one.")
        return TokenUser(token), token

    def authenticate_header(self, request: Request) -> str:
        return 'Bearer realm="incidentdesk"'


class HasScope(BasePermission):
    """Tokens need the scope that the view names for the method in ``scopes``; people pass to their roles.

    A view that is for people only says so by ``is_for_people``, and no token passes.
    """

    def has_permission(self, request: Request, view: Any) -> bool:
        if not request.user or not request.user.is_authenticated:
            return False
        if not isinstance(request.auth, Token):
            return True
        if not hasattr(view, (request.method or "").lower()):
            return True  # there is nothing to be had: the view answers 405
        if getattr(view, "is_for_people", False):
            self.message = "This is a person's to do, whatever a token's scopes: log in and do it there."
            return False
        needed = cast("dict[str, str]", getattr(view, "scopes", {})).get(request.method or "")
        self.message = f"The token lacks the scope {needed}." if needed else "No token may do this."
        return needed in request.auth.scopes


def caller_of(request: Request) -> Caller:
    """Who asks, for an authenticated request. Read once a request."""
    kept = getattr(request, "desk_caller", None)
    if isinstance(kept, Caller):
        return kept
    user = request.user
    token = request.auth
    caller = Caller.machine(token) if isinstance(token, Token) else Caller.person(cast("User", user))
    request.desk_caller = caller  # type: ignore[attr-defined]
    return caller
