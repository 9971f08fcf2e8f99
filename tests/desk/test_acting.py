"""What people do from the pages, what they may not, and what they are told."""

from __future__ import annotations

import pytest
from django.test import Client

from apps.access.models import AuditEntry
from apps.incidents.models import Incident, Signal
from tests.desk.conftest import incident_of, job, text_of


def test_acknowledge_shows_in_the_answer_itself(operator: Client) -> None:
    """D6: the acting person's own page shows the new state in the same response."""
    incident = incident_of("vision-moe", state="waiting")
    response = operator.post(
        f"/incidents/{incident.pk}/acknowledge/",
        {"version": incident.version},
        headers={"HX-Request": "true"},
        follow=True,
    )
    assert response.status_code == 200
    text = text_of(response)
    assert f"INC-{incident.pk} is yours now." in text
    assert "taken by mei.lin" in text
    assert 'data-key="a"' not in response.content.decode()
    assert AuditEntry.objects.filter(verb="acknowledge", target=str(incident)).exists()


def test_acknowledge_from_the_list_answers_with_the_list(operator: Client) -> None:
    incident = incident_of("vision-moe", state="waiting")
    response = operator.post(
        f"/incidents/{incident.pk}/acknowledge/",
        {"version": 0, "next": "/incidents/?severity=high"},
        follow=True,
    )
    assert response.redirect_chain == [("/incidents/?severity=high", 302)]
    assert "mei.lin" in text_of(response)


def test_acknowledge_after_resolve_is_refused_with_the_present_state(operator: Client) -> None:
    """D8: a late acknowledge does not reopen."""
    incident = incident_of("llm-70b-pretrain")
    response = operator.post(f"/incidents/{incident.pk}/acknowledge/", {"version": 0}, follow=True)
    assert "Not done:" in text_of(response)
    assert "is resolved" in text_of(response)
    assert Incident.objects.get(pk=incident.pk).state == "resolved"


def test_second_acknowledge_names_the_first(operator: Client) -> None:
    incident = incident_of("bert-distil")
    text = text_of(
        operator.post(f"/incidents/{incident.pk}/acknowledge/", {"version": incident.version}, follow=True)
    )
    assert "acknowledged by mei.lin already" in text


def test_stale_version_is_refused(operator: Client) -> None:
    incident = incident_of("vision-moe", state="waiting")
    Incident.objects.filter(pk=incident.pk).update(version=4)
    text = text_of(operator.post(f"/incidents/{incident.pk}/acknowledge/", {"version": 3}, follow=True))
    assert "changed meanwhile and is waiting now" in text


@pytest.mark.parametrize("target", ["https://evil.example/", "//evil.example/", "javascript:alert(1)"])
def test_way_back_never_leaves_the_desk(operator: Client, target: str) -> None:
    incident = incident_of("vision-moe", state="waiting")
    response = operator.post(f"/incidents/{incident.pk}/acknowledge/", {"version": 0, "next": target})
    assert response["Location"] == f"/incidents/{incident.pk}/"


@pytest.mark.parametrize("act", ["resolve", "stop", "cancel"])
def test_acts_need_a_reason(operator: Client, act: str) -> None:
    incident = incident_of("vision-moe", state="waiting")
    address = {
        "resolve": f"/incidents/{incident.pk}/resolve/",
        "stop": f"/jobs/{incident.job_id}/stop/",
        "cancel": f"/actions/{incident.actions.get().pk}/cancel/",
    }[act]
    response = operator.post(address, {"reason": " "}, follow=True)
    assert "Say why; the timeline and the audit keep it." in text_of(response)
    assert Incident.objects.get(pk=incident.pk).state == "waiting"


def test_reader_without_the_role_has_no_buttons_and_is_refused(viewer: Client) -> None:
    incident = incident_of("rlhf-ppo")
    html = viewer.get(f"/incidents/{incident.pk}/").content.decode()
    assert "operators of nlp act" in html
    assert 'data-key="a"' not in html
    assert "<form" not in html[html.index("<main") : html.index("</main>")]
    response = viewer.post(f"/incidents/{incident.pk}/acknowledge/", {"version": 0})
    assert response.status_code == 403
    assert "needs the role operator in the tenant nlp" in text_of(response)
    assert viewer.post(f"/jobs/{incident.job_id}/stop/", {"reason": "x"}).status_code == 403
    assert "Stop …" not in text_of(viewer.get(f"/jobs/{incident.job_id}/"))


def test_acts_answer_to_post_only_and_need_the_token_of_the_form(operator: Client) -> None:
    incident = incident_of("vision-moe", state="waiting")
    assert operator.get(f"/incidents/{incident.pk}/acknowledge/").status_code == 405
    strict = Client(enforce_csrf_checks=True)
    strict.cookies = operator.cookies
    response = strict.post(f"/incidents/{incident.pk}/acknowledge/", {"version": 0})
    assert response.status_code == 403
    assert "Nothing was done" in response.content.decode()


