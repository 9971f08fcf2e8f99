"""What is around a failing job, for its verdict: machines that are lost, other jobs that fail, and our own view.

Read only by decisions that may judge, and as counts: nothing here names a machine or a job.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from datetime import datetime, timedelta

from django.db import connection
from django.db.models import Max, Min, Q

from apps.incidents.guard_models import GuardCounter
from apps.incidents.models import Incident, Subject
from apps.incidents.services.guarding import WHOLE
from apps.nodes.models import NOT_READY, Machine, WatchState
from apps.nodes.selectors import HELD_TAINT_PATH
from recovery import comparisons
from recovery.around import MIN_NOT_READY
from recovery.decide import Policy, WorldView
from recovery.guards import Dimension
from recovery.lifecycle import OPEN_INCIDENT_STATES
from recovery.phases import Phase
from recovery.signals import Signal, SignalKind

_FAILURES = frozenset({SignalKind.ERROR, SignalKind.INCARNATION_ENDED, SignalKind.HANG})
#: A call to the cluster that ended longer ago says nothing about now.
CALL_COUNTS = timedelta(seconds=60)
#: What says nothing about why a job stands still.
_OF_ITS_COURSE = frozenset({SignalKind.ACTION_GO, SignalKind.MARK, SignalKind.CHECKPOINT})


def read_world(
    held: Subject,
    incident: Incident | None,
    inbox: Iterable[Signal],
    *,
    now: datetime,
    policy: Policy,
    nodes: Iterable[str] = (),
) -> WorldView:
    """The world as a decision about this job sees it.

    Args:
        held: The locked subject of a job.
        incident: The one that is open, or was resolved last.
        inbox: What is being decided; it tells whether a verdict may be wanted.
        nodes: Where the job's workers run.
    """
    inbox = tuple(inbox)
    of_objects = Q(resource__in=("nodes", "pods"))
    watch = WatchState.objects.filter(cluster=held.cluster_id).aggregate(
        lag=Max("lag_seconds", filter=of_objects),
        heard=Min("last_heard_at", filter=of_objects),
        call=Max("call_seconds", filter=Q(called_at__gte=now - CALL_COUNTS)),
    )
    silent = (now - watch["heard"]).total_seconds() if watch["heard"] is not None else None
    missing, share = 0, 0.0
    counts: dict[str, int] = {}
    spans: dict[str, float] = {}
    if held.cluster_id is not None and may_judge(held, inbox):
        missing, share = _not_ready(held.cluster_id)
        counts, spans = _failures_around(held, _failed_at(incident, inbox, now), policy)
    free, free_on = None, dict[str, int]()
    if held.cluster_id is not None and _may_tell_slow(held, incident, inbox):
        free, free_on = _free_places(held, sorted({node for node in nodes if node}))
    return WorldView(
        taken_at=now,
        watch_lag_seconds=watch["lag"],
        watch_silent_seconds=round(max(silent, 0.0), 3) if silent is not None else None,
        api_call_seconds=watch["call"],
        not_ready_share=share,
        not_ready_machines=missing,
        failures_in_window=counts,
        failures_span_seconds=spans,
        free_places=free,
        free_places_on=free_on,
    )


def may_judge(held: Subject, inbox: tuple[Signal, ...]) -> bool:
    """Whether a verdict may be wanted: something failed, or the job stands still and something was told."""
    kinds = {signal.kind for signal in inbox}
    stands = held.job is not None and held.job.phase in (Phase.RESTARTING, Phase.TROUBLESHOOTING)
    return bool(kinds & _FAILURES) or (stands and not kinds <= _OF_ITS_COURSE)


def _may_tell_slow(held: Subject, incident: Incident | None, inbox: tuple[Signal, ...]) -> bool:
    """Whether people may be told of a slow machine, or of another choice about one: it is confirmed by now."""
    if held.job is None or held.job.phase != Phase.RUN_COMMAND:
        return False
    kinds = [signal.kind for signal in inbox]
    told = incident.verdict.get("slow") if incident is not None else None
    slow = comparisons.from_stored(told)
    seen = max((one.seen for one in slow.compared), default=0) if slow is not None else 0
    metrics = kinds.count(SignalKind.METRIC)
    return (metrics > 0 or SignalKind.LOOK in kinds) and seen + metrics >= comparisons.NEEDED


# Pods that have ended hold nothing any more, though they are still there.
_FREE_PLACES = """
WITH own AS (
    SELECT gpu_type FROM nodes_machine
    WHERE cluster_id = %(cluster)s AND gone_at IS NULL AND name = ANY(%(nodes)s) AND gpu_count > 0
), taken AS (
    SELECT pod.node_name, sum(job.gpus_per_worker) AS gpus
    FROM jobs_pod AS pod JOIN jobs_job AS job ON job.id = pod.job_id
    WHERE pod.cluster_id = %(cluster)s AND pod.gone_at IS NULL AND pod.phase NOT IN ('Succeeded', 'Failed')
        AND pod.node_name <> ''
    GROUP BY pod.node_name
), free AS (
    SELECT machine.name, greatest(0, machine.gpu_count - coalesce(taken.gpus, 0))::bigint / %(gpus)s AS places
    FROM nodes_machine AS machine LEFT JOIN taken ON taken.node_name = machine.name
    WHERE machine.cluster_id = %(cluster)s AND machine.gone_at IS NULL AND machine.is_ready
        AND NOT machine.is_cordoned AND machine.gpu_type IN (SELECT gpu_type FROM own)
        AND NOT jsonb_path_exists(machine.taints, %(held)s)
)
SELECT (SELECT count(*) FROM own), coalesce(sum(places), 0)::bigint,
    coalesce(jsonb_object_agg(name, places) FILTER (WHERE name = ANY(%(nodes)s) AND places > 0), '{}') FROM free
