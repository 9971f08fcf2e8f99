"""Which process of a container is the agent, which its command, which the training rank. Pure but for /proc."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from sim.processes import Process

TRAINER_MODULE = "sim.trainer"
TRAINER_FILE = str(Path(__file__).with_name("trainer.py"))


@dataclass(frozen=True)
class Roles:
    """None where there is no such process (now)."""

    agent: Process | None
    command: Process | None
    ranks: tuple[Process, ...]


def is_trainer(argv: Sequence[str]) -> bool:
    """Whether this is the trainer itself: a shell or agent that only names it in a string is not."""
    for at, word in enumerate(argv):
        if word == TRAINER_MODULE and at and argv[at - 1] == "-m":
            return True
        if at and word == TRAINER_FILE:
            return True
    return False


def assign(tree: Sequence[Process], agent_path: Path | None) -> Roles:
    """Roles in a container's tree (parents before children, the main process first).

    The ranks are the trainers that have no trainer below them; a container without a trainer has its deepest processes
    for ranks, the agent never among them.
    """
    if not tree:
        return Roles(None, None, ())
    main = tree[0]
    agent = main if agent_path is not None and str(agent_path) in main.argv[:3] else None
    others = [process for process in tree if process is not agent]
    command = next((process for process in others if agent is None or process.parent == agent.pid), None)
    trainers = [process for process in others if is_trainer(process.argv)]
    candidates = trainers or others
    parents = {process.parent for process in candidates}
    return Roles(agent, command, tuple(process for process in candidates if process.pid not in parents))
