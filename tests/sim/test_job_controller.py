"""Jobs on a running cluster: their pods, their counts, their ends."""

import json
import urllib.request
from typing import Any

import pytest

from sim import job_failures
from tests.sim.conftest import Bench, until

STAY = "exec sleep 1000"
IGNORE_DISRUPTION = {
    "rules": [{"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}]
}


def indexed(count: int, **more: Any) -> dict[str, Any]:
    return {"completions": count, "parallelism": count, "completionMode": "Indexed", **more}


def done(bench: Bench, name: str, condition: str) -> bool:
    return bench.condition("Job", name, condition) == "True"


def active(bench: Bench, job: str) -> list[dict[str, Any]]:
    return [
        p
        for p in bench.pods(job)
        if p["status"]["phase"] == "Running" and not p["metadata"].get("deletionTimestamp")
    ]


def by_index(bench: Bench, job: str) -> dict[str, str]:
    """Index -> uid of the running pods."""
    key = "batch.kubernetes.io/job-completion-index"
    return {p["metadata"]["annotations"][key]: p["metadata"]["uid"] for p in active(bench, job)}


def test_indexed_job_runs_one_pod_an_index_and_completes(bench: Bench) -> None:
    bench.run_job("count", "echo index $JOB_COMPLETION_INDEX on $HOSTNAME", **indexed(3))

    until(lambda: done(bench, "count", "Complete"), "completion")
    status = bench.job("count")["status"]
    assert (status["succeeded"], status["completedIndexes"]) == (3, "0-2")
    assert status.get("active") is None
    assert "completionTime" in status
    names = sorted(pod["metadata"]["name"] for pod in bench.pods("count"))
    assert [name.rpartition("-")[0] for name in names] == ["count-0", "count-1", "count-2"]
    assert sorted(bench.log(name) for name in names) == [f"index {i} on count-{i}\n" for i in range(3)]
    owner = bench.pods("count")[0]["metadata"]["ownerReferences"][0]
    assert (owner["uid"], owner["controller"]) == (bench.job("count")["metadata"]["uid"], True)
    reasons = bench.reasons("count")
    assert reasons.count("SuccessfulCreate") == 3
    assert reasons[-1] == "Completed"


def test_status_counts_running_and_ready_pods(bench: Bench) -> None:
    bench.run_job("stay", STAY, **indexed(2))

    until(lambda: bench.job("stay").get("status", {}).get("ready") == 2, "both ready")
    assert bench.job("stay")["status"]["active"] == 2
    assert "startTime" in bench.job("stay")["status"]


def test_non_indexed_job_keeps_its_parallelism_until_enough_succeeded(bench: Bench) -> None:
    bench.run_job("pool", "exit 0", completions=4, parallelism=2)

    until(lambda: done(bench, "pool", "Complete"), "completion")
    assert bench.job("pool")["status"]["succeeded"] == 4
    assert len(bench.pods("pool")) == 4


def test_failed_pod_is_replaced_until_the_backoff_limit(bench: Bench) -> None:
    bench.run_job("fails", "exit 3", backoffLimit=2)

    until(lambda: done(bench, "fails", "Failed"), "failure")
    job = bench.job("fails")
    (failed,) = [c for c in job["status"]["conditions"] if c["type"] == "Failed"]
    assert failed["reason"] == "BackoffLimitExceeded"
    assert job["status"]["failed"] == 3
    assert len(bench.pods("fails")) == 3
    assert "BackoffLimitExceeded" in bench.reasons("fails")


def test_container_restarts_under_on_failure_add_up_to_the_backoff_limit(bench: Bench) -> None:
    bench.run_job("loops", "exit 3", pod={"restartPolicy": "OnFailure"}, backoffLimit=2)

    until(lambda: done(bench, "loops", "Failed"), "failure")
    # Still restarting, so it was deleted; a pod that has ended counts, and its kubelet removes it a moment later.
    until(lambda: bench.pods("loops") == [], "the removal of its pod")


def test_failure_of_one_index_ends_the_others_when_the_job_fails(bench: Bench) -> None:
    script = f"[ $JOB_COMPLETION_INDEX = 1 ] && exit 1; {STAY}"
    bench.run_job("split", script, **indexed(3, backoffLimit=0))

    until(lambda: done(bench, "split", "Failed"), "failure")
    assert active(bench, "split") == []
    assert done(bench, "split", "FailureTarget")


def test_exit_code_rule_fails_the_job_at_once(bench: Bench) -> None:
    rules = {"rules": [{"action": "FailJob", "onExitCodes": {"operator": "In", "values": [42]}}]}
    bench.run_job("fatal", "exit 42", podFailurePolicy=rules, backoffLimit=6)

    until(lambda: done(bench, "fatal", "Failed"), "failure")
    (failed,) = [c for c in bench.job("fatal")["status"]["conditions"] if c["type"] == "Failed"]
    assert failed["reason"] == "PodFailurePolicy"
    assert "failed with exit code 42 matching FailJob rule at index 0" in failed["message"]
    assert len(bench.pods("fatal")) == 1


def test_pod_deleted_by_force_is_replaced_and_counted(bench: Bench) -> None:
    bench.run_job("stay", STAY, **indexed(2, backoffLimit=5))
    until(lambda: len(active(bench, "stay")) == 2, "two pods")
    before = by_index(bench, "stay")
    victim = next(p for p in active(bench, "stay") if p["metadata"]["uid"] == before["1"])

    bench.store.delete("Pod", "lab", victim["metadata"]["name"], actor="test", grace_period_seconds=0)

    until(lambda: by_index(bench, "stay").get("1") not in (None, before["1"]), "the replacement")
    assert by_index(bench, "stay")["0"] == before["0"]
    assert bench.job("stay")["status"]["failed"] == 1


def test_evicted_pod_is_replaced_but_not_counted(bench: Bench) -> None:
    bench.run_job("stay", STAY, **indexed(2, backoffLimit=0, podFailurePolicy=IGNORE_DISRUPTION))
    until(lambda: len(active(bench, "stay")) == 2, "two pods")
    before = by_index(bench, "stay")
    victim = next(p for p in active(bench, "stay") if p["metadata"]["uid"] == before["0"])

    bench.store.mutate(
        "Node",
        None,
        victim["spec"]["nodeName"],
        lambda n: {**n, "spec": {**n["spec"], "taints": [{"key": "broken", "effect": "NoExecute"}]}},
        actor="test",
    )

    until(lambda: by_index(bench, "stay").get("0") not in (None, before["0"]), "the replacement")
    assert "failed" not in bench.job("stay")["status"]
    replacement = next(p for p in active(bench, "stay") if p["metadata"]["uid"] not in before.values())
    assert replacement["spec"]["nodeName"] != victim["spec"]["nodeName"]
    assert "TaintManagerEviction" in bench.reasons(victim["metadata"]["name"])


def post(bench: Bench, path: str, body: dict[str, Any]) -> int:
    request = urllib.request.Request(
        bench.cluster.url + path,
        data=json.dumps(body).encode(),
        headers={
            "Authorization": f"Bearer {bench.cluster.tokens.admin_token}",
            "Content-Type": "application/json",
        },
    )
    with urllib.request.urlopen(request, timeout=10) as response:
        return int(response.status)


def test_drained_pod_goes_to_another_node_and_is_not_counted(bench: Bench) -> None:
    bench.run_job("stay", STAY, **indexed(1, backoffLimit=0, podFailurePolicy=IGNORE_DISRUPTION))
    until(lambda: len(active(bench, "stay")) == 1, "a pod")
    (pod,) = active(bench, "stay")
    node, name = pod["spec"]["nodeName"], pod["metadata"]["name"]
    bench.store.mutate(
        "Node", None, node, lambda n: {**n, "spec": {**n["spec"], "unschedulable": True}}, actor="test"
    )

    eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name, "namespace": "lab"}}
    assert post(bench, f"/api/v1/namespaces/lab/pods/{name}/eviction", eviction) == 201

    until(lambda: bench.pod(name) is None, "the evicted pod's end")
    until(lambda: len(active(bench, "stay")) == 1, "the replacement")
    assert active(bench, "stay")[0]["spec"]["nodeName"] != node
    assert "failed" not in bench.job("stay")["status"]


