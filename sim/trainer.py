"""A small data-parallel trainer in plain Python: one process a rank, real sockets, real checkpoints.

Rank 0 listens on its pod's address; the others join it. Each step every rank computes a gradient, the
gradients are summed by an all-reduce through rank 0, and every rank applies the same update, so the loss is a
function of the step alone and a rank that lags or leads is noticed (its step number is part of the sum).
Survivors of a dead peer block in the collective until its time-out, as NCCL does; ``TRAINER_RESET=1`` fails
them at once, as gloo does.

Checkpoints are sharded (``step-%08d/shard-%05d-of-%05d.bin``) with ``manifest.json`` and the marker
``commit_success``, which rank 0 writes last. A restart resumes from the newest directory that has the marker
and whose shards match the manifest; others are ignored and left alone.

Environment: ``RANK`` or ``JOB_COMPLETION_INDEX``, ``WORLD_SIZE``, ``MASTER_ADDR`` (a name of ``SIM_HOSTS_FILE``, or
an address), ``MASTER_PORT``, ``TRAINER_COLLECTIVE_TIMEOUT_SECONDS``, ``TRAINER_RENDEZVOUS_TIMEOUT_SECONDS``,
``TRAINER_RESET``, ``SIM_FAULT_FILE`` (a path; when the file appears the rank exits with the code in it).
"""

# os.path, because importing pathlib would be a tenth of the start.
# ruff: noqa: PTH103, PTH104, PTH108, PTH110, PTH118, PTH120, PTH123, PTH208

from __future__ import annotations

import argparse
import errno
import hashlib
import json
import os
import select
import socket
import struct
import sys
import time
from array import array
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, NoReturn

DIMENSIONS = 768
LEARNING_RATE = 0.001
MOMENTUM = 0.5
BATCH_SAMPLES = 16
MARKER = "commit_success"
MANIFEST = "manifest.json"
FRAME = struct.Struct("!QQI")  # world id, sequence number of the collective, bytes that follow
POLL_SECONDS = 0.010
PATIENT_POLL_SECONDS = 0.020
MASK = (1 << 64) - 1


class PeerLost(Exception):
    """A peer closed its connection in the middle of a collective."""


class CollectiveTimeout(Exception):
    """A collective did not complete in time."""


class CheckpointDamaged(Exception):
    """A committed checkpoint does not match its manifest."""


@dataclass(frozen=True)
class Options:
    rank: int
    world: int
    steps: int
    step_seconds: float
    checkpoint_every: int
    checkpoint_dir: str
    seed: int
    job: str
    address: str
    port: int
    hosts_file: str
    bind_address: str
    collective_timeout_seconds: float
    rendezvous_timeout_seconds: float
    reset: bool
    fault_file: str
    fail_at_step: int
    fail_rank: int
    fail_code: int


def parse_options(argv: list[str]) -> Options:
    env = os.environ
    parser = argparse.ArgumentParser(prog="trainer", description="Small data-parallel trainer.")
    parser.add_argument("--steps", type=int, default=5000)
    parser.add_argument("--step-seconds", type=float, default=0.2)
    parser.add_argument("--checkpoint-every", type=int, default=20)
    parser.add_argument("--checkpoint-dir", default=env.get("TRAINER_CHECKPOINT_DIR", "/checkpoints"))
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--rank",
        type=int,
        default=int(env.get("RANK") or env.get("JOB_COMPLETION_INDEX") or 0),
    )
    parser.add_argument("--world", type=int, default=int(env.get("WORLD_SIZE") or 1))
    parser.add_argument(
        "--fail-at-step",
        type=int,
        default=0,
        help="raise in this step, in each start anew",
    )
    parser.add_argument("--fail-rank", type=int, default=0)
    parser.add_argument("--fail-code", type=int, default=1)
    given = parser.parse_args(argv)
    return Options(
        rank=given.rank,
        world=given.world,
        steps=given.steps,
        step_seconds=given.step_seconds,
        checkpoint_every=given.checkpoint_every,
        checkpoint_dir=given.checkpoint_dir,
        seed=given.seed,
        job=env.get("TRAINER_JOB", ""),
        address=env.get("MASTER_ADDR", "127.0.0.1"),
        port=int(env.get("MASTER_PORT") or 29400),
        hosts_file=env.get("SIM_HOSTS_FILE", ""),
        bind_address=env.get("POD_IP", ""),
        collective_timeout_seconds=float(env.get("TRAINER_COLLECTIVE_TIMEOUT_SECONDS") or 600),
        rendezvous_timeout_seconds=float(env.get("TRAINER_RENDEZVOUS_TIMEOUT_SECONDS") or 1800),
        reset=env.get("TRAINER_RESET", "") == "1",
        fault_file=env.get("SIM_FAULT_FILE", ""),
        fail_at_step=given.fail_at_step,
        fail_rank=given.fail_rank,
        fail_code=given.fail_code,
    )


