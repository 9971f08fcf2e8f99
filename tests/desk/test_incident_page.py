"""One incident: verdict, actions, timeline, stages, exports."""

from __future__ import annotations

import csv
import io
import re
from datetime import timedelta

import pytest
from django.test import Client
from pytest_django import Settings

from apps.access.clock import database_now
from apps.desk.incident_page import timeline_lines, who
from apps.incidents.models import Action, Decision, Incident, Notice, TimelineEvent
from apps.jobs.models import Incarnation, Job
from apps.nodes.models import Machine
from recovery.decision_prices import price_restart
from recovery.figures import estimated, measured
from tests.desk.conftest import incident_of, text_of


def test_page_says_why_and_what_was_refused(operator: Client) -> None:
    text = text_of(operator.get(f"/incidents/{incident_of('llm-70b-pretrain').pk}/"))
    for said in (
        "Process died , worker 3, confidence 0.9",
        "exit by SIGKILL, pid 4130",
        "Speaks against it nothing that was seen",
        "Restart container : quick checks are clean; restarting the process is cheaper",
        "Hold node : nothing speaks against the node",
        "L1, restart process",
        "training runs well again after 1 min 35 s",
        "handled without a person",
    ):
        assert said in text


def test_all_the_evidence_says_who_is_to_blame_and_what_would_mend_it(operator: Client) -> None:
    incident = incident_of("rlhf-ppo")
    diagnosis = {
        "is_strong": True, "category": "rdma_nic", "remedy": "isolate_node", "blame": "node", "times": 3,
        "reason": "The port of this node goes down", "rule": "ib.port-down", "confidence": 0.91,
        "culprit_node": "gpu-r01-07", "exit": "Replace the cable.", "unread_lines": 1200,
        "considered": [{"remedy": "restart_process", "because": "it came again on this node"}],
    }  # fmt: skip
    Incident.objects.filter(pk=incident.pk).update(verdict={**incident.verdict, "diagnosis": diagnosis})
    page = text_of(operator.get(f"/incidents/{incident.pk}/"))
    assert "The port of this node goes down" in page
    assert "The port of this node goes down , confidence 0.91 ib.port-down" in page
    assert (
        "Network adapter, port or cable of one node. Blames the node, gpu-r01-07. Remedy: isolate node."
        in page
    )
    assert "Found in 3 attempts in a row." in page
    assert "Back after: Replace the cable." in page
    assert "1,200 lines were not read" in page
    assert "Why 1 other would help less Restart process : it came again on this node" in page
    deleted = diagnosis | {"category": "container_env", "blame": "none", "means": "the pod was deleted"}
    Incident.objects.filter(pk=incident.pk).update(verdict={**incident.verdict, "diagnosis": deleted})
    assert "The pod was deleted. Blames nobody." in text_of(operator.get(f"/incidents/{incident.pk}/"))
    Incident.objects.filter(pk=incident.pk).update(
        verdict={**incident.verdict, "diagnosis": diagnosis | {"is_strong": False}}
    )
    assert "blames the node" not in text_of(operator.get(f"/incidents/{incident.pk}/"))


def test_what_contradicts_a_verdict_stands_beside_its_evidence_with_weights(operator: Client) -> None:
    incident = incident_of("rlhf-ppo")
    stored = {
        "evidence": [
            "CUDA error: unknown error (cuda.unknown-error, weight 0.60)",
            "NVRM: Xid 79 (bus) (xid.79, weight 0.90)",
            "NVRM: Xid 79 (bus) (gpu.off-bus, weight 0.90)",
        ],
        "contradicts": ["The gpu check passes (check.gpu, weight 0.40)", "as it was stored once"],
    }
    Incident.objects.filter(pk=incident.pk).update(verdict=incident.verdict | stored)
    page = text_of(operator.get(f"/incidents/{incident.pk}/"))
    assert "0.90 weight: NVRM: Xid 79 (bus) xid.79 gpu.off-bus 0.60 weight: CUDA error: unknown error" in page
    assert (
        "Speaks against it 0.40 weight: The gpu check passes check.gpu – weight: as it was stored once"
        in page
    )


