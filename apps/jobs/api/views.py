"""Reads of jobs below /api/v1/jobs/."""

from __future__ import annotations

from typing import Any

import django_filters
from django.db.models import Prefetch, QuerySet
from drf_spectacular.utils import extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from apps.access.api.filters import YesNoFilter
from apps.access.api.views import DeskList, DeskView
from apps.access.permissions import Caller
from apps.jobs import selectors
from apps.jobs.api.serializers import AttemptOutput, CheckpointOutput, JobDetailOutput, JobOutput
from apps.jobs.models import Attempt, Checkpoint, Job, Worker
from recovery.errors import NotFound
from recovery.phases import Phase


class JobFilter(django_filters.FilterSet):  # type: ignore[misc]
    """What a list of jobs may be narrowed by."""

    cluster = django_filters.CharFilter(field_name="cluster__slug")
    namespace = django_filters.CharFilter(field_name="namespace")
    name = django_filters.CharFilter(field_name="name")
    phase = django_filters.MultipleChoiceFilter(choices=[(str(phase), str(phase)) for phase in Phase])
    is_protected = YesNoFilter(field_name="is_protected")
    is_gone = YesNoFilter(field_name="gone_at", lookup_expr="isnull", exclude=True)

    class Meta:
        model = Job
        fields: tuple[str, ...] = ()


def visible_jobs(caller: Caller) -> QuerySet[Job]:
    """Jobs that the caller may see, newest first."""
    return caller.limit(selectors.visible_jobs(caller.tenant_ids), job="")


def get_job(caller: Caller, job_id: int) -> Job:
    """A job that the caller may see; NotFound tells nothing about the ones that it may not."""
    job = visible_jobs(caller).filter(pk=job_id).first()
    if job is None:
        raise NotFound(f"There is no job {job_id}.")
    return job


class JobList(DeskList):
    """Jobs, newest first."""

    scopes = {"GET": "jobs:read"}
    serializer_class = JobOutput
    filterset_class = JobFilter
    ordering_fields = ("-id", "created_at", "phase_since_at", "name")

    def get_queryset(self) -> QuerySet[Job]:
        if getattr(self, "swagger_fake_view", False):
            return Job.objects.none()
        return visible_jobs(self.caller).defer("annotations", "limits")


class JobDetail(DeskView):
    """One job with its workers."""

    scopes = {"GET": "jobs:read"}

    @extend_schema(operation_id="jobs_retrieve", responses=JobDetailOutput)
    def get(self, request: Request, job_id: int) -> Response:
        """The job with its workers."""
        return Response(JobDetailOutput(self.job_with_workers(job_id)).data)

    def job_with_workers(self, job_id: int) -> Job:
        """The job that was asked for; NotFound where the caller may not see it."""
        workers = (
            Worker.objects.filter(is_retired=False)
            .select_related("incarnation")
            .defer("environment", "checks", "handled")
        )
        job = (
            visible_jobs(self.caller)
            .filter(pk=job_id)
            .prefetch_related(Prefetch("workers", queryset=workers))
            .first()
        )
        if job is None:
            raise NotFound(f"There is no job {job_id}.")
        return job


class AttemptList(DeskList):
    """Attempts of a job, newest first."""

    scopes = {"GET": "jobs:read"}
    serializer_class = AttemptOutput
    ordering_fields = ("-n",)

    def get_queryset(self) -> QuerySet[Attempt]:
        if getattr(self, "swagger_fake_view", False):
            return Attempt.objects.none()
        return Attempt.objects.filter(job=get_job(self.caller, self.kwargs["job_id"]))


class CheckpointFilter(django_filters.FilterSet):  # type: ignore[misc]
    """What a list of checkpoints may be narrowed by."""

    state = django_filters.MultipleChoiceFilter(
        choices=[(word, word) for word in ("written", "committed", "verified")]
    )

    class Meta:
        model = Checkpoint
        fields: tuple[str, ...] = ()


class JobCheckpointList(DeskList):
    """Checkpoints of a job, highest step first."""

    scopes = {"GET": "jobs:read"}
    serializer_class = CheckpointOutput
    filterset_class = CheckpointFilter
    ordering_fields = ("-step",)

    def get_queryset(self) -> QuerySet[Any]:
        if getattr(self, "swagger_fake_view", False):
            return Checkpoint.objects.none()
        return Checkpoint.objects.filter(job=get_job(self.caller, self.kwargs["job_id"]))