class Log:
    """One line a write, so that lines of several processes on one pipe never mix."""

    def __init__(self, rank: int) -> None:
        self._rank = rank

    def line(self, text: str) -> None:
        now = time.time()
        stamp = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(now))
        millis = int(now * 1000) % 1000
        _write(1, f"[{stamp},{millis:03d}] [rank {self._rank}] {text}\n")

    def die(self, text: str, code: int) -> NoReturn:
        _write(2, f"[rank{self._rank}]: {text}\n")
        # No interpreter shutdown: a rank that gives up must not linger.
        os._exit(code)


def _write(fd: int, text: str) -> None:
    remaining = text.encode()
    while remaining:
        remaining = remaining[os.write(fd, remaining) :]


class Collective:
    """Connections of one world, formed once; a member that is lost is never let in again."""

    def __init__(self, options: Options, world_id: int, peers: dict[int, socket.socket]) -> None:
        self._options = options
        self._world_id = world_id
        self._peers = peers  # rank 0: every other rank; the others: {0: rank 0}
        self._lost: set[int] = set()
        self.sequence = 0

    def all_reduce(self, values: array[float]) -> array[float]:
        """Sum over ranks, in rank order so that the result is bit-equal in every run."""
        with self._named("ALLREDUCE"):
            if self._options.rank == 0:
                parts = self._collect()
                total = values
                for rank in sorted(parts):
                    part: array[float] = array("d")
                    part.frombytes(parts[rank])
                    total = array("d", map(float.__add__, total, part))
                self._spread(total.tobytes())
                return total
            self._send(self._peers[0], values.tobytes())
            answer: array[float] = array("d")
            answer.frombytes(self._collect()[0])
            return answer

    def gather(self, payload: bytes) -> list[bytes]:
        """Rank 0 gets every rank's payload in rank order; the others get an empty list and go on at once."""
        with self._named("GATHER"):
            if self._options.rank == 0:
                parts = self._collect()
                return [payload, *(parts[rank] for rank in sorted(parts))]
            self._send(self._peers[0], payload)
            return []

    def barrier(self) -> None:
        self.all_reduce(array("d", [1.0]))

    @contextmanager
    def _named(self, operation: str) -> Iterator[None]:
        self.sequence += 1
        self._deadline = time.monotonic() + self._options.collective_timeout_seconds
        started = time.monotonic()
        try:
            yield
        except CollectiveTimeout:
            limit = int(self._options.collective_timeout_seconds * 1000)
            ran = int((time.monotonic() - started) * 1000)
            raise CollectiveTimeout(
                f"Watchdog caught collective operation timeout: WorkNCCL(SeqNum={self.sequence}, "
                f"OpType={operation}, Timeout(ms)={limit}) ran for {ran} milliseconds before timing out."
            ) from None

    def _collect(self) -> dict[int, bytes]:
        """One frame from each peer, or an exception when the time is up."""
        buffers = {rank: bytearray() for rank in self._peers}
        done: dict[int, bytes] = {}
        while len(done) < len(self._peers):
            # A lost peer's socket is readable for ever: it is left out, and the wait goes on without it.
            waiting = {self._peers[r]: r for r in self._peers if r not in done and r not in self._lost}
            left = self._deadline - time.monotonic()
            if left <= 0:
                raise CollectiveTimeout
            ready, _, _ = select.select(list(waiting), [], [], left)
            for connection in ready:
                rank = waiting[connection]
                buffer = buffers[rank]
                need = FRAME.size if len(buffer) < FRAME.size else FRAME.size + FRAME.unpack_from(buffer)[2]
                try:
                    chunk = connection.recv(need - len(buffer))
                except OSError:
                    chunk = b""
                if not chunk:
                    self._lose(rank)
                    continue
                buffer += chunk
                if len(buffer) >= FRAME.size:
                    world_id, sequence, size = FRAME.unpack_from(buffer)
                    if (world_id, sequence) != (self._world_id, self.sequence):
                        raise PeerLost(
                            f"RuntimeError: collective mismatch: rank {rank} is in world {world_id:016x} at "
                            f"{sequence}, expected {self._world_id:016x} at {self.sequence}"
                        )
                    if len(buffer) == FRAME.size + size:
                        done[rank] = bytes(buffer[FRAME.size :])
        return done

    def _spread(self, payload: bytes) -> None:
        for connection in self._peers.values():
            self._send(connection, payload)

    def _send(self, connection: socket.socket, payload: bytes) -> None:
        connection.settimeout(max(self._deadline - time.monotonic(), 0.001))
        try:
            connection.sendall(FRAME.pack(self._world_id, self.sequence, len(payload)) + payload)
        except TimeoutError:
            raise CollectiveTimeout from None
        except OSError:
            self._lose(next(rank for rank, peer in self._peers.items() if peer is connection))

    def _lose(self, rank: int) -> None:
        if self._options.reset:
            raise PeerLost(
                f"RuntimeError: [gloo/transport/tcp/pair.cc:534] Connection closed by peer "
                f"[{self._options.address}]: rank {rank}"
            )
        self._lost.add(rank)