def test_question_begins_as_a_sentence_unless_a_job_gives_its_name(operator: Client) -> None:
    incident = incident_of("bert-distil")
    assert "bert-distil stops at step 1200" in text_of(operator.get(f"/incidents/{incident.pk}/"))
    Notice.objects.filter(incident=incident).update(text="the same step again")
    assert "The same step again" in text_of(operator.get(f"/incidents/{incident.pk}/"))


def test_remedy_that_is_not_installed_is_shown_refused(operator: Client) -> None:
    """R25: what is not done is a row with its reason."""
    text = text_of(operator.get(f"/incidents/{incident_of('rlhf-ppo').pk}/"))
    assert "evict worker refused refused: remedy not installed" in text
    assert "Do it now" not in text


def test_action_that_waits_counts_down_with_its_buttons(operator: Client) -> None:
    incident = incident_of("vision-moe", state="waiting")
    html = operator.get(f"/incidents/{incident.pk}/").content.decode()
    assert re.search(r"begins <b><time [^>]*data-until[^>]*>in 29 min</time>", html)
    action = Action.objects.get(incident=incident)
    assert f'action="/actions/{action.pk}/now/"' in html
    assert f'href="?dialog=cancel-{action.pk}"' in html


def test_planned_action_has_its_button_and_no_time(operator: Client) -> None:
    """Mode approve: what a person has to begin must be there to be begun."""
    incident = incident_of("vision-moe", state="waiting")
    action = Action.objects.get(incident=incident)
    Action.objects.filter(pk=action.pk).update(state="planned")
    Incident.objects.filter(pk=incident.pk).update(waiting_for="approval", waiting_until_at=None)
    html = operator.get(f"/incidents/{incident.pk}/").content.decode()
    assert html.count(f'action="/actions/{action.pk}/now/"') == 1
    head = html[html.index('<div class="head">') : html.index("<dialog")]
    assert re.search(r'<button class="button button--main" [^>]*>Do it now</button>', head)
    assert head.count("button--main") == 1, "one is the first choice"
    labels = re.findall(r'class="button[^>]*>([^<]+?) ?<', head)
    assert labels == ["Do it now", "Cancel …", "Acknowledge", "Resolve"], "what waits for a yes comes first"
    assert f'data-open="cancel-{action.pk}"' in head
    audit = operator.get(f"/incidents/{incident.pk}/?tab=audit&dialog=cancel-{action.pk}").content.decode()
    assert re.search(rf'<dialog id="cancel-{action.pk}" [^>]*open>', audit)
    assert f'action="/actions/{action.pk}/now/"' in audit
    assert "begins <b>" not in html
    assert "Next: <b>restart process: waits until a person says so</b>" in html
    page = text_of(operator.get("/"))
    needed = Incident.objects.filter(state="needs_person").count() + 1
    assert f"{needed} need a person" in page or f"{needed} needs a person" in page


def test_resolved_by_a_person_is_not_handled_without_one(operator: Client) -> None:
    incident = incident_of("llm-70b-pretrain")
    Incident.objects.filter(pk=incident.pk).update(resolution="by_person")
    text = text_of(operator.get(f"/incidents/{incident.pk}/"))
    assert "resolved by a person after" in text
    assert "without a person" not in text


def test_large_costs_have_no_exponent(operator: Client) -> None:
    incident = incident_of("vision-moe", state="waiting")
    options = [
        {"option": "restart_process", "gpu_hours": 256.4, "basis": "estimated"},
        {"option": "restart_container", "gpu_hours": 0.017, "basis": "assumed"},
    ]
    Action.objects.filter(incident=incident).update(
        price={"chosen": "restart_process", "why": "cheaper", "options": options}
    )
    text = text_of(operator.get(f"/incidents/{incident.pk}/"))
    assert "restart process 256 GPU-hours (estimated); restart container 0.017 GPU-hours (assumed)" in text


