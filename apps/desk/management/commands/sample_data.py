"""Rows to look at: three tenants, two clusters, jobs in every phase, incidents in every state.

For screenshots and for tests of pages, never for a desk that watches a cluster: it refuses a database
that has any cluster but its own.
"""

# ruff: noqa: E501 - the rows are sentences

from __future__ import annotations

import uuid
from argparse import ArgumentParser
from datetime import datetime, timedelta
from typing import Any

from django.core.management.base import BaseCommand, CommandError
from django.db import transaction

from apps.access.clock import database_now
from apps.access.models import Cluster, NamespaceMap, Role, RoleBinding, Tenant, User
from apps.incidents.models import (
    Action,
    ActionTry,
    Cause,
    Decision,
    InboxEntry,
    Incident,
    LogTail,
    Notice,
    Signal,
    Subject,
    TimelineEvent,
)
from apps.jobs.models import Attempt, Checkpoint, FailureCount, Incarnation, Job, Pod, Run, Worker
from apps.nodes.models import Machine, WatchState
from recovery.decide import Mode
from recovery.phases import TERMINAL_PHASES

CLUSTERS = ("west-1", "east-2")
MOST_WORKERS = 100_000
ENVIRONMENT = {
    "framework": "torch 2.9.1",
    "cuda": "13.0",
    "nccl": "2.28.9",
    "driver": "580.95.05",
    "devices": "8 × H100",
}

# The story of a killed process: seconds ago, kind, text, body. First what the policy does, then what each worker
# tells (a callable is asked for the worker's index), then how it ends.
STORY_BEFORE: tuple[tuple[float, str, str, dict[str, Any]], ...] = (
    (639.98, "failure_counted", "Failure of worker 3 counted, 2 of 10", {"retries": [1, 1, 1, 2, 1, 1]}),
    (639.98, "phase_changed", "RunCommand to Troubleshooting: worker 3 reported an error", {}),
    (639.98, "order_written", "Stop and quick checks ordered (sequence 5)", {"order": "stop", "sequence": 5}),
    (
        639.1,
        "decided",
        "Decided: restart process (L1), the process is gone and the quick checks are clean",
        {"action": "restart_process"},
    ),
    (639.05, "action_sent", "Restart process begins, try 1", {"action": "restart_process"}),
    (639.0, "phase_changed", "Troubleshooting to RunCommand: all start together", {}),
    (639.0, "order_written", "Start ordered (sequence 6)", {"order": "run", "sequence": 6}),
)
STORY_OF_EACH: tuple[tuple[float, str, str, dict[str, Any]], ...] = (
    (
        639.4, "worker_stopped", "stopped, quick checks clean",
        {"sequence": 5, "checks": {"gpu": 0.21, "disk": 0.01}, "stopped": lambda index: {"seconds": 0.4, "pids": [4127 + index]}},
    ),
    (638.7, "process_started", "started its training process", {"sequence": 6, "pids": lambda index: {"agent": 31, "command": 4188 + index}}),
    (638.2, "rebuilt", "joined its peers", {"seconds": 0.4}),
    (637.5, "restored", "restored step 3300", {"step": 3300, "seconds": 0.6}),
    (636.9, "first_step", "did its first step, 3301", {"step": 3301}),
)  # fmt: skip
STORY_AFTER: tuple[tuple[float, str, str, dict[str, Any]], ...] = (
    (636.7, "state_changed", "Watching: every worker steps again", {"state": "watching"}),
    (
        545.0,
        "incident_resolved",
        "Training is steady: recovered, 88 steps lost",
        {"state": "resolved", "resolution": "recovered"},
    ),
)


