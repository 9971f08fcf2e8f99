"""Jobs: one with the advice of how often to save; registering one that no watch sees; asking one to stop."""

from __future__ import annotations

from typing import Any

from django.conf import settings
from django.utils import timezone
from drf_spectacular.utils import extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from apps.access.api.views import DeskView
from apps.access.models import Cluster, Role, Tenant
from apps.access.permissions import PermissionMissing
from apps.incidents.api import examples
from apps.incidents.api.advice_serializers import AdvisedJobOutput, CheckpointAdviceOutput
from apps.incidents.api.serializers import RegisteredJobOutput, RegisterJobInput, StopInput, StopOutput
from apps.incidents.api.signal_views import IDEMPOTENCY_KEY, cluster_of
from apps.incidents.checkpoint_advice import checkpoint_advice
from apps.incidents.services import intake, people
from apps.jobs.api.serializers import JobDetailOutput, JobOutput
from apps.jobs.api.views import JobDetail, JobList, get_job
from recovery.errors import BadInput, Conflict, InvalidTransition
from recovery.figures import quantile


class JobListOrRegister(JobList):
    """Jobs, newest first."""

    scopes = {**JobList.scopes, "POST": "jobs:write"}

    @extend_schema(
        operation_id="jobs_register",
        request=RegisterJobInput,
        responses={201: RegisteredJobOutput},
        parameters=[IDEMPOTENCY_KEY],
        examples=[examples.REGISTER],
        filters=False,
    )
    def post(self, request: Request) -> Response:
        """Register a job of bare machines or Slurm. Its enrolment secret is told once, here."""
        form = RegisterJobInput(data=request.data)
        form.is_valid(raise_exception=True)
        said = form.validated_data
        token = self.caller.token
        if token is None or token.job_uid:
            raise PermissionMissing("Use a token of a whole tenant with the scope jobs:write.")
        cluster_id = cluster_of(self.caller, said.get("cluster"))
        if cluster_id is None:
            raise BadInput("The desk has several clusters: name one.", field="cluster")
        secret: list[str] = []

        def register() -> tuple[int, dict[str, Any]]:
            registered = intake.register_bare_job(
                tenant=Tenant.objects.get(pk=token.tenant_id),
                cluster=Cluster.objects.get(pk=cluster_id),
                actor_kind="token",
                actor=self.caller.name,
                namespace=said["namespace"],
                name=said["name"],
                world_size=said["world_size"],
                owner_uid=said["uid"],
                gpus_per_worker=said["gpus_per_worker"],
                max_retry=said.get("max_retry", settings.DEFAULT_MAX_RETRY),
                stop_grace_seconds=said.get(
                    "stop_grace_seconds", float(settings.TIMINGS["STOP_GRACE_SECONDS"])
                ),
                protect=said["protect"],
                secret_expires_at=said["secret_expires_at"],
            )
            secret.append(registered.secret)
            job = registered.job
            return 201, {
                "id": job.pk,
                "uid": job.owner_uid,
                "job": str(job),
                "worker_names": f"{job.name}-0 to {job.name}-{job.world_size - 1}",
                "enrolment_secret": None,  # kept for a repeated request, so without the secret
            }

        response = self.once(tenant_id=token.tenant_id, endpoint="jobs", answer=register)
        if secret:
            response.data = {**response.data, "enrolment_secret": secret[0]}
        return response


class AdvisedJobDetail(JobDetail):
    """One job with its workers, and how often it should save."""

    @extend_schema(operation_id="jobs_retrieve", responses=AdvisedJobOutput)
    def get(self, request: Request, job_id: int) -> Response:
        """The job with its workers, and how often it should save, by its own checkpoints and failures of its like.

        `checkpoint_advice` is null until a checkpoint has told how long its save took, and an attempt has begun.
        """
        job = self.job_with_workers(job_id)
        lives = [worker.incarnation for worker in job.workers.all() if worker.incarnation is not None]
        told_steps = sorted(life.step_seconds for life in lives if life.step_seconds)
        step = quantile(told_steps, 0.5) if told_steps else None
        advice = checkpoint_advice(job, now=timezone.now(), step_seconds=step)
        shown = JobDetailOutput(job).data
        told = CheckpointAdviceOutput(advice).data if advice is not None else None
        return Response({**shown, "checkpoint_advice": told})


class JobStop(DeskView):
    """Asking a job to stop."""

    scopes = {"POST": "jobs:write"}

    @extend_schema(
        operation_id="jobs_stop",
        request=StopInput,
        responses={202: StopOutput},
        parameters=[IDEMPOTENCY_KEY],
        examples=[examples.STOP],
    )
    def post(self, request: Request, job_id: int) -> Response:
        """Ask for Stopped, now or at the safe point. The job is suspended, not deleted.

        Whoever may change the Job in its cluster resumes it, by `suspend: false` in its spec: a new run begins.
        """
        form = StopInput(data=request.data)
        form.is_valid(raise_exception=True)
        job = get_job(self.caller, job_id)
        self.caller.require_role(job.tenant_id, Role.OPERATOR)
        said = form.validated_data
        user = self.caller.user

        def ask() -> tuple[int, dict[str, Any]]:
            try:
                if user is not None:
                    people.stop_job(job_id=job.pk, by=user, **said)
                else:
                    intake.ask_stop(job=job, by=self.caller.name, **said)
            except (Conflict, InvalidTransition) as error:
                error.present = dict(JobOutput(get_job(self.caller, job_id)).data)  # type: ignore[union-attr]
                raise
            return 202, {"id": job.pk, "phase": get_job(self.caller, job_id).phase}

        return self.once(tenant_id=job.tenant_id, endpoint=f"jobs/{job.pk}/stop", answer=ask)
