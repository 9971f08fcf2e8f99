"""Pods as process trees: what runs, what is told, how it ends."""

import os
import signal
import urllib.request
from collections.abc import Callable
from pathlib import Path

import jwt
import pytest

from sim.cluster import Cluster
from sim.kubelet.volumes import rewrite_paths
from sim.processes import look_up
from tests.sim.conftest import Bench, is_gone, until

HOST_VOLUME = {
    "container": {"volumeMounts": [{"name": "out", "mountPath": "/out"}]},
    "volumes": [{"name": "out", "hostPath": {"path": "/out"}}],
}


def host_path(bench: Bench, name: str) -> Path:
    return bench.cluster.directory.root / "hostpaths" / "out" / name


def written(bench: Bench, name: str) -> str:
    """Content of a file that a container writes, once it is there and not empty."""
    path = host_path(bench, name)
    return until(lambda: path.exists() and path.read_text(), f"{name} written")


def test_pod_runs_to_its_end_and_its_status_tells_how(bench: Bench) -> None:
    bench.run_pod("good", "echo hello; echo fine > /dev/termination-log")
    bench.run_pod("bad", "echo trouble >&2; exit 3")

    until(lambda: bench.phase("good") == "Succeeded", "end of the good pod")
    until(lambda: bench.phase("bad") == "Failed", "end of the bad pod")
    ended = bench.container("good")["state"]["terminated"]
    assert (ended["exitCode"], ended["reason"], ended["message"]) == (0, "Completed", "fine\n")
    assert bench.container("good")["containerID"].startswith("containerd://")
    ended = bench.container("bad")["state"]["terminated"]
    assert (ended["exitCode"], ended["reason"]) == (3, "Error")
    assert bench.log("bad") == "trouble\n"
    assert bench.condition("Pod", "bad", "Ready") == "False"
    assert bench.condition("Pod", "bad", "PodScheduled") == "True"
    reasons = bench.reasons("bad")
    assert [r for r in reasons if r in ("Scheduled", "Pulled", "Created", "Started")] == reasons[:4]


def test_running_pod_is_ready_and_its_log_is_served(bench: Bench) -> None:
    bench.run_pod("web", "echo up; exec sleep 1000")

    until(lambda: bench.condition("Pod", "web", "Ready") == "True", "readiness")
    pod = bench.pod("web")
    assert pod is not None
    assert pod["status"]["phase"] == "Running"
    assert pod["status"]["podIP"].startswith("127.")
    assert pod["status"]["hostIP"].startswith("10.")
    assert "startedAt" in bench.container("web")["state"]["running"]
    until(lambda: bench.log("web"), "output")
    request = urllib.request.Request(
        f"{bench.cluster.url}/api/v1/namespaces/lab/pods/web/log",
        headers={"Authorization": f"Bearer {bench.cluster.tokens.admin_token}"},
    )
    with urllib.request.urlopen(request, timeout=10) as response:
        assert response.read() == b"up\n"


