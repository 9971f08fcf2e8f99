"""Named points at which a drill may hold a process of the desk, to kill it, or another, right there.

A drill arms a point by creating a file of its name in the directory ``settings.FAULT_POINTS``. The first
thread to pass renames it to ``<point>.taken-<process id>-<thread id>``, and stands there until the drill
has removed that file, at most HOLD_SECONDS. What happens meanwhile is the drill's: it kills this very
process, or stops it, or kills another one. Without the setting, which production never has, this is one
attribute look-up.
"""

import os
import threading
import time
from pathlib import Path
from typing import Literal

from django.conf import settings

Point = Literal[
    "signal_committed",
    "decision_before_commit",
    "decision_after_commit",
    "action_claimed",
    "action_sending",
    "action_sent",
    "action_seen",
    "order_written",
    "order_read",
]

HOLD_SECONDS = 30.0  # a drill that died must not leave a process standing
LOOK_SECONDS = 0.005


def reach(point: Point) -> None:
    """Pass a named point, or stand there for as long as a drill wants it."""
    if not settings.FAULT_POINTS:
        return
    armed = Path(settings.FAULT_POINTS) / point
    taken = armed.with_name(f"{point}.taken-{os.getpid()}-{threading.get_native_id()}")
    try:
        armed.rename(taken)
    except FileNotFoundError:
        return
    until = time.monotonic() + HOLD_SECONDS
    while taken.exists() and time.monotonic() < until:
        time.sleep(LOOK_SECONDS)
