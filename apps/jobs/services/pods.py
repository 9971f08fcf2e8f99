"""Pods of jobs become rows; the lives of their containers become incarnations, and their ends news.

A life is (pod, container, restart count). Each pod row remembers up to which life ends were told, so the
end seen in a status and the deletion of the same life later are one piece of news, also when the watch
was away in between.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from django.db import connection
from django.db.models import Count, F, Q

from adapters.ends import Surroundings, cause_of
from adapters.facts import Change, ContainerEnd, ContainerFact, JobFact, PodFact
from apps.access.models import Cluster
from apps.jobs.models import Incarnation, Job, Pod, Run, Worker
from apps.jobs.services.importing import BATCH_ROWS, ROLE, News, is_newer
from apps.nodes.models import Machine
from recovery.phases import Phase
from recovery.signals import EndCause, SignalKind, WorkerKey

CLOCK_STEP = timedelta(seconds=2)  # Kubernetes writes whole seconds; an agent enrols within this of its start
STATUS_SECONDS = 1.0  # uncertainty of a time that Kubernetes wrote
MOST_TEXT = 1000

_POD_FIELDS = [
    "node_name",
    "ip",
    "phase",
    "reason",
    "message",
    "restart_count",
    "started_at",
    "containers",
    "service_account",
    "is_waiting_for_capacity",
    "resource_version",
    "deleting_at",
    "gone_at",
]


@dataclass
class PodsImported:
    """What an import of pods did. ``pending`` are pods whose job is not known (yet)."""

    news: list[News] = field(default_factory=list)
    pending: list[Change[PodFact]] = field(default_factory=list)
    job_ids: set[int] = field(default_factory=set)
    written: int = 0


def import_pods(
    *,
    cluster: Cluster,
    changes: Sequence[Change[PodFact]],
    jobs_now: Mapping[str, JobFact | None],
    now: datetime,
) -> PodsImported:
    """Write what changed of these pods, in the caller's transaction.

    Args:
        changes: In the order in which they were seen.
        jobs_now: By job uid, jobs read after these changes were seen (None: there is none any more). They
            tell a deletion by suspend or by the job's end from one that hit the job.
    """
    return _Import(cluster, changes, jobs_now, now).run()


def leaving_jobs(changes: Sequence[Change[PodFact]], cluster: Cluster) -> dict[str, tuple[str, str]]:
    """Jobs whose pods are being taken away here: uid -> (namespace, name). Read them before importing."""
    jobs = {}
    vanished = []
    for change in changes:
        if change.fact is None:
            vanished.append(change.uid)
        elif change.is_gone or change.fact.delete_asked_at is not None:
            jobs[change.fact.job_uid] = (change.fact.namespace, change.fact.job_name)
    rows = Pod.objects.filter(cluster=cluster, uid__in=vanished, gone_at__isnull=True)
    for uid, namespace, name in rows.values_list("job__owner_uid", "job__namespace", "job__name").distinct():
        jobs[uid] = (namespace, name)
    return jobs


def known_pods(cluster: Cluster) -> dict[str, str]:
    """uid -> resource version of the pods that are present: what a list is compared with."""
    rows = Pod.objects.filter(cluster=cluster, gone_at__isnull=True)
    return dict(rows.values_list("uid", "resource_version"))


def fill_restart_counts(cluster: Cluster) -> int:
    """Give incarnations that enrolled after their pod's last change the restart count of their life."""
    with connection.cursor() as cursor:
        cursor.execute(
            """
            WITH newest AS (
                SELECT max(life.id) AS id, pod.restart_count
                FROM jobs_incarnation life
                JOIN jobs_pod pod ON pod.uid = life.pod_uid AND pod.cluster_id = %s
                WHERE life.ended_at IS NULL AND life.restart_count IS NULL AND life.nonce <> ''
                  AND pod.gone_at IS NULL AND pod.started_at IS NOT NULL
                  AND pod.containers -> 0 ->> 'name' = life.container
                  AND life.enrolled_at >= pod.started_at - interval '2 seconds'
                GROUP BY life.pod_uid, life.container, pod.restart_count
            )
            UPDATE jobs_incarnation life SET restart_count = newest.restart_count
            FROM newest WHERE newest.id = life.id AND life.restart_count IS NULL
            """,
            [cluster.pk],
        )
        return int(cursor.rowcount)


