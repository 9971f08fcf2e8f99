"""Who imports whom: the direction of the layers, cycles, and what the core and the agent may use.

Everything is read from the source, so an import hidden in a function counts like any other.
"""

import ast
import sys
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

# From the ground up: a module may import its own layer and those before it.
LAYERS = (
    "agent.wire",
    "recovery",
    "adapters",
    "apps.wiring",
    "apps.crash_points",
    "apps.access",
    "apps.nodes",
    "apps.jobs",
    "apps.incidents",
    "apps.desk",
    "incidentdesk",
)
# These are programs of their own: they import only themselves, and nobody imports them but `agent.wire`.
PROGRAMS = ("agent", "sim")
PACKAGES = ("agent", "recovery", "adapters", "apps", "incidentdesk", "sim")
# The core reads no clock, no random source and no environment.
IMPURE_MODULES = frozenset(
    {"time", "random", "secrets", "logging", "os", "io", "socket", "subprocess", "threading", "asyncio"}
    | {"multiprocessing", "tempfile", "urllib", "http", "platform", "signal"}
)
IMPURE_CALLS = frozenset({"now", "utcnow", "today", "uuid1", "uuid4", "open", "input", "print"})
OLDEST_AGENT_PYTHON = (3, 8)
YOUNGER_THAN_AGENT_PYTHON = frozenset({"zoneinfo", "graphlib", "tomllib", "compression", "annotationlib"})

Graph = Mapping[str, Mapping[str, int]]
"""For each module of ours: what it imports, ours or not, with the line of the first import."""


@cache
def _tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(), filename=str(path))


def module_name(path: Path, root: Path) -> str:
    """Give `apps.jobs.models` for apps/jobs/models.py; a package is named without `__init__`."""
    parts = path.relative_to(root).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def read_graph(root: Path, *, for_types: bool = True) -> dict[str, dict[str, int]]:
    """Read the imports of all modules below `root`; `from a import b` counts as `a.b` where that is a module.

    `for_types`: whether imports under `if TYPE_CHECKING:`, which never run, are counted.
    """
    sources = {
        module_name(path, root): path
        for package in PACKAGES
        for path in sorted((root / package).rglob("*.py"))
    }
    return {name: _imports(name, path, sources, for_types) for name, path in sources.items()}


def _nodes(tree: ast.AST, for_types: bool) -> Iterator[ast.AST]:
    """Walk a tree, without the bodies of `if TYPE_CHECKING:` when they do not count."""
    for child in ast.iter_child_nodes(tree):
        yield child
        if isinstance(child, ast.If) and not for_types and "TYPE_CHECKING" in ast.unparse(child.test):
            for other in child.orelse:
                yield from _nodes(other, for_types)
        else:
            yield from _nodes(child, for_types)


def _imports(name: str, path: Path, modules: Mapping[str, Path], for_types: bool) -> dict[str, int]:
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    found: dict[str, int] = {}
    for node in _nodes(_tree(path), for_types):
        targets: list[str] = []
        if isinstance(node, ast.Import):
            targets = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parents = package.split(".")
                parents = parents[: len(parents) - node.level + 1]
                base = ".".join([*parents, base] if base else parents)
            for alias in node.names:
                whole = f"{base}.{alias.name}"
                targets.append(whole if whole in modules else base)
        for target in targets:
            found.setdefault(target, node.lineno)  # type: ignore[attr-defined]
    found.pop(name, None)
    return found


def layer(module: str) -> int | None:
    """Give the index in LAYERS, or None for programs of their own and for what is not ours."""
    return next((i for i, name in enumerate(LAYERS) if module == name or module.startswith(name + ".")), None)


def is_ours(module: str) -> bool:
    return module.partition(".")[0] in PACKAGES


def wrong_directions(graph: Graph) -> Iterator[str]:
    """List each import that goes upwards, into a program, or out of one."""
    for module, imports in graph.items():
        for target, line in imports.items():
            if not is_ours(target) or target in ("apps", "agent"):
                continue
            own = module.partition(".")[0]
            if own in PROGRAMS:
                if target.partition(".")[0] != own:
                    yield f"{module}:{line} imports {target}: {own} is a program of its own and imports only itself"
                continue
            here, there = layer(module), layer(target)
            if there is None:
                yield f"{module}:{line} imports {target}: only agent.wire may be imported from a program"
            elif here is not None and there > here:
                yield f"{module}:{line} imports {target}: {LAYERS[here]} is below {LAYERS[there]}"


def cycles(graph: Graph) -> list[list[str]]:
    """Give the groups of modules that import each other in a circle (Tarjan's strongly connected components).

    Take a graph without the imports for types: those never run, so they close no circle.
    """
    order: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    groups: list[list[str]] = []

    def visit(module: str) -> None:
        order[module] = low[module] = len(order)
        stack.append(module)
        for target in graph[module]:
            if target not in graph:
                continue
            if target not in order:
                visit(target)
                low[module] = min(low[module], low[target])
            elif target in stack:
                low[module] = min(low[module], order[target])
        if low[module] == order[module]:
            group = stack[stack.index(module) :]
            del stack[stack.index(module) :]
            if len(group) > 1:
                groups.append(sorted(group))

    for module in graph:
        if module not in order:
            visit(module)
    return groups


def core_impurities(root: Path, graph: Graph) -> Iterator[str]:
    """List what makes the core impure: imports outside of the standard library, clocks, random sources, output."""
    for module, imports in graph.items():
        if module.partition(".")[0] != "recovery":
            continue
        for target, line in imports.items():
            top = target.partition(".")[0]
            if top in IMPURE_MODULES or (top not in sys.stdlib_module_names and not is_ours(target)):
                yield f"{module}:{line} imports {target}"
        path = root / Path(*module.split("."))
        path = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
        for node in ast.walk(_tree(path)):
            if isinstance(node, ast.Call):
                called = (
                    node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
                )
                if called in IMPURE_CALLS:
                    yield f"{module}:{node.lineno} calls {called}()"


def agent_faults(root: Path, graph: Graph) -> Iterator[str]:
    """List what Python 3.8 without packages would not run in `agent/`: syntax and imports."""
    for path in sorted((root / "agent").rglob("*.py")):
        try:
            ast.parse(path.read_text(), filename=str(path), feature_version=OLDEST_AGENT_PYTHON)
        except SyntaxError as error:
            yield f"{path.relative_to(root)}:{error.lineno} is no Python 3.8: {error.msg}"
    for module, imports in graph.items():
        if module.partition(".")[0] != "agent":
            continue
        for target, line in imports.items():
            top = target.partition(".")[0]
            if top != "agent" and (top not in sys.stdlib_module_names or top in YOUNGER_THAN_AGENT_PYTHON):
                yield f"{module}:{line} imports {target}, which Python 3.8 does not bring"