def test_action_under_way_has_no_buttons(operator: Client) -> None:
    """D23: what can no longer be done has no live button."""
    incident = incident_of("vision-moe", state="waiting")
    for state in ("verifying", "done", "refused", "cancelled", "superseded", "failed", "unknown"):
        Action.objects.filter(incident=incident).update(state=state)
        html = operator.get(f"/incidents/{incident.pk}/").content.decode()
        assert "Do it now" not in html
        assert "cancel-" not in html


def test_timeline_says_who_when_and_how_late(operator: Client) -> None:
    text = text_of(operator.get(f"/incidents/{incident_of('llm-70b-pretrain').pk}/"))
    assert "symptom of worker 3, counts nothing agent of worker 1 received 14 s later" in text
    assert "6 workers joined their peers" in text
    assert "+1 min 31 s" in text


@pytest.mark.parametrize(
    ("show", "has", "lacks"),
    [
        ("actions", "Decided: restart process", "process ended by SIGKILL"),
        ("evidence", "process ended by SIGKILL", "Decided: restart process"),
        ("people", "No person has acted.", "SIGKILL agent"),
    ],
)
def test_timeline_filters_by_address(operator: Client, show: str, has: str, lacks: str) -> None:
    html = operator.get(f"/incidents/{incident_of('llm-70b-pretrain').pk}/?show={show}").content.decode()
    panel = html[html.index('id="timeline"') : html.index("</section>", html.index('id="timeline"'))]
    text = " ".join(re.sub(r"<[^>]+>", " ", panel).split())
    assert has in text
    assert lacks not in text


def event(n: int, seconds: float, **fields: object) -> TimelineEvent:
    at = database_now().replace(microsecond=0) + timedelta(seconds=seconds)
    return TimelineEvent(
        **{
            "n": n,
            "at": at,
            "received_at": at,
            "kind": "worker_stopped",
            "actor_kind": "agent",
            "role": "worker",
            "index": n,
            "text": f"Worker {n} stopped, quick checks clean",
            **fields,
        }
    )


@pytest.mark.django_db
def test_only_neighbours_join() -> None:
    between = event(3, 2, kind="decided", actor_kind="policy", index=None, text="Decided")
    events = [event(1, 0), event(2, 1), between, event(4, 3), event(5, 4)]
    lines = timeline_lines(events)
    assert [line.text for line in lines] == [
        "2 workers stopped, quick checks clean",
        "Decided",
        "2 workers stopped, quick checks clean",
    ]
    assert [len(line.others) for line in lines] == [1, 0, 1]


@pytest.mark.django_db
def test_workers_that_take_turns_join() -> None:
    texts = ("joined its peers", "restored step 40")
    events = [event(n, n, index=n // 2, text=f"Worker {n // 2} {texts[n % 2]}") for n in range(6)]
    lines = timeline_lines(events)
    assert [line.text for line in lines] == ["3 workers restored step 40", "3 workers joined their peers"]
    assert [len(line.others) for line in lines] == [2, 2]


@pytest.mark.django_db
def test_late_and_different_lines_do_not_join() -> None:
    late = event(2, 1)
    late.received_at += timedelta(seconds=20)
    other = event(3, 2, text="Worker 3 stopped, quick checks: gpu fail")
    lines = timeline_lines([event(1, 0), late, other])
    assert [line.text for line in lines] == [other.text, late.text, "Worker 1 stopped, quick checks clean"]


@pytest.mark.django_db
def test_delta_is_no_finer_than_a_hundredth_of_a_second() -> None:
    start = database_now()
    lines = timeline_lines(
        [
            event(n, 0, text=text, at=start + timedelta(milliseconds=ms))
            for n, ms, text in ((1, 0, "a"), (2, 3, "b"), (3, 62, "c"))
        ]
    )
    assert [line.delta_seconds for line in lines] == [0.06, 0.0, None]


@pytest.mark.django_db
def test_delta_reaches_to_what_happened_before_not_to_what_was_numbered_before() -> None:
    lines = timeline_lines([event(1, 10, text="b"), event(2, 4, text="a"), event(3, 12, text="c")])
    assert [(line.event.n, line.delta_seconds) for line in lines] == [(3, 2.0), (1, 6.0), (2, None)]


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({}, "agent of worker 1"),
        ({"actor_kind": "person", "actor": "mei.lin"}, "mei.lin"),
        ({"actor_kind": "policy", "actor": "", "index": None}, "policy"),
        ({"actor_kind": "watch", "actor": ""}, "Kubernetes, seen in the watch"),
        ({"actor_kind": "desk", "actor": "executor"}, "the desk, executor"),
    ],
)
def test_who_is_named(fields: dict[str, object], said: str) -> None:
    assert who(event(1, 0, **fields)) == said


