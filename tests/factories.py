"""Smallest valid rows for tests, and a job whose agents are played by the test."""

from __future__ import annotations

import itertools
import uuid
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from apps.access.clock import database_now
from apps.access.models import Cluster, Role, RoleBinding, Tenant, User
from apps.incidents.models import Subject
from apps.incidents.services.deciding import decide_subject
from apps.incidents.services.signals import NewSignal, Recorded, record_signals, subject_for_job
from apps.jobs.models import Incarnation, Job, Order, Pod, Run, Worker
from recovery.phases import Phase
from recovery.signals import SignalKind, Source, WorkerKey

_numbers = itertools.count(1)

CLEAN = [{"check": "disk", "result": "pass", "seconds": 0.01}]


def make_tenant(**overrides: Any) -> Tenant:
    n = next(_numbers)
    return Tenant.objects.create(**{"slug": f"tenant-{n}", "name": f"Tenant {n}", **overrides})


def make_cluster(**overrides: Any) -> Cluster:
    n = next(_numbers)
    return Cluster.objects.create(
        **{
            "slug": f"cluster-{n}",
            "name": f"Cluster {n}",
            "system_uid": str(uuid.uuid4()),
            "mode": "auto",
            **overrides,
        }
    )


def make_user(
    *, tenant: Tenant | None = None, roles: tuple[Role, ...] = (Role.OPERATOR,), **overrides: Any
) -> User:
    n = next(_numbers)
    user = User.objects.create_user(**{"username": f"person-{n}", "password": "correct horse", **overrides})
    for role in roles:
        RoleBinding.objects.create(user=user, tenant=tenant, role=role)
    return user


def make_job(*, workers: int = 3, **overrides: Any) -> Job:
    """A protected, opted-in job in Pending with its workers, in a cluster of mode auto."""
    n = next(_numbers)
    now = database_now()
    fields: dict[str, Any] = {
        "owner_uid": str(uuid.uuid4()),
        "owner_kind": "Job",
        "namespace": "train",
        "name": f"job-{n}",
        "world_size": workers,
        "phase": Phase.PENDING,
        "phase_since_at": now,
        "max_retry": 2,
        "is_protected": True,
        "is_opted_in": True,
        "created_at": now,
        "seen_at": now,
        **overrides,
    }
    if "tenant" not in fields:
        fields["tenant"] = make_tenant()
    if "cluster" not in fields:
        fields["cluster"] = make_cluster()
    job = Job.objects.create(**fields)
    Run.objects.create(tenant=job.tenant, job=job, r=1, started_at=now)
    Worker.objects.bulk_create(
        [Worker(tenant=job.tenant, job=job, role="worker", index=index) for index in range(workers)]
    )
    return job