class Command(BaseCommand):
    """``manage.py sample_data [--password WORD] [--incidents N] [--workers N]``."""

    help = "Fill an empty database with rows to look at."

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Options."""
        parser.add_argument(
            "--password", default="", help="Password of the people made; without it none can log in."
        )
        parser.add_argument("--incidents", type=int, default=0, help="Resolved incidents beside the others.")
        parser.add_argument(
            "--workers", type=int, default=0, help="A job with so many workers beside the others."
        )

    @transaction.atomic
    def handle(self, *args: Any, **options: Any) -> None:
        """Make the rows, all or none."""
        if options["incidents"] < 0 or not 0 <= options["workers"] <= MOST_WORKERS:
            raise CommandError(f"Give 0 or more incidents, and 0 to {MOST_WORKERS} workers.")
        if other := Cluster.objects.exclude(slug__in=CLUSTERS).first():
            raise CommandError(
                f"This database watches the cluster {other.slug}; sample rows would be taken for real."
            )
        if Cluster.objects.exists():
            raise CommandError("The sample rows are there already; start with an empty database.")
        sample = Sample(database_now(), password=options["password"])
        sample.make()
        sample.make_history(options["incidents"])
        if options["workers"]:
            sample.make_large_job(options["workers"])
        self.stdout.write(
            "People: mei.lin (operator, approver), a.khan (viewer in nlp), j.ortiz (operator in vision)."
        )


class Sample:
    """Everything that the command makes, around one present."""

    def __init__(self, now: datetime, *, password: str) -> None:
        self.now = now
        self.password = password
        self.tenants: dict[str, Tenant] = {}
        self.clusters: dict[str, Cluster] = {}
        self.people: dict[str, User] = {}
        self.machines: list[Machine] = []
        self._number = 0

    @classmethod
    def of_database(cls, now: datetime) -> Sample:
        """The sample that a database holds already, to add to."""
        sample = cls(now, password="")
        sample.tenants = {tenant.slug: tenant for tenant in Tenant.objects.all()}
        sample.clusters = {cluster.slug: cluster for cluster in Cluster.objects.all()}
        sample.machines = list(Machine.objects.order_by("id"))
        return sample

    def ago(self, seconds: float) -> datetime:
        """So long before now."""
        return self.now - timedelta(seconds=seconds)

    def make(self) -> None:
        """Make all but the bulk."""
        self._people()
        self._clusters()
        self._machines()
        self._jobs()

    def _people(self) -> None:
        for slug in ("nlp", "vision", "speech"):
            self.tenants[slug] = Tenant.objects.create(
                slug=slug, name=slug.upper() if slug == "nlp" else slug.title()
            )
        for name, tenant, roles in (
            ("mei.lin", None, (Role.OPERATOR, Role.APPROVER)),
            ("a.khan", "nlp", (Role.VIEWER,)),
            ("j.ortiz", "vision", (Role.OPERATOR,)),
        ):
            person = User(username=name, time_zone="Europe/Berlin")
            person.set_password(self.password or None)
            person.save()
            self.people[name] = person
            for role in roles:
                RoleBinding.objects.create(
                    user=person, tenant=self.tenants[tenant] if tenant else None, role=role
                )

    def _clusters(self) -> None:
        for slug, mode in zip(CLUSTERS, (Mode.AUTO, Mode.OBSERVE), strict=True):
            cluster = Cluster.objects.create(
                slug=slug, name=slug, system_uid=f"uid-{slug}", mode=mode, is_simulated=True
            )
            self.clusters[slug] = cluster
            for tenant in self.tenants.values():
                NamespaceMap.objects.create(cluster=cluster, pattern=f"{tenant.slug}-*", tenant=tenant)
            for resource, lag in (("leader", None), ("nodes", 0.2), ("pods", 0.4), ("jobs", 0.1)):
                WatchState.objects.create(
                    cluster=cluster, resource=resource, resource_version="88123", leader="watch-1", epoch=3,
                    lease_until=self.now + timedelta(hours=6), last_list_at=self.ago(5400), last_event_at=self.ago(2),
                    last_heard_at=self.ago(1), lag_seconds=lag, state="watching",
                )  # fmt: skip

    def _machines(self) -> None:
        odd: dict[tuple[str, int, int], dict[str, Any]] = {
            ("west-1", 3, 5): {"is_ready": False, "ready_since_at": self.ago(340)},
            ("west-1", 7, 2): {"is_cordoned": True},
            ("west-1", 9, 4): {"is_ready": None},
            ("west-1", 11, 1): {
                "taints": [{"key": "example.com/repair", "value": "rma", "effect": "NoSchedule"}]
            },
        }
        for cluster, racks, per_rack in (("west-1", 12, 8), ("east-2", 2, 8)):
            for rack in range(1, racks + 1):
                for place in range(1, per_rack + 1):
                    values: dict[str, Any] = {
                        "is_ready": True, "is_cordoned": False, "taints": [], "ready_since_at": self.ago(86_400 * 9)
                    } | odd.get((cluster, rack, place), {})  # fmt: skip
                    name = f"gpu-r{rack:02}-{place:02}"
                    self.machines.append(
                        Machine(
                            cluster=self.clusters[cluster], hardware_key=f"sim://{cluster}/{name}", name=name,
                            node_uid=str(uuid.uuid4()), boot_id=str(uuid.uuid4()), pool="a" if rack % 2 else "b",
                            rack=f"r{rack:02}", zone="eu-west-1a", gpu_type="H100", gpu_count=8,
                            conditions=[
                                {
                                    "type": "Ready", "reason": "KubeletReady" if values["is_ready"] else "NodeStatusUnknown",
                                    "status": {True: "True", False: "False", None: "Unknown"}[values["is_ready"]],
                                    "message": "kubelet is posting ready status" if values["is_ready"] else "kubelet stopped posting",
                                    "since": values["ready_since_at"].isoformat(),
                                },
                                {"type": "DiskPressure", "status": "False", "reason": "KubeletHasNoDiskPressure", "message": ""},
                            ],
                            labels={"topology.kubernetes.io/zone": "eu-west-1a", "incidentdesk.io/rack": f"r{rack:02}"},
                            addresses=[{"type": "InternalIP", "address": f"10.{rack}.0.{place}"}],
                            kubelet_version="v1.34.2", first_seen_at=self.ago(86_400 * 40), last_seen_at=self.ago(3), **values,
                        )
                    )  # fmt: skip
        Machine.objects.bulk_create(self.machines)

    def _jobs(self) -> None:
        """One job in each phase and one incident in each state, told as they would have come about."""
        llm = self.job("llm-70b-pretrain", "nlp", "RunCommand", workers=6, attempt=3, recover=2, age=6200)
        self._attempts(llm, ((1, "process_died", 41, 3.4), (2, "process_died", 88, 3.1)))
        self.kill_process_incident(llm)
        moe = self.job("vision-moe", "vision", "Troubleshooting", workers=8, attempt=2, recover=1, age=9000)
        self._attempts(moe, ((1, "process_died", 12, 4.0),))
        waiting = self.incident(
            moe, "Process of worker 3 died on gpu-r02-03", "waiting", "high", age=14, rung="L1"
        )
        waiting.waiting_for, waiting.waiting_until_at = "backoff", self.now + timedelta(seconds=1800)
        waiting.considered = [
            {
                "remedy": "restart_container",
                "refused_because": "quick checks are clean; restarting the process is cheaper",
            }
        ]
        waiting.save()
        self.action(waiting, "restart_process", "ready", why="process gone, quick checks clean", wait=1800)
        asr = self.job("asr-large", "speech", "RunCommand", workers=4, attempt=2, recover=1, age=20_000)
        self._attempts(asr, ((1, "process_died", 20, 2.9),))
        watching = self.incident(
            asr, "Process of worker 1 died on gpu-r05-02", "watching", "medium", age=55, rung="L1"
        )
        self.action(watching, "restart_process", "done", why="process gone, quick checks clean")
        rlhf = self.job(
            "rlhf-ppo",
            "nlp",
            "Restarting",
            workers=4,
            attempt=5,
            recover=3,
            age=40_000,
            reason="waits for the pod of worker 2",
        )
        self._attempts(
            rlhf, tuple((n, "pod_deleted" if n == 4 else "process_died", 30 + n, 3 + n) for n in range(1, 5))
        )
        recovering = self.incident(
            rlhf, "Pod of worker 2 was deleted", "recovering", "high", age=33, rung="L1"
        )
        recovering.opened_at, recovering.reopened_at, recovering.reopened_count = (
            self.ago(700),
            self.ago(33),
            1,
        )
        recovering.save()
        self.action(recovering, "restart_process", "verifying", why="every worker is back and checked")
        self.action(
            recovering, "evict_worker", "refused", why="the node is suspected", refused="remedy not installed"
        )
        bert = self.job("bert-distil", "nlp", "RunCommand", workers=2, attempt=1, recover=0, age=800)
        needs = self.incident(
            bert, "No progress: step 1200 after 3 restarts", "needs_person", "critical", age=1500, rung="L1"
        )
        needs.acknowledged_by, needs.acknowledged_at = self.people["mei.lin"], self.ago(600)
        needs.version = 1
        needs.save()
        asked = self.action(needs, "ask_person", "done", why="the same step three times is no progress")
        Notice.objects.create(
            tenant=needs.tenant, incident=needs, action=asked, created_at=self.ago(1400), delivered_at=self.ago(1399),
            text="bert-distil stops at step 1200 again and again. Look at its data at that step, or stop it.",
        )  # fmt: skip
        self.event(needs, 1300, "acknowledged", "Acknowledged by mei.lin", "person", "mei.lin")
        clip = self.job(
            "clip-vit-h", "vision", "RunCommand", workers=8, attempt=1, recover=0, age=30_000, mixed=True
        )
        self.incident(
            clip, "Worker 5 is silent; its pod runs and the others step", "suspected", "low", age=20
        )
        Incarnation.objects.filter(worker__job=clip, worker__index=5).update(
            is_silent=True, last_seen_at=self.ago(22)
        )
        tts = self.job(
            "tts-finetune",
            "speech",
            "Failed",
            workers=3,
            attempt=3,
            recover=3,
            max_retry=2,
            age=50_000,
            reason="failures 3 of 2",
        )
        self._attempts(tts, tuple((n, "process_died", 10, 2.5) for n in range(1, 4)))
        failed = self.incident(
            tts, "Failed: failures 3 of 2", "resolved", "high", age=4000, resolution="job_ended", rung="L1"
        )
        self.action(failed, "stop_job", "done", why="a worker's retries passed max retry")
        LogTail.objects.create(
            tenant=failed.tenant, incident=failed, worker="worker 1", pod_name="tts-finetune-1-x7k2p", stored_at=self.ago(3990),
            lines="[rank1]: Watchdog caught collective operation timeout: WorkNCCL(SeqNum=3389, OpType=ALLREDUCE)\n"
            "[rank1]: terminate called after throwing an instance of 'c10::DistBackendError'\n",
        )  # fmt: skip
        old = self.incident(
            self.job("ocr-small", "vision", "Succeeded", workers=2, attempt=2, recover=1, age=90_000),
            "Process of worker 0 died on gpu-r06-01",
            "closed",
            "medium",
            age=70_000,
            resolution="recovered",
            rung="L1",
        )
        self.action(old, "restart_process", "done", why="process gone, quick checks clean")
        self.job(
            "diffusion-xl",
            "vision",
            "Pending",
            workers=16,
            attempt=0,
            recover=0,
            age=240,
            reason="waiting for capacity: 0/96 nodes have 8 free GPUs",
        )
        self.job("llm-7b-eval", "nlp", "BootChecking", workers=4, attempt=0, recover=0, age=18)
        self.job(
            "mt-en-de",
            "nlp",
            "Stopped",
            workers=2,
            attempt=1,
            recover=0,
            age=60_000,
            reason="stopped by mei.lin: wrong data set",
        )
        self.job(
            "wav2vec-probe",
            "speech",
            "RunCommand",
            cluster="east-2",
            workers=2,
            attempt=1,
            recover=0,
            age=5000,
            protected=False,
        )

    def job(
        self, name: str, tenant: str, phase: str, *, workers: int, attempt: int, recover: int, age: float,
        max_retry: int = 10, cluster: str = "west-1", protected: bool = True, reason: str = "", mixed: bool = False,
    ) -> Job:  # fmt: skip
        """A job with run, workers, lives, pods, checkpoints and its present attempt."""
        self._number += 1
        owner = self.tenants[tenant]
        ended = phase in TERMINAL_PHASES
        job = Job.objects.create(
            tenant=owner, cluster=self.clusters[cluster], owner_uid=str(uuid.uuid4()), owner_kind="Job",
            namespace=f"{tenant}-train", name=name, world_size=workers, gpus_per_worker=8, phase=phase,
            phase_since_at=self.ago(min(age, 30 + self._number)), phase_reason=reason, attempt=attempt, sequence=2 * attempt,
            attempt_sequence=2 * attempt, recover_count=recover, max_retry=max_retry, is_protected=protected, is_opted_in=protected,
            protection_reason="" if protected else "cluster east-2 is in observe",
            limits=[{"name": "Job backoffLimit", "used": 0, "limit": 4, "warning": "ends the job before max retry does: 10 retries × 2 workers need 22"}]
            if name == "bert-distil" else [{"name": "Job backoffLimit", "used": 0, "limit": 100, "warning": ""}, {"name": "elastic retries", "used": 0, "limit": 10, "warning": ""}],
            restart_policy="Never", world_running_at=self.ago(age - 10), created_at=self.ago(age), seen_at=self.ago(2),
            ended_at=self.ago(60) if ended else None, waiting_seconds=240 if phase == "Pending" else 0,
        )  # fmt: skip
        Run.objects.create(
            tenant=owner,
            job=job,
            r=1,
            started_at=self.ago(age),
            ended_at=job.ended_at,
            end_phase=phase if ended else "",
        )
        if phase != "Pending":
            self._workers(job, mixed=mixed, age=age)
        if attempt:
            Attempt.objects.create(
                tenant=owner, job=job, n=attempt, sequence=2 * attempt, started_at=self.ago(min(age, 600)), is_protected=protected, nodes=workers,
                first_step_at=self.ago(min(age, 598)), resumed_from_step=3300 if attempt > 1 else None, first_step=3301 if attempt > 1 else 1,
                last_step=3541, step_seconds=0.16, ended_at=job.ended_at, end_cause="completed" if phase == "Succeeded" else "",
            )  # fmt: skip
            for place, step in enumerate((3500, 3400, 3300)):
                Checkpoint.objects.create(
                    tenant=owner, job=job, step=step, path=f"/checkpoints/step-{step:08}", bytes=135 * 2**30, shards=workers,
                    shards_expected=workers, state=("committed", "committed", "verified")[place], attempt=attempt,
                    written_at=self.ago(45 + 16 * place), committed_at=self.ago(42 + 16 * place),
                    verified_at=self.ago(7200) if place == 2 else None, seconds=5.3,
                )  # fmt: skip
        return job

    def _workers(self, job: Job, *, mixed: bool, age: float) -> None:
        live = job.phase not in TERMINAL_PHASES
        here = [machine for machine in self.machines if machine.cluster_id == job.cluster_id]
        first = 8 * (self._number - 1)
        workers = Worker.objects.bulk_create(
            Worker(
                tenant=job.tenant, job=job, role="worker", index=index, inner_phase=job.phase, is_enrolled=True,
                retries=job.recover_count, is_finished=job.phase == "Succeeded", last_sequence=job.sequence,
                environment=ENVIRONMENT | ({"nccl": "2.27.3"} if mixed and index == 5 else {}) if job.is_protected else {},
                checks=[{"check": "gpu", "result": "pass", "seconds": 0.2}, {"check": "disk", "result": "pass", "seconds": 0.01}],
                checks_at=self.ago(age - 12),
            )
            for index in range(job.world_size)
        )  # fmt: skip
        lives = Incarnation.objects.bulk_create(
            Incarnation(
                tenant=job.tenant, worker=worker, pod_uid=str(uuid.uuid4()), pod_name=f"{job.name}-{worker.index}-x7k2p",
                container="train", restart_count=0, nonce=uuid.uuid4().hex if job.is_protected else "",
                machine=here[(first + worker.index) % len(here)], node_name=here[(first + worker.index) % len(here)].name,
                enrolled_at=self.ago(age - 11), first_attempt=1, last_attempt=job.attempt or None, last_seen_at=self.ago(0.8) if job.is_protected else None,
                agent_pid=1, command_pid=4127 + worker.index, process_state="running", step=3541 if job.attempt else None,
                step_at=self.ago(0.2), step_seconds=0.16, ended_at=None if live else self.ago(60),
                end_cause="" if live else "completed" if job.phase == "Succeeded" else "ordered",
            )
            for worker in workers
        )  # fmt: skip
        for worker, life in zip(workers, lives, strict=True):
            worker.incarnation = life
        Worker.objects.bulk_update(workers, ["incarnation"])
        Pod.objects.bulk_create(
            Pod(
                tenant=job.tenant, cluster=job.cluster, job=job, role="worker", index=life.worker.index, uid=life.pod_uid, namespace=job.namespace,
                name=life.pod_name, node_name=life.node_name, phase="Running" if live else "Succeeded", created_at=self.ago(age),
            )
            for life in lives
        )  # fmt: skip

    def _attempts(self, job: Job, ends: tuple[tuple[int, str, int, float], ...]) -> None:
        """Earlier attempts: (number, cause, steps lost, seconds until it stepped again)."""
        at = self.ago(600 + 400 * len(ends))
        worker = job.workers.first()
        assert worker is not None
        for n, cause, lost, back in ends:
            ended = at + timedelta(seconds=390)
            Attempt.objects.update_or_create(
                job=job, n=n,
                defaults={
                    "tenant": job.tenant, "sequence": 2 * n, "nodes": job.world_size, "started_at": at, "first_step_at": at + timedelta(seconds=back),
                    "resumed_from_step": 3300 if n > 1 else None, "first_step": 3301 if n > 1 else 1, "last_step": 3300 + lost, "step_seconds": 0.16,
                    "ended_at": ended, "end_cause": cause, "is_counted": True, "remedy": "restart_process",
                },
            )  # fmt: skip
            FailureCount.objects.create(
                tenant=job.tenant, job=job, attempt=n, worker=worker, cause=cause, at=ended
            )
            at = ended + timedelta(seconds=back)

    def subject(self, job: Job) -> Subject:
        """The subject of a job."""
        subject, _ = Subject.objects.get_or_create(
            kind="job",
            key=str(job.pk),
            defaults={"tenant": job.tenant, "cluster": job.cluster, "job": job, "decision_n": 7},
        )
        return subject

    def incident(
        self, job: Job, title: str, state: str, severity: str, *, age: float, rung: str = "", resolution: str = "",
    ) -> Incident:  # fmt: skip
        """An incident with its first timeline lines and the decision that opened it."""
        resolved = self.ago(max(0.0, age - 95)) if resolution else None
        incident = Incident.objects.create(
            tenant=job.tenant, cluster=job.cluster, subject=self.subject(job), job=job, title=title, state=state, severity=severity,
            state_since_at=resolved or self.ago(min(age, 12)), rung=rung, attempt=max(1, job.attempt - 1), failed_at=self.ago(age + 0.3),
            failures_used=(job.recover_count or None) if state != "suspected" else None, opened_at=self.ago(age), resolved_at=resolved, closed_at=resolved if state == "closed" else None, resolution=resolution,
            verdict={"category": "process_died", "culprit": "worker 3", "worker": "worker 3", "confidence": 0.9, "rule": "exit-by-signal", "evidence": ["exit by SIGKILL, pid 4130 (weight 0.90)", "quick checks: disk pass, gpu pass (weight 0.20)"]},
        )  # fmt: skip
        Cause.objects.create(
            tenant=job.tenant,
            incident=incident,
            category="process_died",
            text=title,
            first_seen_at=self.ago(age),
            last_seen_at=self.ago(age),
        )
        body = {"step": 3388, "pid": 4130, "left_run": True, "found_by": "agent's report"}
        self.event(
            incident,
            age + 0.3,
            "failure_seen",
            "worker 3: process ended by SIGKILL",
            "agent",
            received=age,
            index=3,
            body=body,
        )
        self.event(incident, age, "incident_opened", f"Opened: {title}", "policy")
        return incident

    def event(
        self, incident: Incident, ago: float, kind: str, text: str, actor_kind: str, actor: str = "", received: float | None = None,
        body: dict[str, Any] | None = None, index: int | None = None, attempt: int | None = None,
    ) -> None:  # fmt: skip
        """One timeline line, ``ago`` seconds old, known ``received`` seconds ago."""
        incident.timeline_n += 1
        incident.save(update_fields=["timeline_n"])
        TimelineEvent.objects.create(
            tenant=incident.tenant, incident=incident, n=incident.timeline_n, kind=kind, at=self.ago(ago), text=text, actor_kind=actor_kind,
            received_at=self.ago(ago if received is None else received), actor=actor, attempt=attempt or incident.attempt,
            body=body or {}, index=index, role="worker" if index is not None else "",
        )  # fmt: skip

    def action(
        self, incident: Incident, kind: str, state: str, *, why: str, wait: float = 0, refused: str = "",
    ) -> Action:  # fmt: skip
        """An action with a try where it has been sent."""
        begun = state in ("running", "verifying", "done")
        action = Action.objects.create(
            tenant=incident.tenant, incident=incident, kind=kind, target=incident.job.name if incident.job else "", generation=1, state=state, why=why,
            refused_because=refused, decision_n=1, deadline_seconds=30, created_at=incident.opened_at, try_n=1 if begun else 0,
            not_before_at=self.now + timedelta(seconds=wait) if wait else incident.opened_at, deadline_at=self.now + timedelta(seconds=20) if begun else None,
            lease_until_at=self.now + timedelta(seconds=20) if state == "running" else None, ended_at=incident.opened_at if state in ("done", "refused") else None,
            end_reason="every agent reports its new process" if state == "done" and kind == "restart_process" else "",
        )  # fmt: skip
        if begun:
            ActionTry.objects.create(
                tenant=incident.tenant, action=action, n=1, worker_name="act-1", started_at=incident.opened_at,
                ended_at=incident.opened_at + timedelta(seconds=0.03), outcome="sent",
            )  # fmt: skip
        return action

    def kill_process_incident(self, job: Job) -> Incident:
        """A process killed and brought back in place, from the signal to the steady state."""
        incident = self.incident(
            job,
            "Process of worker 3 died on gpu-r01-04",
            "resolved",
            "medium",
            age=640,
            resolution="recovered",
            rung="L1",
        )
        incident.attempt = 2
        incident.considered = [
            {
                "remedy": "restart_container",
                "refused_because": "quick checks are clean; restarting the process is cheaper",
            },
            {"remedy": "hold_node", "refused_because": "nothing speaks against the node"},
        ]
        incident.save()
        for ago, kind, text, body in STORY_BEFORE:
            self.event(incident, ago, kind, text, "policy", body=body)
        for ago, kind, text, bodies in STORY_OF_EACH:
            for index in range(job.world_size):
                body = {name: value(index) if callable(value) else value for name, value in bodies.items()}
                self.event(
                    incident,
                    ago - 0.02 * index,
                    kind,
                    f"Worker {index} {text}",
                    "agent",
                    index=index,
                    body=body,
                )
        for ago, kind, text, body in STORY_AFTER:
            self.event(incident, ago, kind, text, "policy", body=body)
        late = "Worker 1: collective timed out; a symptom of worker 3, counts nothing"
        self.event(incident, 636.0, "evidence", late, "agent", received=622.0, index=1)
        Attempt.objects.filter(job=job, n=2).update(incident_uid=incident.uid, ended_at=self.ago(640.3))
        Attempt.objects.filter(job=job, n=3).update(started_at=self.ago(639), first_step_at=self.ago(636.9))
        FailureCount.objects.filter(job=job, attempt=2).update(incident_uid=incident.uid, at=self.ago(640))
        self.action(incident, "restart_process", "done", why="process gone, quick checks clean")
        subject = incident.subject
        for n, (rule, reason) in enumerate(
            (
                ("run-command/error", "worker 3 reported an error of sequence 4"),
                ("ladder/L1", "process gone, quick checks clean"),
                ("troubleshooting/recovered", "restart process was claimed: all start together"),
                ("watching/steady", "steady for 90 s and 500 steps"),
            ),
            start=4,
        ):
            Decision.objects.create(
                tenant=incident.tenant, subject=subject, incident=incident, n=n, at=self.ago(640 - n), policy_version="1", rule=rule, reason=reason,
                state_before={}, inbox=[], outcome={}, seconds=0.004 + 0.002 * n,
            )  # fmt: skip
            signal = Signal.objects.create(
                tenant=incident.tenant, cluster=job.cluster, source="agent", source_key=f"sample:{n}", kind="error" if n == 4 else "ack", body={},
                body_sha256="", seen_at=self.ago(640.2 - n), received_at=self.ago(640 - n), role="worker", index=3, sequence=4,
            )  # fmt: skip
            InboxEntry.objects.create(signal=signal, subject=subject, decision_n=n, use="used", reason=reason)
        return incident

    def make_history(self, count: int) -> None:
        """Closed incidents of the past, a minute apart."""
        job = Job.objects.filter(name="asr-large").get()
        subject = self.subject(job)
        batch = [
            Incident(
                tenant=job.tenant, cluster=job.cluster, subject=subject, job=job, title=f"Process of worker {n % 4} died", state="closed",
                state_since_at=self.ago(90_000 + 60 * n), severity=("low", "medium", "high")[n % 3], opened_at=self.ago(90_100 + 60 * n),
                resolved_at=self.ago(90_000 + 60 * n), closed_at=self.ago(90_000 + 60 * n), resolution="recovered", attempt=1, failures_used=1,
            )
            for n in range(count)
        ]  # fmt: skip
        Incident.objects.bulk_create(batch, batch_size=2000)

    def make_large_job(self, workers: int) -> Job:
        """A job with many workers."""
        return self.job(
            "llm-405b-pretrain", "nlp", "RunCommand", workers=workers, attempt=1, recover=0, age=70_000
        )
