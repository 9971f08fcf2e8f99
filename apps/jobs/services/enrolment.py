"""An agent takes up contact: which worker it is, whether it is protected, and whom it replaces."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from django.conf import settings
from django.db import transaction

from agent import wire
from apps.access import clock
from apps.access.models import Cluster
from apps.jobs.models import Incarnation, Job, Pod, Worker
from apps.jobs.services import credentials
from apps.jobs.services.credentials import CredentialRefused, CredentialUnclear, PodNotSeen
from apps.nodes.models import Machine, WatchState
from recovery.decide import Mode
from recovery.errors import BadInput, Conflict

AGAIN_SECONDS = 0.5
#: One message tells a clock's offset only up to its own way here; the polls measure it better.
FIRST_UNCERTAINTY_SECONDS = 0.5


@dataclass(frozen=True, slots=True)
class AgentStart:
    """One start of an agent, as it introduces itself. Nothing of it is believed but by its credential."""

    nonce: str
    pod_uid: str
    pod_name: str
    namespace: str
    container: str
    node_name: str = ""
    ip: str | None = None
    agent_version: str = ""
    pid: int | None = None
    sent_at: float | None = None  # Unix seconds of its own clock


@dataclass(frozen=True, slots=True)
class NotEnrolled:
    """Not taken in: ``status`` is wire's again, unprotected or refused."""

    status: str
    reason: str
    retry_after_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Enrolled:
    """Taken in. ``replaces`` is the living incarnation of the worker that is fenced by this one."""

    job: Job
    worker: Worker
    incarnation: Incarnation
    is_new: bool
    replaces: int | None
    is_protected: bool
    reason: str
    now: datetime


class Fenced(Conflict):
    """A newer incarnation of this worker exists: this one must obey nothing any more."""

    code = "fenced"


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a credential puts an agent. ``pod`` is None on bare machines."""

    job: Job
    role: str
    index: int
    pod_uid: str
    pod: Pod | None


def protection(job: Job) -> tuple[bool, str]:
    """Whether agents of a job obey now, and else why not, in words."""
    if job.cluster.mode == Mode.OBSERVE:
        return False, f"cluster {job.cluster.slug} is in observe"
    if job.mode == Mode.OBSERVE:
        return False, "the job asks to be observed only"
    if not job.is_protected:
        return False, job.protection_reason or "the job is not opted in"
    return True, ""


@transaction.atomic
def enrol(*, bearer: str, start: AgentStart) -> Enrolled | NotEnrolled:
    """Take an agent in, once a nonce: the same start again finds its row.

    Raises:
        Fenced: A newer incarnation, or a newer pod, of the same worker exists.
        BadInput: The start cannot be one.
    """
    if len(start.nonce) < 16:
        raise BadInput("A nonce of 16 characters or more, new for every start.", field="nonce")
    now = clock.database_now()
    try:
        place = _place(bearer, start, now)
    except CredentialRefused as refusal:
        return NotEnrolled(wire.REFUSED, str(refusal))
    except PodNotSeen as unseen:
        return _unseen(unseen.cluster, unseen.issued_at)
    except CredentialUnclear as doubt:
        return NotEnrolled(wire.AGAIN, str(doubt), AGAIN_SECONDS)
    if isinstance(place, NotEnrolled):
        return place
    worker = (
        Worker.objects.select_for_update(no_key=True)
        .filter(job=place.job, role=place.role, index=place.index)
        .first()
    )
    if worker is None:
        return NotEnrolled(
            wire.AGAIN, f"{place.job} has no worker {place.role} {place.index} yet", AGAIN_SECONDS
        )
    return _take_in(place, worker, start, now)


def _take_in(place: _Place, worker: Worker, start: AgentStart, now: datetime) -> Enrolled:
    """Under the worker's lock: find or make the incarnation, and fence the one before."""
    lives = worker.incarnations.exclude(nonce="").order_by("-id")
    newest = lives.first()
    known = lives.filter(pod_uid=place.pod_uid, container=start.container, nonce=start.nonce).first()
    if known is not None and newest is not None and newest.pk != known.pk:
        raise Fenced(f"Incarnation {newest.pk} of {worker} is newer than {known.pk}.")
    if place.pod is not None:
        _check_pod_is_newest(place.pod)
    is_protected, reason = protection(place.job)
    if known is not None:
        return Enrolled(place.job, worker, known, False, None, is_protected, reason, now)
    machine = (
        Machine.objects.filter(
            cluster_id=place.job.cluster_id, name=start.node_name, gone_at__isnull=True
        ).first()
        if start.node_name
        else None
    )
    life = Incarnation.objects.create(
        tenant_id=place.job.tenant_id,
        worker=worker,
        pod_uid=place.pod_uid,
        pod_name=start.pod_name,
        container=start.container,
        nonce=start.nonce,
        node_name=start.node_name,
        machine=machine,
        ip=start.ip,
        agent_version=start.agent_version,
        agent_pid=start.pid,
        enrolled_at=now,
        last_seen_at=now,
        clock_offset_seconds=0.0 if start.sent_at is None else start.sent_at - now.timestamp(),
        clock_uncertainty_seconds=FIRST_UNCERTAINTY_SECONDS,
        cursor=Job.objects.values_list("sequence", flat=True).get(pk=place.job.pk),
    )
    worker.incarnation = life
    worker.ip = start.ip
    worker.save(update_fields=["incarnation", "ip"])
    replaces = newest.pk if newest is not None and newest.ended_at is None else None
    return Enrolled(place.job, worker, life, True, replaces, is_protected, reason, now)


