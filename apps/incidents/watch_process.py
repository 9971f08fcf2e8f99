"""The watch of one cluster: one reader thread a resource, one importer, one keeper of the lease.

Readers fill a bounded queue; the importer takes what is there, writes it in one transaction, and only
then counts it as heard. When the lease is lost everything is thrown away: the next leader compares its
first lists with the rows, so that whatever was not written is found again.
"""

from __future__ import annotations

import logging
import os
import queue
import random
import socket
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, Protocol

from django.conf import settings
from django.db import close_old_connections, connection
from django.db.utils import DatabaseError, InterfaceError, OperationalError

from adapters.facts import Change, ChangeType, JobFact, NamespaceFact, NodeFact, PodFact
from adapters.kubernetes.cluster import JOBS, NAMESPACES, NODES, PODS
from adapters.kubernetes.transport import Transport
from adapters.kubernetes.watch import Batch, Resource, Watcher
from apps.access import clock
from apps.access.models import Cluster
from apps.incidents.api_probe import ApiProbe
from apps.incidents.services import watching
from apps.incidents.services.watching import Freshness, Imported, Lead, LeadershipLost, Seen
from apps.incidents.token_reviewer import TokenReviewer
from apps.jobs.services import importing, pods
from apps.nodes.services import known_nodes
from recovery.errors import ClusterError, DeskError
from recovery.ports import TokenReview

_log = logging.getLogger(__name__)

QUEUED_BATCHES = 200  # then readers wait: the API server keeps what we have not read
CHANGES_A_WRITE = 500  # a transaction must stay far shorter than the lease
PODS_A_HOLD = 20_000  # pods kept for jobs that are not known yet
PROGRESS_CHANGES = 10_000  # a line in the log for every so many of a list
HOUSEKEEPING_SECONDS = 1.0
TOKEN_KEYS_SECONDS = 3600.0
TOKEN_KEYS_RETRY_SECONDS = 30.0
PAUSE_SECONDS = 0.2
RETRY_CAP_SECONDS = 5.0


class WatchedCluster(Protocol):
    """What the watch asks of a cluster beside lists and watches."""

    transport: Transport

    def identity(self) -> str: ...

    def token_keys(self) -> tuple[str, dict[str, Any]]: ...

    def review_token(self, *, token: str, audience: str) -> TokenReview: ...

    def job(self, *, namespace: str, name: str) -> JobFact | None: ...

    def pods(self, *, namespace: str, job_name: str) -> tuple[PodFact, ...]: ...


class WrongCluster(DeskError):
    """Another cluster answers than the one that the rows are about."""

    code = "wrong_cluster"


@dataclass
class _Heard:
    """How far one resource is, until it is written."""

    state: str = "starting"
    detail: str = ""
    resource_version: str = ""
    last_list_at: datetime | None = None
    last_event_at: datetime | None = None
    last_heard_at: datetime | None = None
    lag_seconds: float | None = None
    listed: int = 0  # changes of the list that is being read
    is_changed: bool = True


@dataclass
class _Memory:
    """What a leader knows beside the rows. Thrown away with the lead."""

    namespaces: dict[str, dict[str, str]] = field(default_factory=dict)
    namespace_names: dict[str, str] = field(default_factory=dict)  # by uid
    nodes: dict[str, NodeFact] = field(default_factory=dict)  # by uid: heartbeats are left out by comparison
    jobs: dict[str, int] = field(default_factory=dict)  # row ids by uid
    ignored: dict[str, JobFact] = field(default_factory=dict)
    pending: dict[str, dict[str, Change[PodFact]]] = field(default_factory=dict)  # by job uid, pod uid
    mode: str = ""