def test_dialog_opens_without_scripts(operator: Client) -> None:
    incident = incident_of("vision-moe", state="waiting")
    assert (
        '<dialog id="resolve" aria-labelledby="resolve-title">'
        in operator.get(f"/incidents/{incident.pk}/").content.decode()
    )
    opened = operator.get(f"/incidents/{incident.pk}/?dialog=resolve").content.decode()
    assert '<dialog id="resolve" aria-labelledby="resolve-title" open>' in opened


def test_resolve_by_a_person_is_decided_and_shown_at_once(operator: Client) -> None:
    incident = incident_of("bert-distil")
    response = operator.post(f"/incidents/{incident.pk}/resolve/", {"reason": "data was mended"}, follow=True)
    assert f"INC-{incident.pk} is resolved." in text_of(response), text_of(response)[:600]
    assert Incident.objects.get(pk=incident.pk).resolution == "by_person"
    assert AuditEntry.objects.get(verb="resolve", target=str(incident)).reason == "data was mended"
    assert "resolved by a person" in text_of(response)


def test_action_that_waits_can_be_cancelled(operator: Client) -> None:
    incident = incident_of("vision-moe", state="waiting")
    action = incident.actions.get()
    response = operator.post(f"/actions/{action.pk}/cancel/", {"reason": "I look first"}, follow=True)
    assert "The action is cancelled." in text_of(response), text_of(response)[:600]
    action.refresh_from_db()
    assert action.state == "cancelled"


def test_workers_can_be_told_to_start_again(operator: Client) -> None:
    incident = incident_of("vision-moe", state="waiting")
    address = f"/incidents/{incident.pk}/"
    assert "Restart in place now" not in text_of(operator.get(address)), "its restart waits by itself"
    action = incident.actions.get()
    cancelled = operator.post(f"/actions/{action.pk}/cancel/", {"reason": "I look first"}, follow=True)
    assert "Restart in place now" in text_of(cancelled)
    opened = operator.get(f"{address}?dialog=restart").content.decode()
    assert '<dialog id="restart" aria-labelledby="restart-title" open>' in opened
    response = operator.post(f"{address}restart/", {"reason": "the mount is back"}, follow=True)
    text = text_of(response)
    assert "The restart is decided" in text, text[:600]
    assert "mei.lin asks for a restart in place: the mount is back" in text
    assert "Restart in place now" not in text
    too_long = operator.post(f"{address}restart/", {"reason": "x" * 501}, follow=True)
    assert "500 characters or fewer" in text_of(too_long)


def test_what_a_restart_waits_for_is_said_instead_of_a_button(operator: Client, viewer: Client) -> None:
    incident = incident_of("bert-distil", state="needs_person")
    for reader in (operator, viewer):
        text = text_of(reader.get(f"/incidents/{incident.pk}/"))
        assert "No restart in place from here: its workers run, attempt 1" in text
        assert "Restart in place now" not in text
    response = operator.post(f"/incidents/{incident.pk}/restart/", {}, follow=True)
    assert "Not done: its workers run" in text_of(response)
    assert viewer.post(f"/incidents/{incident.pk}/restart/", {}).status_code == 403
    Incident.objects.filter(pk=incident.pk).update(verdict={"slow": {"attempt": 1}})
    text = text_of(operator.get(f"/incidents/{incident.pk}/"))
    assert "restart in place" not in text.lower(), "it is slow and trains: nothing has to start"


def test_stop_is_asked_for_and_told(operator: Client) -> None:
    running = job("asr-large")
    response = operator.post(f"/jobs/{running.pk}/stop/", {"reason": "wrong data"}, follow=True)
    assert "The stop is asked for" in text_of(response), text_of(response)[:600]
    assert AuditEntry.objects.get(verb="stop").target == "speech-train/asr-large"
    assert Signal.objects.get(kind="quit").body["at_safe_point"] is False


def test_stop_after_the_next_checkpoint_leaves_the_job_running_until_then(operator: Client) -> None:
    running = job("asr-large")
    assert "after its next checkpoint" in text_of(operator.get(f"/jobs/{running.pk}/"))
    text = text_of(
        operator.post(f"/jobs/{running.pk}/stop/", {"reason": "enough", "at_safe_point": "on"}, follow=True)
    )
    assert "it comes after the next checkpoint" in text, text[:600]
    running.refresh_from_db()
    assert running.phase == "RunCommand"
    assert Signal.objects.get(kind="quit").body["at_safe_point"] is True
