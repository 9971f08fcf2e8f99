"""Incidents, their timelines, and what people do to them; actions; nodes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import django_filters
from django.db.models import Exists, OuterRef, QuerySet
from drf_spectacular.utils import extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from apps.access.api.filters import YesNoFilter
from apps.access.api.views import DeskList, DeskView
from apps.access.models import Role, Token, User
from apps.access.permissions import Caller, PermissionMissing
from apps.incidents import selectors
from apps.incidents.api import examples
from apps.incidents.api.serializers import (
    AcknowledgeInput,
    ActionOutput,
    IncidentDetailOutput,
    IncidentOutput,
    NodeDetailOutput,
    NodeOutput,
    ReasonInput,
    RestartInput,
    TimelineEventOutput,
)
from apps.incidents.api.signal_views import IDEMPOTENCY_KEY
from apps.incidents.models import Action, Incident, TimelineEvent
from apps.incidents.services import people
from apps.jobs.models import Incarnation
from apps.nodes.models import Machine
from apps.nodes.selectors import NodeState, visible_machines
from recovery.errors import Conflict, InvalidTransition, NotFound
from recovery.lifecycle import IncidentState, Severity


class IncidentFilter(django_filters.FilterSet):  # type: ignore[misc]
    """What a list of incidents may be narrowed by."""

    state = django_filters.MultipleChoiceFilter(choices=[(str(s), str(s)) for s in IncidentState])
    severity = django_filters.MultipleChoiceFilter(choices=[(str(s), str(s)) for s in Severity])
    is_open = YesNoFilter(method="filter_open", label="Neither resolved nor closed.")
    is_acknowledged = YesNoFilter(field_name="acknowledged_at", lookup_expr="isnull", exclude=True)
    cluster = django_filters.CharFilter(field_name="cluster__slug")
    job_id = django_filters.NumberFilter(field_name="job_id", min_value=1, max_value=2**63 - 1)
    opened_after = django_filters.IsoDateTimeFilter(field_name="opened_at", lookup_expr="gt")
    opened_before = django_filters.IsoDateTimeFilter(field_name="opened_at", lookup_expr="lt")

    class Meta:
        model = Incident
        fields: tuple[str, ...] = ()

    def filter_open(self, rows: QuerySet[Incident], name: str, value: bool) -> QuerySet[Incident]:
        """Open ones, or the others."""
        words = selectors.OPEN_WORDS
        return rows.filter(state__in=words) if value else rows.exclude(state__in=words)


def visible_incidents(caller: Caller) -> QuerySet[Incident]:
    """Incidents that the caller may see, newest first."""
    return caller.limit(selectors.visible_incidents(caller.tenant_ids), job="job")


def get_incident(caller: Caller, incident_id: int) -> Incident:
    """An incident that the caller may see; NotFound tells nothing about the others."""
    found = visible_incidents(caller).filter(pk=incident_id).first()
    if found is None:
        raise NotFound(f"There is no incident {incident_id}.")
    return found


def acting(caller: Caller, tenant_id: int) -> User | Token:
    """Who acts on an incident: an operator, or a token whose scope was checked before."""
    caller.require_role(tenant_id, Role.OPERATOR)
    found = caller.token if caller.token is not None else caller.user
    if found is None:
        raise PermissionMissing("Log in, or send a token with the scope incidents:write.")
    return found


def acting_person(caller: Caller, tenant_id: int) -> User:
    """The operator who acts on one action."""
    caller.require_role(tenant_id, Role.OPERATOR)
    if caller.user is None:
        raise PermissionMissing("This is a person's to do: log in.")
    return caller.user


class IncidentList(DeskList):
    """Incidents, newest first."""

    scopes = {"GET": "incidents:read"}
    serializer_class = IncidentOutput
    filterset_class = IncidentFilter
    ordering_fields = ("-id", "opened_at", "state_since_at")

    def get_queryset(self) -> QuerySet[Incident]:
        if getattr(self, "swagger_fake_view", False):
            return Incident.objects.none()
        return visible_incidents(self.caller)


class IncidentDetail(DeskView):
    """One incident."""

    scopes = {"GET": "incidents:read"}

    @extend_schema(operation_id="incidents_retrieve", responses=IncidentDetailOutput)
    def get(self, request: Request, incident_id: int) -> Response:
        """The incident with its causes, actions, and why they were chosen."""
        found = (
            visible_incidents(self.caller)
            .defer(None)
            .select_related("job", "machine", "cluster", "acknowledged_by")
            .prefetch_related("causes", "actions")
            .filter(pk=incident_id)
            .first()
        )
        if found is None:
            raise NotFound(f"There is no incident {incident_id}.")
        return Response(IncidentDetailOutput(found).data)


class IncidentTimeline(DeskList):
    """Events of an incident, first one first."""

    scopes = {"GET": "incidents:read"}
    serializer_class = TimelineEventOutput
    ordering_fields = ("n",)

    def get_queryset(self) -> QuerySet[TimelineEvent]:
        if getattr(self, "swagger_fake_view", False):
            return TimelineEvent.objects.none()
        return TimelineEvent.objects.filter(incident=get_incident(self.caller, self.kwargs["incident_id"]))


def _with_present[T](do: Callable[[], T], present: Callable[[], dict[str, Any]]) -> T:
    """Do it; a conflict carries the present state, which is what the person must see now."""
    try:
        return do()
    except (Conflict, InvalidTransition) as error:
        error.present = present()  # type: ignore[union-attr]
        raise


class _IncidentAct(DeskView):
    """Something that a person, or a program for one, does to an incident."""

    scopes = {"POST": "incidents:write"}

    def act(self, incident_id: int, do: Callable[[User | Token], object]) -> Response:
        """Check, do, and answer with the incident as it is then."""
        found = get_incident(self.caller, incident_id)
        by = acting(self.caller, found.tenant_id)

        def present() -> dict[str, Any]:
            return dict(IncidentOutput(get_incident(self.caller, incident_id)).data)

        _with_present(lambda: do(by), present)
        return Response(present())


class IncidentAcknowledge(_IncidentAct):
    """Somebody looks after it."""

    @extend_schema(
        operation_id="incidents_acknowledge",
        request=AcknowledgeInput,
        responses=IncidentOutput,
        examples=[examples.ACKNOWLEDGE],
    )
    def post(self, request: Request, incident_id: int) -> Response:
        """Acknowledge the version that was seen; 409 with the present state when it changed meanwhile."""
        form = AcknowledgeInput(data=request.data)
        form.is_valid(raise_exception=True)
        version = form.validated_data["version"]
        return self.act(
            incident_id,
            lambda by: people.acknowledge_incident(incident_id=incident_id, by=by, version=version),
        )


class IncidentResolve(_IncidentAct):
    """Somebody says that it is over."""

    @extend_schema(
        operation_id="incidents_resolve",
        request=ReasonInput,
        responses=IncidentOutput,
        examples=[examples.RESOLVE],
    )
    def post(self, request: Request, incident_id: int) -> Response:
        """Resolve an open incident; what is queued for it is cancelled."""
        form = ReasonInput(data=request.data)
        form.is_valid(raise_exception=True)
        reason = form.validated_data["reason"]
        return self.act(
            incident_id, lambda by: people.resolve_incident(incident_id=incident_id, by=by, reason=reason)
        )


class IncidentRestart(DeskView):
    """Somebody lets training start again."""

    scopes = {"POST": "incidents:write"}
    is_for_people = True  # as with "do it now": somebody answers for it

    @extend_schema(
        operation_id="incidents_restart",
        request=RestartInput,
        responses={202: IncidentOutput},
        parameters=[IDEMPOTENCY_KEY],
        examples=[examples.RESTART],
    )
    def post(self, request: Request, incident_id: int) -> Response:
        """Let all workers of the job start again in place now.

        It counts nothing by itself. A restart that waits begins; else one is made, under the same guards as the
        desk's own. 409 says what stands in the way, and what to do instead.
        """
        form = RestartInput(data=request.data)
        form.is_valid(raise_exception=True)
        found = get_incident(self.caller, incident_id)
        by = acting_person(self.caller, found.tenant_id)

        def present() -> dict[str, Any]:
            return dict(IncidentOutput(get_incident(self.caller, incident_id)).data)

        def restart() -> tuple[int, dict[str, Any]]:
            reason = form.validated_data["reason"]
            _with_present(
                lambda: people.restart_in_place(incident_id=found.pk, by=by, reason=reason), present
            )
            return 202, present()

        return self.once(tenant_id=found.tenant_id, endpoint=f"incidents/{found.pk}/restart", answer=restart)


class _ActionAct(DeskView):
    """Something that a person does to an action."""

    scopes = {"POST": "incidents:write"}
    is_for_people = True  # when a remedy runs is a person's to answer for: no scope of a token allows it

    def act(self, action_id: int, do: Callable[[User], object]) -> Response:
        """Check, do, and answer with the action as it is then."""
        actions = self.caller.limit(Action.objects.all(), cluster="incident__cluster", job="incident__job")
        found = actions.filter(pk=action_id).first()
        if found is None:
            raise NotFound(f"There is no action {action_id}.")
        by = acting_person(self.caller, found.tenant_id)

        def present() -> dict[str, Any]:
            return dict(ActionOutput(actions.get(pk=action_id)).data)

        _with_present(lambda: do(by), present)
        return Response(present())


class ActionCancel(_ActionAct):
    """Take back what has not begun."""

    @extend_schema(operation_id="actions_cancel", request=ReasonInput, responses=ActionOutput)
    def post(self, request: Request, action_id: int) -> Response:
        """Cancel an action that has not begun; 409 with its present state when it has."""
        form = ReasonInput(data=request.data)
        form.is_valid(raise_exception=True)
        reason = form.validated_data["reason"]
        return self.act(action_id, lambda by: people.cancel_action(action_id=action_id, by=by, reason=reason))


class ActionDoNow(_ActionAct):
    """Do not wait any longer."""

    @extend_schema(operation_id="actions_do_now", request=None, responses=ActionOutput)
    def post(self, request: Request, action_id: int) -> Response:
        """Let an action that waits for its time begin at once; 409 when it does not wait."""
        return self.act(action_id, lambda by: people.do_action_now(action_id=action_id, by=by))


class NodeFilter(django_filters.FilterSet):  # type: ignore[misc]
    """What a list of nodes may be narrowed by."""

    cluster = django_filters.CharFilter(field_name="cluster__slug")
    name = django_filters.CharFilter(field_name="name")
    rack = django_filters.CharFilter(field_name="rack")
    pool = django_filters.CharFilter(field_name="pool")
    state = django_filters.MultipleChoiceFilter(
        field_name="state", choices=[(str(s), str(s)) for s in NodeState]
    )
    is_gone = YesNoFilter(field_name="gone_at", lookup_expr="isnull", exclude=True)

    class Meta:
        model = Machine
        fields: tuple[str, ...] = ()


def visible_nodes(caller: Caller) -> QuerySet[Machine]:
    """Machines on which jobs of the caller have run; nodes have no tenant of their own."""
    machines = visible_machines(caller.tenant_ids)
    if caller.cluster_id is not None:
        machines = machines.filter(cluster_id=caller.cluster_id)
    if caller.job_uid:
        lives = Incarnation.objects.filter(machine=OuterRef("pk"), worker__job__owner_uid=caller.job_uid)
        machines = machines.filter(Exists(lives.filter(tenant__in=caller.tenant_ids or ())))
    return machines


class NodeList(DeskList):
    """Nodes by name."""

    scopes = {"GET": "nodes:read"}
    serializer_class = NodeOutput
    filterset_class = NodeFilter
    ordering_fields = ("name", "last_seen_at")

    def get_queryset(self) -> QuerySet[Machine]:
        if getattr(self, "swagger_fake_view", False):
            return Machine.objects.none()
        return visible_nodes(self.caller).defer("labels", "addresses", "conditions")


class NodeDetail(DeskView):
    """One node."""

    scopes = {"GET": "nodes:read"}

    @extend_schema(operation_id="nodes_retrieve", responses=NodeDetailOutput)
    def get(self, request: Request, node_id: int) -> Response:
        """The node as the watch last saw it."""
        found = visible_nodes(self.caller).filter(pk=node_id).first()
        if found is None:
            raise NotFound(f"There is no node {node_id}.")
        return Response(NodeDetailOutput(found).data)