class WatchProcess:
    """Watches a cluster until ``stop`` is set. Two of them for one cluster share it by a lease."""

    def __init__(
        self,
        *,
        cluster: Cluster,
        adapter: WatchedCluster,
        stop: threading.Event,
        owner: str = "",
        chance: random.Random | None = None,
    ) -> None:
        self.owner = owner or f"{socket.gethostname()}:{os.getpid()}"
        self._cluster = cluster
        self._adapter = adapter
        self._stop = stop
        self._chance = chance or random.Random()

    def run(self) -> None:
        """Lead whenever nobody else does. Raises WrongCluster; other trouble is logged and waited out."""
        lease = settings.TIMINGS["WATCH_LEASE_SECONDS"]
        failures = 0
        while not self._stop.is_set():
            try:
                lead = watching.take_lead(cluster=self._cluster, owner=self.owner)
                if lead is not None:
                    _log.info("watch.leads cluster=%s epoch=%s", self._cluster.slug, lead.epoch)
                    self._lead(lead)
                failures = 0
            except LeadershipLost as error:
                _log.warning("watch.lead_lost cluster=%s %s", self._cluster.slug, error)
            except (OperationalError, InterfaceError, ClusterError) as error:
                failures += 1
                _log.warning("watch.trouble cluster=%s %s", self._cluster.slug, error)
                if not connection.in_atomic_block:
                    connection.close()
            self._stop.wait(self._chance.uniform(0.5, 1.0) * min(lease / 3 * 2 ** min(failures, 5), 30.0))

    def _lead(self, lead: Lead) -> None:
        term = _Term(self._cluster, self._adapter, lead, self._stop)
        state, detail = "starting", ""
        try:
            check_identity(self._cluster, self._adapter)
            term.run()
        except (WrongCluster, ClusterError) as error:
            state, detail = "broken", str(error)
            raise
        finally:
            term.end()
            try:
                watching.give_up_lead(lead, state=state, detail=detail)
            except DatabaseError as error:
                _log.warning("watch.lead_kept cluster=%s until its lease ends: %s", self._cluster.slug, error)


def check_identity(cluster: Cluster, adapter: WatchedCluster) -> None:
    """Raise WrongCluster unless the cluster that answers is the one that is registered."""
    uid = adapter.identity()
    if uid != cluster.system_uid:
        raise WrongCluster(
            f"cluster {cluster.slug} is registered with kube-system {cluster.system_uid}, but {uid} answers: "
            "check the kubeconfig, or register this cluster under a slug of its own"
        )