def resolve(name: str, hosts_file: str) -> str | None:
    """Address of ``name`` by the hosts file (the last line wins), or None while it has none."""
    if not hosts_file:
        return name
    found = None
    try:
        with open(hosts_file, encoding="utf-8") as lines:
            for line in lines:
                parts = line.split()
                if name in parts[1:]:
                    found = parts[0]
    except FileNotFoundError:
        return None
    return found


def form_world(options: Options) -> tuple[Collective, dict[str, Any]]:
    """Meet all ranks of this start. Returns the collective and rank 0's plan (which checkpoint to load)."""
    if options.rank == 0:
        return _lead(options)
    return _join(options)


def _lead(options: Options) -> tuple[Collective, dict[str, Any]]:
    deadline = time.monotonic() + options.rendezvous_timeout_seconds
    members: dict[int, socket.socket] = {}
    if options.world > 1:
        address = options.bind_address or resolve(options.address, options.hosts_file) or "127.0.0.1"
        with _listen(address, options, deadline) as listener:
            members = _admit(listener, options, deadline)
        # The listener is closed: a rank that comes later belongs to another start and waits for its own.
    step, path = newest_checkpoint(options.checkpoint_dir)
    world_id = int.from_bytes(os.urandom(8), "big")
    plan = {"world_id": world_id, "world": options.world, "step": step, "path": path}
    for connection in members.values():
        connection.settimeout(options.collective_timeout_seconds)
        with suppress(OSError):  # died since: the first collective says so
            _send_line(connection, plan)
    return Collective(options, world_id, members), plan


def _listen(address: str, options: Options, deadline: float) -> socket.socket:
    """The rendezvous port; waits while a rank 0 that is just being stopped still holds it."""
    while True:
        try:
            return socket.create_server((address, options.port), backlog=options.world)
        except OSError as error:
            if error.errno != errno.EADDRINUSE or time.monotonic() >= deadline:
                raise
            time.sleep(POLL_SECONDS)


