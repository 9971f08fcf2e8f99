"""The pods' network: addresses, names, and each pod's own path to the desk.

Pod addresses are loopback addresses 127.x.y.z. Two clusters on one machine never share an ``x``: whoever uses it
holds an abstract unix socket of that number. Names stand in one hosts file a namespace, instead of DNS of
headless services. A pod reaches the desk only through its own forwarder (TCP, bytes untouched), which can be cut
(refuse new connections, reset open ones) and restored.
"""

from __future__ import annotations

import asyncio
import secrets
import socket
import struct
import threading
from collections.abc import Collection, Coroutine
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

RESET_ON_CLOSE = struct.pack("ii", 1, 0)  # struct linger: on, 0 s, so that close() sends RST
PIPE_BYTES = 65536


class AddressesExhausted(Exception):
    """No free pod address, or no free address block on this machine."""


class AddressPool:
    """Pod addresses of one cluster: 127.<block>.<node>.<pod>, an address free for a while before it is used again."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._held: set[str] = set()
        self._next: dict[int, int] = {}
        self._claim, self.block = _claim_block()

    def take(self, node_number: int) -> str:
        """A free address on node number 1, 2, …

        Raises:
            AddressesExhausted: All 253 addresses of the node are held.
        """
        with self._lock:
            start = self._next.get(node_number, 1)
            for offset in range(253):
                last = (start + offset - 1) % 253 + 1
                address = f"127.{self.block}.{node_number % 256}.{last}"
                if address not in self._held:
                    self._held.add(address)
                    self._next[node_number] = last + 1
                    return address
        raise AddressesExhausted(f"node number {node_number} has no free pod address")

    def give_back(self, address: str) -> None:
        with self._lock:
            self._held.discard(address)

    def close(self) -> None:
        self._claim.close()


def _claim_block() -> tuple[socket.socket, int]:
    blocks = list(range(16, 240))
    secrets.SystemRandom().shuffle(blocks)
    for block in blocks:
        claim = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            claim.bind(f"\0incidentdesk-sim-block-{block}")
            return claim, block
        except OSError:
            claim.close()
    raise AddressesExhausted("every block 127.16 to 127.239 is in use by another simulated cluster")


class HostsFiles:
    """One file a namespace with lines "address name name…", replaced as a whole at each change."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._lock = threading.Lock()
        self._entries: dict[str, dict[str, tuple[str, tuple[str, ...]]]] = {}
        directory.mkdir(parents=True, exist_ok=True)

    def path(self, namespace: str) -> Path:
        return self._directory / namespace

    def add(self, *, namespace: str, pod_uid: str, address: str, names: Collection[str]) -> None:
        """Enter a pod. A name that an older pod still has goes to the newer one."""
        with self._lock:
            entries = self._entries.setdefault(namespace, {})
            entries.pop(pod_uid, None)
            entries[pod_uid] = (address, tuple(names))
            self._write(namespace)

    def remove(self, *, namespace: str, pod_uid: str) -> None:
        with self._lock:
            if self._entries.get(namespace, {}).pop(pod_uid, None) is not None:
                self._write(namespace)

    def _write(self, namespace: str) -> None:
        lines = ["127.0.0.1 localhost\n"]
        lines += [f"{address} {' '.join(names)}\n" for address, names in self._entries[namespace].values()]
        path = self.path(namespace)
        temporary = path.with_name(f".{path.name}.tmp")
        temporary.write_text("".join(lines), encoding="utf-8")
        temporary.rename(path)


@dataclass
class _Cut:
    """Which workers of a job are cut off: those of ``indices``, or everyone but those."""

    everyone: bool = False
    indices: set[int] = field(default_factory=set)

    def hits(self, index: int | None) -> bool:
        return (index in self.indices) != self.everyone


@dataclass
class _Forwarder:
    address: str
    port: int
    is_cut: bool = False
    server: asyncio.Server | None = None
    open_pipes: set[asyncio.StreamWriter] = field(default_factory=set)


