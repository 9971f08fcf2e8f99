"""Limits that lie around the desk's own."""

from __future__ import annotations

from typing import Any

import pytest

from adapters.facts import FailurePolicyRule
from apps.jobs.limits import nested_limits, read_wishes
from tests.facts import make_job_fact

IGNORES = (FailurePolicyRule("Ignore", conditions=("DisruptionTarget",)),)


def warnings(max_retry: int = 2, **job: Any) -> dict[str, str]:
    fact = make_job_fact(**{"failure_policy": IGNORES, **job})
    wishes = read_wishes({"max-retry": str(max_retry)}, default_max_retry=10, default_grace_seconds=5)
    return {row["name"]: row["warning"] for row in nested_limits(fact, wishes) if row["warning"]}


@pytest.mark.parametrize(
    ("job", "name", "text"),
    [
        pytest.param({"restart_policy": "OnFailure", "backoff_limit": 9}, None, "", id="OnFailure, enough"),
        pytest.param(
            {"restart_policy": "OnFailure", "backoff_limit": 8},
            "backoffLimit",
            "less than 9",
            id="OnFailure, short",
        ),
        pytest.param({"backoff_limit": 3}, None, "", id="Never, enough"),
        pytest.param({"backoff_limit": 2}, "backoffLimit", "less than 3", id="Never, short"),
        pytest.param({"failure_policy": ()}, "backoffLimit", "DisruptionTarget", id="evictions count"),
        pytest.param({"active_deadline_seconds": 60}, "activeDeadlineSeconds", "60 s", id="deadline"),
        pytest.param(
            {"failure_policy": (FailurePolicyRule("FailJob", "NotIn", (42,)), *IGNORES)},
            "podFailurePolicy",
            "exit code 78",
            id="fails the job on our code",
        ),
        pytest.param(
            {
                "failure_policy": (
                    FailurePolicyRule("Ignore", "In", (78, 79, 80, 81)),
                    FailurePolicyRule("FailJob", "NotIn", (42,)),
                    *IGNORES,
                )
            },
            None,
            "",
            id="an earlier rule takes our codes",
        ),
        pytest.param(
            {"backoff_limit": None, "backoff_limit_per_index": 1},
            "backoffLimitPerIndex",
            "less than 3",
            id="per index, short",
        ),
    ],
)
def test_warning(job: dict[str, Any], name: str | None, text: str) -> None:
    found = warnings(**job)
    if name is None:
        assert found == {}
    else:
        assert list(found) == [name]
        assert text in found[name]


@pytest.mark.parametrize(
    ("annotations", "expected", "mistaken"),
    [
        ({}, (10, "", 5.0), []),
        ({"max-retry": "0", "mode": "approve", "stop-grace-seconds": "2.5"}, (0, "approve", 2.5), []),
        ({"max-retry": "-1"}, (10, "", 5.0), ["max-retry"]),
        ({"max-retry": "٣"}, (10, "", 5.0), ["max-retry"]),
        ({"mode": "always"}, (10, "", 5.0), ["mode"]),
        ({"stop-grace-seconds": "nan"}, (10, "", 5.0), ["stop-grace-seconds"]),
    ],
)
def test_wishes(annotations: dict[str, str], expected: tuple[int, str, float], mistaken: list[str]) -> None:
    wishes = read_wishes(annotations, default_max_retry=10, default_grace_seconds=5.0)
    assert (wishes.max_retry, wishes.mode, wishes.stop_grace_seconds) == expected
    assert [name for name, _ in wishes.mistakes] == mistaken
