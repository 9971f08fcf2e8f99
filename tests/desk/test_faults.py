"""The "Break something" buttons: only in a desk with a simulated cluster, for operators, on simulated jobs."""

from __future__ import annotations

import re
from typing import Any

import pytest
from django.test import Client

from adapters.sim_faults import FaultRefused, SimulatorAway
from apps.access.models import AuditEntry, Cluster
from apps.desk import faults
from apps.jobs.models import Job
from tests.desk.conftest import job, text_of


@pytest.fixture
def asked(settings: Any, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str, dict[str, Any]]]:
    """Faults that were asked for; none reaches a cluster."""
    calls: list[tuple[str, str, dict[str, Any]]] = []

    def inject(endpoint: str, fault: str, parameters: dict[str, Any]) -> str:
        calls.append((endpoint, fault, parameters))
        return "Killed rank 1 (pid 4130)."

    settings.SIM_ENDPOINT = "/run/endpoint.json"
    monkeypatch.setattr(faults, "inject_fault", inject)
    return calls


def test_desk_without_simulator_has_no_buttons_and_no_address(operator: Client) -> None:
    assert "Break something" not in text_of(operator.get("/"))
    assert operator.post(f"/jobs/{job('asr-large').pk}/break/", {"fault": "kill-process"}).status_code == 404


def test_button_breaks_the_job_and_says_what_was_done(operator: Client, asked: list[Any]) -> None:
    page = text_of(operator.get(f"/jobs/{job('asr-large').pk}/"))
    assert "Kill a process Delete a pod Cut off the desk" in page
    response = operator.post(
        f"/jobs/{job('asr-large').pk}/break/", {"fault": "kill-process", "index": "1"}, follow=True
    )
    assert "Killed rank 1 (pid 4130). Watch what the desk does." in text_of(response)
    assert asked == [
        ("/run/endpoint.json", "kill-process", {"namespace": "speech-train", "job": "asr-large", "index": 1})
    ]
    assert AuditEntry.objects.get(verb="inject_fault").actor == "mei.lin"


def test_restoring_breaks_nothing_that_could_be_watched(operator: Client, asked: list[Any]) -> None:
    address = f"/jobs/{job('asr-large').pk}/break/"
    page = text_of(operator.post(address, {"fault": "restore"}, follow=True))
    assert "Killed rank 1 (pid 4130)." in page
    assert "Watch what the desk does." not in page


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (FaultRefused("no process runs"), "Nothing was broken: no process runs"),
        (SimulatorAway("no answer"), "It is not known whether something broke"),
    ],
)
def test_failure_is_told_as_it_is(
    operator: Client, settings: Any, monkeypatch: pytest.MonkeyPatch, error: Exception, said: str
) -> None:
    def inject(*args: Any) -> str:
        raise error

    settings.SIM_ENDPOINT = "/run/endpoint.json"
    monkeypatch.setattr(faults, "inject_fault", inject)
    response = operator.post(f"/jobs/{job('asr-large').pk}/break/", {"fault": "kill-process"}, follow=True)
    assert said in text_of(response)
    assert not AuditEntry.objects.filter(verb="inject_fault").exists()


def test_buttons_stay_with_the_job_that_they_broke(operator: Client, asked: list[Any]) -> None:
    """A second click must not hit another job because the first one worked."""

    def offered() -> str:
        return re.findall(r'action="(/jobs/\d+/break/)"', operator.get("/").content.decode())[0]

    first = offered()
    broken = Job.objects.get(pk=first.split("/")[2])
    assert broken.phase == "RunCommand"
    Job.objects.filter(pk=broken.pk).update(phase="Troubleshooting")
    assert offered() == first
    Job.objects.filter(pk=broken.pk).update(phase="Stopped")
    assert offered() != first


def test_real_cluster_is_never_broken(operator: Client, asked: list[Any]) -> None:
    Cluster.objects.update(is_simulated=False)
    assert "Break something" not in text_of(operator.get("/"))
    assert operator.post(f"/jobs/{job('asr-large').pk}/break/", {"fault": "kill-process"}).status_code == 403
    assert asked == []


def test_viewer_breaks_nothing(viewer: Client, asked: list[Any]) -> None:
    assert "Break something" not in text_of(viewer.get("/"))
    assert viewer.post(f"/jobs/{job('rlhf-ppo').pk}/break/", {"fault": "kill-process"}).status_code == 403
    assert asked == []


@pytest.mark.parametrize("form", [{"fault": "format-disk"}, {}, {"fault": "kill-process", "index": "-1"}])
def test_unknown_fault_is_refused(operator: Client, asked: list[Any], form: dict[str, str]) -> None:
    assert operator.post(f"/jobs/{job('asr-large').pk}/break/", form).status_code == 400
    assert asked == []
