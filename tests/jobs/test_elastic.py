"""What annotations say of an elastic job, and how its own limits stand among the others."""

from __future__ import annotations

import pytest

from apps.jobs.elastic import read_elastic
from apps.jobs.limits import nested_limits, read_wishes
from recovery.decide import ElasticTerms
from tests.facts import make_job_fact


def test_job_is_elastic_only_by_its_own_word() -> None:
    assert read_elastic({}) == (None, ())
    assert read_elastic({"elastic": "false", "elastic-min-slices": "x"}) == (None, ())
    assert read_elastic({"elastic": " True "}) == (ElasticTerms(), ())


def test_every_term_is_read() -> None:
    annotations = {
        "elastic": "true", "elastic-workers-per-slice": "4", "elastic-min-slices": "2", "elastic-head": "0",
        "elastic-reshard": "yes", "elastic-max-retries": "3", "elastic-timeout-seconds": "600",
        "elastic-batch-per-slice": "32",
    }  # fmt: skip
    terms = ElasticTerms(
        workers_per_slice=4, min_slices=2, head=0, can_reshard=True, max_retries=3, timeout_seconds=600.0,
        batch_per_slice=32,
    )  # fmt: skip
    assert read_elastic(annotations) == (terms, ())


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("elastic-workers-per-slice", "0"),
        ("elastic-min-slices", "-1"),
        ("elastic-head", "first"),
        ("elastic-max-retries", "٣"),
        ("elastic-timeout-seconds", "0" * 5000),
        ("elastic-batch-per-slice", "32.5"),
    ],
)
def test_value_that_cannot_be_used_is_left_out_and_said(name: str, text: str) -> None:
    terms, mistakes = read_elastic({"elastic": "true", name: text})
    assert terms == ElasticTerms()
    ((annotation, sentence),) = mistakes
    assert annotation == name
    assert "is no number from" in sentence
    assert len(sentence) < 120


def test_limits_of_the_framework_stand_among_those_of_the_job() -> None:
    fact = make_job_fact(annotations={"elastic": "true", "elastic-max-retries": "2", "elastic-head": "x"})
    wishes = read_wishes({"max-retry": "2"}, default_max_retry=10, default_grace_seconds=5)
    rows = {row["name"]: row for row in nested_limits(fact, wishes)}
    assert rows["elastic retries"]["limit"] == 2
    assert "gives the job up before the desk does" in rows["elastic retries"]["warning"]
    assert rows["elastic time-out, s"] == {
        "name": "elastic time-out, s",
        "used": None,
        "limit": 300,
        "warning": "",
    }
    assert rows["elastic-head"]["warning"].startswith("'x' is no number")
    assert not any(row["name"].startswith("elastic") for row in nested_limits(make_job_fact(), wishes))
