"""docker/ by what can be checked without a daemon: files parse, and what they name exists."""

import importlib.util
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from incidentdesk.frontdoor.places import CHECKOUT

COMPOSE = CHECKOUT / "docker" / "compose.yaml"
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
    for rule in (rule for role in roles for rule in role["rules"] if "resources" in rule):
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