def _check_pod_is_newest(pod: Pod) -> None:
    """An agent that was cut off for long may come when its pod is gone and its place taken."""
    if pod.gone_at is not None:
        raise Fenced(f"Pod {pod} is gone.")
    newer = Pod.objects.filter(
        job_id=pod.job_id, role=pod.role, index=pod.index, created_at__gt=pod.created_at, gone_at__isnull=True
    ).first()
    if newer is not None:
        raise Fenced(f"Pod {newer} has the place of {pod} now.")


def _place(bearer: str, start: AgentStart, now: datetime) -> _Place | NotEnrolled:
    if bearer.startswith(credentials.SECRET_MARK):
        return _bare_place(credentials.job_of_secret(bearer, now=now), start)
    claims = credentials.pod_claims(bearer, now=now)
    if claims.pod_uid != start.pod_uid:
        raise CredentialRefused("The token is bound to another pod than the one that shows it.")
    if start.namespace and claims.namespace != start.namespace:
        raise CredentialRefused("The token is of another namespace than the agent says.")
    pod = (
        Pod.objects.select_related("job__cluster", "job__tenant")
        .filter(cluster=claims.cluster, uid=claims.pod_uid)
        .first()
    )
    if pod is None:
        return _unseen(claims.cluster, claims.issued_at)
    if pod.namespace != claims.namespace or (
        pod.service_account and claims.service_account and pod.service_account != claims.service_account
    ):
        raise CredentialRefused("The token's namespace or service account is not this pod's.")
    return _Place(pod.job, pod.role, pod.index, pod.uid, pod)


def _unseen(cluster: Cluster, issued_at: datetime) -> NotEnrolled:
    """No such pod yet. Only a watch that is well past the pod's start shows that it is no job of ours."""
    watch = WatchState.objects.filter(cluster=cluster, resource="pods", state="watching").first()
    patience = timedelta(seconds=settings.TIMINGS["ENROL_BARRIER_SECONDS"])
    if watch and watch.last_heard_at and watch.last_heard_at > issued_at + patience:
        return NotEnrolled(wire.UNPROTECTED, "no job that the desk knows owns this pod")
    return NotEnrolled(wire.AGAIN, "the watch has not seen this pod yet", AGAIN_SECONDS)


def _bare_place(job: Job, start: AgentStart) -> _Place:
    """A bare machine's worker is named ``<job>-<index>``, exactly: a longer name that begins so is another's."""
    index = start.pod_name.removeprefix(f"{job.name}-")
    if start.pod_name != f"{job.name}-{index}" or not (index.isascii() and index.isdigit()):
        raise CredentialRefused(f"This secret enrols workers of {job} only, named {job.name}-<index>.")
    if start.namespace and start.namespace != job.namespace:
        raise CredentialRefused(f"This secret enrols workers of {job} only.")
    number = int(index)
    if number >= job.world_size or str(number) != index:
        raise CredentialRefused(f"{job} has workers 0 to {job.world_size - 1}, not {index[:20]}.")
    return _Place(job, "worker", number, start.pod_uid or f"{job.owner_uid}/{number}", None)
