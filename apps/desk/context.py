"""What the frame around every page needs: the reader, the banner, the place in the live feed."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.conf import settings
from django.http import HttpRequest, QueryDict
from django.utils import timezone

from apps.access.models import Cluster, User
from apps.desk.scope import Scope, is_fragment
from apps.incidents import rules
from apps.nodes.models import WatchState
from apps.nodes.selectors import watch_states
from recovery.decide import Mode

LAG_SECONDS = 10.0  # a watch that is further behind is called out on every page
SILENT = timedelta(seconds=150)  # bookmarks come each minute; two missed ones are no accident


@dataclass(frozen=True, slots=True)
class Banner:
    """A sentence above the page. ``tone`` is warn or quiet."""

    key: str
    text: str
    since: datetime | None = None
    tone: str = "warn"


def chrome(request: HttpRequest) -> dict[str, Any]:
    """Variables of ``base.html``. Pages of somebody who is not logged in get the bare frame."""
    scope: Scope | None = getattr(request, "scope", None)
    reader = getattr(request, "user", None)
    frame: dict[str, Any] = {
        "fragment": is_fragment(request) and scope is not None,
        "theme": reader.theme if isinstance(reader, User) else "system",
        "single_keys": isinstance(reader, User) and reader.single_keys,
        "reader": reader if isinstance(reader, User) else None,
    }
    if scope is None:
        return frame
    return frame | {
        "scope": scope,
        "page_url": page_url(request),
        "cluster_query": f"?cluster={scope.cluster.slug}" if scope.cluster else "",
        "banners": [*banners(scope.chosen_clusters), *(rule_banners() if scope.all_nodes else ())],
        "live_cursor": getattr(request, "live_cursor", ""),
        "can_break": bool(settings.SIM_ENDPOINT),
    }


def page_url(request: HttpRequest) -> str:
    """The page's address without the rows that an open list holds: what the page fetches again."""
    query = QueryDict(request.META.get("QUERY_STRING", ""), mutable=True)
    query.pop("held", None)
    return f"{request.path}?{query.urlencode()}" if query else request.path


def banners(clusters: list[Cluster]) -> list[Banner]:
    """What a reader must know about the clusters shown: stale sight first, then modes that only watch."""
    now = timezone.now()
    by_cluster: dict[int, list[WatchState]] = {}
    for row in watch_states(cluster.pk for cluster in clusters):
        by_cluster.setdefault(row.cluster_id, []).append(row)
    found = []
    for cluster in clusters:
        banner = _watch_banner(cluster, by_cluster.get(cluster.pk, []), now)
        if banner is not None:
            found.append(banner)
    watched_only = [cluster.slug for cluster in clusters if cluster.mode == Mode.OBSERVE]
    if watched_only:
        found.append(
            Banner(
                key="observe",
                text=f"{_listed(watched_only)}: watched only (observe). "
                "The desk shows what it would do and does nothing.",
                tone="quiet",
            )
        )
    return found


def rule_banners() -> list[Banner]:
    """That the operator's rule file is not in force, for those who can mend it."""
    wrong = rules.refusal() if settings.RULES_FILE else ""
    if not wrong:
        return []
    why = wrong.splitlines()[0].rstrip(".")
    return [
        Banner(
            "rules",
            f"Your rule file is not used, the built-in rules hold: {why}. Mend it and restart the desk.",
        )
    ]


def watch_trouble(row: WatchState, now: datetime) -> str:
    """Why one watch cannot be trusted now, in words; empty when it can."""
    if row.state == "broken":
        return row.detail or "broken"
    if row.resource == "leader":
        return "no watch process leads" if row.lease_until is None or row.lease_until < now else ""
    if row.lag_seconds is not None and row.lag_seconds > LAG_SECONDS:
        return f"{row.lag_seconds:.0f} s behind"
    if row.last_heard_at is not None and now - row.last_heard_at > SILENT:
        return "silent"
    return ""


def _watch_banner(cluster: Cluster, rows: list[WatchState], now: datetime) -> Banner | None:
    troubled = [(row, why) for row in rows if (why := watch_trouble(row, now))]
    if not troubled:
        return None
    heard = [row.last_heard_at for row in rows if row.last_heard_at is not None]
    resources: dict[str, list[str]] = {}
    for row, why in troubled:
        resources.setdefault(why, []).extend([row.resource] if row.resource != "leader" else [])
    reasons = [f"{_listed(names)} {why}" if names else why for why, names in resources.items()]
    return Banner(
        key=f"watch-{cluster.pk}",
        text=f"The watch of {cluster.slug} is not up to date ({'; '.join(reasons)}). "
        "Nodes, pods and jobs may have changed since",
        since=max(heard, default=None),
    )


def _listed(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
