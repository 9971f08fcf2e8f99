"""A person sees a failure happen: opened, recovering, resolved, live, in a real browser."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright import sync_api

from incidentdesk.drills.field import SimulatedCluster, wait_for
from incidentdesk.frontdoor.stack import Stack

pytestmark = [pytest.mark.drill, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    kept = {name: os.environ.pop(name) for name in ("DATABASE_URL", "REDIS_URL") if name in os.environ}
    place = tmp_path_factory.mktemp("d", numbered=True)
    try:
        with Stack(place, profile="drill", say=lambda line: None) as running:
            yield running
    finally:
        os.environ.update(kept)


def logins(stack: Stack) -> list[tuple[str, str]]:
    """Names and passwords that the demo prints."""
    return re.findall(r"(?m)^\s*(\S+)\s*/\s*(\S+)", stack.greeting)


def test_operator_breaks_a_job_and_watches_it_come_back(stack: Stack, browser: Any, tmp_path: Path) -> None:
    cluster = SimulatedCluster(stack.cluster / "endpoint.json")
    cluster.submit(
        namespace="drills",
        name="seen",
        workers=3,
        steps=1_000_000,
        step_seconds=0.05,
        checkpoint_every=10,
        protect=True,
        collective_timeout_seconds=10,
    )
    people = logins(stack)
    assert len(people) == 2, f"two logins should be printed, this was: {stack.greeting!r}"
    person = browser.new_context(viewport={"width": 1440, "height": 900})
    page = person.new_page()
    errors: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on("console", lambda message: errors.append(message.text) if message.type == "error" else None)
    page.goto(stack.url)
    page.get_by_label("Username").fill(people[0][0])
    page.get_by_label("Password").fill(people[0][1])
    page.get_by_role("button", name="Log in").click()
    page.goto(f"{stack.url}/jobs/")
    expect = sync_api.expect
    job_link = page.get_by_role("link", name=re.compile("seen")).first
    expect(job_link).to_be_visible(timeout=20_000)
    job_link.click()
    expect(page.locator("main")).to_contain_text("RunCommand", timeout=60_000)
    wait_for(
        "a committed checkpoint",
        lambda: "committed checkpoint" in cluster.log("drills", first_pod(cluster)),
        seconds=60,
    )
    before = cluster.processes("drills", "seen")
    overview = person.new_page()
    overview.goto(f"{stack.url}/")
    page.get_by_role("button", name=re.compile("kill a process", re.IGNORECASE)).first.click()
    # Live, without a reload: the overview shows the incident, its page shows recovery and end.
    incident_link = overview.get_by_role(
        "link", name=re.compile(r"INC-\d+|killed|Process", re.IGNORECASE)
    ).first
    expect(incident_link).to_be_visible(timeout=20_000)
    address = incident_link.get_attribute("href")
    assert address
    incident = person.new_page()
    incident.goto(stack.url + address)
    expect(incident.locator("main")).to_contain_text(re.compile("watching|resolved"), timeout=30_000)
    expect(incident.locator("main")).to_contain_text("resolved", timeout=60_000)
    expect(incident.locator("main")).to_contain_text("restart", timeout=5_000, ignore_case=True)
    incident.screenshot(path=tmp_path / "incident.png")
    person.close()
    after = cluster.processes("drills", "seen")
    assert {i: p.agent_pid for i, p in before.items()} == {i: p.agent_pid for i, p in after.items()}
    assert all(set(before[i].rank_pids).isdisjoint(after[i].rank_pids) for i in before)
    assert errors == []


def first_pod(cluster: SimulatedCluster) -> str:
    return wait_for("the pod of worker 0", lambda: cluster.processes("drills", "seen").get(0), seconds=30).pod