class _Term:
    """One term of leadership."""

    def __init__(self, cluster: Cluster, adapter: WatchedCluster, lead: Lead, stop: threading.Event) -> None:
        self._cluster, self._adapter, self._lead, self._stop = cluster, adapter, lead, stop
        self._over = threading.Event()  # readers and keeper end
        self._lost = threading.Event()
        self._queue: queue.Queue[tuple[float, Batch[Any]]] = queue.Queue(QUEUED_BATCHES)
        self._watchers: dict[str, Watcher[Any]] = {}
        self._threads: list[threading.Thread] = []
        self._heard = {name: _Heard() for name in watching.RESOURCES}
        self._memory = _Memory(mode=cluster.mode)
        self._crashed: list[BaseException] = []
        self._next_keys_at = 0.0
        self._keys_read_at = 0.0
        self._reviewer = TokenReviewer(cluster, adapter, lead, over=self._over)
        self._next_house_at = 0.0

    def run(self) -> None:
        """Until stopped or until the lead is lost. Raises LeadershipLost and database errors."""
        self._start(self._keep_lease, "lease")
        self._start(self._reviewer.run, "tokens")
        self._start(ApiProbe(self._cluster, self._adapter, self._lead, over=self._over).run, "probe")
        present, self._memory.jobs = importing.known_jobs(self._cluster)
        # Namespaces tell which jobs are protected, nodes which pods were lost, jobs whose pods matter:
        # each is listed before what needs it.
        plan: list[tuple[Resource[Any], Callable[[], dict[str, str]]]] = [
            (NAMESPACES, dict),
            (NODES, lambda: known_nodes(self._cluster)),
            (JOBS, lambda: present),
            (PODS, lambda: pods.known_pods(self._cluster)),
        ]
        for resource, known in plan:
            self._watch(resource, known())
            while self._heard[resource.name].last_list_at is None and not self._stop.is_set():
                self._turn()
        while not self._stop.is_set():
            self._turn()

    def end(self) -> None:
        """End all threads of this term; nothing of it is heard or written afterwards."""
        self._over.set()
        for watcher in self._watchers.values():
            watcher.close()
        deadline = time.monotonic() + settings.TIMINGS["CLUSTER_TIMEOUT_SECONDS"] + 5
        for thread in self._threads:
            while thread.is_alive() and time.monotonic() < deadline:
                self._drain()  # a reader may wait for room in the queue
                for watcher in self._watchers.values():
                    watcher.close()  # it may have opened its next request just now
                thread.join(0.05)

    def _start(self, target: Callable[[], None], name: str) -> None:
        def guarded() -> None:
            try:
                target()
            except BaseException as error:  # noqa: BLE001 - raised again by the importer, whatever it is
                self._crashed.append(error)
            finally:
                connection.close()

        thread = threading.Thread(target=guarded, name=f"watch-{name}", daemon=True)
        self._threads.append(thread)
        thread.start()

    def _watch(self, resource: Resource[Any], known: dict[str, str]) -> None:
        self._heard[resource.name].state = "listing"
        watcher = Watcher(
            self._adapter.transport,
            resource,
            self._hear,
            known=known,
            timeout_seconds=settings.TIMINGS["WATCH_TIMEOUT_SECONDS"],
            stop=self._over,
        )
        self._watchers[resource.name] = watcher
        self._start(watcher.run, resource.name)

    def _hear(self, batch: Batch[Any]) -> None:
        heard_at = time.monotonic()
        while not self._over.is_set():
            try:
                self._queue.put((heard_at, batch), timeout=PAUSE_SECONDS)
            except queue.Full:
                continue
            return

    def _keep_lease(self) -> None:
        """Renew well before the end. A lease that ran out is lost, even if nobody has taken it."""
        pause = settings.TIMINGS["WATCH_LEASE_SECONDS"] / 4
        while not self._over.wait(pause):
            try:
                if not watching.renew_lead(self._lead):
                    self._lost.set()
                    return
            except (OperationalError, InterfaceError) as error:
                _log.warning("watch.lease_not_renewed cluster=%s %s", self._cluster.slug, error)
                connection.close()

    # The importer's turn

    def _turn(self) -> None:
        if self._lost.is_set():
            raise LeadershipLost(f"the lease of epoch {self._lead.epoch} ran out")
        if self._crashed:
            raise self._crashed[0]
        taken = self._take()
        if any(self._may_be_another(batch) for _, batch in taken):
            check_identity(self._cluster, self._adapter)
        if taken:
            self._write(taken)
        if time.monotonic() >= self._next_house_at:
            self._next_house_at = time.monotonic() + HOUSEKEEPING_SECONDS
            self._keep_house()

    def _may_be_another(self, batch: Batch[Any]) -> bool:
        """After a gap or an outage: behind the same address there may be another cluster by now."""
        return bool(batch.gap) or (self._heard[batch.resource].state == "broken" and not batch.trouble)

    def _take(self) -> list[tuple[float, Batch[Any]]]:
        """What is in the queue, waiting a little for the first, and not more than one write bears."""
        try:
            taken = [self._queue.get(timeout=PAUSE_SECONDS)]
        except queue.Empty:
            return []
        size = len(taken[0][1].changes)
        while size < CHANGES_A_WRITE:
            try:
                item = self._queue.get_nowait()
            except queue.Empty:
                break
            taken.append(item)
            size += len(item[1].changes)
        return taken

    def _drain(self) -> None:
        while True:
            try:
                self._queue.get_nowait()
            except queue.Empty:
                return

    def _write(self, taken: list[tuple[float, Batch[Any]]]) -> None:
        changes: dict[str, list[Change[Any]]] = {name: [] for name in watching.RESOURCES}
        for _, batch in taken:
            changes[batch.resource].extend(batch.changes)
        seen = self._seen(changes)
        if seen is not None:
            imported = self._import(seen)
            if imported is not None:
                self._remember(seen, imported)
        self._note(taken)

    def _seen(self, changes: Mapping[str, list[Change[Any]]]) -> Seen | None:
        """What must be written of these changes; None when nothing must."""
        review = self._take_namespaces(changes["namespaces"])
        nodes = self._changed_nodes(changes["nodes"])
        jobs: list[Change[JobFact]] = list(changes["jobs"])
        if review:
            jobs = [
                *(Change(ChangeType.MODIFIED, uid, fact) for uid, fact in self._memory.ignored.items()),
                *jobs,
            ]
        for change in changes["jobs"]:
            if change.is_gone:
                self._memory.ignored.pop(change.uid, None)
        wanted = self._wanted_pods(changes["pods"], jobs)
        jobs_now = self._read_leaving(wanted)
        for uid, fact in jobs_now.items():
            gone = fact is None
            jobs.append(Change(ChangeType.VANISHED if gone else ChangeType.MODIFIED, uid, fact))
        if not (nodes or jobs or wanted or review):
            return None
        return Seen(
            nodes=tuple(nodes),
            jobs=tuple(jobs),
            pods=tuple(wanted),
            namespaces=self._memory.namespaces,
            review_protection=review,
            jobs_now=jobs_now,
        )

    def _take_namespaces(self, changes: list[Change[NamespaceFact]]) -> bool:
        """Keep namespaces' annotations in mind. Returns whether protection must be looked at again."""
        before = {name: dict(values) for name, values in self._memory.namespaces.items() if values}
        for change in changes:
            name = change.fact.name if change.fact else self._memory.namespace_names.pop(change.uid, "")
            if change.is_gone or change.fact is None:
                self._memory.namespaces.pop(name, None)
            else:
                self._memory.namespaces[name] = dict(change.fact.annotations)
                self._memory.namespace_names[change.uid] = name
        after = {name: values for name, values in self._memory.namespaces.items() if values}
        is_first = bool(changes) and self._heard["namespaces"].last_list_at is None
        return before != after or is_first

    def _changed_nodes(self, changes: list[Change[NodeFact]]) -> list[Change[NodeFact]]:
        """Without heartbeats: 10,000 kubelets write their status every few minutes, and nothing is new."""
        wanted: dict[str, Change[NodeFact]] = {}
        for change in changes:
            if change.is_gone or change.fact is None or self._memory.nodes.get(change.uid) != change.fact:
                wanted.pop(change.uid, None)  # the last word counts, at its place in the order
                wanted[change.uid] = change
            else:
                wanted.pop(change.uid, None)
        return list(wanted.values())

    def _wanted_pods(
        self, changes: list[Change[PodFact]], jobs: list[Change[JobFact]]
    ) -> list[Change[PodFact]]:
        """Pods of jobs that are known or come in this write, those first that waited for their job."""
        coming = {change.uid for change in jobs if not change.is_gone}
        wanted = [change for uid in coming for change in self._memory.pending.get(uid, {}).values()]
        for change in changes:
            fact = change.fact
            if fact is None or fact.job_uid in self._memory.jobs or fact.job_uid in coming:
                wanted.append(change)
            elif fact.job_uid in self._memory.ignored:
                continue
            elif change.is_gone:
                self._memory.pending.get(fact.job_uid, {}).pop(change.uid, None)
            else:
                self._hold(change)
        return wanted

    def _hold(self, change: Change[PodFact]) -> None:
        """Keep a pod until its job is seen: the two come by different streams."""
        assert change.fact is not None
        if sum(map(len, self._memory.pending.values())) >= PODS_A_HOLD:
            oldest = next(iter(self._memory.pending))
            dropped = self._memory.pending.pop(oldest)
            _log.warning(
                "watch.pods_dropped job_uid=%s pods=%s: their job was never seen", oldest, len(dropped)
            )
        self._memory.pending.setdefault(change.fact.job_uid, {})[change.uid] = change

    def _read_leaving(self, changes: list[Change[PodFact]]) -> dict[str, JobFact | None]:
        """The jobs of pods that are being taken away, as they are now.

        A suspend or a deletion of the job comes before its pods go, but by another stream: without a look
        at the job a user's stop would be counted as a failure.
        """
        found: dict[str, JobFact | None] = {}
        for uid, (namespace, name) in pods.leaving_jobs(changes, self._cluster).items():
            if uid not in self._memory.jobs:
                continue
            try:
                fact = self._adapter.job(namespace=namespace, name=name)
            except ClusterError as error:
                _log.warning("watch.job_not_read job=%s/%s %s", namespace, name, error)
                continue
            found[uid] = fact if fact is not None and fact.uid == uid else None
        return found

    def _import(self, seen: Seen) -> Imported | None:
        """Write, again after a deadlock or a lost connection, until it is written or the lead is lost."""
        failures = 0
        while not self._stop.is_set():
            try:
                return watching.import_seen(self._lead, seen)
            except (OperationalError, InterfaceError) as error:
                failures += 1
                _log.warning("watch.write_again cluster=%s try=%s %s", self._cluster.slug, failures, error)
                if not connection.in_atomic_block:
                    close_old_connections()
                    connection.close()
                if self._lost.is_set():
                    raise LeadershipLost("the lease ran out while the database was away") from error
                self._stop.wait(min(RETRY_CAP_SECONDS, 0.05 * 2**failures))
            except LeadershipLost:
                raise
            except Exception:  # noqa: BLE001 - logged with its traceback once the object is found
                # One object that we cannot write must not blind the desk to all others: find and leave it.
                parts = _halves(seen)
                if parts is None:
                    _log.exception("watch.object_left_out cluster=%s %s", self._cluster.slug, _names(seen))
                    return None
                whole: Imported | None = None
                for part in parts:
                    one = self._import(part)
                    whole = one if whole is None else _joined(whole, one)
                return whole
        return None

    def _remember(self, seen: Seen, imported: Imported) -> None:
        """After the commit only: what is remembered as written must be written."""
        for node in seen.nodes:
            if node.is_gone or node.fact is None:
                self._memory.nodes.pop(node.uid, None)
            else:
                self._memory.nodes[node.uid] = node.fact
        for uid, row_id in imported.known.items():
            was_ignored = self._memory.ignored.pop(uid, None)
            self._memory.jobs[uid] = row_id
            self._memory.pending.pop(uid, None)
            if was_ignored is not None:
                self._fetch_pods(was_ignored)
        for change in seen.jobs:
            if change.uid in imported.ignored and change.fact is not None:
                self._memory.ignored[change.uid] = change.fact
                self._memory.pending.pop(change.uid, None)

    def _fetch_pods(self, job: JobFact) -> None:
        """The job was of no interest before, so its pods were passed over."""
        found = self._adapter.pods(namespace=job.namespace, job_name=job.name)
        changes = tuple(Change(ChangeType.ADDED, each.uid, each) for each in found if each.job_uid == job.uid)
        if changes:
            self._write([(time.monotonic(), Batch(PODS.name, changes))])

    def _note(self, taken: list[tuple[float, Batch[Any]]]) -> None:
        now = clock.database_now()
        for heard_at, batch in taken:
            heard = self._heard[batch.resource]
            heard.is_changed = True
            if batch.trouble:
                heard.state, heard.detail = "broken", batch.trouble
                continue
            heard.last_heard_at = now
            if batch.resource_version:
                heard.resource_version = batch.resource_version
            if batch.from_list:
                heard.state = "listing"
                if (
                    heard.listed // PROGRESS_CHANGES
                    != (heard.listed + len(batch.changes)) // PROGRESS_CHANGES
                ):
                    _log.info("watch.listing resource=%s changes=%s", batch.resource, heard.listed)
                heard.listed += len(batch.changes)
            if batch.completes_list:
                heard.last_list_at = now
                gone = sum(change.type is ChangeType.VANISHED for change in batch.changes)
                _log.info(
                    "watch.listed resource=%s changes=%s gone=%s gap=%s",
                    batch.resource,
                    heard.listed,
                    gone,
                    batch.gap or "none",
                )
                heard.listed = 0
                heard.detail = f"listed again, {batch.gap}; {gone} gone meanwhile" if batch.gap else ""
            if batch.completes_list or not batch.from_list:
                if heard.state == "broken":
                    heard.detail = ""
                heard.state = "watching"
            if batch.changes:
                heard.last_event_at = now
                heard.lag_seconds = round(time.monotonic() - heard_at, 3)

    # Once a second

    def _keep_house(self) -> None:
        states = [
            Freshness(
                resource=name,
                state=heard.state,
                detail=heard.detail[:2000],
                resource_version=heard.resource_version,
                last_list_at=heard.last_list_at,
                last_event_at=heard.last_event_at,
                last_heard_at=heard.last_heard_at,
                lag_seconds=heard.lag_seconds,
            )
            for name, heard in self._heard.items()
            if heard.is_changed
        ]
        if states:
            watching.write_freshness(self._lead, states)
            for heard in self._heard.values():
                heard.is_changed = False
        watching.fill_restart_counts(self._lead)
        self._review_mode()
        if self._reviewer.proven.is_set():  # by a key that we do not have: perhaps a new one
            self._reviewer.proven.clear()
            self._next_keys_at = min(self._next_keys_at, self._keys_read_at + TOKEN_KEYS_RETRY_SECONDS)
        if time.monotonic() >= self._next_keys_at:
            self._read_token_keys()

    def _review_mode(self) -> None:
        """Somebody armed the cluster or took it back: its jobs are told."""
        mode = Cluster.objects.values_list("mode", flat=True).get(pk=self._cluster.pk)
        if mode != self._memory.mode and self._heard["namespaces"].last_list_at is not None:
            self._import(Seen(namespaces=self._memory.namespaces, review_protection=True))
            self._memory.mode = mode

    def _read_token_keys(self) -> None:
        self._keys_read_at = time.monotonic()
        try:
            issuer, keys = self._adapter.token_keys()
        except ClusterError as error:
            _log.warning("watch.token_keys_not_read cluster=%s %s", self._cluster.slug, error)
            self._next_keys_at = time.monotonic() + TOKEN_KEYS_RETRY_SECONDS
            return
        watching.store_token_keys(self._lead, issuer=issuer, keys=keys)
        self._next_keys_at = time.monotonic() + TOKEN_KEYS_SECONDS


