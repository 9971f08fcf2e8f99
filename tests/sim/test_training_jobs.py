"""From parameters to a Job."""

from typing import Any

import pytest

from sim.training_jobs import BadParameters, TrainingJob, manifest


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"colour": 1}, "no parameter 'colour'"),
        ({"workers": "3"}, "workers must be of type int, not '3'"),
        ({"workers": True}, "workers must be of type int, not True"),
        ({"protect": 1}, "protect must be of type bool, not 1"),
        ({"workers": 0}, "workers must be at least 1"),
        ({"name": "Not_A_Name"}, "name must be lower-case"),
        ({"restart_policy": "Always"}, "restart_policy must be Never or OnFailure"),
        ({"collective_timeout_seconds": 0}, "collective_timeout_seconds must be above 0"),
    ],
)
def test_wrong_parameter_is_named(given: dict[str, Any], sentence: str) -> None:
    with pytest.raises(BadParameters, match=sentence):
        TrainingJob.parse(given)


def test_whole_numbers_are_taken_for_seconds() -> None:
    assert TrainingJob.parse({"step_seconds": 1, "no_contact_seconds": None}).step_seconds == 1.0


def env_of(job: dict[str, Any]) -> dict[str, Any]:
    (container,) = job["spec"]["template"]["spec"]["containers"]
    return {
        variable["name"]: variable.get("value", variable.get("valueFrom")) for variable in container["env"]
    }


def test_manifest_is_an_indexed_job_whose_backoff_limit_outlasts_the_desks_budget() -> None:
    job = manifest(TrainingJob(namespace="lab", name="train", workers=3, max_retry=2, protect=True))

    spec = job["spec"]
    assert (spec["completions"], spec["parallelism"], spec["completionMode"]) == (3, 3, "Indexed")
    assert spec["backoffLimit"] >= (2 + 1) * 3
    assert spec["podFailurePolicy"]["rules"][0]["action"] == "Ignore"
    assert job["metadata"]["annotations"]["incidentdesk.io/protect"] == "true"
    assert job["metadata"]["annotations"]["incidentdesk.io/max-retry"] == "2"
    env = env_of(job)
    assert (env["MASTER_ADDR"], env["WORLD_SIZE"]) == ("train-0.train", "3")
    assert env["INCIDENTDESK_POD_UID"] == {"fieldRef": {"fieldPath": "metadata.uid"}}
    assert "TRAINER_RESET" not in env


def test_unprotected_job_says_nothing_and_on_failure_has_no_failure_policy() -> None:
    job = manifest(TrainingJob(restart_policy="OnFailure", reset=True, backoff_limit=0))

    assert "incidentdesk.io/protect" not in job["metadata"]["annotations"]
    assert "podFailurePolicy" not in job["spec"]
    assert job["spec"]["backoffLimit"] == 0
    assert env_of(job)["TRAINER_RESET"] == "1"