"""


def _free_places(held: Subject, nodes: list[str]) -> tuple[int | None, dict[str, int]]:
    """For how many more workers of the job there are free GPUs, and how many of these on its own ``nodes``.

    A machine counts where a new pod may go: Ready, not cordoned, without a taint that holds it, and of the type that
    the job runs on. Taken is what pods of known jobs ask for; others' pods are not seen. None where not even the
    job's own machines are known with their GPUs.
    """
    gpus = held.job.gpus_per_worker if held.job is not None else 0
    if not gpus or not nodes:
        return None, {}
    with connection.cursor() as cursor:
        cursor.execute(
            _FREE_PLACES, {"cluster": held.cluster_id, "nodes": nodes, "gpus": gpus, "held": HELD_TAINT_PATH}
        )
        own, places, on_own = cursor.fetchone()
    return (int(places), json.loads(on_own) if isinstance(on_own, str) else on_own) if own else (None, {})


def _failed_at(incident: Incident | None, inbox: tuple[Signal, ...], now: datetime) -> datetime | None:
    """When the failure happened that is judged: the newest that is told of, never later than now."""
    times = [signal.seen_at for signal in inbox if signal.kind in _FAILURES]
    if incident is not None and incident.failed_at is not None and incident.state in OPEN_INCIDENT_STATES:
        times.append(incident.failed_at)
    return min(max(times), now) if times else None


def _not_ready(cluster_id: int) -> tuple[int, float]:
    """How many machines of the cluster are not Ready, and their share.

    The share is asked for only where so many are missing that it says something. The cluster's machines are those
    that its guards counted within the last minute; counting 10,000 anew takes longer than the rest of the world.
    """
    present = Machine.objects.filter(cluster=cluster_id, gone_at=None)
    missing = present.filter(NOT_READY).count()
    if missing < MIN_NOT_READY:
        return missing, 0.0
    counters = GuardCounter.objects.filter(cluster=cluster_id, dimension=Dimension.CLUSTER, group=WHOLE)
    machines = counters.aggregate(machines=Max("members"))["machines"] or present.count()
    return missing, round(missing / max(machines, missing), 4)


# At most so many of the newest are looked at: of a thousand jobs that fail alike the next one changes nothing.
_ALIKE = """
SELECT likeness, count(DISTINCT subject_id), min(failed_at), max(failed_at) FROM (
    SELECT likeness, subject_id, failed_at FROM incidents_incident
    WHERE cluster_id = %s AND failed_at BETWEEN %s AND %s AND NOT likeness = '' AND subject_id <> %s
    ORDER BY failed_at DESC LIMIT 1000
) AS near GROUP BY likeness ORDER BY likeness
"""


def _failures_around(
    held: Subject, failed_at: datetime | None, policy: Policy
) -> tuple[dict[str, int], dict[str, float]]:
    """How many other jobs of the cluster failed about then, by what they failed by; and within how many seconds.

    Whoever's they are: two tenants on one storage are the very case. What leaves here are counts.
    """
    counts: dict[str, int] = {}
    spans: dict[str, float] = {}
    if failed_at is None:
        return counts, spans
    window = timedelta(seconds=policy.alike_window_seconds)
    with connection.cursor() as cursor:
        cursor.execute(_ALIKE, [held.cluster_id, failed_at - window, failed_at + window, held.pk])
        for alike, jobs, first, last in cursor.fetchall():
            counts[alike] = jobs
            spans[alike] = round((max(last, failed_at) - min(first, failed_at)).total_seconds(), 1)
    return counts, spans