def test_timeline_leaves_as_csv_in_order_and_utc(operator: Client) -> None:
    """D19: timelines are written by the system and can be taken along."""
    incident = incident_of("llm-70b-pretrain")
    response = operator.get(f"/incidents/{incident.pk}/timeline.csv")
    rows = list(csv.DictReader(io.StringIO(response.content.decode())))
    assert len(rows) == incident.timeline.count()
    assert [row["at"] for row in rows] == sorted(row["at"] for row in rows)
    assert all(row["at"].endswith("Z") for row in rows)
    assert f'filename="INC-{incident.pk}-timeline.csv"' in response["Content-Disposition"]


def test_timeline_leaves_as_json_with_bodies(operator: Client) -> None:
    incident = incident_of("llm-70b-pretrain")
    body = operator.get(f"/incidents/{incident.pk}/timeline.json").json()
    assert body["incident"] == f"INC-{incident.pk}"
    assert {"pids": {"agent": 31, "command": 4188}, "sequence": 6} in [
        event["body"] for event in body["events"]
    ]


def test_timeline_leaves_as_markdown_that_cannot_break_its_table(operator: Client) -> None:
    incident = incident_of("llm-70b-pretrain")
    incident.timeline.filter(kind="decided").update(text="a | b\n<script>x</script>")
    text = operator.get(f"/incidents/{incident.pk}/timeline.md").content.decode()
    assert text.startswith(f"# INC-{incident.pk}: Process of worker 3 died")
    assert "a \\| b &lt;script>x&lt;/script>" in text


def test_unknown_form_of_timeline_is_a_404(operator: Client) -> None:
    assert operator.get(f"/incidents/{incident_of('llm-70b-pretrain').pk}/timeline.pdf").status_code == 404


def test_stages_add_up_and_facts_name_processes_and_pods(operator: Client) -> None:
    incident = incident_of("llm-70b-pretrain")
    html = operator.get(f"/incidents/{incident.pk}/").content.decode()
    widths = [
        float(width)
        for width in re.findall(r'<svg class="stage stage--[a-z-]+" x="[\d.]+%" width="([\d.]+)%"', html)
    ]
    assert len(widths) >= 8
    assert sum(widths) == pytest.approx(100, abs=0.1)
    text = text_of(operator.get(f"/incidents/{incident.pk}/"))
    for said in (
        "detect 0.3 s found by agent's report",
        "88 steps lost: failed at 3,388, resumed from 3,300",
        "4130 → 4191 process of worker 3, its agent 31 before and after; 5 others likewise",
        "0 of 6 pods rebuilt, none touched",
        "0.21 s longest quick checks, beside the stop",
        "estimated: 48 GPUs idle for 3.5 s",
    ):
        assert said in text


def test_recovery_that_goes_on_counts_until_now(operator: Client) -> None:
    text = text_of(operator.get(f"/incidents/{incident_of('vision-moe', state='waiting').pk}/"))
    assert re.search(r"measured · \d+ s so far", text)
    assert "steps lost: known when training has resumed" in text


