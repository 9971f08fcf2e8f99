"""The life of one pod on its node: volumes, containers, restarts, the end. One thread a pod."""

from __future__ import annotations

import logging
import os
import queue
import re
import shutil
import sys
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sim import processes
from sim.admission import rfc3339
from sim.errors import Conflict, NotFound
from sim.kubelet.container import Container, Exit, StartFailed
from sim.kubelet.status import ContainerLife, conditions_of, phase_of
from sim.kubelet.volumes import PodVolumes, VolumeFailed, field_value, rewrite_paths

if TYPE_CHECKING:
    from sim.kubelet.node import Kubelet

logger = logging.getLogger(__name__)

FORCED_GRACE_SECONDS = 1.0  # kubelet's minimum, also for a pod whose object is gone already
MOUNT_RETRY_SECONDS = 0.5
SYNC_RETRY_SECONDS = 1.0
TERMINATION_MESSAGE_BYTES = 4096
FALLBACK_LOG_BYTES = 2048
IDLE = (
    "sleep",
    "infinity",
)  # a container without a command: what its image would run is not known here


@dataclass
class PodProcesses:
    """Where a pod's processes are, for faults and drills. Pids are 0 while there is no such process."""

    pod: str
    uid: str
    container: str
    shim_pid: int
    main_pid: int
    tree: list[processes.Process] = field(default_factory=list)


