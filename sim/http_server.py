"""The API server: the store's Kubernetes API, on a port."""

from __future__ import annotations

import base64
import socket

import msgspec

from sim.api.router import Handler, Router
from sim.api.streams import LogSource
from sim.certificates import make_server_context
from sim.http_wire import HttpServer
from sim.store import Store
from sim.tokens import TokenIssuer

__all__ = ["ApiServer", "Handler", "LogSource"]


class ApiServer:
    """The Kubernetes API of a store over HTTP. `start` binds the port; `stop` ends every connection."""

    def __init__(
        self,
        store: Store,
        tokens: TokenIssuer,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        extra_routes: dict[str, Handler] | None = None,
        log_source: LogSource | None = None,
        bookmark_seconds: float = 60.0,
        publishes_keys: bool = True,
    ) -> None:
        """`extra_routes` maps a path or, ending in "/", a path prefix to its handler. Port 0: any free one.

        With `publishes_keys` False the token keys and the issuer are not to be read, as in clusters whose issuer
        is no URL; reviews answer all the same.
        """
        self.store = store
        self.tokens = tokens
        self.host = host
        self.port = port
        tokens.object_exists = store.exists
        self._tls, self.ca_pem = make_server_context(host)
        self.router = Router(
            store,
            tokens,
            extra_routes=dict(extra_routes or {}),
            log_source=log_source,
            bookmark_seconds=bookmark_seconds,
            publishes_keys=publishes_keys,
        )
        self._http: HttpServer | None = None

    @property
    def url(self) -> str:
        """Plain HTTP, for programs that send their token themselves."""
        return f"http://{self.host}:{self.port}"

    @property
    def https_url(self) -> str:
        """The same port over TLS, signed by `ca_pem`."""
        return f"https://{self.host}:{self.port}"

    def start(self) -> None:
        """Bind and serve. The issuer of service-account tokens becomes `url` unless it was set."""
        sock = socket.create_server((self.host, self.port), backlog=512)
        self.port = sock.getsockname()[1]
        self.tokens.issuer = self.tokens.issuer or self.url
        self._http = HttpServer(self.router.handle, tls=self._tls, sock=sock)
        self._http.start()

    def stop(self) -> None:
        """May be called twice."""
        if self._http is not None:
            self.store.close_watches()
            self._http.stop()
            self._http = None

    def kubeconfig(self, token: str | None = None, *, namespace: str = "default") -> str:
        """A kubeconfig for the token (None: the admin's), as JSON, which is YAML too."""
        cluster = {
            "server": self.https_url,
            "certificate-authority-data": base64.b64encode(self.ca_pem).decode(),
        }
        context = {"cluster": "sim", "user": "sim", "namespace": namespace}
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "sim", "cluster": cluster}],
            "users": [{"name": "sim", "user": {"token": token or self.tokens.admin_token}}],
            "contexts": [{"name": "sim", "context": context}],
            "current-context": "sim",
        }
        return msgspec.json.format(msgspec.json.encode(config)).decode() + "\n"