class Network:
    """Forwarders of all pods, on one event loop in a thread of its own. Methods are safe from any thread."""

    def __init__(self, desk_url: str | None) -> None:
        self.desk_url = desk_url.rstrip("/") if desk_url else None
        self._target = _host_and_port(self.desk_url) if self.desk_url else None
        self._lock = threading.Lock()
        self._cuts: dict[tuple[str, str], _Cut] = {}
        self._forwarders: dict[str, _Forwarder] = {}
        self._members: dict[str, tuple[tuple[str, str] | None, int | None]] = {}
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="sim-network", daemon=True)
        self._thread.start()

    def open(
        self,
        *,
        pod_uid: str,
        address: str,
        job: tuple[str, str] | None,
        index: int | None,
    ) -> str | None:
        """Start the pod's forwarder. Returns the desk's URL as this pod sees it, or None without a desk.

        ``job`` (namespace, name) and ``index`` say which cut-offs concern it, also those set before it existed.
        """
        if self._target is None or self.desk_url is None:
            return None
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
            probe.bind((address, 0))
            port = int(probe.getsockname()[1])
        with self._lock:
            forwarder = self._forwarders[pod_uid] = _Forwarder(address, port)
            self._members[pod_uid] = (job, index)
        self._apply(pod_uid)
        scheme, path = urlsplit(self.desk_url).scheme, urlsplit(self.desk_url).path
        return f"{scheme}://{forwarder.address}:{forwarder.port}{path}"

    def close(self, pod_uid: str) -> None:
        """End the pod's forwarder and its connections."""
        with self._lock:
            forwarder = self._forwarders.pop(pod_uid, None)
            self._members.pop(pod_uid, None)
        if forwarder is not None:
            self._run(self._shut(forwarder))

    def cut(self, *, job: tuple[str, str], indices: Collection[int] | None) -> list[str]:
        """Cut pods of a job off the desk, those to come included; all of them when ``indices`` is None.

        Returns the uids of the pods that are cut now: their connections are reset, new ones refused.
        """
        with self._lock:
            cut = self._cuts.setdefault(job, _Cut())
            if indices is None:
                cut.everyone, cut.indices = True, set()
            elif cut.everyone:
                cut.indices -= set(indices)
            else:
                cut.indices |= set(indices)
        return [uid for uid in self._apply_all(job) if self._is_cut(uid)]

    def restore(self, *, job: tuple[str, str] | None, indices: Collection[int] | None = None) -> list[str]:
        """End the cut-offs of one job (or of some of its workers), or of all jobs.

        Returns the uids of the pods that reach the desk again.
        """
        with self._lock:
            jobs = list(self._cuts) if job is None else [job]
            was_cut = [uid for uid, forwarder in self._forwarders.items() if forwarder.is_cut]
            for each in jobs:
                if indices is None:
                    self._cuts.pop(each, None)
                elif (cut := self._cuts.get(each)) is not None:
                    cut.indices = cut.indices | set(indices) if cut.everyone else cut.indices - set(indices)
        for each in jobs:
            self._apply_all(each)
        return [uid for uid in was_cut if not self._is_cut(uid)]

    def stop(self) -> None:
        for uid in list(self._forwarders):
            self.close(uid)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(timeout=5)
        self._loop.close()

    def _is_cut(self, pod_uid: str) -> bool:
        with self._lock:
            forwarder = self._forwarders.get(pod_uid)
            return forwarder is not None and forwarder.is_cut

    def _apply_all(self, job: tuple[str, str]) -> list[str]:
        """Bring the forwarders of a job's pods to what the cuts say; returns the pods' uids."""
        with self._lock:
            concerned = [uid for uid, (owner, _) in self._members.items() if owner == job]
        for uid in concerned:
            self._apply(uid)
        return concerned

    def _apply(self, pod_uid: str) -> None:
        """Bring one forwarder to what the cuts say."""
        with self._lock:
            forwarder = self._forwarders.get(pod_uid)
            if forwarder is None:
                return
            job, index = self._members[pod_uid]
            cut = self._cuts.get(job) if job is not None else None
            forwarder.is_cut = cut is not None and cut.hits(index)
        self._run(self._shut(forwarder) if forwarder.is_cut else self._serve(forwarder))

    def _run(self, work: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result(timeout=10)

    async def _serve(self, forwarder: _Forwarder) -> None:
        if forwarder.server is None:

            async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
                await self._pipe_to_desk(forwarder, reader, writer)

            forwarder.server = await asyncio.start_server(
                accept,
                forwarder.address,
                forwarder.port,
                limit=PIPE_BYTES,
                reuse_address=True,
            )

    async def _shut(self, forwarder: _Forwarder) -> None:
        if forwarder.server is not None:
            forwarder.server.close()
            forwarder.server = None
        for writer in list(forwarder.open_pipes):
            connection = writer.get_extra_info("socket")
            if connection is not None:
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET_ON_CLOSE)
            writer.transport.abort()

    async def _pipe_to_desk(
        self,
        forwarder: _Forwarder,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        assert self._target is not None
        ends = {writer}
        forwarder.open_pipes.add(writer)
        try:
            desk_reader, desk_writer = await asyncio.open_connection(*self._target, limit=PIPE_BYTES)
            ends.add(desk_writer)
            forwarder.open_pipes.add(desk_writer)
            if forwarder.is_cut:
                return
            await asyncio.gather(_copy(reader, desk_writer), _copy(desk_reader, writer))
        except OSError:
            pass  # the desk is down or a side was reset: the other side sees its connection close
        finally:
            for end in ends:
                end.close()
            forwarder.open_pipes -= ends


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Bytes as they come, then end-of-file; each direction ends by itself."""
    while chunk := await reader.read(PIPE_BYTES):
        writer.write(chunk)
        await writer.drain()
    if writer.can_write_eof():
        writer.write_eof()


def _host_and_port(url: str) -> tuple[str, int]:
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(f"the desk's URL must be http:// or https:// with a host, not {url!r}")
    return parts.hostname, parts.port or (443 if parts.scheme == "https" else 80)
