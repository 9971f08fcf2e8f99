"""The house has one direction (docs/adr/0001 and the layers in incidentdesk/frontdoor/imports.py)."""

import subprocess
import sys
from pathlib import Path

import pytest

from incidentdesk.frontdoor import imports
from incidentdesk.frontdoor.places import CHECKOUT


@pytest.fixture(scope="module")
def graph() -> imports.Graph:
    return imports.read_graph(CHECKOUT)


def run_python(program: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", program], cwd=CHECKOUT, capture_output=True, text=True, check=False
    )


def test_imports_go_downwards_only(graph: imports.Graph) -> None:
    assert list(imports.wrong_directions(graph)) == []


def test_no_modules_import_each_other_in_a_circle() -> None:
    assert imports.cycles(imports.read_graph(CHECKOUT, for_types=False)) == []


def test_core_reads_no_clock_and_nothing_random(graph: imports.Graph) -> None:
    assert list(imports.core_impurities(CHECKOUT, graph)) == []


def test_agent_needs_only_python_38(graph: imports.Graph) -> None:
    assert list(imports.agent_faults(CHECKOUT, graph)) == []


def test_core_loads_without_django() -> None:
    answer = run_python(
        "import pkgutil, sys, recovery\n"
        "names = [m.name for m in pkgutil.walk_packages(recovery.__path__, 'recovery.')]\n"
        "assert len(names) > 3\n"
        "for name in names: __import__(name)\n"
        "print(sorted(m for m in sys.modules if m.partition('.')[0] in ('django', 'celery', 'kubernetes')))"
    )
    assert answer.stdout.strip() == "[]", answer.stderr


def test_web_process_never_loads_the_kubernetes_client() -> None:
    answer = run_python(
        "import sys, incidentdesk.asgi\n"
        "from django.urls import get_resolver\n"
        "def walk(patterns):\n"
        "    for p in patterns: walk(getattr(p, 'url_patterns', []))\n"
        "walk(get_resolver().url_patterns)\n"
        "print(sorted(m for m in sys.modules if m.partition('.')[0] == 'kubernetes'))"
    )
    assert answer.stdout.strip() == "[]", answer.stderr


def make_module(root: Path, name: str, text: str) -> None:
    path = root.joinpath(*name.split(".")).with_suffix(".py")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


@pytest.mark.parametrize(
    ("module", "text", "said"),
    [
        ("recovery.a", "def f():\n    import apps.jobs.models\n", "recovery is below apps.jobs"),
        ("apps.jobs.a", "from apps.incidents import services\n", "apps.jobs is below apps.incidents"),
        ("sim.a", "import recovery.phases\n", "sim is a program of its own"),
        ("agent.a", "from recovery import phases\n", "agent is a program of its own"),
        ("apps.jobs.b", "from agent import runner\n", "only agent.wire"),
        (
            "apps.desk.a",
            "if True:\n    from incidentdesk import settings\n",
            "apps.desk is below incidentdesk",
        ),
    ],
    ids=["lazy-upwards", "to-a-higher-app", "out-of-sim", "out-of-agent", "into-the-agent", "app-to-project"],
)
def test_wrong_direction_is_found(tmp_path: Path, module: str, text: str, said: str) -> None:
    for other in ("agent.runner", "recovery.phases", "apps.jobs.models", "apps.incidents.services"):
        make_module(tmp_path, other, "")
    make_module(tmp_path, "incidentdesk.settings", "")
    make_module(tmp_path, module, text)
    found = list(imports.wrong_directions(imports.read_graph(tmp_path)))
    assert len(found) == 1
    assert said in found[0]


def test_circle_through_a_function_is_found(tmp_path: Path) -> None:
    make_module(tmp_path, "apps.jobs.a", "from apps.jobs import b\n")
    make_module(tmp_path, "apps.jobs.b", "from . import c\n")
    make_module(tmp_path, "apps.jobs.c", "def f():\n    from .a import thing\n")
    make_module(tmp_path, "apps.jobs.d", "from . import a\nif TYPE_CHECKING:\n    from apps.jobs import e\n")
    make_module(tmp_path, "apps.jobs.e", "from apps.jobs import d\n")
    graph = imports.read_graph(tmp_path, for_types=False)
    assert imports.cycles(graph) == [["apps.jobs.a", "apps.jobs.b", "apps.jobs.c"]]


@pytest.mark.parametrize(
    "text",
    [
        "import time\n",
        "from django.db import models\n",
        "x = datetime.now()\n",
        "def f(): return uuid.uuid4()\n",
    ],
    ids=["clock-module", "django", "clock-call", "random-call"],
)
def test_impure_core_is_found(tmp_path: Path, text: str) -> None:
    make_module(tmp_path, "recovery.a", text)
    assert len(list(imports.core_impurities(tmp_path, imports.read_graph(tmp_path)))) == 1


@pytest.mark.parametrize(
    "text",
    ["match x:\n    case 1: pass\n", "import tomllib\n", "import psycopg\n"],
    ids=["syntax", "younger", "package"],
)
def test_agent_too_modern_is_found(tmp_path: Path, text: str) -> None:
    make_module(tmp_path, "agent.a", text)
    assert len(list(imports.agent_faults(tmp_path, imports.read_graph(tmp_path)))) == 1