def test_long_timeline_comes_in_pages(operator: Client) -> None:
    incident = incident_of("asr-large", state="watching")
    now = database_now()
    TimelineEvent.objects.bulk_create(
        TimelineEvent(
            tenant=incident.tenant,
            incident=incident,
            n=1000 + n,
            kind="evidence",
            at=now + timedelta(seconds=n),
            received_at=now,
            text=f"line {n}",
            actor_kind="watch",
        )
        for n in range(450)
    )
    html = operator.get(f"/incidents/{incident.pk}/").content.decode()
    assert html.count('<li id="event-') == 200
    older = re.search(r'href="\?before=(\d+)"', html)
    assert older is not None
    assert "line 200<" not in html
    assert (
        operator.get(f"/incidents/{incident.pk}/?before={older[1]}").content.decode().count('<li id="event-')
        == 200
    )


def test_markup_in_what_others_wrote_is_shown_not_run(operator: Client) -> None:
    incident = incident_of("asr-large", state="watching")
    incident.title = "<img src=x onerror=alert(1)>"
    incident.save()
    html = operator.get(f"/incidents/{incident.pk}/").content.decode()
    assert "<img" not in html
    assert "&lt;img src=x onerror=alert(1)&gt;" in html


def test_audit_tab_lists_decisions_uses_and_people(operator: Client) -> None:
    text = text_of(operator.get(f"/incidents/{incident_of('llm-70b-pretrain').pk}/?tab=audit"))
    assert "run-command/error" in text
    assert "error from agent, worker 3 used" in text
    assert "No person has acted" in text


def test_attempts_tab_shows_what_it_cost(operator: Client) -> None:
    text = text_of(operator.get(f"/incidents/{incident_of('llm-70b-pretrain').pk}/?tab=attempts"))
    assert "process died restart process 3,300 – 3,388 88 3.4 s yes" in text


def test_log_link_is_made_from_the_template(operator: Client, settings: object) -> None:
    settings.LOG_LINK_TEMPLATE = "https://logs.example/{namespace}/{job}?from={start}"  # type: ignore[attr-defined]
    html = operator.get(f"/incidents/{incident_of('llm-70b-pretrain').pk}/").content.decode()
    assert 'href="https://logs.example/nlp-train/llm-70b-pretrain?from=' in html
    settings.LOG_LINK_TEMPLATE = "https://logs.example/{nonsense}"  # type: ignore[attr-defined]
    assert (
        "logs.example"
        not in operator.get(f"/incidents/{incident_of('llm-70b-pretrain').pk}/").content.decode()
    )


def test_stored_log_tail_can_be_read(operator: Client) -> None:
    assert "Watchdog caught collective operation timeout" in text_of(
        operator.get(f"/incidents/{incident_of('tts-finetune').pk}/")
    )


def test_reopened_incident_counts_its_age_from_there(operator: Client) -> None:
    incident = incident_of("rlhf-ppo")
    assert incident.reopened_at is not None
    now = database_now()
    Incident.objects.filter(pk=incident.pk).update(
        opened_at=now - timedelta(hours=2), reopened_at=now - timedelta(minutes=10.5)
    )
    html = operator.get(f"/incidents/{incident.pk}/").content.decode()
    head = " ".join(re.sub(r"<[^>]+>", " ", html[html.index("head__meta") :].split("</div>")[0]).split())
    assert re.search(r"reopened 10 min ago first opened (\d+ \w+ )?\d\d:\d\d:\d\d CES?T", head)
    assert "2 h" not in head
    row = re.search(
        rf'<tr id="incident-{incident.pk}".*?</tr>', operator.get("/incidents/").content.decode(), re.DOTALL
    )
    assert row is not None
    assert re.search(r">10 min</time> <span class=\"again\">reopened<", row[0])


