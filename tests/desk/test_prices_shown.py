"""Prices on an incident's page: both options of an action, and money only where a price is given."""

from __future__ import annotations

from django.test import Client
from pytest_django import Settings

from apps.incidents.models import Action
from apps.jobs.models import Incarnation
from apps.nodes.models import Machine
from recovery.decision_prices import price_restart
from recovery.figures import estimated, measured
from tests.desk.conftest import incident_of, text_of

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
    assert (
        "Costs: restart process 15.36 GPU-hours (estimated); restart container 22.47 GPU-hours (assumed)"
        in text
    )


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
