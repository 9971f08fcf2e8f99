"""An API server over an empty store, and a client that shows what went over the wire."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from sim.http_server import ApiServer
from sim.store import Store
from sim.tokens import TokenIssuer

ADMIN, READER = "admin-token", "reader-token"
DEADLINE_SECONDS = 20


@dataclass
class Answer:
    status: int
    body: Any
    headers: dict[str, str]


class Api:
    """A served store. `call` sends one request as the admin unless told otherwise."""

    def __init__(self, **options: Any) -> None:
        self.store = Store()
        self.tokens = TokenIssuer(admin_token=ADMIN, reader_token=READER)
        self.server = ApiServer(self.store, self.tokens, **options)

    def call(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        content_type: str = "application/json",
        accept: str = "application/json",
        token: str | None = ADMIN,
    ) -> Answer:
        connection = http.client.HTTPConnection("127.0.0.1", self.server.port, timeout=DEADLINE_SECONDS)
        headers = {"Accept": accept, "Content-Type": content_type, "User-Agent": "test-agent/1.0"}
        if token is not None:
            headers["Authorization"] = f"Bearer {token}"
        data = body if isinstance(body, bytes | None) else json.dumps(body).encode()
        try:
            connection.request(method, path, data, headers)
            response = connection.getresponse()
            raw = response.read()
            kind = response.headers.get_content_type()
            value = json.loads(raw) if "json" in kind else raw.decode()
            return Answer(response.status, value, dict(response.headers))
        finally:
            connection.close()

    @contextmanager
    def watch(self, path: str, *, accept: str = "application/json") -> Iterator[Iterator[dict[str, Any]]]:
        """The events of a watch, as they come; reading waits at most the deadline."""
        connection = http.client.HTTPConnection("127.0.0.1", self.server.port, timeout=DEADLINE_SECONDS)
        connection.request("GET", path, headers={"Authorization": f"Bearer {ADMIN}", "Accept": accept})
        response = connection.getresponse()
        assert response.status == 200, response.read()
        try:
            yield (json.loads(line) for line in iter(response.readline, b""))
        finally:
            response.close()  # it, not the connection, holds the socket once an answer is being read
            connection.close()


@contextmanager
def serve(**options: Any) -> Iterator[Api]:
    api = Api(**options)
    api.server.start()
    try:
        yield api
    finally:
        api.server.stop()


def make_pod(name: str, *, node: str | None = None, **changes: Any) -> dict[str, Any]:
    """The smallest valid pod in namespace default."""
    metadata = {"name": name, "namespace": "default"} | changes.pop("metadata", {})
    spec: dict[str, Any] = {"containers": [{"name": "train", "image": "incidentdesk/trainer"}]}
    if node:
        spec["nodeName"] = node
    return {"metadata": metadata, "spec": spec | changes.pop("spec", {})} | changes


def make_ready(store: Store, name: str, *, ready: bool = True) -> None:
    """Let a pod run, ready or not, as its kubelet would."""

    def change(pod: dict[str, Any]) -> dict[str, Any]:
        conditions = [{"type": "Ready", "status": "True" if ready else "False"}]
        return pod | {"status": {"phase": "Running", "conditions": conditions}}

    store.mutate("Pod", "default", name, change, actor="kubelet", subresource="status")


def make_budget(name: str, labels: dict[str, str], **spec: Any) -> dict[str, Any]:
    return {
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"selector": {"matchLabels": labels}} | spec,
    }