def test_environment_volumes_and_paths_reach_the_container(make_cluster: Callable[..., Cluster]) -> None:
    bench = Bench(make_cluster(desk_url="http://127.0.0.1:9"))
    settings = {"url": "http://127.0.0.1:9", "note": "plain"}
    bench.store.create(
        "ConfigMap", {"metadata": {"name": "desk", "namespace": "lab"}, "data": settings}, actor="test"
    )
    secret = {"metadata": {"name": "key", "namespace": "lab"}, "data": {"key": "c2VzYW1l"}}
    bench.store.create("Secret", secret, actor="test")
    fields = {"NAME": "metadata.name", "UID": "metadata.uid", "NODE": "spec.nodeName", "IP": "status.podIP"}
    container = {
        "env": [
            {"name": "GREETING", "value": "hello"},
            {"name": "BOTH", "value": "$(GREETING) $$(GREETING)"},
            {"name": "CKPT", "value": "/out/step-1:/outer:/out"},
            *({"name": n, "valueFrom": {"fieldRef": {"fieldPath": path}}} for n, path in fields.items()),
            {"name": "NOTE", "valueFrom": {"configMapKeyRef": {"name": "desk", "key": "note"}}},
        ],
        "volumeMounts": [
            {"name": "out", "mountPath": "/out"},
            {"name": "desk", "mountPath": "/etc/desk"},
            {"name": "token", "mountPath": "/var/run/token"},
            {"name": "scratch", "mountPath": "/scratch"},
        ],
    }
    volumes = [
        {"name": "out", "hostPath": {"path": "/out"}},
        {"name": "scratch", "emptyDir": {}},
        {"name": "desk", "configMap": {"name": "desk"}},
        {
            "name": "token",
            "projected": {
                "sources": [
                    {
                        "serviceAccountToken": {
                            "path": "token",
                            "audience": "incidentdesk",
                            "expirationSeconds": 600,
                        }
                    },
                    {"secret": {"name": "key"}},
                ]
            },
        },
    ]
    script = (
        "echo x > /scratch/file; env > /out/env.tmp; cat /etc/desk/url > /out/url; cat /var/run/token/token > /out/jwt;"
        " cat /var/run/token/key > /out/secret; mv /out/env.tmp /out/env; exec sleep 1000"
    )
    pod = bench.run_pod("all", script, container=container, volumes=volumes)

    env = dict(line.split("=", 1) for line in written(bench, "env").splitlines() if "=" in line)
    out = str(bench.cluster.directory.root / "hostpaths" / "out")
    assert env["BOTH"] == "hello $(GREETING)"
    assert env["CKPT"] == f"{out}/step-1:/outer:{out}"
    assert env["NOTE"] == "plain"
    placed = bench.pod("all")
    assert placed is not None
    assert (env["NAME"], env["UID"]) == ("all", pod["metadata"]["uid"])
    assert (env["NODE"], env["IP"]) == (placed["spec"]["nodeName"], placed["status"]["podIP"])
    assert written(bench, "url").startswith(f"http://{env['IP']}:")  # the desk by the pod's own forwarder
    assert written(bench, "secret") == "sesame"
    claims = jwt.decode(written(bench, "jwt"), options={"verify_signature": False})
    assert claims["aud"] == ["incidentdesk"]
    assert claims["sub"] == "system:serviceaccount:lab:default"
    assert claims["kubernetes.io"]["pod"] == {"name": "all", "uid": pod["metadata"]["uid"]}
    assert claims["kubernetes.io"]["node"]["name"] == env["NODE"]
    assert bench.cluster.tokens.verify(written(bench, "jwt"), ["incidentdesk"]).user is not None


def test_missing_config_map_holds_the_pod_until_it_is_there(bench: Bench) -> None:
    volumes = [{"name": "desk", "configMap": {"name": "later"}}]
    bench.run_pod("waits", "exit 0", volumes=volumes)
    until(lambda: "FailedMount" in bench.reasons("waits"), "FailedMount")
    assert bench.phase("waits") == "Pending"
    waiting = {"waiting": {"reason": "ContainerCreating"}}
    until(lambda: bench.container("waits").get("state") == waiting, "the status says why")

    bench.store.create("ConfigMap", {"metadata": {"name": "later", "namespace": "lab"}}, actor="test")

    until(lambda: bench.phase("waits") == "Succeeded", "the pod's run")


def test_mounted_config_map_follows_its_object(bench: Bench) -> None:
    config = {"metadata": {"name": "desk", "namespace": "lab"}, "data": {"mode": "old"}}
    bench.store.create("ConfigMap", config, actor="test")
    bench.run_pod(
        "reads",
        "until grep -q new /etc/desk/mode; do sleep 0.05; done",
        container={"volumeMounts": [{"name": "desk", "mountPath": "/etc/desk"}]},
        volumes=[{"name": "desk", "configMap": {"name": "desk"}}],
    )
    until(lambda: bench.phase("reads") == "Running", "the pod runs")

    bench.store.update("ConfigMap", config | {"data": {"mode": "new"}}, actor="test")

    until(lambda: bench.phase("reads") == "Succeeded", "the new content is read")


def test_command_that_does_not_exist_is_a_start_error(bench: Bench) -> None:
    bench.run_pod("none", "", container={"command": ["/no/such/program"]})

    until(lambda: bench.phase("none") == "Failed", "the failed start")
    ended = bench.container("none")["state"]["terminated"]
    assert (ended["exitCode"], ended["reason"]) == (128, "StartError")
    assert "No such file or directory: /no/such/program" in ended["message"]


def test_first_restart_is_at_once_and_the_next_ones_back_off(bench: Bench) -> None:
    script = "date +%s.%N >> /out/starts; exit 1"
    bench.run_pod("loops", script, restartPolicy="OnFailure", **HOST_VOLUME)

    def backs_off() -> bool:
        waiting = bench.container("loops").get("state", {}).get("waiting", {})
        return waiting.get("reason") == "CrashLoopBackOff"

    until(backs_off, "CrashLoopBackOff")
    status = bench.container("loops")
    assert status["restartCount"] >= 1
    assert status["lastState"]["terminated"]["exitCode"] == 1
    assert "restarting failed container=main pod=loops_lab(" in status["state"]["waiting"]["message"]
    assert bench.phase("loops") == "Running"
    until(lambda: len(host_path(bench, "starts").read_text().split()) >= 4, "four starts")
    starts = [float(line) for line in host_path(bench, "starts").read_text().split()]
    # Doubling: each wait is longer than the one before, whatever the machine adds.
    assert starts[2] - starts[1] >= 0.4
    assert starts[3] - starts[2] >= 0.8
    assert "BackOff" in bench.reasons("loops")