class PodWorker:
    """Brings one pod to what its object says and writes what happened to its status.

    Everything happens in the worker's own thread, woken by its inbox: the pod changed, its object is gone, a container
    ended, a timer is due.
    """

    def __init__(self, kubelet: Kubelet, pod: dict[str, Any]) -> None:
        self.kubelet = kubelet
        self.uid = str(pod["metadata"]["uid"])
        self.name = str(pod["metadata"]["name"])
        self.namespace = str(pod["metadata"]["namespace"])
        self.directory = kubelet.place.pods / self.uid
        self._pod = pod
        self._inbox: queue.Queue[tuple[str, Any]] = queue.Queue()
        self._address = ""
        self.started_at = kubelet.clock()
        self._init = [_life(container) for container in pod["spec"].get("initContainers") or []]
        self._main = [_life(container) for container in pod["spec"]["containers"]]
        self._running: dict[str, Container] = {}
        self._oom_killed: set[str] = set()
        self._volumes: PodVolumes | None = None
        self._desk_url: str | None = None
        self._is_mounted = False
        self._mount_due = 0.0
        self._sync_due = 0.0
        self._is_gone = False  # the object no longer exists
        self._is_ending = False
        self._grace_sent: float | None = None
        self._is_released = False
        self._lock = threading.Lock()
        self.thread = threading.Thread(target=self._run, name=f"sim-pod-{self.name}", daemon=True)

    def changed(self, pod: dict[str, Any]) -> None:
        self._inbox.put(("changed", pod))

    def gone(self) -> None:
        self._inbox.put(("gone", None))

    def report(self) -> None:
        """Write the status anew: the API server could not be reached for a while."""
        self._inbox.put(("report", None))

    def kill(self) -> None:
        """End every process at once, without a word to the API: the machine is going down."""
        self._inbox.put(("kill", None))

    def processes(self) -> list[PodProcesses]:
        """The processes of each running container."""
        with self._lock:
            running = dict(self._running)
        return [
            PodProcesses(
                self.name,
                self.uid,
                name,
                container.shim_pid,
                container.pid,
                container.tree(),
            )
            for name, container in running.items()
        ]

    def mark_oom_killed(self, container: str) -> None:
        """The next end of this container is told as OOMKilled, as after the kernel killed a process of its cgroup."""
        self._oom_killed.add(container)

    def fault_file(self) -> Path:
        """A file whose appearing tells the trainer of this pod to exit with the code in it."""
        return self.directory / "fault"

    def log_path(self, container: str, *, previous: bool = False) -> Path | None:
        """The log of the container's present (or previous) run; None when there is none."""
        for life in (*self._init, *self._main):
            if life.name == container:
                run = life.restarts - 1 if previous else life.restarts
                path = self._log(life.name, run)
                return path if run >= 0 and path.exists() else None
        return None

    def _run(self) -> None:
        heard: tuple[str, Any] | None = None
        while True:
            try:
                if heard is not None:
                    self._hear(*heard)
                due = self._reconcile()
            except Exception:  # outermost loop: the pod is tried again, as a kubelet does
                logger.exception("pod %s/%s: not brought to what it should be", self.namespace, self.name)
                due = time.time() + SYNC_RETRY_SECONDS
            if self._is_done():
                break
            try:
                heard = self._inbox.get(timeout=None if due is None else max(due - time.time(), 0.0))
            except queue.Empty:
                heard = None
        if self._volumes is not None:
            self._volumes.remove()
        shutil.rmtree(self._tmp, ignore_errors=True)
        self.kubelet.forget(self)

    def _is_done(self) -> bool:
        return self._is_released and (self._is_gone or bool(self._pod["metadata"].get("deletionTimestamp")))

    def _hear(self, word: str, what: Any) -> None:
        if word == "changed":
            self._pod = what
            self._put_addresses()
            if self._volumes is not None:
                self._volumes.pod = what
        elif word == "gone":
            self._is_gone = True
        elif word == "exit":
            self._ended(*what)
        elif word == "kill":
            for container in list(self._running.values()):
                container.stop(0)
            self._is_gone = self._is_ending = True
            self._grace_sent = 0.0

    def _reconcile(self) -> float | None:
        """Do what is due now; returns when to look again (Unix seconds), None for "when something happens"."""
        now = time.time()
        if self._is_gone or self._pod["metadata"].get("deletionTimestamp"):
            self._end()
            return None
        if self._is_released:
            self._write_status()  # changes nothing, unless the end could not be told before
            return None  # finished, waits to be deleted
        if not self._is_mounted:
            if now < self._mount_due:
                return self._mount_due
            if not self._set_up():
                self._write_status()
                return self._mount_due
        due = self._start_containers(now)
        if now >= self._sync_due and self._volumes is not None:
            self._volumes.sync()
            self._rotate_logs()
            self._sync_due = now + self.kubelet.timings.volume_sync
        phase = self._write_status()
        if phase in ("Succeeded", "Failed"):
            self._release()
            return None
        return min(self._sync_due, due) if due is not None else self._sync_due

    def _set_up(self) -> bool:
        if not self._address:
            self._address = self.kubelet.network_address()
            self._enter_names()
            self._desk_url = self.kubelet.place.network.open(
                pod_uid=self.uid, address=self._address, job=self.job, index=self.index
            )
        self._put_addresses()
        self._volumes = PodVolumes(
            pod=self._pod,
            directory=self.directory,
            shared=self.kubelet.place.root,
            sources=self.kubelet.sources,
            rewrite=self._rewrite_desk,
        )
        try:
            self._volumes.set_up()
        except VolumeFailed as failure:
            message = f'MountVolume.SetUp failed for volume of pod "{self.name}" : {failure}'
            self._event("FailedMount", message, warning=True)
            self._mount_due = time.time() + MOUNT_RETRY_SECONDS
            return False
        self._tmp.mkdir(parents=True, exist_ok=True)
        self._is_mounted = True
        self._sync_due = time.time() + self.kubelet.timings.volume_sync
        return True

    def _put_addresses(self) -> None:
        """Into our copy of the pod, whose fields containers refer to: the stored one may not have them yet."""
        if self._address:
            self._pod.setdefault("status", {}).update(podIP=self._address, hostIP=self.kubelet.host_address)

    @property
    def job(self) -> tuple[str, str] | None:
        """(namespace, name) of the Job that owns the pod."""
        for owner in self._pod["metadata"].get("ownerReferences") or []:
            if owner["kind"] == "Job":
                return self.namespace, str(owner["name"])
        return None

    @property
    def index(self) -> int | None:
        """Completion index of the pod in its Job."""
        text = (self._pod["metadata"].get("annotations") or {}).get(
            "batch.kubernetes.io/job-completion-index"
        )
        return int(text) if text is not None else None

    @property
    def _tmp(self) -> Path:
        # Short, because programs put unix sockets there (at most 107 bytes with the name).
        return self.kubelet.place.temporary / self.uid[:8]

    def _enter_names(self) -> None:
        spec = self._pod["spec"]
        hostname = str(spec.get("hostname") or self.name)
        names = [self.name]
        if spec.get("subdomain"):
            domain = f"{hostname}.{spec['subdomain']}"
            full = f"{domain}.{self.namespace}.svc"
            names += [
                hostname,
                domain,
                f"{domain}.{self.namespace}",
                full,
                f"{full}.cluster.local",
            ]
        self.kubelet.place.hosts.add(
            namespace=self.namespace,
            pod_uid=self.uid,
            address=self._address,
            names=dict.fromkeys(names),
        )

    def _rewrite_desk(self, text: str) -> str:
        desk = self.kubelet.place.network.desk_url
        return text.replace(desk, self._desk_url) if desk and self._desk_url else text

    def _start_containers(self, now: float) -> float | None:
        """Start what is due; returns the time of the next start that has to wait for its back-off."""
        policy = str(self._pod["spec"].get("restartPolicy", "Always"))
        for life, spec in zip(self._init, self._pod["spec"].get("initContainers") or [], strict=True):
            if life.state == "terminated" and life.exit_code == 0:
                continue
            # One at a time; with Never, a failed one ends the pod.
            if life.state == "running" or (life.state == "terminated" and policy == "Never"):
                return None
            return self._start_one(life, spec, now)
        waits = []
        for life, spec in zip(self._main, self._pod["spec"]["containers"], strict=True):
            again = policy == "Always" or (policy == "OnFailure" and life.exit_code != 0)
            if life.state == "running" or (life.state == "terminated" and not again):
                continue
            if (due := self._start_one(life, spec, now)) is not None:
                waits.append(due)
        return min(waits, default=None)

    def _start_one(self, life: ContainerLife, spec: Mapping[str, Any], now: float) -> float | None:
        is_restart = life.was_started
        if is_restart and now < life.start_due:
            if life.reason != "CrashLoopBackOff":
                self._back_off(life)
            return life.start_due
        if life.state == "terminated":
            life.previous = life.terminated_state()
        if is_restart:
            life.restarts += 1
        life.was_started = True
        self._event("Pulled", f'Container image "{life.image}" already present on machine')
        try:
            container = self._create(life, spec)
        except (StartFailed, VolumeFailed) as failure:
            self._start_failed(life, str(failure))
            return life.start_due
        with self._lock:
            self._running[life.name] = container
        life.state, life.reason, life.message = "running", "", ""
        life.container_id, life.started_at = container.id, container.started_at
        self._event("Created", f"Created container: {life.name}")
        self._event("Started", f"Started container {life.name}")
        return None

    def _create(self, life: ContainerLife, spec: Mapping[str, Any]) -> Container:
        assert self._volumes is not None
        home = self.directory / "containers" / life.name
        home.mkdir(parents=True, exist_ok=True)
        message_file = home / "termination-log"
        message_file.write_bytes(b"")
        mounts = self._volumes.mounts(spec)
        mounts[str(spec.get("terminationMessagePath") or "/dev/termination-log")] = str(message_file)
        env = self._environment(spec, mounts)
        raw = [*(spec.get("command") or []), *(spec.get("args") or [])] or list(IDLE)
        argv = [rewrite_paths(_expand(part, env), mounts) for part in raw]
        if argv[0] == "deskagent":
            if self.kubelet.place.agent is None:
                raise StartFailed('exec: "deskagent": executable file not found in $PATH')
            argv[:1] = [sys.executable, str(self.kubelet.place.agent)]
        cwd = rewrite_paths(str(spec.get("workingDir") or ""), mounts)
        log = self._log(life.name, life.restarts)
        log.parent.mkdir(parents=True, exist_ok=True)
        self._forget_log(life.name, life.restarts - 2)
        run = life.restarts
        return Container(
            argv=argv,
            env=env,
            cwd=Path(cwd) if cwd and Path(cwd).is_dir() else home,
            log=log,
            on_exit=lambda ended: self._inbox.put(("exit", (life.name, run, ended))),
        )

    def _environment(self, spec: Mapping[str, Any], mounts: Mapping[str, str]) -> dict[str, str]:
        place = self.kubelet.place
        env = {
            "PATH": f"{Path(sys.executable).parent}:/usr/local/bin:/usr/bin:/bin",
            "HOME": str(self.directory),
            "TMPDIR": str(self._tmp),
            "LANG": "C.UTF-8",
            "HOSTNAME": str(self._pod["spec"].get("hostname") or self.name),
            "PYTHONPATH": str(place.python_path),
            "PYTHONUNBUFFERED": "1",
            "SIM_HOSTS_FILE": str(place.hosts.path(self.namespace)),
            "SIM_FAULT_FILE": str(self.fault_file()),
        }
        if stack := os.environ.get("INCIDENTDESK_STACK"):
            # The demo's supervisor ends by this mark whatever a SIGKILL of this program would leave behind.
            env["INCIDENTDESK_STACK"] = stack
        for source in spec.get("envFrom") or []:
            prefix = source.get("prefix", "")
            for key, value in self.kubelet.env_from(self.namespace, source).items():
                env[prefix + key] = value
        for variable in spec.get("env") or []:
            value = variable.get("value")
            if value is None and "valueFrom" in variable:
                value = self._env_value(variable["valueFrom"])
            text = self._rewrite_desk(_expand(str(value or ""), env))
            env[str(variable["name"])] = rewrite_paths(text, mounts)
        return env

    def _env_value(self, source: Mapping[str, Any]) -> str:
        if "fieldRef" in source:
            return field_value(self._pod, str(source["fieldRef"]["fieldPath"]))
        for kind in ("configMapKeyRef", "secretKeyRef"):
            if kind in source:
                values = self.kubelet.env_from(
                    self.namespace,
                    {kind.replace("Key", ""): {"name": source[kind]["name"]}},
                )
                if source[kind]["key"] not in values and not source[kind].get("optional"):
                    raise StartFailed(f"couldn't find key {source[kind]['key']} in {source[kind]['name']}")
                return values.get(source[kind]["key"], "")
        raise StartFailed(f"unsupported environment source {sorted(source)}")

    def _start_failed(self, life: ContainerLife, why: str) -> None:
        now = time.time()
        message = f"failed to create containerd task: failed to start container process: {why}"
        self._event("Failed", f"Error: {message}", warning=True)
        life.state, life.reason, life.message = "terminated", "StartError", message
        life.exit_code, life.signal = 128, 0
        life.started_at, life.finished_at = 0.0, now
        self._schedule_restart(life, ran_seconds=0.0)

    def _ended(self, name: str, run: int, ended: Exit) -> None:
        life = next(life for life in (*self._init, *self._main) if life.name == name)
        with self._lock:
            self._running.pop(name, None)
        assert run == life.restarts
        life.state = "terminated"
        life.exit_code, life.signal, life.finished_at = (
            ended.code,
            ended.signal,
            ended.at,
        )
        life.reason = "Completed" if ended.code == 0 else "Error"
        if name in self._oom_killed and ended.code != 0:
            life.reason = "OOMKilled"
        self._oom_killed.discard(name)
        life.message = self._termination_message(life)
        self._schedule_restart(life, ran_seconds=ended.at - life.started_at)

    def _schedule_restart(self, life: ContainerLife, ran_seconds: float) -> None:
        timings = self.kubelet.timings
        if ran_seconds >= timings.container_backoff_reset:
            life.backoff_seconds = 0.0
        life.start_due = life.finished_at + life.backoff_seconds
        doubled = life.backoff_seconds * 2 or timings.container_backoff_initial
        life.backoff_seconds = min(doubled, timings.container_backoff_maximum)

    def _back_off(self, life: ContainerLife) -> None:
        """Show a container that waits for its restart."""
        seconds = life.start_due - life.finished_at
        where = f"{self.name}_{self.namespace}({self.uid})"
        life.previous = life.terminated_state()
        life.state, life.reason = "waiting", "CrashLoopBackOff"
        life.message = f"back-off {_go_seconds(seconds)} restarting failed container={life.name} pod={where}"
        message = f"Back-off restarting failed container {life.name} in pod {where}"
        self._event("BackOff", message, warning=True)

    def _termination_message(self, life: ContainerLife) -> str:
        spec = next(
            c
            for c in (
                *(self._pod["spec"].get("initContainers") or []),
                *self._pod["spec"]["containers"],
            )
            if c["name"] == life.name
        )
        try:
            raw = (self.directory / "containers" / life.name / "termination-log").read_bytes()
        except OSError:
            raw = b""
        falls_back = spec.get("terminationMessagePolicy") == "FallbackToLogsOnError" and life.exit_code != 0
        if not raw and falls_back:
            return _tail(self._log(life.name, life.restarts), FALLBACK_LOG_BYTES)
        return raw[:TERMINATION_MESSAGE_BYTES].decode(errors="replace")

    def _log(self, container: str, run: int) -> Path:
        return self.directory / "logs" / container / f"{run}.log"

    def _rotate_logs(self) -> None:
        """Keep a long run from filling the disk: a full log moves to `<run>.log.1`, its file starts again.

        The writers hold the file open to append, so it is copied and emptied; a line of that very moment may be lost.
        """
        for life in (*self._init, *self._main):
            log = self._log(life.name, life.restarts)
            if log.exists() and log.stat().st_size > self.kubelet.log_bytes:
                shutil.copyfile(log, log.with_name(f"{log.name}.1"))
                os.truncate(log, 0)

    def _forget_log(self, container: str, run: int) -> None:
        """Of the ended runs only the last one's log is kept (kubectl logs --previous)."""
        log = self._log(container, run)
        for path in (log, log.with_name(f"{log.name}.1")):
            path.unlink(missing_ok=True)

    def _end(self) -> None:
        """The pod is being deleted, or its object is gone: stop all containers, then let go."""
        if self._is_gone:
            grace = FORCED_GRACE_SECONDS
        else:
            grace = max(
                float(self._pod["metadata"].get("deletionGracePeriodSeconds") or 0),
                FORCED_GRACE_SECONDS,
            )
        with self._lock:
            running = dict(self._running)
        if running and (self._grace_sent is None or grace < self._grace_sent):
            if self._grace_sent is None:
                for name in running:
                    self._event("Killing", f"Stopping container {name}")
            for container in running.values():
                container.stop(grace)
            self._grace_sent = grace
        self._is_ending = True
        if running:
            return
        for life in (*self._init, *self._main):
            if life.state == "waiting" and life.reason == "CrashLoopBackOff":
                life.state = "terminated"
        if not self._is_gone:
            if self.kubelet.is_silent:
                return  # the object stays until the end can be told
            self._write_status()
        self._release()
        if not self._is_gone:
            with suppress(NotFound, Conflict):  # deleted by force meanwhile
                self.kubelet.store.delete(
                    "Pod",
                    self.namespace,
                    self.name,
                    actor=self.kubelet.actor,
                    uid=self.uid,
                    grace_period_seconds=0,
                )

    def _release(self) -> None:
        """The pod runs nothing any more: give back its network. Logs and volumes stay until it is deleted."""
        if self._is_released:
            return
        self._is_released = True
        self.kubelet.place.hosts.remove(namespace=self.namespace, pod_uid=self.uid)
        self.kubelet.place.network.close(self.uid)
        if self._address:
            self.kubelet.place.addresses.give_back(self._address)

    def _phase(self) -> str:
        policy = str(self._pod["spec"].get("restartPolicy", "Always"))
        is_initialized = all(life.state == "terminated" and life.exit_code == 0 for life in self._init)
        if self._is_ending:
            # Whatever the policy, a pod that was stopped does not run again.
            policy = "Never"
            never_ran = all(life.state == "waiting" and life.previous is None for life in self._main)
            if never_ran:
                return "Failed"
        elif any(life.state == "terminated" and life.exit_code for life in self._init) and policy == "Never":
            return "Failed"
        return phase_of(self._main, policy, is_initialized=is_initialized)

    def _write_status(self) -> str:
        now = self.kubelet.clock()
        phase = self._phase()
        if self.kubelet.is_silent:
            return phase
        is_initialized = all(life.state == "terminated" and life.exit_code == 0 for life in self._init)

        def change(pod: dict[str, Any]) -> dict[str, Any] | None:
            status = dict(pod.get("status") or {})
            status["phase"] = phase
            status["startTime"] = rfc3339(self.started_at)
            status["hostIP"] = self.kubelet.host_address
            status["hostIPs"] = [{"ip": self.kubelet.host_address}]
            if self._address:
                status["podIP"] = self._address
                status["podIPs"] = [{"ip": self._address}]
            status["containerStatuses"] = [life.as_status() for life in self._main]
            if self._init:
                status["initContainerStatuses"] = [life.as_status() for life in self._init]
            status["conditions"] = conditions_of(
                status.get("conditions") or [],
                self._main,
                phase=phase,
                has_sandbox=self._is_mounted and phase not in ("Succeeded", "Failed"),
                is_initialized=is_initialized,
                now=now,
            )
            if status == pod.get("status"):
                return None
            pod["status"] = status
            return pod

        with suppress(NotFound, Conflict):  # deleted by force: the inbox says so
            self.kubelet.store.mutate(
                "Pod",
                self.namespace,
                self.name,
                change,
                actor=self.kubelet.actor,
                subresource="status",
                uid=self.uid,
            )
        return phase

    def _event(self, reason: str, message: str, *, warning: bool = False) -> None:
        if self.kubelet.is_silent:
            return
        self.kubelet.events.record(
            self._pod,
            reason=reason,
            message=message,
            component="kubelet",
            host=self.kubelet.node_name,
            actor=self.kubelet.actor,
            warning=warning,
        )


def _life(container: Mapping[str, Any]) -> ContainerLife:
    image = str(container["image"])
    last = image.rsplit("/", 1)[-1]
    return ContainerLife(name=str(container["name"]), image=image if ":" in last else f"{image}:latest")


def _expand(text: str, env: Mapping[str, str]) -> str:
    """Kubernetes' $(NAME) and $$(NAME)."""

    def value(match: re.Match[str]) -> str:
        if match.group(0).startswith("$$"):
            return match.group(0)[1:]
        return env.get(match.group(1), match.group(0))

    return re.sub(r"\$?\$\(([A-Za-z_][A-Za-z0-9_]*)\)", value, text)


def _go_seconds(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes}m{rest}s" if minutes else f"{rest}s"


def _tail(path: Path, size: int) -> str:
    try:
        with path.open("rb") as file:
            file.seek(max(path.stat().st_size - size, 0))
            return file.read().decode(errors="replace")
    except OSError:
        return ""
