"""A cluster that signs service-account tokens, as far as enrolment needs one."""

from __future__ import annotations

import json
import time
import uuid
from dataclasses import dataclass, field
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric import rsa

from apps.access.clock import database_now
from apps.access.models import Cluster
from apps.jobs.models import Job, Pod
from tests.factories import make_cluster


@dataclass
class SigningCluster:
    """A cluster row and its private key."""

    key: rsa.RSAPrivateKey = field(default_factory=lambda: rsa.generate_private_key(65537, 2048))
    key_id: str = "key-1"
    cluster: Cluster = field(init=False)

    def __post_init__(self) -> None:
        issuer = f"https://{uuid.uuid4()}.example"
        public = json.loads(jwt.algorithms.RSAAlgorithm.to_jwk(self.key.public_key()))
        keys = {"keys": [{**public, "kid": self.key_id, "use": "sig"}]}
        self.cluster = make_cluster(token_issuer=issuer, token_keys=keys)

    def pod(self, job: Job, index: int = 0, **overrides: Any) -> Pod:
        """A pod of the job as the watch saw it."""
        uid = str(uuid.uuid4())
        return Pod.objects.create(
            **{
                "tenant": job.tenant,
                "cluster": job.cluster,
                "job": job,
                "role": "worker",
                "index": index,
                "uid": uid,
                "namespace": job.namespace,
                "name": f"{job.name}-{index}-{uid[:5]}",
                "node_name": "node-1",
                "phase": "Running",
                "service_account": "default",
                "created_at": database_now(),
                **overrides,
            }
        )

    def token(self, pod: Pod, *, key: rsa.RSAPrivateKey | None = None, **overrides: Any) -> str:
        """The projected token that the kubelet mounts into the pod."""
        now = int(time.time())
        claims = {
            "aud": ["incidentdesk"],
            "iss": self.cluster.token_issuer,
            "iat": now,
            "exp": now + 3600,
            "sub": f"system:serviceaccount:{pod.namespace}:default",
            "kubernetes.io": {
                "namespace": pod.namespace,
                "pod": {"name": pod.name, "uid": pod.uid},
                "serviceaccount": {"name": "default", "uid": "sa"},
            },
            **overrides,
        }
        return jwt.encode(claims, key or self.key, algorithm="RS256", headers={"kid": self.key_id})