def test_container_that_ends_well_under_on_failure_stays_ended(bench: Bench) -> None:
    script = "if [ -e /out/once ]; then exit 0; fi; touch /out/once; exit 9"
    bench.run_pod("twice", script, restartPolicy="OnFailure", **HOST_VOLUME)

    until(lambda: bench.phase("twice") == "Succeeded", "success in the second run")
    status = bench.container("twice")
    assert status["restartCount"] == 1
    assert status["lastState"]["terminated"]["exitCode"] == 9


def test_always_restarts_after_success_too(bench: Bench) -> None:
    bench.run_pod("again", "exit 0", restartPolicy="Always")

    until(lambda: bench.container("again").get("restartCount", 0) >= 2, "restarts")
    assert bench.phase("again") == "Running"


def test_death_by_signal_is_told_as_such(bench: Bench) -> None:
    bench.run_pod("shot", "kill -KILL $$")

    until(lambda: bench.phase("shot") == "Failed", "the end")
    ended = bench.container("shot")["state"]["terminated"]
    assert (ended["exitCode"], ended["signal"], ended["reason"]) == (137, 9, "Error")


def test_deleted_pod_gets_sigterm_and_its_grace(bench: Bench) -> None:
    script = "trap 'echo bye > /out/word; exit 0' TERM; echo up > /out/up; while true; do sleep 0.05; done"
    bench.run_pod("polite", script, terminationGracePeriodSeconds=60, **HOST_VOLUME)
    written(bench, "up")

    bench.store.delete("Pod", "lab", "polite", actor="test")

    pod = bench.pod("polite")
    assert pod is None or pod["metadata"]["deletionGracePeriodSeconds"] == 60
    until(lambda: bench.pod("polite") is None, "removal of the object")
    assert written(bench, "word") == "bye\n"
    assert "Killing" in bench.reasons("polite")


def test_every_descendant_dies_with_the_container_even_in_its_own_session(bench: Bench) -> None:
    script = (
        "setsid sh -c 'trap \"\" TERM; echo $$ > /out/session; while true; do sleep 0.05; done' &"
        " (setsid sleep 1000 & echo $! > /out/orphan); trap '' TERM; echo up > /out/up; while true; do sleep 0.05; done"
    )
    bench.run_pod("tree", script, terminationGracePeriodSeconds=1, **HOST_VOLUME)
    written(bench, "up")
    pids = [int(written(bench, name)) for name in ("session", "orphan")]
    assert all(look_up(pid) for pid in pids)

    bench.store.delete("Pod", "lab", "tree", actor="test")

    until(lambda: bench.pod("tree") is None, "removal after the grace")
    assert [look_up(pid) for pid in pids] == [None, None]


def test_descendants_end_when_the_main_process_does(bench: Bench) -> None:
    bench.run_pod("leaves", "setsid sleep 1000 & echo $! > /out/child; exit 4", **HOST_VOLUME)

    until(lambda: bench.phase("leaves") == "Failed", "the end")
    assert bench.container("leaves")["state"]["terminated"]["exitCode"] == 4
    assert look_up(int(written(bench, "child"))) is None


def test_force_delete_removes_the_object_at_once_and_then_the_processes(bench: Bench) -> None:
    bench.run_pod("stuck", "trap '' TERM; echo $$ > /out/pid; while true; do sleep 0.05; done", **HOST_VOLUME)
    pid = int(written(bench, "pid"))

    bench.store.delete("Pod", "lab", "stuck", actor="test", grace_period_seconds=0)

    assert bench.pod("stuck") is None
    until(lambda: look_up(pid) is None, "end of the process")


def test_pod_that_takes_a_deleted_ones_name_is_another_pod(bench: Bench) -> None:
    first = bench.run_pod(
        "same", "trap '' TERM; echo up > /out/up; while true; do sleep 0.05; done", **HOST_VOLUME
    )
    written(bench, "up")
    bench.store.delete("Pod", "lab", "same", actor="test", grace_period_seconds=0)

    second = bench.run_pod("same", "exit 5")

    until(lambda: bench.phase("same") == "Failed", "end of the second")
    assert bench.container("same")["state"]["terminated"]["exitCode"] == 5
    assert first["metadata"]["uid"] != second["metadata"]["uid"]
    uids = {w.uid for w in bench.cluster.pod_workers()}
    until(
        lambda: first["metadata"]["uid"] not in {w.uid for w in bench.cluster.pod_workers()},
        "end of the first",
    )
    assert second["metadata"]["uid"] in uids


