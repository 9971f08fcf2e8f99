"""A cluster that is gone for good: its rows say so, its jobs are told deleted, a successor gets its settings."""

from __future__ import annotations

import contextlib

from django.db import transaction

from apps.access import clock
from apps.access.models import Cluster, Token
from apps.access.services import audit, map_namespace
from apps.incidents.services import feed, guarding
from apps.incidents.services.arming import set_cluster_mode
from apps.incidents.services.signals import NewSignal, record_signals, subject_for_job
from apps.incidents.wake import wake_subjects
from apps.jobs.models import Job, Pod
from apps.nodes.models import Machine, WatchState
from recovery.decide import Mode
from recovery.errors import BadInput, InvalidTransition, NotFound
from recovery.signals import SignalKind, Source


@transaction.atomic
def retire_cluster(*, cluster_id: int, actor_kind: str, actor: str, reason: str) -> Cluster:
    """Mark a cluster's nodes, pods and jobs as gone and free its slug for another cluster.

    The rows stay: incidents and their timelines refer to them. May be called twice; raises NotFound.
    """
    cluster = Cluster.objects.select_for_update(no_key=True).filter(pk=cluster_id).first()
    if cluster is None:
        raise NotFound(f"There is no cluster {cluster_id}.")
    now = clock.database_now()
    present = Machine.objects.filter(cluster=cluster, gone_at__isnull=True)
    feed.publish_nodes(machine_ids=list(present.values_list("id", flat=True)), now=now)
    present.update(gone_at=now)
    Pod.objects.filter(cluster=cluster, gone_at__isnull=True).update(gone_at=now, started_at=None)
    WatchState.objects.filter(
        cluster=cluster
    ).delete()  # nothing watches it; a process that still tries loses its lead
    jobs = list(Job.objects.filter(cluster=cluster, gone_at__isnull=True).order_by("id"))
    subjects = {job.pk: subject_for_job(job).pk for job in jobs}
    record_signals(
        signals=[
            NewSignal(
                tenant_id=job.tenant_id,
                cluster_id=cluster.pk,
                source=Source.DESK,
                source_key=f"retired/{job.pk}",
                kind=SignalKind.JOB_DELETED,
                body={"by": actor, "reason": reason},
                seen_at=now,
                subject_ids=(subjects[job.pk],),
            )
            for job in jobs
        ],
        now=now,
    )
    Job.objects.filter(pk__in=subjects).update(gone_at=now)
    for job in jobs:
        feed.publish(tenant_id=job.tenant_id, topic="job", key=job.pk, now=now)
    if not cluster.is_retired:
        before, suffix = cluster.slug, cluster.system_uid[:8]
        cluster.slug = f"{cluster.slug[: 62 - len(suffix)]}-{suffix}"
        cluster.name = f"{cluster.name[:180]} (gone)"
        cluster.save(update_fields=["slug", "name"])
        audit(
            at=now,
            tenant_id=None,
            actor_kind=actor_kind,
            actor=actor,
            verb="retire",
            target_kind="cluster",
            target=before,
            reason=reason,
            after={"slug": cluster.slug, "jobs": len(jobs)},
        )
    transaction.on_commit(lambda: wake_subjects(subjects.values()))
    return cluster


@transaction.atomic
def hand_settings_over(*, retired: Cluster, successor: Cluster, actor_kind: str, actor: str) -> str:
    """Give a simulated cluster what people had set for the one before it, which it stands in for.

    Its mode, whose the namespaces are, its guards, and the tokens that are good for that cluster only. What was seen
    there stays there. Audited as what each of them is. Raises InvalidTransition for a cluster that is not simulated.

    Returns:
        Why the successor is not armed as the one before was, empty where it is: its guards could not work.
    """
    if not (retired.is_simulated and successor.is_simulated):
        raise InvalidTransition("Only simulated clusters stand in for each other; people set the others up.")
    for row in retired.namespace_maps.order_by("pk"):
        with contextlib.suppress(BadInput):  # a pattern of old that no namespace can match
            map_namespace(
                cluster_id=successor.pk,
                pattern=row.pattern,
                tenant_id=row.tenant_id,
                actor_kind=actor_kind,
                actor=actor,
            )
    guarding.copy_limits(source=retired, target=successor)
    Token.objects.filter(cluster=retired, job_uid="").update(cluster=successor)
    try:
        set_cluster_mode(
            cluster_id=successor.pk,
            mode=Mode(retired.mode),
            actor_kind=actor_kind,
            actor=actor,
            reason=f"as it was for {retired.slug}, which is gone",
        )
    except InvalidTransition as error:
        return str(error)
    return ""