def _admit(listener: socket.socket, options: Options, deadline: float) -> dict[int, socket.socket]:
    """Accept until each rank has exactly one living connection: that of its latest start.

    A survivor of an earlier start that still waits to join is turned away, however often it comes.
    """
    members: dict[int, socket.socket] = {}
    latest: dict[int, float] = {}
    while len(members) < options.world - 1:
        left = deadline - time.monotonic()
        if left <= 0:
            missing = [rank for rank in range(1, options.world) if rank not in members]
            raise CollectiveTimeout(f"rendezvous timed out, ranks missing: {missing}")
        ready, _, _ = select.select([listener, *members.values()], [], [], left)
        for rank, connection in list(members.items()):
            # Members are silent until the world stands: readable means gone.
            if connection in ready:
                connection.close()
                del members[rank]
        if listener in ready:
            connection, _ = listener.accept()
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection.settimeout(1.0)
            try:
                rank, started = _read_hello(connection, options)
            except (OSError, ValueError, KeyError, TypeError, EOFError):
                connection.close()
                continue
            if started < latest.get(rank, 0.0):
                connection.close()
                continue
            latest[rank] = started
            if rank in members:
                members[rank].close()
            members[rank] = connection
    return members


def _read_hello(connection: socket.socket, options: Options) -> tuple[int, float]:
    """Rank and start time of a process that wants to join; ValueError when it is of another world."""
    hello = _receive_line(connection)
    rank = int(hello["rank"])
    if hello["job"] != options.job or hello["world"] != options.world or not 0 < rank < options.world:
        raise ValueError("of another world")
    return rank, float(hello["started"])


def _join(options: Options) -> tuple[Collective, dict[str, Any]]:
    started = time.monotonic()
    deadline = started + options.rendezvous_timeout_seconds
    hello = {"job": options.job, "rank": options.rank, "world": options.world, "started": time.time()}
    while True:
        now = time.monotonic()
        if now >= deadline:
            raise CollectiveTimeout(
                f"rendezvous timed out, rank 0 not found at {options.address}:{options.port}"
            )
        address = resolve(options.address, options.hosts_file)
        if address is not None:
            connection = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            try:
                connection.settimeout(5.0)
                connection.connect((address, options.port))
                connection.settimeout(deadline - now)
                _send_line(connection, hello)
                plan = _receive_line(connection)
                return Collective(options, int(plan["world_id"]), {0: connection}), plan
            except (OSError, EOFError):
                # Not there yet, or ended before the world stood: its successor will listen again.
                connection.close()
        time.sleep(POLL_SECONDS if now - started < 2.0 else PATIENT_POLL_SECONDS)


def _send_line(connection: socket.socket, message: dict[str, Any]) -> None:
    connection.sendall(json.dumps(message).encode() + b"\n")


def _receive_line(connection: socket.socket) -> dict[str, Any]:
    """One JSON line, read byte by byte so that nothing of what follows is swallowed."""
    line = bytearray()
    while not line.endswith(b"\n"):
        byte = connection.recv(1)
        if not byte:
            raise EOFError
        line += byte
    message: dict[str, Any] = json.loads(line)
    return message


class Model:
    """A quadratic bowl with noisy gradients: enough state to be worth a checkpoint, cheap to step.

    ``rng`` and ``cursor`` are per rank: the random state of its data order and how many samples it has read.
    """

    def __init__(self, seed: int, rank: int) -> None:
        stream = _mix(seed)
        self.target = array("d", (0.0,)) * DIMENSIONS
        for i in range(DIMENSIONS):
            stream = _mix(stream)
            self.target[i] = stream / MASK
        self.weights = array("d", (2.0,)) * DIMENSIONS
        self.velocity = array("d", (0.0,)) * DIMENSIONS
        self.rng = _mix(seed * 1_000_003 + rank + 1)
        self.cursor = 0

    def gradient(self) -> array[float]:
        """This rank's gradient of the next batch; moves its random state and data cursor on."""
        self.rng = _mix(self.rng)
        self.cursor += BATCH_SAMPLES
        noise = (self.rng / MASK - 0.5) * 0.01
        return array("d", [w - t + noise for w, t in zip(self.weights, self.target, strict=True)])

    def apply(self, total: array[float], world: int) -> None:
        scale = LEARNING_RATE / world
        self.velocity = array(
            "d",
            [MOMENTUM * v - scale * g for v, g in zip(self.velocity, total, strict=True)],
        )
        self.weights = array("d", map(float.__add__, self.weights, self.velocity))

    def loss(self) -> float:
        return (
            0.9 + sum((w - t) * (w - t) for w, t in zip(self.weights, self.target, strict=True)) / DIMENSIONS
        )