def test_init_containers_run_one_after_another_before_the_main_ones(bench: Bench) -> None:
    def init(name: str) -> dict[str, object]:
        return {
            "name": name,
            "image": "busybox:1",
            "command": ["sh", "-c", f"echo {name} >> /out/order"],
            "volumeMounts": HOST_VOLUME["container"]["volumeMounts"],  # type: ignore[index]
        }

    bench.run_pod(
        "staged", "echo main >> /out/order", initContainers=[init("one"), init("two")], **HOST_VOLUME
    )

    until(lambda: bench.phase("staged") == "Succeeded", "the end")
    assert host_path(bench, "order").read_text().split() == ["one", "two", "main"]
    assert bench.condition("Pod", "staged", "Initialized") == "True"


def test_failed_init_container_fails_a_pod_that_never_restarts(bench: Bench) -> None:
    init = {"name": "one", "image": "busybox:1", "command": ["false"]}
    bench.run_pod("unstaged", "exit 0", initContainers=[init])

    until(lambda: bench.phase("unstaged") == "Failed", "the end")
    assert bench.container("unstaged")["state"] == {"waiting": {"reason": "ContainerCreating"}}


def test_killed_supervisor_takes_the_container_with_it(bench: Bench) -> None:
    bench.run_pod(
        "headless", "setsid sleep 1000 & echo $! > /out/child; echo up > /out/up; sleep 1000", **HOST_VOLUME
    )
    written(bench, "up")
    child = int(written(bench, "child"))
    (worker,) = bench.cluster.pod_workers()
    (container,) = until(worker.processes, "the kubelet knows the container")

    os.kill(container.shim_pid, signal.SIGKILL)

    until(lambda: bench.phase("headless") == "Failed", "the pod's end")
    assert bench.container("headless")["state"]["terminated"]["exitCode"] == 137
    until(lambda: is_gone(child), "end of the orphan")


def test_full_log_starts_again_and_its_last_part_is_kept(bench: Bench) -> None:
    for kubelet in bench.cluster.kubelets.values():
        kubelet.log_bytes = 1000
    bench.run_pod("talks", "seq 1000; until [ -e /out/go ]; do sleep 0.05; done; echo after", **HOST_VOLUME)
    until(lambda: "1000" in bench.log("talks"), "output")

    until(lambda: bench.log("talks") == "", "the log starts again")
    host_path(bench, "go").touch()

    until(lambda: bench.phase("talks") == "Succeeded", "the end")
    assert bench.log("talks") == "after\n"
    (worker,) = bench.cluster.pod_workers()
    assert (worker.directory / "logs" / "main" / "0.log.1").read_text().splitlines()[-1] == "1000"


def test_pods_find_each_other_by_name(bench: Bench) -> None:
    script = (
        "until grep -q ' b-0.team ' $SIM_HOSTS_FILE; do sleep 0.05; done; cat $SIM_HOSTS_FILE > /out/hosts"
    )
    bench.run_pod("a-0", script, hostname="a-0", subdomain="team", **HOST_VOLUME)
    bench.run_pod("b-0", "exec sleep 1000", hostname="b-0", subdomain="team")

    lines = [line.split() for line in written(bench, "hosts").splitlines()]
    address = {name: parts[0] for parts in lines for name in parts[1:]}
    until(lambda: bench.phase("b-0") == "Running", "the other pod runs")
    other = bench.pod("b-0")
    assert other is not None
    assert address["b-0.team.lab.svc.cluster.local"] == address["b-0"] == other["status"]["podIP"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("/ckpt", "/real/c"),
        ("/ckpt/step-1", "/real/c/step-1"),
        ("--dir=/ckpt --x", "--dir=/real/c --x"),
        ("cat '/ckpt/a';ls /ckpt/deep/b", "cat '/real/c/a';ls /real/d/b"),
        ("/ckpt2 /a/ckpt x/ckpt", "/ckpt2 /a/ckpt x/ckpt"),
        ("/ckpt.bak /ckpt-old", "/ckpt.bak /ckpt-old"),
        ("http://host/ckpt", "http://host/ckpt"),
    ],
)
def test_mount_paths_are_rewritten_only_where_they_stand_alone(text: str, expected: str) -> None:
    assert rewrite_paths(text, {"/ckpt": "/real/c", "/ckpt/deep": "/real/d"}) == expected
