"""What is kept of a judged attempt, so that later attempts, and other jobs on its machine, can be compared with it.

A device is named by what stays with the hardware: the address on the PCI bus, the identity of the GPU, the name of the
adapter. A number ("GPU 3") is not: it depends on what a container was given.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from recovery.records import Finding
from recovery.verdict import Verdict

NO_RULE = "none"

_PCI = re.compile(r"\b([0-9a-f]{4,8}):([0-9a-f]{2}):([0-9a-f]{2})\b(?!:[0-9a-f]{2}\b)")
#: An address counts in a line about such a device only: times and other addresses are written alike.
_OF_DEVICE = ("pci", "gpu", "xid", "nvrm", "cuda", "nvidia", "amdgpu", "mlx5", "nvme", "accel")
_GPU = re.compile(r"\bgpu-[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b")
_ADAPTER = re.compile(r"\b(?:mlx[45]|bnxt_re|hfi1|efa|irdma|rdmap)_?\d{1,3}\b")
_SEQUENCE = re.compile(r"\bseqnum=(\d{1,15})\b")


def finding(
    verdict: Verdict, *, node: str, rank: int | None, log: Iterable[str], container_since: int | None = None
) -> Finding:
    """What a failure was found to be.

    Args:
        verdict: Judged without a look at other attempts.
        node: Where the culprit ran, "" where nobody is known to be it.
        rank: Its index.
        log: Its lines, oldest first.
        container_since: The attempt with which its container began.
    """
    if verdict.rule == NO_RULE:  # what is unknown is compared with nothing, whatever checks say meanwhile
        return Finding(
            rule=NO_RULE, category="unknown", node=node, rank=rank, container_since=container_since
        )
    cited = [each.text for each in verdict.evidence if each.rule == verdict.rule]
    return Finding(
        rule=verdict.rule, category=verdict.category, node=node, device=device_in(cited), rank=rank,
        sequence=sequence_in(log), container_since=container_since,
    )  # fmt: skip


def device_in(lines: Iterable[str]) -> str:
    """The one device that these lines name, "" where they name none or several."""
    named = {device for line in lines for device in _devices(line.lower())}
    kinds = [sorted(each for each in named if each.startswith(kind)) for kind in ("gpu/", "pci/", "nic/")]
    told = next((kind for kind in kinds if kind), [])
    return told[0] if len(told) == 1 else ""


def _devices(line: str) -> Iterable[str]:
    yield from (f"gpu/{found[0][4:]}" for found in _GPU.finditer(line))
    if any(word in line for word in _OF_DEVICE):
        yield from (f"pci/{domain[-4:]}:{bus}:{slot}" for domain, bus, slot in _PCI.findall(line))
    yield from (f"nic/{found[0]}" for found in _ADAPTER.finditer(line))


def sequence_in(log: Iterable[str]) -> int | None:
    """The number of the collective that the first line of its kind tells, None where no line does."""
    for line in log:
        if found := _SEQUENCE.search(line.lower()):
            return int(found[1])
    return None
