"""Faults for the simulated cluster, by its control API. Speaks HTTP only; imports nothing of the simulator."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any

TIMEOUT_SECONDS = 15.0


class FaultRefused(Exception):
    """The simulator answered that it did nothing, and why."""


class SimulatorAway(Exception):
    """No answer that can be read: whether the fault happened is not known."""


def inject_fault(endpoint: str | Path, fault: str, parameters: Mapping[str, Any]) -> str:
    """Inject one fault and give back the sentence that tells what was done.

    Args:
        endpoint: Path of the simulator's ``endpoint.json`` ({"url", "admin_token"}).
        fault: Name of a fault, e.g. ``kill-process``.
        parameters: What it needs, e.g. ``namespace``, ``job``, ``index``.
    Raises:
        FaultRefused: Nothing was done.
        SimulatorAway: The endpoint cannot be read or did not answer.
    """
    try:
        where = json.loads(Path(endpoint).read_text())
        url, token = str(where["url"]), str(where["admin_token"])
    except (OSError, ValueError, KeyError) as error:
        raise SimulatorAway(f"the simulated cluster's address {endpoint} cannot be read ({error})") from error
    if not url.startswith(("http://127.0.0.1:", "http://localhost:", "http://[::1]:")):
        raise SimulatorAway(f"{url} is not a simulated cluster on this machine")
    request = urllib.request.Request(
        f"{url}/sim/v1/faults",
        data=json.dumps({"fault": fault, **parameters}).encode(),
        headers={"Authorization": f"Bearer {token}", "Content-Type": "application/json"},
        method="POST",
    )
    # No proxy of the environment stands between this machine and itself.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(request, timeout=TIMEOUT_SECONDS) as response:
            answer = json.loads(response.read())
    except urllib.error.HTTPError as error:
        raise FaultRefused(_detail(error)) from error
    except (OSError, ValueError) as error:
        raise SimulatorAway(f"the simulated cluster did not answer ({error})") from error
    if not isinstance(answer, dict) or answer.get("done") is not True:
        raise FaultRefused(
            str(answer.get("detail", answer)) if isinstance(answer, dict) else "an answer without sense"
        )
    what = str(answer.get("what") or f"{fault} was injected")
    return what[:1].upper() + what[1:].rstrip(".") + "."


def _detail(error: urllib.error.HTTPError) -> str:
    try:
        body = json.loads(error.read())
        return str(body.get("detail") or body.get("message") or error)
    except (ValueError, AttributeError, OSError):
        return str(error)