def _mix(state: int) -> int:
    """One step of splitmix64."""
    state = (state + 0x9E3779B97F4A7C15) & MASK
    mixed = (state ^ (state >> 30)) * 0xBF58476D1CE4E5B9 & MASK
    mixed = (mixed ^ (mixed >> 27)) * 0x94D049BB133111EB & MASK
    return mixed ^ (mixed >> 31)


def shard_name(rank: int, world: int) -> str:
    return f"shard-{rank:05d}-of-{world:05d}.bin"


def _bounds(rank: int, world: int) -> tuple[int, int]:
    return DIMENSIONS * rank // world, DIMENSIONS * (rank + 1) // world


def write_durably(path: str, payload: bytes) -> None:
    """Replace ``path`` in one step, on disk before this returns."""
    temporary = f"{path}.tmp"
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    try:
        os.write(fd, payload)
        os.fsync(fd)
    finally:
        os.close(fd)
    os.rename(temporary, path)
    directory = os.open(os.path.dirname(path), os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def save_checkpoint(options: Options, collective: Collective, model: Model, step: int, log: Log) -> None:
    """Write this rank's shard; rank 0 commits once every shard is on disk."""
    path = os.path.join(options.checkpoint_dir, f"step-{step:08d}")
    log.line(f"saving checkpoint step {step}")
    os.makedirs(path, exist_ok=True)
    low, high = _bounds(options.rank, options.world)
    payload = model.weights[low:high].tobytes() + model.velocity[low:high].tobytes()
    name = shard_name(options.rank, options.world)
    write_durably(os.path.join(path, name), payload)
    shard = {
        "name": name,
        "sha256": hashlib.sha256(payload).hexdigest(),
        "bytes": len(payload),
        "rng_state": model.rng,
        "data_cursor": model.cursor,
    }
    written = [json.loads(part) for part in collective.gather(json.dumps(shard).encode())]
    if options.rank != 0:
        return
    manifest = {
        "format": "sharded-manifest",
        "version": 1,
        "job": options.job,
        "step": step,
        "world_size": options.world,
        "seed": options.seed,
        "shards": [{key: part[key] for key in ("name", "sha256", "bytes")} for part in written],
        "rng_state": [part["rng_state"] for part in written],
        "data_cursor": [part["data_cursor"] for part in written],
    }
    write_durably(os.path.join(path, MANIFEST), json.dumps(manifest, indent=1).encode())
    write_durably(os.path.join(path, MARKER), b"")
    total = sum(part["bytes"] for part in written)
    log.line(f"committed checkpoint step {step} to {path}, {len(written)} shards, {total} bytes")


def newest_checkpoint(directory: str) -> tuple[int, str]:
    """Step and path of the newest committed checkpoint whose shards are whole, or (0, "")."""
    try:
        names = sorted((n for n in os.listdir(directory) if n.startswith("step-")), reverse=True)
    except FileNotFoundError:
        return 0, ""
    for name in names:
        path = os.path.join(directory, name)
        if not os.path.exists(os.path.join(path, MARKER)):
            continue
        try:
            manifest, _ = read_checkpoint(path)
        except CheckpointDamaged as damage:
            _write(2, f"checkpoint {path} is damaged and passed over: {damage}\n")
            continue
        return int(manifest["step"]), path
    return 0, ""


def read_checkpoint(path: str) -> tuple[dict[str, Any], list[bytes]]:
    """Manifest and shards of a committed checkpoint, each shard verified.

    Raises:
        CheckpointDamaged: A shard or the manifest is missing, cut short or altered.
    """
    try:
        with open(os.path.join(path, MANIFEST), "rb") as file:
            manifest = json.load(file)
        shards = []
        for shard in manifest["shards"]:
            with open(os.path.join(path, shard["name"]), "rb") as file:
                payload = file.read()
            if len(payload) != shard["bytes"] or hashlib.sha256(payload).hexdigest() != shard["sha256"]:
                raise CheckpointDamaged(f"{shard['name']} does not match its manifest")
            shards.append(payload)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CheckpointDamaged(str(error)) from error
    if len(shards) != manifest.get("world_size"):
        raise CheckpointDamaged(f"{len(shards)} shards for a world of {manifest.get('world_size')}")
    return manifest, shards


def load_checkpoint(options: Options, model: Model, path: str) -> int:
    """Restore weights, velocity, random state and data cursor; returns the step. Another world size is resharded."""
    manifest, shards = read_checkpoint(path)
    weights: array[float] = array("d")
    velocity: array[float] = array("d")
    for payload in shards:
        half = len(payload) // 2
        weights.frombytes(payload[:half])
        velocity.frombytes(payload[half:])
    if len(weights) != DIMENSIONS or len(velocity) != DIMENSIONS:
        raise CheckpointDamaged(f"{len(weights)} weights, expected {DIMENSIONS}")
    model.weights, model.velocity = weights, velocity
    if options.rank < len(manifest["rng_state"]):
        model.rng = int(manifest["rng_state"][options.rank])
        model.cursor = int(manifest["data_cursor"][options.rank])
    return int(manifest["step"])


def train(options: Options, log: Log) -> None:
    began = time.monotonic()
    model = Model(options.seed, options.rank)
    log.line(f"joining a world of {options.world} at {options.address}:{options.port}")
    collective, plan = form_world(options)
    log.line(f"rendezvous complete: world {options.world}, {time.monotonic() - began:.2f} s")

    loading = time.monotonic()
    step = 0
    if plan["path"]:
        step = load_checkpoint(options, model, str(plan["path"]))
        log.line(f"restored step {step} from {plan['path']} in {time.monotonic() - loading:.2f} s")
    else:
        log.line("starting from step 0, no committed checkpoint")

    while step < options.steps:
        began = time.monotonic()
        step += 1
        gradient = model.gradient()
        if step == options.fail_at_step and options.rank == options.fail_rank:
            raise FloatingPointError(f"loss is nan at step {step}")
        _sleep_until(began + options.step_seconds, options)
        gradient.append(float(step))
        total = collective.all_reduce(gradient)
        if total.pop() != float(step * options.world):
            raise PeerLost(f"RuntimeError: ranks are not at the same step, expected {step}")
        model.apply(total, options.world)
        log.line(
            f"step {step}/{options.steps} | loss {model.loss():.4f} | {time.monotonic() - began:.3f} s/step"
        )
        if step % options.checkpoint_every == 0 or step == options.steps:
            save_checkpoint(options, collective, model, step, log)
    collective.barrier()
    log.line(f"training complete: step {step}/{options.steps}")


def _sleep_until(moment: float, options: Options) -> None:
    """The rest of the step's computing time; also the place where an injected fault takes hold."""
    if options.fault_file and os.path.exists(options.fault_file):
        with open(options.fault_file, encoding="utf-8") as file:
            code = int(file.read())
        os.unlink(options.fault_file)  # told once: the next start runs
        Log(options.rank).die(f"exiting with code {code} on request", code)
    left = moment - time.monotonic()
    if left > 0:
        time.sleep(left)


def main(argv: list[str] | None = None) -> int:
    options = parse_options(sys.argv[1:] if argv is None else argv)
    log = Log(options.rank)
    try:
        train(options, log)
    except (CollectiveTimeout, PeerLost) as error:
        log.die(str(error), 1)
    except FloatingPointError as error:
        sys.excepthook(FloatingPointError, error, error.__traceback__)
        os._exit(options.fail_code)
    except CheckpointDamaged as error:
        log.die(f"RuntimeError: cannot restore: {error}", 1)
    return 0


if __name__ == "__main__":
    sys.exit(main())