def test_old_incident_keeps_the_count_that_it_had(operator: Client) -> None:
    """The job goes on counting; what an incident used is told as of then, on its page, in lists and in downloads."""
    incident = incident_of("llm-70b-pretrain")
    Job.objects.filter(pk=incident.job_id).update(recover_count=7)
    text = text_of(operator.get(f"/incidents/{incident.pk}/"))
    assert "2 of 10 failures of the job used, this one included" in text
    assert "Failures used 7 of 10 now" in text
    listed = operator.get("/incidents/?tab=resolved").content.decode()
    row = listed[listed.index(f'id="incident-{incident.pk}"') :].split("</tr>")[0]
    assert ">2 of 10<" in row
    lines = b"".join(operator.get("/incidents.csv?tab=resolved").streaming_content).decode()
    (line,) = [line for line in csv.DictReader(io.StringIO(lines)) if line["incident"] == str(incident)]
    assert (line["failures_used"], line["max_retry"]) == ("2", "10")


def test_incident_that_counted_nothing_says_so_once_it_is_over(operator: Client) -> None:
    incident = incident_of("llm-70b-pretrain")
    Incident.objects.filter(pk=incident.pk).update(failures_used=None)
    assert "none counted" in text_of(operator.get(f"/incidents/{incident.pk}/"))


def test_what_a_person_is_asked_stands_at_the_top(operator: Client) -> None:
    incident = incident_of("bert-distil")
    for tab in ("", "?tab=audit"):
        text = text_of(operator.get(f"/incidents/{incident.pk}/{tab}"))
        assert text.index("Look at its data at that step") < text.index("Attempts")


def test_after_a_cancel_the_page_and_the_lists_say_who_wanted_it_and_why(operator: Client) -> None:
    incident = incident_of("vision-moe", state="waiting")
    operator.post(f"/actions/{incident.actions.get().pk}/cancel/", {"reason": "the mount moves"}, follow=True)
    said = "ancelled by mei.lin: the mount moves"
    text = text_of(operator.get(f"/incidents/{incident.pk}/"))
    assert text.index(said) < text.index("Attempts")
    for address in ("/", "/incidents/"):
        assert f"a person decides: c{said}" in text_of(operator.get(address))


def test_newer_reason_stands_above_an_older_question(operator: Client) -> None:
    incident = incident_of("bert-distil", state="needs_person")
    TimelineEvent.objects.create(
        tenant=incident.tenant, incident=incident, n=900, kind="state_changed", at=database_now(),
        received_at=database_now(), text="Incident needs person: cancelled by a.khan: wait", actor_kind="person",
        body={"state": "needs_person"},
    )  # fmt: skip
    text = text_of(operator.get(f"/incidents/{incident.pk}/?tab=audit"))
    assert "Cancelled by a.khan: wait" in text
    assert "Look at its data" not in text


def test_question_that_was_delivered_is_not_called_done(operator: Client) -> None:
    text = text_of(operator.get(f"/incidents/{incident_of('bert-distil').pk}/"))
    assert "ask a person asked" in text
    assert "ask a person done" not in text


def test_why_and_actions_come_before_the_story(operator: Client) -> None:
    html = operator.get(f"/incidents/{incident_of('llm-70b-pretrain').pk}/").content.decode()
    order = [html.index(f'id="{part}"') for part in ("stages", "why", "actions", "timeline")]
    assert order == sorted(order)


def test_decisions_that_changed_nothing_are_counted_and_shown_on_demand(operator: Client) -> None:
    incident = incident_of("llm-70b-pretrain")
    pattern = Decision.objects.filter(incident=incident).order_by("n").first()
    assert pattern is not None
    for n in range(60):
        pattern.pk, pattern.n, pattern.rule, pattern.reason = None, 5000 + n, "none", "nothing to do"
        pattern._state.adding = True
        pattern.save(force_insert=True)
    address = f"/incidents/{incident.pk}/?tab=audit"
    text = text_of(operator.get(address))
    assert "nothing to do" not in text
    assert "run-command/error" in text, "what matters is not pushed off the page"
    assert "60 decisions changed nothing: not listed, with their signals list them too" in text
    assert text.index("What people did") < text.index("Decisions")
    shown = text_of(operator.get(f"{address}&decisions=all"))
    assert shown.count("nothing to do") == 50
    assert "leave them out" in shown


