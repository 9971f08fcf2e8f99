"""Named points at which a crash test may kill or stop this very process.

A test arms a point by creating a file of its name in the directory ``settings.FAULT_POINTS``; its
content is ``kill`` (SIGKILL of this process, and of the Celery parent, so that the whole worker is
gone) or ``stop`` (SIGSTOP of this process). The first to pass takes the file away, so that a point
fires once. Without the setting, which production never has, this is one attribute look-up.
"""

import os
import signal
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


def reach(point: Point) -> None:
    """Pass a named point; die or stop here if a test armed it."""
    if not settings.FAULT_POINTS:
        return
    armed = Path(settings.FAULT_POINTS) / point
    taken = armed.with_name(f"{point}.taken-{os.getpid()}")
    try:
        armed.rename(taken)
    except FileNotFoundError:
        return
    if taken.read_text().strip() == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
        return
    if os.environ.get("INCIDENTDESK_PROCESS") == "worker" and os.getppid() > 1:
        os.kill(os.getppid(), signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)
