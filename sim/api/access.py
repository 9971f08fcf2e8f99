"""Who asks, and what they may: authentication, one simple policy, and the reviews that tell about both."""

from __future__ import annotations

from typing import Any

from sim.api.request import Target, no_such_page, read_object
from sim.discovery import REVIEWS
from sim.errors import BadRequest, Forbidden, Unauthorized
from sim.http_wire import Request, Response
from sim.tokens import TokenIssuer, User

READ_VERBS = ("get", "list", "watch")


def verb_of(request: Request, target: Target) -> str:
    """The verb of Kubernetes' authorisation for a request."""
    if request.method == "GET":
        if target.name is not None:
            return "watch" if request.flag("watch") else "get"
        return "watch" if request.flag("watch") else "list"
    verbs = {"POST": "create", "PUT": "update", "PATCH": "patch"}
    if request.method == "DELETE":
        return "delete" if target.name is not None else "deletecollection"
    return verbs.get(request.method, request.method.lower())


def may(user: User, verb: str, group: str, plural: str) -> bool:
    """The policy: who may write may all; readers read all but secrets; others only ask about themselves."""
    if user.can_write:
        return True
    if (group, plural) in {(g, p) for g, kind, p in REVIEWS if kind.startswith("SelfSubject")}:
        return verb == "create"
    return user.can_read and verb in READ_VERBS and plural != "secrets"


class Access:
    """Authentication by bearer token, and the reviews."""

    def __init__(self, tokens: TokenIssuer) -> None:
        self.tokens = tokens

    def user_of(self, request: Request) -> User:
        """Raises Unauthorized: no anonymous requests are served besides health, version and token keys."""
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not token.strip():
            raise Unauthorized("Unauthorized")
        review = self.tokens.verify(token.strip())
        if review.user is None:
            raise Unauthorized("Unauthorized")
        return review.user

    def require(self, user: User, request: Request, target: Target) -> None:
        """Raises Forbidden in the words of Kubernetes' RBAC."""
        verb, resource = verb_of(request, target), target.resource
        if may(user, verb, resource.group, resource.plural):
            return
        name = f' "{target.name}"' if target.name else ""
        place = f' in the namespace "{target.namespace}"' if target.namespace else " at the cluster scope"
        plural = f"{resource.plural}.{resource.group}" if resource.group else resource.plural
        details: dict[str, Any] = {"kind": resource.plural}
        details |= {"name": target.name} if target.name else {}
        details |= {"group": resource.group} if resource.group else {}
        raise Forbidden(
            f'{plural}{name} is forbidden: User "{user.name}" cannot {verb} resource "{target.title}" '
            f'in API group "{resource.group}"{place}',
            details=details,
        )

    def review(self, request: Request, group: str, plural: str, user: User) -> Response:
        """Answer one of the reviews. Raises NotFound for another path, Forbidden."""
        kind = next((kind for g, kind, p in REVIEWS if (g, p) == (group, plural)), None)
        if kind is None or request.method != "POST":
            raise no_such_page()
        if not may(user, "create", group, plural):
            raise Forbidden(
                f'{plural}.{group} is forbidden: User "{user.name}" cannot create resource "{plural}" '
                f'in API group "{group}" at the cluster scope',
                details={"group": group, "kind": plural},
            )
        body = read_object(request)
        spec: dict[str, Any] = body.get("spec") or {}
        answers = {
            "TokenReview": self._token_review,
            "SelfSubjectReview": self._self_review,
            "SelfSubjectAccessReview": self._access_review,
            "SelfSubjectRulesReview": self._rules_review,
        }
        answer = {
            "kind": kind,
            "apiVersion": f"{group}/v1",
            "metadata": {"creationTimestamp": None},
            "spec": spec,
            "status": answers[kind](spec, user),
        }
        return Response.json(answer, 201)

    def _token_review(self, spec: dict[str, Any], _user: User) -> dict[str, Any]:
        if not spec.get("token"):
            raise BadRequest("token is required for TokenReview in authentication")
        found = self.tokens.verify(spec["token"], spec.get("audiences") or ())
        if found.user is None:
            return {"user": {}, "error": found.error}
        return {"authenticated": True, "user": found.user.as_json(), "audiences": list(found.audiences)}

    def _self_review(self, _spec: dict[str, Any], user: User) -> dict[str, Any]:
        return {"userInfo": user.as_json()}

    def _access_review(self, spec: dict[str, Any], user: User) -> dict[str, Any]:
        asked = spec.get("resourceAttributes")
        if asked is None:
            path = (spec.get("nonResourceAttributes") or {}).get("path")
            if path is None:
                raise BadRequest(
                    "exactly one of nonResourceAttributes or resourceAttributes must be specified"
                )
            return {"allowed": user.can_read}
        allowed = may(user, asked.get("verb", ""), asked.get("group", ""), asked.get("resource", ""))
        return {"allowed": allowed}

    def _rules_review(self, _spec: dict[str, Any], user: User) -> dict[str, Any]:
        rules = [
            {"verbs": ["create"], "apiGroups": [group], "resources": [plural]}
            for group, kind, plural in REVIEWS
            if kind.startswith("SelfSubject")
        ]
        if user.can_write:
            rules.append({"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]})
        elif user.can_read:
            rules.append({"verbs": list(READ_VERBS), "apiGroups": ["*"], "resources": ["*"]})
        return {"resourceRules": rules, "nonResourceRules": [], "incomplete": False}
