"""`./desk bench guards`: a reservation in all guards, as a share of the decision that it is part of.

On rows of a fleet of 10,000 nodes, in a database of its own: the decision that begins a restart is made again and
again and rolled back, and so is its reservation alone. Medians of 1,000 each, taken in turns.
"""

from __future__ import annotations

import os
import statistics
import time
import uuid
from collections.abc import Callable
from typing import Any

from incidentdesk.frontdoor.places import CHECKOUT
from incidentdesk.frontdoor.servers import EmbeddedServers

NODES = 10_000
IN_RACK = 16
WORKERS = 8
ROUNDS = 1_000
BAR = 0.02


def measure(*, rounds: int = ROUNDS, say: Callable[[str], None] = print) -> int:
    """Print the medians; 1 when the reservation costs more than its bar of the decision."""
    servers = EmbeddedServers.in_free_slot(CHECKOUT / ".desk" / "bench", use_environment=False)
    try:
        os.environ.update(servers.environment())
        os.environ.setdefault("DJANGO_SETTINGS_MODULE", "incidentdesk.settings.base")
        servers.start()
        import django

        import incidentdesk.celery  # noqa: F401 - decisions wake workers

        django.setup()
        from django.core.management import call_command

        call_command("migrate", verbosity=0)
        return _measure(rounds, say)
    finally:
        servers.stop()


def _measure(rounds: int, say: Callable[[str], None]) -> int:
    played = _fleet_with_job()
    decisions, checks, holds = [], [], []
    for _ in range(10):
        for work in (played.decide, played.reserve, played.hold):
            _once(work)
    for _ in range(rounds):
        decisions.append(_once(played.decide))
        checks.append(_once(played.reserve))
        holds.append(_once(played.hold))
    decision, check, hold = map(statistics.median, (decisions, checks, holds))
    share = check / decision
    say(
        f"{NODES} nodes in {NODES // IN_RACK} racks, {played.counters()} counters, a job of {WORKERS} workers; "
        f"medians of {rounds}; load now {os.getloadavg()[0]:.2f}"
    )
    say(f"decision that begins a restart, reservation included: {decision * 1000:.3f} ms")
    say(
        f"its reservation (windows of cluster and tenant):        {check * 1000:.3f} ms, {share:.2%} of the decision"
    )
    say(f"reservation of a machine (every standing guard of it):  {hold * 1000:.3f} ms")
    say(f"bar {BAR:.0%}: {'kept' if share < BAR else 'MISSED'}")
    return 0 if share < BAR else 1


def _once(work: Callable[[], Any]) -> float:
    """Seconds that work takes in a transaction that is rolled back afterwards."""
    from django.db import transaction

    with transaction.atomic():
        seconds: float = work()
        transaction.set_rollback(True)
    return seconds


class _Played:
    """A job in which everybody stands still, and the last answer to the stop has come."""

    def __init__(self, job: Any, subject: Any, machine: Any) -> None:
        self.job, self.subject, self.machine = job, subject, machine

    def decide(self) -> float:
        from apps.incidents.models import Action, Subject
        from apps.incidents.policy import current_policy
        from apps.incidents.services import deciding

        policy = current_policy()
        started = time.perf_counter()
        held = Subject.objects.select_related("tenant", "cluster", "job").select_for_update(
            no_key=True, of=("self",)
        )
        deciding._decide_held(held.get(pk=self.subject.pk), policy)  # noqa: SLF001 - what is measured
        seconds = time.perf_counter() - started
        assert Action.objects.filter(kind="restart_process", state="ready").exists(), (
            "it should begin a restart"
        )
        return seconds

    def reserve(self) -> float:
        from apps.incidents.services import guarding
        from recovery.lifecycle import ActionKind

        return self._reserve(guarding.Want(ActionKind.RESTART_PROCESS, "bench", self.job.tenant.slug))

    def hold(self) -> float:
        from apps.incidents.services import guarding
        from recovery.lifecycle import ActionKind

        want = guarding.Want(ActionKind.HOLD_NODE, "bench", self.job.tenant.slug, self.machine)
        return self._reserve(want)

    def _reserve(self, want: Any) -> float:
        from apps.access.clock import database_now
        from apps.incidents.services import guarding

        now = database_now()
        started = time.perf_counter()
        refused = guarding.reserve_all(cluster=self.job.cluster, wants=[want], now=now)
        seconds = time.perf_counter() - started
        assert not refused, refused
        return seconds

    def counters(self) -> int:
        from apps.incidents.guard_models import GuardCounter

        return GuardCounter.objects.filter(cluster=self.job.cluster).count()


