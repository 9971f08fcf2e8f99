"""Jobs that no watch sees: bare machines and Slurm register them, and get an enrolment secret."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from datetime import datetime

from django.db import IntegrityError, transaction

from apps.access import clock
from apps.access.models import Cluster, Tenant
from apps.jobs.models import EnrolmentSecret, Job, Run, Worker
from apps.jobs.services import credentials
from recovery.errors import Conflict

MAX_WORKERS = 20_000


@dataclass(frozen=True, slots=True)
class Registered:
    """A new job and its enrolment secret, which is nowhere else in plain text."""

    job: Job
    secret: str
    now: datetime


@transaction.atomic
def register_job(
    *,
    tenant: Tenant,
    cluster: Cluster,
    namespace: str,
    name: str,
    world_size: int,
    owner_uid: str = "",
    gpus_per_worker: int = 0,
    max_retry: int,
    stop_grace_seconds: float,
    protect: bool,
    secret_expires_at: datetime | None = None,
) -> Registered:
    """Make a job of ``world_size`` workers named ``<name>-<index>``, and the secret that enrols them.

    Raises:
        Conflict: The cluster has a job with this uid already.
    """
    now = clock.database_now()
    lineage = Job.objects.filter(tenant=tenant, cluster=cluster, namespace=namespace, name=name)
    try:
        with transaction.atomic():
            job = Job.objects.create(
                tenant=tenant,
                cluster=cluster,
                owner_uid=owner_uid or str(uuid.uuid4()),
                owner_kind="",
                namespace=namespace,
                name=name,
                lineage=lineage.order_by("-id").first(),
                world_size=world_size,
                gpus_per_worker=gpus_per_worker,
                max_retry=max_retry,
                stop_grace_seconds=stop_grace_seconds,
                is_opted_in=protect,
                is_protected=protect,
                protection_reason="" if protect else "the job was registered without protect",
                phase_since_at=now,
                created_at=now,
                seen_at=now,
            )
    except IntegrityError:
        raise Conflict(f"Cluster {cluster.slug} has a job with the uid {owner_uid} already.") from None
    Run.objects.create(tenant=tenant, job=job, r=1, started_at=now)
    Worker.objects.bulk_create(
        [Worker(tenant=tenant, job=job, role="worker", index=index) for index in range(world_size)],
        batch_size=2000,
    )
    plain, digest = credentials.new_secret()
    EnrolmentSecret.objects.create(tenant=tenant, job=job, sha256=digest, expires_at=secret_expires_at)
    return Registered(job, plain, now)
