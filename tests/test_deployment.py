"""docker/ by what can be checked without a daemon: files parse, and what they name exists."""

import importlib.util
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from adapters.kubernetes import objects
from adapters.kubernetes.translate import job_fact
from agent.settings import DEFAULT_CONFIG_DIR, DEFAULT_TOKEN_FILE, Settings
from apps.jobs.limits import nested_limits, read_wishes
from apps.jobs.services.credentials import AUDIENCE
from incidentdesk.frontdoor.places import CHECKOUT
from sim.store import Store

COMPOSE = CHECKOUT / "docker" / "compose.yaml"
TRAINING = CHECKOUT / "docker" / "kubernetes" / "training" / "job.yaml"
MANIFESTS = sorted((CHECKOUT / "docker" / "kubernetes").glob("*.yaml"))
# The processes of docs/operations.md that run our code for as long as the desk runs.
PROCESSES = {"web", "decide", "worker", "beat", "watch"}
QUEUES = {"decide", "act", "import", "notify"}


def containers() -> list[dict[str, Any]]:
    objects = [o for path in MANIFESTS for o in yaml.safe_load_all(path.read_text())]
    templates = [o["spec"]["template"]["spec"] for o in objects if o["kind"] in ("Deployment", "Job")]
    return [container for template in templates for container in template["containers"]]


def compose_services() -> dict[str, dict[str, Any]]:
    return dict(yaml.safe_load(COMPOSE.read_text())["services"])


def test_image_copies_only_what_is_there() -> None:
    text = (CHECKOUT / "docker" / "Dockerfile").read_text()
    names = [
        word for line in re.findall(r"^COPY (?!--from)(.+) \S+$", text, re.MULTILINE) for word in line.split()
    ]
    assert {"apps", "manage.py", "uv.lock"} <= set(names)
    assert [name for name in names if not (CHECKOUT / name).exists()] == []


def test_compose_builds_from_here_and_runs_every_process() -> None:
    services = compose_services()
    assert set(services) >= PROCESSES
    build = services["web"]["build"]
    context = (COMPOSE.parent / build["context"]).resolve()
    assert context == CHECKOUT
    assert (context / build["dockerfile"]).is_file()


def test_manifests_run_every_process() -> None:
    assert {container["name"] for container in containers()} >= PROCESSES


@pytest.mark.parametrize("source", ["compose", "kubernetes"])
def test_workers_listen_to_every_queue(source: str) -> None:
    commands = (
        [s.get("command", []) for s in compose_services().values()]
        if source == "compose"
        else [c.get("command", []) for c in containers()]
    )
    queues = {q for words in commands if "-Q" in words for q in words[words.index("-Q") + 1].split(",")}
    assert queues == QUEUES


def test_commands_name_modules_that_are_there() -> None:
    commands = [s["command"] for s in compose_services().values() if "command" in s and "image" in s]
    ours = [words for words in commands if words[0] in ("python", "celery")]
    assert len(ours) >= 5
    for words in ours:
        if words[0] == "python":
            assert (CHECKOUT / words[1]).is_file()
        else:
            assert importlib.util.find_spec(words[words.index("-A") + 1]) is not None


def test_desk_may_neither_create_nor_delete_what_a_controller_owns() -> None:
    roles = [
        o
        for path in MANIFESTS
        for o in yaml.safe_load_all(path.read_text())
        if o["kind"] in ("Role", "ClusterRole")
    ]
    assert roles
    rules = [rule for role in roles for rule in role["rules"] if "resources" in rule]
    reviews = [
        rule for rule in rules if rule["resources"] == ["tokenreviews"]
    ]  # answered, and kept by nobody
    assert [rule["verbs"] for rule in reviews] == [["create"]]
    for rule in (rule for rule in rules if rule not in reviews):
        assert not {"create", "delete", "deletecollection", "*"} & set(rule["verbs"])
    reads = {
        name
        for role in roles
        for rule in role["rules"]
        if "get" in rule["verbs"]
        for name in rule.get("resources", ())
    }
    assert {"nodes", "pods", "pods/log", "namespaces", "jobs"} <= reads


def test_every_manifest_is_named_by_kind_and_namespace() -> None:
    for path in MANIFESTS:
        assert isinstance(path, Path)
        for item in yaml.safe_load_all(path.read_text()):
            assert {"apiVersion", "kind", "metadata"} <= set(item)


# The example of a training job.


def training_job() -> dict[str, Any]:
    (job,) = [o for o in yaml.safe_load_all(TRAINING.read_text()) if o["kind"] == "Job"]
    return dict(job)


def test_example_is_a_job_that_the_desk_protects_and_no_outer_limit_ends_first() -> None:
    store = Store()
    store.create("Namespace", {"metadata": {"name": "training"}}, actor="test")
    stored = store.create("Job", training_job(), actor="test")
    fact = job_fact(msgspec.json.decode(msgspec.json.encode(stored), type=objects.Job))
    assert fact.annotations["protect"] == "true"
    assert (fact.world_size, fact.gpus_per_worker, fact.is_indexed) == (2, 8, True)
    wishes = read_wishes(fact.annotations, default_max_retry=3, default_grace_seconds=1)
    assert (wishes.max_retry, wishes.stop_grace_seconds, wishes.mistakes) == (10, 5.0, ())
    limits = nested_limits(fact, wishes)
    assert [limit["name"] for limit in limits] == ["backoffLimit"]
    assert [limit["warning"] for limit in limits] == [""]


def test_example_gives_the_agent_what_it_reads() -> None:
    pod = training_job()["spec"]["template"]["spec"]
    (train,) = pod["containers"]
    env = {each["name"]: each.get("value", "told") for each in train["env"]}
    settings = Settings(env, say=pytest.fail)
    assert settings.checkpoint_dir == "/checkpoints"
    assert settings.container == train["name"]
    identity = (settings.pod_uid, settings.pod_name, settings.namespace, settings.node_name, settings.pod_ip)
    assert set(identity) == {"told"}
    mounts = {each["name"]: each["mountPath"] for each in train["volumeMounts"]}
    volumes = {each["name"]: each for each in pod["volumes"]}
    assert set(mounts) == set(volumes)
    (source,) = volumes["desk-token"]["projected"]["sources"]
    token = source["serviceAccountToken"]
    assert (f"{mounts['desk-token']}/{token['path']}", token["audience"]) == (DEFAULT_TOKEN_FILE, AUDIENCE)
    assert mounts["desk-config"] == DEFAULT_CONFIG_DIR


def test_example_takes_the_agent_from_where_the_image_has_it() -> None:
    text = (CHECKOUT / "docker" / "Dockerfile").read_text()
    (home,) = set(re.findall(r"^WORKDIR (\S+)$", text, re.MULTILINE))
    (built,) = re.findall(r"^RUN python -m agent\.build --out (\S+)$", text, re.MULTILINE)
    pod = training_job()["spec"]["template"]["spec"]
    (init,) = pod["initContainers"]
    assert init["command"][:2] == ["cp", f"{home}/{built}"]
    agent = f"{init['command'][2]}{built}"
    assert pod["containers"][0]["command"][:3] == ["python3", agent, "--"]
    assert init["volumeMounts"][0]["mountPath"] == str(Path(agent).parent)
