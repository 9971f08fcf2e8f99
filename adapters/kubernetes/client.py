"""The only place that builds a Kubernetes client: authentication, TLS, time-outs, and our errors.

Importing this costs about 4.6 CPU seconds, so only the watch and the executor do, when they need it;
web processes never. The client gives authentication (kubeconfig with exec plugins, or in-cluster) and
transport; bodies are raw bytes, decoded by ``objects``.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import urlencode

import msgspec
import urllib3
from kubernetes import client, config
from kubernetes.client.exceptions import ApiException

from adapters.kubernetes.objects import Status
from adapters.kubernetes.transport import Query
from recovery.errors import (
    ClusterError,
    ClusterRefused,
    ClusterUnavailable,
    NotFound,
    PreconditionFailed,
    WatchExpired,
)

FIELD_MANAGER = "incidentdesk"
USER_AGENT = "incidentdesk"
CHUNK_BYTES = 64 * 1024


def connect(*, kubeconfig: str, timeout_seconds: float) -> KubernetesTransport:
    """A transport to the cluster of a kubeconfig file, or to the one that this pod runs in when empty.

    Nothing is sent yet. Raises ClusterRefused when the configuration cannot be used.
    """
    settings: Any = client.Configuration()
    try:
        if kubeconfig:
            config.load_kube_config(config_file=kubeconfig, client_configuration=settings)
        else:
            config.load_incluster_config(client_configuration=settings)
    except (config.ConfigException, OSError, ValueError) as error:
        where = f"kubeconfig {kubeconfig}" if kubeconfig else "in-cluster configuration"
        raise ClusterRefused(f"{where} cannot be used: {error}; check INCIDENTDESK_KUBECONFIG") from error
    settings.retries = False  # who repeats what is decided by rows and by the watch, not by a socket
    settings.keep_alive = True  # a silent watch finds a dead peer by TCP
    settings.connection_pool_maxsize = 16
    return KubernetesTransport(client.ApiClient(configuration=settings), timeout_seconds=timeout_seconds)


class KubernetesTransport:
    """``transport.Transport`` over the official client."""

    def __init__(self, api: Any, *, timeout_seconds: float) -> None:
        self._api = api
        self._timeout_seconds = timeout_seconds
        api.user_agent = USER_AGENT

    def read(self, path: str, query: Query) -> bytes:
        response = self._send("GET", path, query, timeout=self._timeout_seconds)
        return self._body(response, is_write=False)

    def stream(self, path: str, query: Query, *, read_timeout_seconds: float) -> KubernetesLines:
        timeout = (self._timeout_seconds, read_timeout_seconds)
        response = self._send("GET", path, query, timeout=timeout)
        return KubernetesLines(response)

    def merge_patch(self, path: str, body: Mapping[str, Any], query: Query) -> bytes:
        query = {"fieldManager": FIELD_MANAGER, **query}
        response = self._send("PATCH", path, query, timeout=self._timeout_seconds, body=body, is_write=True)
        return self._body(response, is_write=True)

    def ask(self, path: str, body: Mapping[str, Any]) -> bytes:
        response = self._send("POST", path, {}, timeout=self._timeout_seconds, body=body)
        return self._body(response, is_write=False)

    def _send(
        self,
        method: str,
        path: str,
        query: Query,
        *,
        timeout: float | tuple[float, float],
        body: Mapping[str, Any] | None = None,
        is_write: bool = False,
    ) -> urllib3.BaseHTTPResponse:
        """Send, and raise for every status but 2xx. The body is not read yet."""
        headers = {"Accept": "application/json", "User-Agent": USER_AGENT}
        if body is not None:
            headers["Content-Type"] = (
                "application/merge-patch+json" if method == "PATCH" else "application/json"
            )
        self._api.update_params_for_auth(headers, [], ["BearerToken"], path, method, body)
        url = f"{self._api.configuration.host}{path}"
        if query:
            url += f"?{urlencode(query)}"
        try:
            answer = self._api.call_api(method, url, headers, body=body, _request_timeout=timeout)
        except (urllib3.exceptions.NewConnectionError, urllib3.exceptions.ConnectTimeoutError) as error:
            raise ClusterUnavailable(f"{method} {path}: no connection: {error}") from error
        except (urllib3.exceptions.HTTPError, ApiException, OSError) as error:
            raise ClusterUnavailable(f"{method} {path}: {error}", ambiguous=is_write) from error
        response: urllib3.BaseHTTPResponse = answer.response
        if not 200 <= response.status < 300:
            raise _error_of(response, f"{method} {path}", is_write=is_write)
        return response

    @staticmethod
    def _body(response: urllib3.BaseHTTPResponse, *, is_write: bool) -> bytes:
        try:
            return response.read()
        except (urllib3.exceptions.HTTPError, OSError) as error:
            raise ClusterUnavailable(f"answer broke off: {error}", ambiguous=is_write) from error
        finally:
            response.release_conn()


class KubernetesLines:
    """Lines of an open response."""

    def __init__(self, response: urllib3.BaseHTTPResponse) -> None:
        self._response = response
        self._is_closed = False

    def __iter__(self) -> Iterator[bytes]:
        rest = b""
        try:
            # read1 gives what has come; stream(n) would wait for n bytes.
            while chunk := self._response.read1(CHUNK_BYTES):
                *lines, rest = (rest + chunk).split(b"\n")
                yield from lines
        except (urllib3.exceptions.HTTPError, OSError, ValueError) as error:
            if not self._is_closed:
                raise ClusterUnavailable(f"watch broke off: {error}") from error
        # A last line without its end is half an event: it comes again with the next watch.

    def close(self) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        with contextlib.suppress(ValueError, RuntimeError, OSError, NotImplementedError):
            self._response.shutdown()  # wakes a reader that waits in another thread; not after the end
        self._response.close()


def _error_of(response: urllib3.BaseHTTPResponse, what: str, *, is_write: bool) -> ClusterError | NotFound:
    try:
        status = msgspec.json.decode(response.read(), type=Status)
    except (urllib3.exceptions.HTTPError, OSError, msgspec.DecodeError):
        status = Status(message=response.reason or "")
    finally:
        response.release_conn()
    text = f"{what}: {response.status} {status.reason}: {status.message}"
    match response.status:
        case 404:
            return NotFound(text)
        case 409:
            return PreconditionFailed(text)
        case 410:
            return WatchExpired(text)
        case 429:  # refused before it was looked at: nothing has happened
            return ClusterUnavailable(text, retry_after_seconds=_retry_after(response))
        case code if code >= 500:
            return ClusterUnavailable(text, ambiguous=is_write, retry_after_seconds=_retry_after(response))
    return ClusterRefused(text)


def _retry_after(response: urllib3.BaseHTTPResponse) -> float | None:
    value = response.headers.get("Retry-After", "")
    return float(value) if value.isdigit() else None