def test_program_that_took_it_is_named(operator: Client) -> None:
    incident = incident_of("rlhf-ppo")
    Incident.objects.filter(pk=incident.pk).update(
        acknowledged_by_token="pager (ab12)", acknowledged_at=database_now()
    )
    assert "taken by token pager (ab12)" in text_of(operator.get(f"/incidents/{incident.pk}/"))
    assert "token pager (ab12)" in text_of(operator.get("/incidents/"))


H100 = '{"H100": {"per_gpu_hour": 2.5, "currency": "EUR", "as_of": "2026-11-01", "source": "contract"}}'


def test_action_shows_what_each_option_costs_and_how_that_is_known(operator: Client) -> None:
    incident = incident_of("llm-70b-pretrain")
    assert "Costs:" not in text_of(operator.get(f"/incidents/{incident.pk}/"))
    priced = price_restart(
        gpus=512, lost=measured(88), step=measured(1), start=estimated(20), wait_seconds=0, why="clean"
    )
    assert priced is not None
    Action.objects.filter(incident=incident, kind="restart_process").update(price=priced.as_plain())
    text = text_of(operator.get(f"/incidents/{incident.pk}/"))
    assert "Costs: restart process 15 GPU-hours (estimated); restart container 22 GPU-hours (assumed)" in text


def test_money_is_shown_only_where_a_price_is_given(operator: Client, settings: Settings) -> None:
    incident = incident_of("llm-70b-pretrain")
    assert incident.job is not None
    lives = Incarnation.objects.filter(worker__job=incident.job, machine__isnull=False)
    Machine.objects.filter(pk__in=lives.values("machine")).update(gpu_type="H100")
    assert "EUR" not in text_of(operator.get(f"/incidents/{incident.pk}/"))
    settings.GPU_PRICES = H100
    text = text_of(operator.get(f"/incidents/{incident.pk}/"))
    assert "H100 at 2.5 per GPU-hour, contract, 2026-11-01" in text
    settings.GPU_PRICES = H100.replace("H100", "A100")
    assert "EUR" not in text_of(operator.get(f"/incidents/{incident.pk}/"))


def test_prices_that_cannot_be_read_leave_the_page_standing_and_say_so(
    operator: Client, settings: Settings
) -> None:
    settings.GPU_PRICES = "2.50"
    answer = operator.get(f"/incidents/{incident_of('llm-70b-pretrain').pk}/")
    assert answer.status_code == 200
    assert "INCIDENTDESK_GPU_PRICES cannot be read" in text_of(answer)


def resolved_without_words(**changes: object) -> Incident:
    """A closed incident that nobody took."""
    incident = incident_of("llm-70b-pretrain")
    Incident.objects.filter(pk=incident.pk).update(acknowledged_by=None, **changes)
    return incident


def test_page_does_not_say_that_nobody_was_needed_where_somebody_acted_or_was_asked(operator: Client) -> None:
    incident = resolved_without_words()
    address = f"/incidents/{incident.pk}/"
    assert "handled without a person" in text_of(operator.get(address))
    line = TimelineEvent.objects.filter(incident=incident).order_by("-n")[0]
    TimelineEvent.objects.filter(pk=line.pk).update(actor_kind="person", actor="mei")
    assert "handled without a person" not in text_of(operator.get(address))
    assert "taken by nobody" in text_of(operator.get(address))
    TimelineEvent.objects.filter(pk=line.pk).update(actor_kind="policy")
    Action.objects.filter(incident=incident).update(kind="ask_person")
    assert "handled without a person" not in text_of(operator.get(address))


def test_stop_is_not_told_as_if_nothing_had_been_stopped_or_would_be_judged_yet(operator: Client) -> None:
    incident = resolved_without_words(verdict={}, resolution="job_ended")
    TimelineEvent.objects.filter(incident=incident, kind="failure_seen").delete()
    text = text_of(operator.get(f"/incidents/{incident.pk}/"))
    assert "No recovery has begun, so no time of one is measured." in text
    assert "None: nothing was judged." in text
    assert "Not judged yet" not in text