@dataclass
class PlayedJob:
    """A job in the database whose agents and watch are played by the test. Nothing is waited for.

    ``now`` of each report is the database's time plus ``clock``, which a test may move on.
    """

    job: Job
    lives: dict[int, Incarnation] = field(default_factory=dict)
    numbers: dict[int, int] = field(default_factory=dict)
    clock: timedelta = timedelta(0)

    @property
    def subject(self) -> Subject:
        return subject_for_job(self.job)

    def now(self) -> datetime:
        return database_now()

    def fresh(self) -> Job:
        return Job.objects.get(pk=self.job.pk)

    def retries(self) -> tuple[int, ...]:
        return tuple(Worker.objects.filter(job=self.job).order_by("index").values_list("retries", flat=True))

    def order(self) -> Order | None:
        """The newest order set."""
        return Order.objects.filter(job=self.job).order_by("-sequence").first()

    def enrol(self, index: int, *, pod_uid: str = "", restart_count: int = 0) -> Incarnation:
        """A new incarnation of a worker takes up contact."""
        worker = Worker.objects.get(job=self.job, index=index)
        uid = pod_uid or str(uuid.uuid4())
        now = self.now()
        life = Incarnation.objects.create(
            tenant=self.job.tenant,
            worker=worker,
            pod_uid=uid,
            pod_name=f"{self.job.name}-{index}-{uid[:5]}",
            container="train",
            restart_count=restart_count,
            nonce=uuid.uuid4().hex,
            node_name=f"node-{index}",
            enrolled_at=now,
            last_seen_at=now,
        )
        Pod.objects.get_or_create(
            cluster=self.job.cluster,
            uid=uid,
            defaults={
                "tenant": self.job.tenant,
                "job": self.job,
                "role": "worker",
                "index": index,
                "namespace": self.job.namespace,
                "name": life.pod_name,
                "node_name": life.node_name,
                "phase": "Running",
                "containers": [{"name": "train"}],
                "created_at": now,
            },
        )
        replaced = worker.incarnation_id
        worker.incarnation = life
        worker.save(update_fields=["incarnation"])
        self.lives[index] = life
        self.numbers[life.pk] = 0
        self.record(
            SignalKind.ENROLLED,
            Source.AGENT,
            f"{life.pk}:enrolled",
            {"replaces": replaced},
            index=index,
            incarnation=life,
        )
        return life

    def record(
        self,
        kind: SignalKind,
        source: Source,
        key: str,
        body: dict[str, Any],
        *,
        index: int | None = None,
        incarnation: Incarnation | None = None,
        sequence: int | None = None,
        phase: str = "",
        seen_at: datetime | None = None,
    ) -> Recorded:
        now = self.now()
        return record_signals(
            signals=[
                NewSignal(
                    tenant_id=self.job.tenant_id,
                    cluster_id=self.job.cluster_id,
                    source=source,
                    source_key=key,
                    kind=kind,
                    body=body,
                    seen_at=seen_at or now,
                    subject_ids=(self.subject.pk,),
                    worker=WorkerKey("worker", index) if index is not None else None,
                    incarnation_id=incarnation.pk if incarnation else None,
                    sequence=sequence,
                    phase=phase,
                )
            ],
            now=now,
        )[0]

    def say(
        self,
        index: int,
        kind: SignalKind,
        phase: str,
        body: dict[str, Any] | None = None,
        *,
        sequence: int | None = None,
        seen_at: datetime | None = None,
    ) -> Recorded:
        """An agent's message about its newest order."""
        life = self.lives[index]
        self.numbers[life.pk] += 1
        order = self.order()
        return self.record(
            kind,
            Source.AGENT,
            f"{life.pk}:{self.numbers[life.pk]}",
            body or {},
            index=index,
            incarnation=life,
            sequence=sequence if sequence is not None else order.sequence if order else 0,
            phase=phase,
            seen_at=seen_at,
        )

    def end(
        self,
        life: Incarnation,
        *,
        source: Source = Source.WATCH,
        cause: str = "deleted",
        seen_at: datetime | None = None,
        **body: Any,
    ) -> Recorded:
        """A pod end as the watch, or with the same key the scheduler's hook, tells it. The watch marks the row."""
        if source is Source.WATCH:
            Incarnation.objects.filter(pk=life.pk).update(ended_at=seen_at or self.now(), end_cause=cause)
        return self.record(
            SignalKind.INCARNATION_ENDED,
            source,
            f"{life.pod_uid}/train/{life.restart_count}",
            {
                "pod_uid": life.pod_uid,
                "container": "train",
                "restart": life.restart_count,
                "cause": cause,
                **body,
            },
            index=life.worker.index,
            incarnation=life,
            seen_at=seen_at,
        )

    def decide(self) -> None:
        decide_subject(subject_id=self.subject.pk)

    def everyone(self, kind: SignalKind, phase: str, body: dict[str, Any] | None = None) -> None:
        """Every worker answers the newest order, and it is decided."""
        for index in self.lives:
            self.say(index, kind, phase, body)
        self.decide()

    def start_training(self) -> None:
        """From Pending to RunCommand with every rank stepping."""
        self.record(SignalKind.JOB_KNOWN, Source.WATCH, f"{self.job.owner_uid}:known", {"suspended": False})
        for index in range(self.job.world_size):
            self.enrol(index)
        self.decide()
        self.everyone(SignalKind.ACK, "bootcheck", {"checks": CLEAN, "environment": {"python": "3.13"}})
        self.begin_attempt()

    def begin_attempt(self) -> None:
        """Every worker starts its command and does a first step."""
        self.everyone(SignalKind.ACK, "command", {"pids": {"agent": 1, "command": 100}})
        self.everyone(SignalKind.MARK, "command", {"mark": "restored", "step": 20, "seconds": 0.1})
        self.everyone(SignalKind.MARK, "command", {"mark": "first_step", "step": 21})

    def kill(self, index: int, *, seen_at: datetime | None = None) -> Recorded:
        """The agent of a worker reports that its process was killed."""
        return self.say(
            index,
            SignalKind.ERROR,
            "command",
            {"signal": 9, "pid": 100 + index, "log_tail": [], "step": 30},
            sequence=self.fresh().attempt_sequence,
            seen_at=seen_at,
        )