@dataclass(frozen=True, slots=True)
class _Counts:
    """Pods of one job: places that run, and pods that no node takes."""

    running: int = 0
    waiting: int = 0


class _Import:
    """One import: what it reads at once for all pods, and what it collects to write."""

    def __init__(
        self,
        cluster: Cluster,
        changes: Sequence[Change[PodFact]],
        jobs_now: Mapping[str, JobFact | None],
        now: datetime,
    ) -> None:
        self.cluster, self.changes, self.jobs_now, self.now = cluster, changes, jobs_now, now
        self.outcome = PodsImported()
        uids = {change.uid for change in changes}
        self.rows = {row.uid: row for row in Pod.objects.filter(cluster=cluster, uid__in=uids)}
        owners = {change.fact.job_uid for change in changes if change.fact}
        present = {row.job_id for row in self.rows.values()}
        self.jobs = {
            job.pk: job
            for job in Job.objects.filter(Q(cluster=cluster, owner_uid__in=owners) | Q(pk__in=present))
        }
        self.job_by_uid = {job.owner_uid: job for job in self.jobs.values()}
        self.lives: dict[str, list[Incarnation]] = defaultdict(list)
        for life in Incarnation.objects.filter(pod_uid__in=uids).order_by("id"):
            self.lives[life.pod_uid].append(life)
        names = {change.fact.node for change in changes if change.fact} | {
            row.node_name for row in self.rows.values()
        }
        self.machines: dict[str, Machine] = {}
        self.lost_nodes: set[str] = set()
        machines = Machine.objects.filter(cluster=cluster, name__in=names)
        for machine in machines.only("id", "name", "is_ready", "gone_at"):
            if machine.gone_at is None:
                self.machines[machine.name] = machine
            if machine.gone_at is not None or machine.is_ready is not True:
                self.lost_nodes.add(machine.name)
        self.lost_nodes -= {name for name, machine in self.machines.items() if machine.is_ready}
        self.workers: dict[tuple[int, int], Worker] = {}
        self.new_lives: list[Incarnation] = []
        self.first_seen: dict[int, datetime] = {}
        self.touched: dict[str, Pod] = {}
        self.ended_jobs: set[int] = set()
        self.last_version: dict[int, str] = {}
        self.waiting_text: dict[int, tuple[str, str, str]] = {}

    def run(self) -> PodsImported:
        self._load_places()
        before = self._count_pods()
        for change in self.changes:
            self._take(change)
        Pod.objects.bulk_create(
            list(self.touched.values()),
            update_conflicts=True,
            unique_fields=["cluster", "uid"],
            update_fields=_POD_FIELDS,
            batch_size=BATCH_ROWS,
        )
        self._write_lives()
        self.outcome.written = len(self.touched)
        self.outcome.job_ids = {row.job_id for row in self.touched.values()}
        self._tell_world(before)
        return self.outcome

    def _load_places(self) -> None:
        indexes: dict[int, set[int]] = defaultdict(set)
        for change in self.changes:
            job = self.job_by_uid.get(change.fact.job_uid) if change.fact else None
            if job is not None and change.fact is not None and change.fact.index is not None:
                indexes[job.pk].add(change.fact.index)
        for row in self.rows.values():
            indexes[row.job_id].add(row.index)
        workers = Worker.objects.filter(
            job__in=indexes, role=ROLE, index__in=set().union(*indexes.values())
        ).only("id", "job_id", "index", "incarnation_id")
        self.workers = {(worker.job_id, worker.index): worker for worker in workers}
        runs = Run.objects.filter(job__in=indexes, r=1)
        self.first_seen = dict(runs.values_list("job_id", "started_at"))

    def _count_pods(self) -> dict[int, _Counts]:
        rows = (
            Pod.objects.filter(job__in=self.jobs, gone_at__isnull=True, deleting_at__isnull=True)
            .values("job_id")
            .annotate(
                running=Count(
                    "index",
                    distinct=True,
                    filter=Q(phase="Running", started_at__isnull=False, index__lt=F("job__world_size")),
                ),
                waiting=Count("id", filter=Q(is_waiting_for_capacity=True)),
            )
        )
        return {row["job_id"]: _Counts(row["running"], row["waiting"]) for row in rows}

    def _take(self, change: Change[PodFact]) -> None:
        row, fact = self.rows.get(change.uid), change.fact
        if row is None:
            if fact is None:
                return
            job = self.job_by_uid.get(fact.job_uid)
            if job is None:
                if not change.is_gone:
                    self.outcome.pending.append(change)
                return
            row = self._new_row(job, fact)
            if row is None:
                return
        elif row.gone_at is not None:
            return
        job = self.jobs[row.job_id]
        is_new_version = fact is not None and (
            not row.resource_version or is_newer(fact.resource_version, row.resource_version)
        )
        if fact is not None and is_new_version:
            self._show(job, row, fact)
        elif not change.is_gone:
            return
        if change.is_gone:
            self._take_away(job, row, fact)
        self.touched[row.uid] = row
        self.last_version[job.pk] = f"{row.uid}@{row.resource_version}"

    def _new_row(self, job: Job, fact: PodFact) -> Pod | None:
        index = fact.index if fact.index is not None else self._free_place(job)
        row = Pod(
            tenant_id=job.tenant_id,
            cluster=self.cluster,
            job=job,
            role=ROLE,
            index=index,
            uid=fact.uid,
            namespace=fact.namespace,
            name=fact.name,
            created_at=fact.created_at or self.now,
        )
        self.rows[fact.uid] = row
        if (job.pk, index) not in self.workers:
            worker = Worker.objects.filter(job=job, role=ROLE, index=index).first()
            if worker is not None:
                self.workers[job.pk, index] = worker
        if job.pk not in self.first_seen:
            run = Run.objects.filter(job=job, r=1).first()
            self.first_seen[job.pk] = run.started_at if run else self.now
        return row

    def _free_place(self, job: Job) -> int:
        """The lowest place without a pod that still works, for a job that does not number its pods."""
        over = ("Succeeded", "Failed")
        taken = set(
            Pod.objects.filter(job=job, gone_at__isnull=True, deleting_at__isnull=True)
            .exclude(phase__in=over)
            .exclude(uid__in=self.touched)
            .values_list("index", flat=True)
        )
        for row in self.touched.values():
            if row.job_id == job.pk and not (row.gone_at or row.deleting_at or row.phase in over):
                taken.add(row.index)
        return next(index for index in range(len(taken) + 1) if index not in taken)

    # What a version of a pod says

    def _show(self, job: Job, row: Pod, fact: PodFact) -> None:
        name = self._worker_container(row.uid, fact)
        container = fact.container(name) or ContainerFact(name)
        kept: dict[str, Any] = next((each for each in row.containers if each.get("name") == name), {})
        is_first_sight = not row.resource_version
        told = int(kept.get("ended_restart", -1))
        told = self._tell_ends(job, row, fact, container, told, is_first_sight=is_first_sight)
        row.node_name, row.ip = fact.node, fact.ip or None
        row.phase, row.reason, row.message = fact.phase, fact.reason[:200], fact.message
        row.restart_count, row.started_at = container.restart_count, container.started_at
        row.service_account = fact.service_account
        row.is_waiting_for_capacity = fact.unschedulable is not None
        row.resource_version = fact.resource_version
        row.deleting_at = fact.deleting_at
        others = [each for each in fact.containers if each.name != name]
        row.containers = [{**_container_row(container), "ended_restart": told}, *map(_container_row, others)]
        if fact.unschedulable is not None:
            self.waiting_text[job.pk] = (fact.unschedulable.reason, fact.unschedulable.message, fact.name)
        if container.state == "running" and told < container.restart_count:
            self._live(job, row, container)

    def _worker_container(self, uid: str, fact: PodFact) -> str:
        """The container in which an agent enrolled, else the one that looks like the training."""
        lives = self.lives.get(uid)
        return lives[-1].container if lives else fact.main_container

    def _tell_ends(
        self,
        job: Job,
        row: Pod,
        fact: PodFact,
        container: ContainerFact,
        told: int,
        *,
        is_first_sight: bool,
    ) -> int:
        """Tell of every life that is over and was not told. Returns the newest told."""
        ends = {end.restart: end for end in container.ends}
        newest = max(ends, default=-1)
        if container.state == "running":
            newest = max(newest, container.restart_count - 1)
        elif fact.phase in ("Succeeded", "Failed"):
            newest = max(
                newest, container.restart_count
            )  # ended by the node or its controller, without status
        for restart in range(told + 1, newest + 1):
            end = ends.get(restart)
            if is_first_sight and not self._is_news(job, row, container.name, restart, end):
                continue
            if end is None and not self._has_begun(row, container.name, restart):
                continue
            self._end(job, row, fact, container.name, restart, end, is_gone=False)
        return max(told, newest)

    def _is_news(self, job: Job, row: Pod, name: str, restart: int, end: ContainerEnd | None) -> bool:
        """Whether an end found with a pod that is new to us happened in our time, not before it."""
        if any(life.container == name for life in self.lives.get(row.uid, ())):
            return True
        first_seen = self.first_seen.get(job.pk, self.now)
        return end is not None and end.finished_at is not None and end.finished_at >= first_seen - CLOCK_STEP

    def _has_begun(self, row: Pod, name: str, restart: int) -> bool:
        """Whether we know that this life began: its container ran when last seen, or an agent enrolled."""
        if row.started_at is not None and row.restart_count == restart:
            return True
        return any(
            life.container == name and life.restart_count in (None, restart) and life.ended_at is None
            for life in self.lives.get(row.uid, ())
        )

    def _take_away(self, job: Job, row: Pod, fact: PodFact | None) -> None:
        """The pod object is gone: what still lived in it has ended."""
        if row.containers:
            first = dict(row.containers[0])
            restart = row.restart_count
            if int(first.get("ended_restart", -1)) < restart and self._has_begun(row, first["name"], restart):
                self._end(job, row, fact, first["name"], restart, None, is_gone=True)
                first["ended_restart"] = restart
                row.containers = [first, *row.containers[1:]]
        row.gone_at = self.now
        row.started_at = None
        row.is_waiting_for_capacity = False

    # Lives

    def _live(self, job: Job, row: Pod, container: ContainerFact) -> None:
        """A container runs: the incarnation that enrolled in it learns its restart count and place."""
        lives = [each for each in self.lives[row.uid] if each.container == container.name]
        life = next((each for each in lives if each.restart_count == container.restart_count), None)
        if life is None:
            life = next(
                (
                    each
                    for each in reversed(lives)
                    if each.restart_count is None
                    and each.ended_at is None
                    and each.enrolled_at is not None
                    and (not container.started_at or each.enrolled_at >= container.started_at - CLOCK_STEP)
                ),
                None,
            )
            if life is not None:
                life.restart_count = container.restart_count
                Incarnation.objects.filter(pk=life.pk).update(restart_count=life.restart_count)
        machine = self.machines.get(row.node_name)
        if life is not None:
            if machine is not None and life.machine_id != machine.pk:
                life.machine, life.node_name = machine, row.node_name
                Incarnation.objects.filter(pk=life.pk).update(machine=machine, node_name=row.node_name)
        elif not job.is_protected:
            self._without_agent(job, row, container.name, container.restart_count)

    def _without_agent(self, job: Job, row: Pod, container: str, restart: int) -> Incarnation | None:
        """A life in which no agent enrolled becomes its worker's present incarnation, unless one lives."""
        worker = self.workers.get((job.pk, row.index))
        if worker is None:
            return None
        # An agent that could not enrol is known by nothing but its pod: it runs in the attempt that all
        # others run in, unprotected.
        runs_in = None
        if worker.incarnation_id is None and not job.is_protected and job.phase == Phase.RUN_COMMAND:
            runs_in = job.attempt
        life = Incarnation(
            tenant_id=job.tenant_id,
            worker=worker,
            pod_uid=row.uid,
            pod_name=row.name,
            container=container,
            restart_count=restart,
            node_name=row.node_name,
            machine=self.machines.get(row.node_name),
            ip=row.ip,
            first_attempt=runs_in,
            last_attempt=runs_in,
        )
        self.lives[row.uid].append(life)
        self.new_lives.append(life)
        return life

    def _write_lives(self) -> None:
        """Write the lives without agent together; each becomes its worker's newest, unless an agent lives."""
        if not self.new_lives:
            return
        Incarnation.objects.bulk_create(self.new_lives, batch_size=BATCH_ROWS)
        newest = {life.worker_id: life.pk for life in self.new_lives}
        with connection.cursor() as cursor:
            cursor.execute(
                """
                UPDATE jobs_worker worker SET incarnation_id = life.id, ip = life.ip
                FROM jobs_incarnation life
                WHERE life.id = ANY(%s) AND worker.id = life.worker_id AND (
                    worker.incarnation_id IS NULL
                    OR EXISTS (
                        SELECT 1 FROM jobs_incarnation present WHERE present.id = worker.incarnation_id
                        AND (present.nonce = '' OR present.ended_at IS NOT NULL)
                    )
                )
                """,
                [list(newest.values())],
            )
        self.new_lives = []

    def _end(
        self,
        job: Job,
        row: Pod,
        fact: PodFact | None,
        container: str,
        restart: int,
        end: ContainerEnd | None,
        *,
        is_gone: bool,
    ) -> None:
        lives = self._lives_of(row, container, restart, end)
        has_agent = any(life.nonce for life in lives)
        cause, reason = self._cause(job, row, fact, end, has_agent=has_agent, is_gone=is_gone)
        seen_at = min(self._ended_at(fact, end), self.now)
        if not lives and (life := self._without_agent(job, row, container, restart)) is not None:
            lives = [life]
        self._write_lives()  # the news names its life by id
        for life in lives:
            life.restart_count = restart
            if life.ended_at is None:
                life.ended_at, life.end_cause = seen_at, cause
            life.exit_code = end.exit_code if end else None
        Incarnation.objects.bulk_update(lives, ["restart_count", "ended_at", "end_cause", "exit_code"])
        self.ended_jobs.add(job.pk)
        message = (end.message if end else "") or (
            fact.disruption.message if fact and fact.disruption else ""
        )
        self.outcome.news.append(
            News(
                kind=SignalKind.INCARNATION_ENDED,
                job=job,
                source_key=f"{row.uid}/{container}/{restart}",
                body={
                    "pod_uid": row.uid,
                    "pod": row.name,
                    "container": container,
                    "restart": restart,
                    "cause": str(cause),
                    "exit_code": end.exit_code if end else None,
                    "signal": end.signal or None if end else None,
                    "reason": reason,
                    "message": message[:MOST_TEXT],
                    "node": (fact.node if fact else "") or row.node_name,
                },
                seen_at=seen_at,
                worker=WorkerKey(row.role, row.index),
                incarnation_id=lives[-1].pk if lives else None,
                uncertainty_seconds=STATUS_SECONDS,
            )
        )

    def _lives_of(
        self, row: Pod, container: str, restart: int, end: ContainerEnd | None
    ) -> list[Incarnation]:
        """Rows of this life, the one with an agent last: by restart count, else by the time of enrolment."""
        mine = [each for each in self.lives.get(row.uid, ()) if each.container == container]
        found = [each for each in mine if each.restart_count == restart]
        if not any(each.nonce for each in found):
            begun = end.started_at if end else row.started_at if row.restart_count == restart else None
            over = end.finished_at if end else None
            found += [
                each
                for each in mine
                if each.restart_count is None
                and each.enrolled_at is not None
                and (begun is None or each.enrolled_at >= begun - CLOCK_STEP)
                and (over is None or each.enrolled_at <= over + CLOCK_STEP)
            ][-1:]
        return sorted(found, key=lambda each: (bool(each.nonce), each.pk))

    def _ended_at(self, fact: PodFact | None, end: ContainerEnd | None) -> datetime:
        if end is not None and end.finished_at is not None:
            return end.finished_at
        if fact is not None and fact.deleting_at is not None:
            return fact.deleting_at
        return self.now

    def _cause(
        self,
        job: Job,
        row: Pod,
        fact: PodFact | None,
        end: ContainerEnd | None,
        *,
        has_agent: bool,
        is_gone: bool,
    ) -> tuple[EndCause, str]:
        """The cause, and the cluster's own word for it."""
        stopped = self._stopped_because(job, row)
        around = Surroundings(
            has_agent=has_agent,
            is_node_lost=row.node_name in self.lost_nodes,
            stopped_because=stopped,
            is_stopped_by_desk="stopped-by" in job.annotations and job.is_suspended,
        )
        if fact is None:
            if stopped:
                return (EndCause.ORDERED if around.is_stopped_by_desk else EndCause.STOPPED_BY_USER), stopped
            return (EndCause.NODE_LOST, "NodeLost") if around.is_node_lost else (EndCause.DELETED, "Vanished")
        cause = cause_of(fact, end, is_gone=is_gone, around=around)
        if cause in (EndCause.ORDERED, EndCause.STOPPED_BY_USER) and stopped:
            return cause, stopped
        if fact.disruption is not None and cause not in (EndCause.COMPLETED, EndCause.OUT_OF_MEMORY):
            return cause, fact.disruption.reason
        if cause in (EndCause.DELETED, EndCause.NODE_LOST):
            return cause, "Deleted"
        return cause, end.reason if end is not None else fact.reason

    def _stopped_because(self, job: Job, row: Pod) -> str:
        """Why the job itself wants this pod gone, or ""."""
        if job.owner_uid in self.jobs_now:
            fact = self.jobs_now[job.owner_uid]
            if fact is None or fact.uid != job.owner_uid:
                return "JobDeleted"
            if fact.is_suspended:
                return "JobSuspended"
            if fact.is_deleting:
                return "JobDeleted"
            if row.index >= fact.world_size:
                return "JobScaledDown"
            for type_ in ("FailureTarget", "Failed", "Complete", "SuccessCriteriaMet"):
                if (condition := fact.condition(type_)) is not None:
                    return condition.reason or type_
            return ""
        if job.gone_at is not None:
            return "JobDeleted"
        if job.is_suspended:
            return "JobSuspended"
        return "JobScaledDown" if row.index >= job.world_size else ""

    # The world of a job

    def _tell_world(self, before: Mapping[int, _Counts]) -> None:
        after = self._count_pods()
        for job_id in sorted(self.outcome.job_ids):
            job = self.jobs[job_id]
            old, new = before.get(job_id, _Counts()), after.get(job_id, _Counts())
            key = self.last_version.get(job_id, "")
            if bool(old.waiting) != bool(new.waiting):
                self._tell_waiting(job, new.waiting, key)
            is_whole = new.running >= job.world_size
            # A restart in place may be over before we look: an end means that the world was not whole.
            if job.world_running_at is not None and (not is_whole or job_id in self.ended_jobs):
                job.world_running_at = None
                if not is_whole:
                    Job.objects.filter(pk=job_id).update(world_running_at=None)
            if is_whole and job.world_running_at is None:
                job.world_running_at = self.now
                Job.objects.filter(pk=job_id).update(world_running_at=self.now)
                self._add(job, SignalKind.WORLD_RUNNING, {"pods": new.running}, key)

    def _tell_waiting(self, job: Job, waiting: int, key: str) -> None:
        if waiting:
            reason, message, pod = self.waiting_text.get(job.pk, ("Unschedulable", "", ""))
            body = {"reason": reason, "message": message[:MOST_TEXT], "pod": pod, "pods": waiting}
            self._add(job, SignalKind.POD_WAITING, body, key)
        else:
            self._add(job, SignalKind.CAPACITY_BACK, {}, key)

    def _add(self, job: Job, kind: SignalKind, body: dict[str, Any], key: str) -> None:
        self.outcome.news.append(
            News(kind=kind, job=job, source_key=f"{key}:{kind}", body=body, seen_at=self.now)
        )


def _container_row(container: ContainerFact) -> dict[str, Any]:
    last = container.ends[-1] if container.ends else None
    return {
        "name": container.name,
        "state": container.state,
        "restart_count": container.restart_count,
        "reason": container.reason,
        "message": container.message[:MOST_TEXT],
        "started_at": container.started_at.isoformat() if container.started_at else None,
        "exit_code": last.exit_code if last else None,
        "finished_at": last.finished_at.isoformat() if last and last.finished_at else None,
    }
