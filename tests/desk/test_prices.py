"""What a person sees of the prices in a decision: options with their parts, what cannot be had, how long it holds."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Any

from django.test import Client

from apps.incidents.models import Action, Incident
from recovery.figures import assumed, estimated, measured
from recovery.prices import ElasticLoss, PricedChoice, SlowNode, price_elastic, price_slow_node
from tests.desk.conftest import incident_of, text_of

NOW = datetime(2026, 11, 29, 14, 0, 0, tzinfo=UTC)


def page_with(client: Client, choice: PricedChoice) -> tuple[str, Incident]:
    incident = incident_of("llm-70b-pretrain")
    Action.objects.filter(incident=incident, kind="restart_process").update(price=choice.as_plain())
    return text_of(client.get(f"/incidents/{incident.pk}/")), incident


def slow(**overrides: Any) -> PricedChoice:
    known = {
        "gpus": 512, "slowdown_share": measured(0.2), "since_checkpoint_seconds": measured(600),
        "to_checkpoint_seconds": estimated(600), "restart_seconds": assumed(68), "seen": 3, "looked": 3,
    }  # fmt: skip
    return price_slow_node(SlowNode(**{**known, **overrides}), NOW)


def test_slow_node_shows_both_moments_with_their_parts_and_how_long_the_choice_holds(
    operator: Client,
) -> None:
    text, incident = page_with(operator, slow())
    assert (
        "Costs: evict now 95 GPU-hours (assumed); evict at the next safe point 27 GPU-hours (assumed)" in text
    )
    assert (
        "Evict at the next safe point, chosen Slow until the next checkpoint: 10 min × 512 GPUs × 0.20 estimated"
        in text
    )
    assert "Progress since the last checkpoint: 10 min × 512 GPUs measured" in text
    html = operator.get(f"/incidents/{incident.pk}/").content.decode()
    assert re.search(r'The choice holds until <time [^>]*datetime="2026-11-29T14:15:00', html)


def test_choice_without_a_deadline_holds_until_nothing(operator: Client) -> None:
    choice = slow(since_checkpoint_seconds=measured(10))
    text, _ = page_with(operator, choice)
    assert choice.chosen == "evict now"
    assert "The choice holds" not in text


def test_elastic_job_shows_what_cannot_be_had_and_how_the_batch_changes(operator: Client) -> None:
    loss = ElasticLoss(
        replicas=3, gpus_per_replica=16, lost=1, replacement_seconds=measured(400),
        since_checkpoint_seconds=measured(17.6), restore_seconds=measured(18), full_restart_seconds=assumed(68),
        can_reshard=True, batch_per_replica=512,
    )  # fmt: skip
    text, incident = page_with(operator, price_elastic(loss, NOW))
    assert "pause and resume 5.8 GPU-hours (estimated), not to be had; replica resize" in text
    assert "Not to be had: a replacement takes 400 s, the framework waits 300 s" in text
    assert "Global batch 1,536, then 1,024 samples" in text
    Action.objects.filter(incident=incident).update(price={"options": [], "deadline": "soon"})
    assert "holds until" not in text_of(operator.get(f"/incidents/{incident.pk}/"))
