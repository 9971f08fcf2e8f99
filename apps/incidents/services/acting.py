"""Carry out actions: claim, look, send, see (DESIGN rule 4).

A claim is a lease with a try number. Whatever a try writes names its number, so that a try whose lease
ran out while its process slept changes nothing any more: a go signal of an older try is stale to the
decision, a write to the cluster carries the resourceVersion that was read before.

Ends of actions are written by decisions only; what happened here reaches them as a signal ACTION_ENDED.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.conf import settings
from django.db import transaction

from apps import crash_points
from apps.access.clock import database_now
from apps.incidents.models import Action, ActionTry, LogTail, Notice, Signal
from apps.incidents.policy import effective_mode
from apps.incidents.redact import clean_lines
from apps.incidents.services import feed
from apps.incidents.services.deciding import decide_subject
from apps.incidents.services.signals import NewSignal, record_signals
from apps.incidents.wake import wake_subjects
from apps.jobs.models import Pod
from recovery.decide import Mode
from recovery.errors import ClusterError, ClusterRefused, ClusterUnavailable, PreconditionFailed
from recovery.lifecycle import HARMFUL_ACTIONS, OPEN_INCIDENT_STATES, ActionKind, ActionState, TryOutcome
from recovery.ports import Cluster, SuspendOutcome
from recovery.signals import SignalKind, Source

LOG_TAIL_LINES = 200
RETRY_SECONDS = (1.0, 2.0, 5.0, 10.0, 30.0)


@dataclass(frozen=True, slots=True)
class Sent:
    """How a try ended. ``found``: somebody else had made the effect already."""

    outcome: TryOutcome
    detail: str = ""
    found: bool = False


def lease_owner() -> str:
    """Who this executor is, for the lease and the page: host and process id."""
    return f"{socket.gethostname()}:{os.getpid()}"


def run_action(*, action_id: int, cluster: Callable[[], Cluster]) -> None:
    """Try one ready action. A second delivery finds it claimed or done and returns.

    ``cluster`` gives the adapter when it is needed, because making one loads the Kubernetes client.
    """
    action = _claim(action_id)
    if action is None:
        _refuse_if_observed(action_id)
        return
    crash_points.reach("action_claimed")
    try_n = action.try_n
    try:
        sent = _SENDERS[ActionKind(action.kind)](action, cluster)
    except ClusterUnavailable as error:
        outcome = TryOutcome.AMBIGUOUS if error.ambiguous else TryOutcome.RETRYABLE
        sent = Sent(outcome, str(error))
    except PreconditionFailed as error:
        sent = Sent(TryOutcome.RETRYABLE, str(error))
    except (ClusterRefused, ClusterError) as error:
        sent = Sent(TryOutcome.PERMANENT, str(error))
    crash_points.reach("action_sent")
    _finish_try(action_id, try_n, sent)
    check_effect(action_id=action_id)


def _refuse_if_observed(action_id: int) -> None:
    """Let a decision refuse what waits in a cluster or job that is only observed by now."""
    action = (
        Action.objects.select_related("incident__job", "incident__subject", "incident__cluster")
        .filter(pk=action_id, state=ActionState.READY)
        .first()
    )
    if action is None or action.kind == ActionKind.ASK_PERSON or not _is_observed(action):
        return
    _record(
        action,
        kind=SignalKind.LOOK,
        source_key=f"{action.uid}/observed/{action.incident.subject.decision_n}",
        body={"action_uid": str(action.uid)},
    )
    decide_subject(subject_id=action.incident.subject_id)


def _claim(action_id: int) -> Action | None:
    """Give the lease of a ready action whose time has come and whose incident is open, or None."""
    with transaction.atomic():
        action = (
            Action.objects.select_for_update(no_key=True, of=("self",))
            .select_related("incident__job", "incident__subject", "incident__cluster")
            .filter(pk=action_id, state=ActionState.READY, is_cancel_asked=False)
            .first()
        )
        if action is None or action.incident.state not in OPEN_INCIDENT_STATES:
            return None
        now = database_now()
        if action.not_before_at is not None and action.not_before_at > now:
            return None
        if action.kind != ActionKind.ASK_PERSON and _is_observed(action):
            return None
        action.state = ActionState.RUNNING
        action.try_n += 1
        action.lease_owner = lease_owner()
        action.lease_until_at = now + timedelta(seconds=settings.TIMINGS["ACTION_LEASE_SECONDS"])
        if action.deadline_at is None:
            action.deadline_at = now + timedelta(seconds=action.deadline_seconds)
        action.save(update_fields=["state", "try_n", "lease_owner", "lease_until_at", "deadline_at"])
        ActionTry.objects.create(
            tenant_id=action.tenant_id,
            action=action,
            n=action.try_n,
            worker_name=action.lease_owner,
            started_at=now,
        )
        feed.publish(tenant_id=action.tenant_id, topic="incident", key=action.incident_id, now=now)
    return action


def _is_observed(action: Action) -> bool:
    """Whether nothing may be done here any more: disarmed since the action was decided."""
    cluster, job = action.incident.cluster, action.incident.job
    if cluster is None:
        return False
    return effective_mode(cluster_mode=cluster.mode, job_mode=job.mode if job else "") is Mode.OBSERVE


def still_ours(action: Action) -> bool:
    """Whether this try's lease holds, by the database's clock. Asked again right before each send."""
    row = Action.objects.filter(pk=action.pk, state=ActionState.RUNNING, try_n=action.try_n).first()
    return row is not None and row.lease_until_at is not None and row.lease_until_at > database_now()


def _send_restart(action: Action, cluster: Callable[[], Cluster]) -> Sent:
    """Let the phase machine write the start order: a go signal, decided at once."""
    _record(
        action,
        kind=SignalKind.ACTION_GO,
        source_key=f"{action.uid}/go/{action.try_n}",
        body={
            "action_uid": str(action.uid),
            "try": action.try_n,
            "lease": action.lease_until_at.isoformat() if action.lease_until_at else "",
        },
    )
    decide_subject(subject_id=action.incident.subject_id)
    return Sent(TryOutcome.SENT, "asked for: all workers start together")


def _send_stop(action: Action, cluster: Callable[[], Cluster]) -> Sent:
    """Store the log tails, then suspend the job, guarded by the resourceVersion read just before."""
    job = action.incident.job
    if job is None:
        return Sent(TryOutcome.PERMANENT, "the incident has no job to stop")
    adapter = cluster()
    _store_log_tails(action, adapter)
    status = adapter.job_status(namespace=job.namespace, name=job.name)
    if status is None or status.uid != job.owner_uid:
        return Sent(TryOutcome.SENT, f"{job} is gone, nothing is left to suspend", found=True)
    if status.is_suspended:
        return Sent(TryOutcome.SENT, f"{job} was suspended already", found=True)
    if not still_ours(action):
        return Sent(TryOutcome.RETRYABLE, "the lease ran out before the send")
    crash_points.reach("action_sending")
    outcome = adapter.suspend_job(
        namespace=job.namespace,
        name=job.name,
        uid=job.owner_uid,
        resource_version=status.resource_version,
        annotations={
            "incidentdesk.io/stopped-by": f"incidentdesk, {action.incident}",
            "incidentdesk.io/stop-reason": action.why[:500],
            "incidentdesk.io/fence": f"{action.uid}/{action.try_n}",
        },
    )
    if outcome is SuspendOutcome.DONE:
        return Sent(TryOutcome.SENT, f"{job} suspended")
    return Sent(TryOutcome.SENT, f"{job}: {outcome}", found=True)


def _store_log_tails(action: Action, adapter: Cluster) -> None:
    """Last lines of every worker that still has a pod; a pod whose log is gone is said, not fatal."""
    for pod in Pod.objects.filter(job=action.incident.job, gone_at__isnull=True).order_by("role", "index"):
        try:
            lines = list(
                adapter.log_tail(
                    namespace=pod.namespace, pod=pod.name, container=_container(pod), lines=LOG_TAIL_LINES
                )
            )
        except ClusterUnavailable:
            raise
        except ClusterError as error:
            lines = [f"(log not readable: {error})"]
        LogTail.objects.get_or_create(
            incident=action.incident,
            worker=f"{pod.role} {pod.index}",
            pod_name=pod.name,
            defaults={
                "tenant_id": action.tenant_id,
                "lines": "\n".join(clean_lines(lines)),
                "stored_at": database_now(),
            },
        )


def _container(pod: Pod) -> str:
    names = [container.get("name", "") for container in pod.containers]
    return "train" if "train" in names or not names else names[0]


def _send_question(action: Action, cluster: Callable[[], Cluster]) -> Sent:
    """Put the question on the desk. It is delivered when it can be read there."""
    with transaction.atomic():
        now = database_now()
        Notice.objects.get_or_create(
            action=action,
            defaults={
                "tenant_id": action.tenant_id,
                "incident": action.incident,
                "text": action.why,
                "created_at": now,
                "delivered_at": now,
            },
        )
        feed.publish(tenant_id=action.tenant_id, topic="incident", key=action.incident_id, now=now)
    return Sent(TryOutcome.SENT, "notice on the desk")


_SENDERS: dict[ActionKind, Callable[[Action, Callable[[], Cluster]], Sent]] = {
    ActionKind.RESTART_PROCESS: _send_restart,
    ActionKind.STOP_JOB: _send_stop,
    ActionKind.ASK_PERSON: _send_question,
}


def _finish_try(action_id: int, try_n: int, sent: Sent) -> None:
    """Write how the try ended. A try that lost its lease meanwhile writes only its own record."""
    ended_for_good = False
    with transaction.atomic():
        action = (
            Action.objects.select_for_update(no_key=True, of=("self",))
            .select_related("incident__subject")
            .get(pk=action_id)
        )
        now = database_now()
        ActionTry.objects.filter(action=action, n=try_n).update(
            ended_at=now, outcome=sent.outcome, detail=sent.detail
        )
        if action.state != ActionState.RUNNING or action.try_n != try_n:
            return
        action.lease_until_at = None
        action.lease_owner = ""
        if sent.outcome in (TryOutcome.SENT, TryOutcome.AMBIGUOUS):
            action.state = ActionState.VERIFYING
            action.is_found = sent.found
        elif sent.outcome is TryOutcome.RETRYABLE:
            delay = RETRY_SECONDS[min(try_n, len(RETRY_SECONDS)) - 1]
            action.state = ActionState.READY
            action.not_before_at = now + timedelta(seconds=delay)
        else:
            action.state = ActionState.VERIFYING  # its end is a decision's to write
            ended_for_good = True
        action.save(update_fields=["state", "is_found", "not_before_at", "lease_until_at", "lease_owner"])
        if ended_for_good:
            _record(
                action,
                kind=SignalKind.ACTION_ENDED,
                source_key=f"{action.uid}/ended",
                body={"action_uid": str(action.uid), "state": "failed", "detail": sent.detail},
            )
            subject_id = action.incident.subject_id
            transaction.on_commit(lambda: wake_subjects([subject_id]))
        feed.publish(tenant_id=action.tenant_id, topic="incident", key=action.incident_id, now=now)


def check_effect(*, action_id: int) -> bool:
    """Look whether a verifying action's effect is there, and tell its subject. Safe to repeat.

    A restart in place is seen by the decision itself, from the agents' answers.

    Returns:
        Whether the effect was seen.
    """
    action = (
        Action.objects.select_related("incident__job", "incident__subject")
        .filter(pk=action_id, state=ActionState.VERIFYING)
        .first()
    )
    if action is None:
        return False
    seen = _effect_of(action)
    if seen is None:
        return False
    crash_points.reach("action_seen")
    _record(
        action,
        kind=SignalKind.ACTION_ENDED,
        source_key=f"{action.uid}/ended",
        body={"action_uid": str(action.uid), "state": "done", "detail": seen},
    )
    decide_subject(subject_id=action.incident.subject_id)
    return True


def _effect_of(action: Action) -> str | None:
    """What the witness of this kind saw, in words, or None while it has not."""
    if action.kind == ActionKind.STOP_JOB:
        job = action.incident.job
        if job is None or not (job.is_suspended or job.gone_at):
            return None
        if Pod.objects.filter(job=job, gone_at__isnull=True, phase__in=["Running", "Unknown"]).exists():
            return None
        return "suspended, no pod runs (seen in the watch)"
    if action.kind == ActionKind.ASK_PERSON:
        notice = Notice.objects.filter(action=action, delivered_at__isnull=False).first()
        return "notice can be read on the desk" if notice else None
    return None


def recover_lapsed(*, now: datetime) -> list[int]:
    """Give back actions whose lease ran out: their executor died or slept.

    One whose go was recorded is being verified, not sent again; so is a harmful one, of which nobody knows
    whether it was sent.

    Returns:
        Ids of actions that may be claimed again.
    """
    again = []
    lapsed = Action.objects.filter(state=ActionState.RUNNING, lease_until_at__lt=now).values_list(
        "pk", flat=True
    )
    for action_id in list(lapsed):
        with transaction.atomic():
            action = (
                Action.objects.select_for_update(skip_locked=True, no_key=True, of=("self",))
                .select_related("incident__subject")
                .filter(pk=action_id, state=ActionState.RUNNING, lease_until_at__lt=now)
                .first()
            )
            if action is None:
                continue
            was_sent = Signal.objects.filter(
                source=Source.DESK, source_key=f"{action.uid}/go/{action.try_n}"
            ).exists()
            ActionTry.objects.filter(action=action, n=action.try_n, ended_at__isnull=True).update(
                ended_at=now,
                outcome=TryOutcome.AMBIGUOUS,
                detail=f"lease of {action.lease_owner} ran out; its effect is looked for before another try",
            )
            was_sent = was_sent or action.kind in HARMFUL_ACTIONS
            action.state = ActionState.VERIFYING if was_sent else ActionState.READY
            action.lease_until_at = None
            action.lease_owner = ""
            action.not_before_at = None
            action.save(update_fields=["state", "lease_until_at", "lease_owner", "not_before_at"])
            if not was_sent:
                again.append(action.pk)
    return again


def _record(action: Action, *, kind: SignalKind, source_key: str, body: dict[str, object]) -> None:
    with transaction.atomic():
        now = database_now()
        record_signals(
            signals=[
                NewSignal(
                    tenant_id=action.tenant_id,
                    cluster_id=action.incident.cluster_id,
                    source=Source.DESK,
                    source_key=source_key,
                    kind=kind,
                    body=body,
                    seen_at=now,
                    subject_ids=(action.incident.subject_id,),
                )
            ],
            now=now,
        )