def _fleet_with_job() -> _Played:
    from django.core.management import call_command

    from apps.access.clock import database_now
    from apps.access.models import Cluster, Tenant
    from apps.incidents.services import guarding
    from apps.incidents.services.deciding import decide_subject
    from apps.incidents.services.signals import subject_for_job
    from apps.jobs.models import Job, Pod, Run, Worker
    from apps.nodes.models import Machine

    call_command("flush", interactive=False, verbosity=0)
    now = database_now()
    cluster = Cluster.objects.create(slug="bench", name="Bench", system_uid=str(uuid.uuid4()), mode="auto")
    tenant = Tenant.objects.create(slug="llm", name="LLM")
    Machine.objects.bulk_create(
        (
            Machine(
                cluster=cluster,
                hardware_key=f"hw-{n}",
                name=f"gpu-{n:05d}",
                pool="train",
                rack=f"r{n // IN_RACK:04d}",
                labels={
                    "incidentdesk.io/power-unit": f"pu-{n // (4 * IN_RACK)}",
                    "incidentdesk.io/switch": f"sw-{n // (2 * IN_RACK)}",
                },
                is_ready=True,
                first_seen_at=now,
                last_seen_at=now,
            )
            for n in range(NODES)
        ),
        batch_size=1000,
    )
    job = Job.objects.create(
        tenant=tenant, cluster=cluster, owner_uid=str(uuid.uuid4()), owner_kind="Job", namespace="train",
        name="llm-70b", world_size=WORKERS, phase="Pending", phase_since_at=now, max_retry=10,
        is_protected=True, is_opted_in=True, created_at=now, seen_at=now,
    )  # fmt: skip
    Run.objects.create(tenant=tenant, job=job, r=1, started_at=now)
    Worker.objects.bulk_create(
        Worker(tenant=tenant, job=job, role="worker", index=index) for index in range(WORKERS)
    )
    subject = subject_for_job(job)
    Pod.objects.create(
        tenant=tenant, cluster=cluster, job=job, role="worker", index=0, uid=str(uuid.uuid4()), namespace="train",
        name="llm-70b-0", node_name="gpu-00000", phase="Running", created_at=now,
    )  # fmt: skip
    guarding.recount(cluster=cluster, now=now)  # so that the tenant has its counters
    agents = _Agents(job, subject.pk)
    agents.enrol()
    decide_subject(subject_id=subject.pk)
    clean = {"checks": [{"check": "disk", "result": "pass", "seconds": 0.01}]}
    for kind, phase, body in (
        ("ack", "bootcheck", clean),
        ("ack", "command", {"pids": {"agent": 1, "command": 100}}),
        ("mark", "command", {"mark": "first_step", "step": 21}),
    ):
        agents.say(kind, phase, body)
        decide_subject(subject_id=subject.pk)
    agents.say("error", "command", {"signal": 9, "pid": 100, "log_tail": [], "step": 30}, only=0)
    decide_subject(subject_id=subject.pk)
    agents.say("ack", "troubleshoot", clean)
    machine = Machine.objects.get(cluster=cluster, name=f"gpu-{NODES // 2:05d}")
    return _Played(job, subject, machine)


class _Agents:
    """The agents of the job, as rows and reports."""

    def __init__(self, job: Any, subject_id: int) -> None:
        self.job, self.subject_id = job, subject_id
        self.lives: list[Any] = []
        self.told = 0

    def enrol(self) -> None:
        from apps.access.clock import database_now
        from apps.jobs.models import Incarnation, Worker

        for worker in Worker.objects.filter(job=self.job).order_by("index"):
            now = database_now()
            life = Incarnation.objects.create(
                tenant=self.job.tenant, worker=worker, pod_uid=str(uuid.uuid4()), container="train",
                pod_name=f"{self.job.name}-{worker.index}", restart_count=0, nonce=uuid.uuid4().hex,
                node_name=f"gpu-{worker.index:05d}", enrolled_at=now, last_seen_at=now,
            )  # fmt: skip
            worker.incarnation = life
            worker.save(update_fields=["incarnation"])
            self.lives.append(life)
            self._record(life, "enrolled", "", {"replaces": None}, sequence=None)

    def say(self, kind: str, phase: str, body: dict[str, Any], *, only: int | None = None) -> None:
        from apps.jobs.models import Order

        newest = Order.objects.filter(job=self.job).latest("sequence").sequence
        for index, life in enumerate(self.lives):
            if only in (None, index):
                self._record(life, kind, phase, body, sequence=newest)

    def _record(
        self, life: Any, kind: str, phase: str, body: dict[str, Any], *, sequence: int | None
    ) -> None:
        from apps.access.clock import database_now
        from apps.incidents.services.signals import NewSignal, record_signals
        from recovery.signals import SignalKind, Source, WorkerKey

        self.told += 1
        now = database_now()
        record_signals(
            signals=[
                NewSignal(
                    tenant_id=self.job.tenant_id,
                    cluster_id=self.job.cluster_id,
                    source=Source.AGENT,
                    source_key=f"{life.pk}:{self.told}",
                    kind=SignalKind(kind),
                    body=body,
                    seen_at=now,
                    subject_ids=(self.subject_id,),
                    worker=WorkerKey("worker", life.worker.index),
                    incarnation_id=life.pk,
                    sequence=sequence,
                    phase=phase,
                )
            ],
            now=now,
        )