def suspend(bench: Bench, name: str, is_suspended: bool) -> None:
    bench.store.mutate(
        "Job", "lab", name, lambda j: {**j, "spec": {**j["spec"], "suspend": is_suspended}}, actor="test"
    )


def test_suspended_job_deletes_its_pods_and_resumes_with_new_ones(bench: Bench) -> None:
    bench.run_job("stay", STAY, **indexed(2))
    until(lambda: len(active(bench, "stay")) == 2, "two pods")
    before = set(by_index(bench, "stay").values())

    suspend(bench, "stay", True)

    until(lambda: bench.pods("stay") == [], "no pod left")
    until(lambda: done(bench, "stay", "Suspended"), "the condition")
    status = bench.job("stay")["status"]
    assert "startTime" not in status
    assert "failed" not in status

    suspend(bench, "stay", False)

    until(lambda: len(active(bench, "stay")) == 2, "two pods again")
    assert before.isdisjoint(by_index(bench, "stay").values())
    assert bench.condition("Job", "stay", "Suspended") == "False"
    assert [r for r in bench.reasons("stay") if r in ("Suspended", "Resumed")] == ["Suspended", "Resumed"]


def test_job_created_suspended_has_no_pods_until_resumed(bench: Bench) -> None:
    bench.run_job("later", "exit 0", suspend=True, **indexed(1))
    until(lambda: done(bench, "later", "Suspended"), "the condition")
    assert bench.pods("later") == []

    suspend(bench, "later", False)

    until(lambda: done(bench, "later", "Complete"), "completion")


