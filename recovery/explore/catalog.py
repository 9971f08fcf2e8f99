"""The models by name, in the setting that every test run walks and in the full one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from recovery.explore.actions import Actions
from recovery.explore.channels import Channels
from recovery.explore.engine import Model
from recovery.explore.holds import Holds
from recovery.explore.mutants import Mutant
from recovery.explore.processes import Processes
from recovery.explore.requests import Requests
from recovery.explore.wakeups import Wakeups
from recovery.phases import TABLE, step_over

#: What each model is about, in the order in which they are walked.
TITLES: Mapping[str, str] = {
    "processes": "what happens to workers, told at once and in any order",
    "channels": "agents' messages, lost, repeated, delayed and reordered",
    "actions": "the life cycle of an action, and its executors",
    "requests": "the life cycle of a request for a yes",
    "holds": "holds and guards under concurrent subjects",
    "wakeups": "the decide loop and its wake-ups",
}

#: States that the first proof of this design, a program apart from this one, has met with 3 workers and max retry 2.
FIRST_PROOF_STATES: Mapping[str, int] = {"processes": 26_778, "channels": 44_826}

Settings = tuple[Mapping[str, Any], ...]

#: Walked by every test run. One worker with two retries for the budget, two workers for what goes on between them.
SMALL: Mapping[str, Settings] = {
    "processes": (
        {"workers": 1, "max_retry": 2},
        {"workers": 2, "max_retry": 1},
    ),
    "channels": ({"workers": 2, "max_retry": 1},),
    "actions": ({}, {"harmful": True}),
    "requests": ({},),
    "holds": ({"machines": 2},),
    "wakeups": ({"reports": 2}, {"reports": 2, "faults": True}),
}


def full(name: str, *, workers: int, max_retry: int) -> Settings:
    """The full settings of a model; the small models have one size whatever the job's."""
    if name in FIRST_PROOF_STATES:
        return ({"workers": workers, "max_retry": max_retry},)
    return {
        "actions": ({"tries": 3}, {"harmful": True, "tries": 3}),
        "requests": ({"people": 5},),
        "holds": ({"machines": 3},),
        "wakeups": ({"reports": 3}, {"reports": 3, "faults": True}),
    }[name]


def models(name: str, settings: Settings, mutant: Mutant | None = None) -> Iterator[Model[Any]]:
    """The models of a name in these settings, each once.

    Args:
        name: One of TITLES. KeyError: there is no such model.
        mutant: Walked with its fault, and in its own settings where it has some.
    """
    own = dict(mutant.settings) if mutant is not None else {}
    different = {tuple(sorted((setting | own).items())): setting | own for setting in map(dict, settings)}
    for setting in different.values():
        yield model(name, setting, mutant)


def model(name: str, setting: Mapping[str, Any], mutant: Mutant | None = None) -> Model[Any]:
    """One model in one setting. KeyError: there is none of this name."""
    extra: dict[str, Any] = {}
    if mutant is not None:
        if name in FIRST_PROOF_STATES:
            extra = {"step": step_over(mutant.table(TABLE)), "judgement": mutant.judgement}
        else:
            extra = {"rules": mutant.rules}
    makers: Mapping[str, Any] = {
        "processes": Processes,
        "channels": Channels,
        "actions": Actions,
        "requests": Requests,
        "holds": Holds,
        "wakeups": Wakeups,
    }
    made: Model[Any] = makers[name](**setting, **extra)
    return made
