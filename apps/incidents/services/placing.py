"""Whom a report is about: from what it names (pod, job, node) to the subjects that are known."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from apps.incidents.models import Signal
from apps.incidents.services.signals import subject_for_job
from apps.jobs.models import Job, Pod


def subjects_named(*, tenant_id: int, cluster_id: int | None, names: Mapping[str, Any]) -> tuple[int, ...]:
    """Subjects of the jobs that ``names`` speaks of, only of this tenant; empty while none is known.

    Args:
        names: Any of ``pod_uid``, ``namespace`` with ``pod``, ``namespace`` with ``job``, ``node``. The
            most exact one that is there decides; a node stands for the live jobs with a pod on it.
    """
    jobs = Job.objects.filter(tenant_id=tenant_id, gone_at__isnull=True)
    if cluster_id is not None:
        jobs = jobs.filter(cluster_id=cluster_id)
    if names.get("pod_uid"):
        jobs = jobs.filter(pods__uid=names["pod_uid"])
    elif names.get("namespace") and names.get("pod"):
        newest = (
            Pod.objects.filter(job__in=jobs, namespace=names["namespace"], name=names["pod"])
            .order_by("-id")
            .values("job_id")[:1]
        )
        jobs = jobs.filter(pk__in=newest)
    elif names.get("namespace") and names.get("job"):
        jobs = jobs.filter(namespace=names["namespace"], name=names["job"]).order_by("-id")[:1]
    elif names.get("node"):
        jobs = jobs.filter(pods__node_name=names["node"], pods__gone_at__isnull=True).distinct()
    else:
        return ()
    return tuple(sorted(subject_for_job(job).pk for job in jobs))


def place_signal(signal: Signal) -> tuple[int, ...]:
    """Subjects that an unplaced signal is about by now, from the names in its body or its labels."""
    names = {**signal.body.get("labels", {}), **signal.body}
    return subjects_named(tenant_id=signal.tenant_id, cluster_id=signal.cluster_id, names=names)
