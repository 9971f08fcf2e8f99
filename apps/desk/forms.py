"""What people type and choose: filters in the address, and the reasons that go with an act."""

from __future__ import annotations

import zoneinfo
from typing import Any

from django import forms
from django.contrib.auth.forms import AuthenticationForm
from django.core.exceptions import BadRequest
from django.http import QueryDict

from apps.access.models import User
from apps.incidents.selectors import TABS, IncidentFilter
from apps.jobs.selectors import JobFilter
from apps.nodes.selectors import NodeFilter, NodeState
from recovery.lifecycle import IncidentState, Severity
from recovery.phases import Phase


def _choices(words: Any) -> list[tuple[str, str]]:
    return [(str(word), str(word)) for word in words]


class AddressForm(forms.Form):
    """A filter in the address. What cannot be read is a BadRequest that names the field, never ignored."""

    def read(self) -> dict[str, Any]:
        """The cleaned values."""
        if not self.is_valid():
            name, errors = next(iter(self.errors.items()))
            raise BadRequest(f"The filter {name} cannot be read: {errors[0]}")
        return self.cleaned_data


class IncidentFilterForm(AddressForm):
    """Filter of the incidents list."""

    tab = forms.ChoiceField(choices=_choices(TABS), required=False)
    severity = forms.MultipleChoiceField(choices=_choices(Severity), required=False)
    state = forms.MultipleChoiceField(choices=_choices(IncidentState), required=False)
    job = forms.IntegerField(min_value=1, max_value=2**62, required=False)
    q = forms.CharField(max_length=200, required=False)


class JobFilterForm(AddressForm):
    """Filter of the jobs list."""

    tab = forms.ChoiceField(choices=_choices(("live", "ended", "all")), required=False)
    phase = forms.MultipleChoiceField(choices=_choices(Phase), required=False)
    protection = forms.ChoiceField(choices=_choices(("protected", "unprotected")), required=False)
    q = forms.CharField(max_length=200, required=False)


class NodeFilterForm(AddressForm):
    """Filter of the nodes list."""

    state = forms.MultipleChoiceField(choices=_choices(NodeState), required=False)
    rack = forms.CharField(max_length=100, required=False)
    pool = forms.CharField(max_length=100, required=False)
    view = forms.ChoiceField(choices=_choices(("list", "racks")), required=False)
    q = forms.CharField(max_length=200, required=False)


def incident_filter(query: QueryDict, cluster_id: int | None) -> IncidentFilter:
    """The incidents filter of an address."""
    read = IncidentFilterForm(query).read()
    return IncidentFilter(
        tab=read["tab"] or "open",
        severities=tuple(read["severity"]),
        states=tuple(read["state"]),
        job_id=read["job"],
        text=read["q"].strip(),
        cluster_id=cluster_id,
    )


def job_filter(query: QueryDict, cluster_id: int | None) -> JobFilter:
    """The jobs filter of an address."""
    read = JobFilterForm(query).read()
    return JobFilter(
        tab=read["tab"] or "live",
        phases=tuple(read["phase"]),
        protection=read["protection"],
        text=read["q"].strip(),
        cluster_id=cluster_id,
    )


def node_filter(query: QueryDict, cluster_id: int | None) -> tuple[NodeFilter, str]:
    """The nodes filter of an address, and whether it is shown as list or racks."""
    read = NodeFilterForm(query).read()
    wanted = NodeFilter(
        states=tuple(read["state"]),
        rack=read["rack"],
        pool=read["pool"],
        text=read["q"].strip(),
        cluster_id=cluster_id,
    )
    return wanted, read["view"] or "list"


class ReasonForm(forms.Form):
    """Why somebody does something; the audit keeps it."""

    reason = forms.CharField(
        max_length=500, error_messages={"required": "Say why; the timeline and the audit keep it."}
    )


class StopForm(ReasonForm):
    """Why a job is stopped, and whether at once or after its next checkpoint."""

    at_safe_point = forms.BooleanField(required=False)


class NoteForm(forms.Form):
    """What somebody adds to what they do, if anything."""

    reason = forms.CharField(
        max_length=500, required=False, error_messages={"max_length": "Say it in 500 characters or fewer."}
    )


class AcknowledgeForm(forms.Form):
    """Which version of the incident the person has seen."""

    version = forms.IntegerField(min_value=0)


class LoginForm(AuthenticationForm):
    """Username and password. What is wrong is said without saying which of them."""

    error_messages = {
        **AuthenticationForm.error_messages,
        "invalid_login": "Username and password do not match. Small and capital letters differ.",
    }


class PreferencesForm(forms.Form):
    """The reader's own settings, in the user menu. What is not sent stays as it is."""

    time_zone = forms.ChoiceField(choices=lambda: _choices(time_zones()), required=False)
    theme = forms.ChoiceField(choices=_choices(("system", "light", "dark")), required=False)

    def save(self, user: User) -> None:
        """Store what was sent. ``single_keys`` is a check box with a hidden "off" before it."""
        user.time_zone = self.cleaned_data["time_zone"] or user.time_zone
        user.theme = self.cleaned_data["theme"] or user.theme
        if "single_keys" in self.data:
            user.single_keys = self.data["single_keys"] == "on"  # the last value sent
        user.save(update_fields=["time_zone", "theme", "single_keys"])


def time_zones() -> list[str]:
    """Zones that can be chosen: UTC, then those named after places, sorted."""
    areas = (
        "Africa/",
        "America/",
        "Antarctica/",
        "Asia/",
        "Atlantic/",
        "Australia/",
        "Europe/",
        "Indian/",
        "Pacific/",
    )
    return ["UTC", *sorted(name for name in zoneinfo.available_timezones() if name.startswith(areas))]
