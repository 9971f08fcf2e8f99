"""Bearer tokens of the simulated cluster: three fixed ones, and service-account tokens as RS256 JWTs."""

from __future__ import annotations

import secrets
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import jwt
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from jwt.algorithms import RSAAlgorithm

ADMIN_USER = "kubernetes-admin"
READER_USER = "desk-reader"
DEFAULT_AUDIENCE = "https://kubernetes.default.svc.cluster.local"


@dataclass(frozen=True)
class User:
    """Who a request comes from. `can_write` False with `can_read` False: a pod's service account."""

    name: str
    groups: tuple[str, ...]
    uid: str = ""
    extra: dict[str, list[str]] = field(default_factory=dict)
    can_read: bool = False
    can_write: bool = False

    def as_json(self) -> dict[str, Any]:
        """UserInfo of authentication.k8s.io/v1."""
        body: dict[str, Any] = {"username": self.name, "groups": list(self.groups)}
        if self.uid:
            body["uid"] = self.uid
        if self.extra:
            body["extra"] = self.extra
        return body


@dataclass(frozen=True)
class Review:
    """What a token proves. `user` None: nothing, and `error` says why."""

    user: User | None
    audiences: tuple[str, ...] = ()
    error: str = ""
    claims: dict[str, Any] = field(default_factory=dict)


class TokenIssuer:
    """Makes and checks tokens. `issuer` may be set later (the API server's own URL), before the first token."""

    def __init__(
        self,
        issuer: str = "",
        *,
        clock: Callable[[], float] = time.time,
        admin_token: str | None = None,
        reader_token: str | None = None,
    ) -> None:
        self.issuer = issuer
        self.clock = clock
        self.admin_token = admin_token or secrets.token_urlsafe(24)
        self.reader_token = reader_token or secrets.token_urlsafe(24)
        self.object_exists: Callable[[str], bool] | None = None
        """Whether an object of that uid is in the cluster: a token dies with the pod it is bound to."""
        self._key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        public = self._key.public_key().public_bytes(
            serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
        )
        digest = hashes.Hash(hashes.SHA256())
        digest.update(public)
        self._key_id = digest.finalize().hex()[:43]
        everyone = "system:authenticated"
        self._fixed = {
            self.admin_token: User(ADMIN_USER, ("system:masters", everyone), can_read=True, can_write=True),
            self.reader_token: User(READER_USER, ("desk:readers", everyone), can_read=True),
        }

    def issue(
        self,
        sub: str,
        audience: str | Sequence[str],
        pod: dict[str, Any] | None = None,
        expires_seconds: float = 3600,
        *,
        account_uid: str = "",
        node: dict[str, str] | None = None,
    ) -> str:
        """A service-account token.

        `sub` is `system:serviceaccount:NAMESPACE:NAME`. With `pod` (a pod object or {"name", "uid"}) the token
        is bound to that pod and, where it is placed or `node` is given ({"name", "uid"}), names its node.
        """
        _, _, namespace, name = sub.split(":")
        now = int(self.clock())
        about: dict[str, Any] = {"namespace": namespace, "serviceaccount": {"name": name, "uid": account_uid}}
        if pod is not None:
            meta = pod.get("metadata", pod)
            about["pod"] = {"name": meta["name"], "uid": meta["uid"]}
            placed = (pod.get("spec") or {}).get("nodeName")
            if node is None and placed:
                node = {"name": placed}
        if node is not None:
            about["node"] = node
        claims = {
            "aud": [audience] if isinstance(audience, str) else list(audience),
            "exp": now + int(expires_seconds),
            "iat": now,
            "nbf": now,
            "iss": self.issuer,
            "jti": str(uuid.uuid4()),
            "sub": sub,
            "kubernetes.io": about,
        }
        return jwt.encode(claims, self._key, algorithm="RS256", headers={"kid": self._key_id})

    def verify(self, token: str, audiences: Sequence[str] = ()) -> Review:
        """Check a token as the API server does; without `audiences` it must be meant for the API server."""
        fixed = self._fixed.get(token)
        wanted = tuple(audiences) or (DEFAULT_AUDIENCE, self.issuer)
        if fixed is not None:
            meant = tuple(audience for audience in wanted if audience in (DEFAULT_AUDIENCE, self.issuer))
            return (
                Review(fixed, meant) if meant else Review(None, error="the token is not for these audiences")
            )
        try:
            claims: dict[str, Any] = jwt.decode(
                token,
                self._key.public_key(),
                algorithms=["RS256"],
                issuer=self.issuer,
                options={
                    "verify_aud": False,
                    "verify_exp": False,
                    "verify_nbf": False,
                    "require": ["exp", "sub"],
                },
            )
        except jwt.PyJWTError as problem:
            return Review(None, error=f"invalid bearer token: {problem}")
        if claims["exp"] <= self.clock():
            return Review(
                None, error="invalid bearer token: service account token has expired", claims=claims
            )
        meant = tuple(audience for audience in claims.get("aud") or () if audience in wanted)
        if not meant:
            text = f"invalid bearer token: token audiences {claims.get('aud')} is invalid for the target audiences"
            return Review(None, error=f"{text} {list(wanted)}", claims=claims)
        about = claims["kubernetes.io"]
        bound = about.get("pod")
        if bound and self.object_exists is not None and not self.object_exists(bound["uid"]):
            return Review(None, error="invalid bearer token: the pod it is bound to is gone", claims=claims)
        namespace = about["namespace"]
        groups = ("system:serviceaccounts", f"system:serviceaccounts:{namespace}", "system:authenticated")
        extra = {"authentication.kubernetes.io/credential-id": [f"JTI={claims['jti']}"]}
        if bound:
            extra["authentication.kubernetes.io/pod-name"] = [bound["name"]]
            extra["authentication.kubernetes.io/pod-uid"] = [bound["uid"]]
        if node := about.get("node"):
            extra["authentication.kubernetes.io/node-name"] = [node["name"]]
            if node.get("uid"):
                extra["authentication.kubernetes.io/node-uid"] = [node["uid"]]
        return Review(
            User(claims["sub"], groups, about["serviceaccount"]["uid"], extra), meant, claims=claims
        )

    def jwks(self) -> dict[str, Any]:
        """The public key set, as /openid/v1/jwks shows it."""
        key: dict[str, Any] = RSAAlgorithm.to_jwk(self._key.public_key(), as_dict=True)
        public = {"kty": key["kty"], "n": key["n"], "e": key["e"]}
        return {"keys": [public | {"use": "sig", "kid": self._key_id, "alg": "RS256"}]}

    def discovery(self) -> dict[str, Any]:
        """The OpenID discovery document."""
        return {
            "issuer": self.issuer,
            "jwks_uri": f"{self.issuer}/openid/v1/jwks",
            "response_types_supported": ["id_token"],
            "subject_types_supported": ["public"],
            "id_token_signing_alg_values_supported": ["RS256"],
        }
