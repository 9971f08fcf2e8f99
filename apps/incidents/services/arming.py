"""Say what the desk may do by itself in a cluster, once every guard there can work."""

from __future__ import annotations

import shlex

from apps.access import services as access
from apps.access.models import Cluster
from apps.access.printable import printable
from apps.incidents.services import guarding
from recovery.decide import Mode
from recovery.errors import InvalidTransition
from recovery.guards import Unreachable


def set_cluster_mode(*, cluster_id: int, mode: Mode, actor_kind: str, actor: str, reason: str) -> Cluster:
    """Set the mode of a cluster. Audited. One in which the desk may do more is refused while a guard cannot work.

    Raises what the access service does, and InvalidTransition with each such guard, why, and the command that mends it.
    """
    return access.set_cluster_mode(
        cluster_id=cluster_id,
        mode=mode,
        actor_kind=actor_kind,
        actor=actor,
        reason=reason,
        before_arming=_refuse_unreachable,
    )


def _refuse_unreachable(cluster: Cluster, mode: Mode) -> None:
    unreachable = guarding.unreachable_limits(cluster)
    if not unreachable:
        return
    many = f"{len(unreachable)} guards" if len(unreachable) > 1 else "a guard"
    lines = [f"Cluster {cluster.slug} stays in mode {cluster.mode}: {many} could not work in mode {mode}."]
    for name, found in unreachable.items():
        lines += [
            f"  {printable(name)}: {printable(found.why)}",
            f"    {mending_command(cluster, name, found)}",
        ]
    lines.append(
        "Set each, for example as shown, or switch it off by --off instead of its numbers; then arm again."
    )
    raise InvalidTransition("\n".join(lines))


def mending_command(cluster: Cluster, name: str, found: Unreachable) -> str:
    """The command line that gives a guard the limit that would do, or switches off what no limit mends."""
    words, limit = ["manage.py", "guards", "--cluster", cluster.slug, "--set", name], found.mended
    if limit is None:
        return shlex.join([*words, "--off"])
    if limit.number is not None:
        words += ["--number", str(limit.number)]
    if limit.share is not None:
        words += ["--share", str(limit.share)]
    if limit.at_least:
        words += ["--at-least", str(limit.at_least)]
    return shlex.join(words)