def _halves(seen: Seen) -> tuple[Seen, ...] | None:
    """A write cut into smaller ones that come to the same; None when it holds one object."""
    empty = replace(seen, nodes=(), jobs=(), pods=(), review_protection=False)
    kinds = [
        replace(empty, **{name: getattr(seen, name)})
        for name in ("nodes", "jobs", "pods")
        if getattr(seen, name)
    ]
    if seen.review_protection and kinds:
        kinds.append(replace(empty, review_protection=True))
    if len(kinds) > 1:
        return tuple(kinds)
    for name in ("nodes", "jobs", "pods"):
        changes = getattr(seen, name)
        if len(changes) > 1:
            middle = len(changes) // 2
            return (
                replace(seen, **{name: changes[:middle]}),
                replace(seen, **{name: changes[middle:]}),
            )
    return None


def _joined(one: Imported, other: Imported | None) -> Imported:
    if other is None:
        return one
    return replace(
        one,
        known={**one.known, **other.known},
        ignored=one.ignored | other.ignored,
        pending=[*one.pending, *other.pending],
    )


def _names(seen: Seen) -> str:
    facts = [change.fact for change in (*seen.nodes, *seen.jobs, *seen.pods)]
    return ", ".join(f"{type(fact).__name__} {getattr(fact, 'name', '?')}" for fact in facts) or "protection"
