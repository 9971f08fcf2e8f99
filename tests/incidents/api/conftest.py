"""Two tenants, each with a job, an incident and a token of every scope."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
from django.test import Client

from apps.access import services
from apps.access.clock import database_now
from apps.access.models import Cluster, Tenant
from apps.incidents.models import Action, Incident, TimelineEvent
from apps.incidents.services import intake, reporting
from apps.incidents.services.signals import subject_for_job
from apps.jobs.models import Attempt, Checkpoint, Incarnation, Job, Pod, Worker
from apps.nodes.models import Machine
from tests.factories import make_cluster, make_job, make_tenant


@pytest.fixture(autouse=True)
def woken(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Subjects that were woken; nothing is sent to Redis."""
    ids: list[int] = []
    for module in (reporting, intake):
        monkeypatch.setattr(module, "wake_subjects", ids.extend)
    return ids


@dataclass
class Team:
    """A tenant with one of everything."""

    cluster: Cluster
    tenant: Tenant = field(default_factory=make_tenant)

    def __post_init__(self) -> None:
        now = database_now()
        self.job: Job = make_job(tenant=self.tenant, cluster=self.cluster)
        self.machine = Machine.objects.create(
            cluster=self.cluster,
            hardware_key=f"hw-{self.job.name}",
            name=f"node-{self.job.name}",
            is_ready=True,
            first_seen_at=now,
            last_seen_at=now,
        )
        worker = Worker.objects.get(job=self.job, index=0)
        self.life = Incarnation.objects.create(
            tenant=self.tenant,
            worker=worker,
            pod_uid=f"uid-{self.job.name}",
            pod_name=f"{self.job.name}-0",
            container="train",
            restart_count=0,
            nonce="n" * 32,
            machine=self.machine,
        )
        worker.incarnation = self.life
        worker.save()
        self.pod = Pod.objects.create(
            tenant=self.tenant,
            cluster=self.cluster,
            job=self.job,
            role="worker",
            index=0,
            uid=self.life.pod_uid,
            namespace=self.job.namespace,
            name=self.life.pod_name,
            node_name=self.machine.name,
            phase="Running",
            created_at=now,
        )
        Attempt.objects.create(tenant=self.tenant, job=self.job, n=1, sequence=2, started_at=now)
        Checkpoint.objects.create(
            tenant=self.tenant, job=self.job, step=100, path="/c/100", state="committed", committed_at=now
        )
        self.incident = self.make_incident()
        self.action = Action.objects.create(
            tenant=self.tenant,
            incident=self.incident,
            kind="restart_process",
            target="job",
            generation=1,
            state="ready",
            why="because",
            decision_n=1,
            deadline_seconds=30,
            created_at=now,
        )

    def make_incident(self, **overrides: Any) -> Incident:
        now = database_now()
        incident = Incident.objects.create(
            **{
                "tenant": self.tenant,
                "cluster": self.cluster,
                "subject": subject_for_job(self.job),
                "job": self.job,
                "title": f"Worker 0 of {self.job} was killed",
                "state": "open",
                "state_since_at": now,
                "severity": "high",
                "opened_at": now,
                "timeline_n": 1,
                **overrides,
            }
        )
        TimelineEvent.objects.create(
            tenant=self.tenant,
            incident=incident,
            n=1,
            kind="opened",
            at=now,
            received_at=now,
            text="Opened",
            actor_kind="policy",
        )
        return incident

    def client(self, *scopes: str, **token: Any) -> Client:
        """A program with a token of this tenant, of every scope by default."""
        _, plain = services.create_token(
            **{
                "tenant_id": self.tenant.pk,
                "name": "program",
                "scopes": scopes or sorted(services.SCOPES),
                "actor_kind": "person",
                "actor": "test",
                **token,
            }
        )
        return Client(headers={"Authorization": f"Bearer {plain}"})


@pytest.fixture
def cluster() -> Cluster:
    return make_cluster()


@pytest.fixture
def team(cluster: Cluster) -> Team:
    return Team(cluster)


@pytest.fixture
def others(cluster: Cluster) -> Team:
    return Team(cluster)