def test_deadline_fails_the_job(bench: Bench) -> None:
    bench.run_job("slow", STAY, activeDeadlineSeconds=1)

    until(lambda: done(bench, "slow", "Failed"), "failure")
    (failed,) = [c for c in bench.job("slow")["status"]["conditions"] if c["type"] == "Failed"]
    assert failed["reason"] == "DeadlineExceeded"
    assert active(bench, "slow") == []


def test_finished_job_is_deleted_after_its_time_to_live_with_its_pods(bench: Bench) -> None:
    bench.run_job("brief", "exit 0", ttlSecondsAfterFinished=0)

    until(lambda: bench.store.count("Job") == 0, "deletion of the job")
    until(lambda: bench.pods("brief") == [], "deletion of its pods")


def test_deleted_job_takes_its_pods_along(bench: Bench) -> None:
    bench.run_job("stay", STAY, **indexed(2))
    until(lambda: len(active(bench, "stay")) == 2, "two pods")

    bench.store.delete("Job", "lab", "stay", actor="test", propagation="Background")

    until(lambda: bench.pods("stay") == [], "no pod left")


def test_scaled_down_job_ends_its_highest_indexes(bench: Bench) -> None:
    bench.run_job("elastic", STAY, **indexed(3))
    until(lambda: len(active(bench, "elastic")) == 3, "three pods")

    bench.store.mutate(
        "Job",
        "lab",
        "elastic",
        lambda j: {**j, "spec": {**j["spec"], "parallelism": 2, "completions": 2}},
        actor="test",
    )

    until(lambda: sorted(by_index(bench, "elastic")) == ["0", "1"], "two pods")
    assert "failed" not in bench.job("elastic")["status"]


def failed_pod(code: int = 1, *conditions: str) -> dict[str, Any]:
    ended = {"name": "main", "state": {"terminated": {"exitCode": code}}, "restartCount": 0}
    return {
        "metadata": {"name": "p", "namespace": "lab"},
        "status": {
            "phase": "Failed",
            "containerStatuses": [ended],
            "conditions": [{"type": kind, "status": "True"} for kind in conditions],
        },
    }


def on_codes(action: str, operator: str, *values: int, container: str | None = None) -> dict[str, Any]:
    codes: dict[str, Any] = {"operator": operator, "values": list(values)}
    if container:
        codes["containerName"] = container
    return {"action": action, "onExitCodes": codes}


@pytest.mark.parametrize(
    ("pod", "rules", "action"),
    [
        pytest.param(failed_pod(), [], "Count", id="no-rule-counts"),
        pytest.param(failed_pod(3), [on_codes("FailJob", "In", 3)], "FailJob", id="in"),
        pytest.param(failed_pod(4), [on_codes("FailJob", "In", 3)], "Count", id="not-listed"),
        pytest.param(failed_pod(4), [on_codes("Ignore", "NotIn", 3)], "Ignore", id="not-in"),
        pytest.param(
            failed_pod(3), [on_codes("Ignore", "In", 3, container="other")], "Count", id="other-container"
        ),
        pytest.param(failed_pod(0), [on_codes("Ignore", "NotIn", 3)], "Count", id="zero-never-matches"),
        pytest.param(failed_pod(1, "DisruptionTarget"), IGNORE_DISRUPTION["rules"], "Ignore", id="condition"),
        pytest.param(
            failed_pod(3, "DisruptionTarget"),
            [on_codes("FailJob", "In", 3), *IGNORE_DISRUPTION["rules"]],
            "FailJob",
            id="first-match-decides",
        ),
    ],
)
def test_failure_policy(pod: dict[str, Any], rules: list[dict[str, Any]], action: str) -> None:
    assert job_failures.judge(pod, {"rules": rules}).action == action


@pytest.mark.parametrize(
    ("indexes", "text"), [((), ""), ((0,), "0"), ((0, 1, 2), "0-2"), ((5, 0, 2, 1, 7, 8), "0-2,5,7-8")]
)
def test_completed_indexes_are_written_as_spans(indexes: tuple[int, ...], text: str) -> None:
    assert job_failures.spell_indexes(indexes) == text
