"""Login, zone, theme, and what a session that has ended is told."""

from __future__ import annotations

import re
from urllib.parse import parse_qs, urlsplit

import pytest
from django.test import Client

from apps.access.models import User
from tests.desk.conftest import PASSWORD, incident_of, text_of


def test_stranger_is_led_to_the_login_and_back(sample: None) -> None:
    client = Client()
    response = client.get("/incidents/?tab=all")
    assert response["Location"] == "/login/?next=/incidents/%3Ftab%3Dall"
    answer = client.post(
        "/login/", {"username": "mei.lin", "password": PASSWORD, "next": "/incidents/?tab=all"}
    )
    assert answer["Location"] == "/incidents/?tab=all"


def test_wrong_password_is_said_without_saying_which(sample: None) -> None:
    response = Client().post("/login/", {"username": "mei.lin", "password": "wrong"})
    assert response.status_code == 200
    assert "Username and password do not match." in text_of(response)
    html = response.content.decode()
    assert re.search(
        r'name="username" autocomplete="username" [^>]*aria-invalid="true" aria-describedby="login-error"',
        html,
    )
    assert re.search(r'name="password" type="password" autocomplete="current-password" [^>]*autofocus', html)
    assert 'value="mei.lin"' in html
    assert "wrong" not in html


def test_login_says_where_it_leads(sample: None) -> None:
    assert "the page that you asked for" in text_of(Client().get("/login/?next=/jobs/"))
    assert "Keeps large training jobs alive" in text_of(Client().get("/login/?next=/"))


def test_form_after_the_session_ended_leads_back_to_its_page(sample: None) -> None:
    """What can only be sent cannot be asked for: a login that led there would end in an error."""
    page = f"/incidents/{incident_of('bert-distil').pk}/"
    for came_from, leads_to in (
        (f"http://testserver{page}?tab=audit", f"{page}?tab=audit"),
        (f"http://elsewhere{page}", "/"),
        ("", "/"),
    ):
        answer = Client().post(f"{page}acknowledge/", {"version": "1"}, headers={"Referer": came_from})
        assert parse_qs(urlsplit(answer["Location"]).query)["next"] == [leads_to]


def test_fragment_after_the_session_ended_is_no_login_page(sample: None) -> None:
    response = Client().get("/incidents/", headers={"HX-Request": "true"})
    assert response.status_code == 401
    assert b"Log in again" in response.content


@pytest.mark.parametrize(
    ("zone", "shown"), [("UTC", "UTC"), ("Europe/Berlin", "CE"), ("America/Sao_Paulo", "UTC-03")]
)
def test_times_are_in_the_readers_zone(operator: Client, zone: str, shown: str) -> None:
    answer = operator.post("/preferences/", {"time_zone": zone, "next": "/"})
    assert answer.status_code == 302
    assert f"Timeline {shown}" in text_of(operator.get(f"/incidents/{incident_of('llm-70b-pretrain').pk}/"))


def test_unknown_zone_is_refused_and_the_old_one_stays(operator: Client) -> None:
    text = text_of(operator.post("/preferences/", {"time_zone": "Mars/Olympus"}))
    assert "Mars/Olympus is not one of the available choices" in text
    assert User.objects.get(username="mei.lin").time_zone == "Europe/Berlin"


def test_theme_is_kept_and_drawn_by_the_server(operator: Client) -> None:
    operator.post("/preferences/", {"theme": "dark", "next": "/jobs/"})
    assert '<html lang="en" data-theme="dark">' in operator.get("/").content.decode()
    assert User.objects.get(username="mei.lin").time_zone == "Europe/Berlin"


def test_single_keys_can_be_turned_off(operator: Client) -> None:
    """D22: shortcuts can be turned off."""
    assert 'data-single-keys="on"' in operator.get("/").content.decode()
    operator.post("/preferences/", {"single_keys": "off"})
    assert 'data-single-keys="off"' in operator.get("/").content.decode()
    operator.post("/preferences/", {"single_keys": ["off", "on"]})
    assert 'data-single-keys="on"' in operator.get("/").content.decode()


def test_logout_ends_the_session(operator: Client) -> None:
    assert operator.post("/logout/")["Location"] == "/login/"
    assert operator.get("/").status_code == 302


def test_search_leads_straight_to_the_only_hit(operator: Client) -> None:
    incident = incident_of("bert-distil")
    assert operator.get(f"/search/?q=inc-{incident.pk}")["Location"] == f"/incidents/{incident.pk}/"
    assert operator.get("/search/?q=nlp-train/bert-distil")["Location"].startswith("/jobs/")
    assert operator.get("/search/?q=gpu-r12-01")["Location"].startswith("/nodes/")
    assert "gpu-r12-02" in text_of(operator.get("/search/?q=gpu-r12"))
