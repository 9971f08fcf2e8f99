"""What the container's environment tells the agent. A wrong value is said and its default taken."""

from __future__ import annotations

import os
from typing import Callable, Dict, List, Optional

DEFAULT_CONFIG_DIR = "/etc/incidentdesk"
DEFAULT_TOKEN_FILE = "/var/run/incidentdesk/token/token"
DEFAULT_TERMINATION_LOG = "/dev/termination-log"

# Taken out of the command's environment: it proves who the agent is.
SECRET_VARIABLES = ("INCIDENTDESK_ENROL_SECRET",)


class Settings:
    """Everything read from the environment, once, at the start.

    Durations are seconds. ``url`` is None when no desk is configured.
    """

    def __init__(self, env: Dict[str, str], say: Callable[[str], None]) -> None:
        self.env = env
        self._say = say
        config_dir = env.get("INCIDENTDESK_CONFIG_DIR", DEFAULT_CONFIG_DIR)
        self.url = (env.get("INCIDENTDESK_URL") or _first_line(os.path.join(config_dir, "url"))).rstrip(
            "/"
        ) or None
        self.ca_file: Optional[str] = os.path.join(config_dir, "ca.crt")
        self.token_file = env.get("INCIDENTDESK_TOKEN_FILE", DEFAULT_TOKEN_FILE)
        self.secret = env.get("INCIDENTDESK_ENROL_SECRET") or None
        self.pod_uid = env.get("INCIDENTDESK_POD_UID", "")
        self.pod_name = env.get("INCIDENTDESK_POD_NAME") or os.uname().nodename
        self.namespace = env.get("INCIDENTDESK_NAMESPACE", "")
        self.node_name = env.get("INCIDENTDESK_NODE_NAME", "")
        self.pod_ip = env.get("INCIDENTDESK_POD_IP", "")
        self.container = env.get("INCIDENTDESK_CONTAINER", "")
        self.checkpoint_dir = env.get("INCIDENTDESK_CHECKPOINT_DIR") or None
        self.checkpoint_format = env.get("INCIDENTDESK_CHECKPOINT_FORMAT") or "sharded-manifest"
        self.progress_file = env.get("INCIDENTDESK_PROGRESS_FILE") or None
        self.step_pattern = env.get("INCIDENTDESK_STEP_PATTERN") or None
        self.termination_log = env.get("INCIDENTDESK_TERMINATION_LOG") or DEFAULT_TERMINATION_LOG
        self.index = self._index()
        self.no_contact_seconds = self._seconds("INCIDENTDESK_NO_CONTACT_SECONDS")
        self.stop_grace_seconds = self._seconds("INCIDENTDESK_STOP_GRACE_SECONDS")
        self.order_wait_seconds = self._seconds("INCIDENTDESK_ORDER_WAIT_SECONDS")
        self.finish_wait_seconds = self._seconds("INCIDENTDESK_FINISH_WAIT_SECONDS")
        self.hang_min_seconds = self._seconds("INCIDENTDESK_HANG_MIN_SECONDS")
        self.flush_seconds = self._seconds("INCIDENTDESK_FLUSH_SECONDS")
        self.state_dir = state_dir(env)

    def command_env(self, extra: Dict[str, str]) -> Dict[str, str]:
        """The environment of the command and of checks."""
        env = {name: value for name, value in self.env.items() if name not in SECRET_VARIABLES}
        env.update(extra)
        return env

    def write_termination_message(self, text: str) -> None:
        """Leave a message for the pod's status, unless the command wrote one."""
        path = self.termination_log
        is_told = bool(self.env.get("INCIDENTDESK_TERMINATION_LOG"))
        try:
            if os.path.getsize(path) > 0 if os.path.exists(path) else not is_told:
                return
            with open(path, "w", encoding="utf-8") as file:
                file.write(text)
        except OSError:
            pass  # no message is better than no exit

    def _index(self) -> Optional[int]:
        for name in ("JOB_COMPLETION_INDEX", "RANK"):
            text = self.env.get(name, "")
            if text.isdigit():
                return int(text)
        return None

    def _seconds(self, name: str) -> Optional[float]:
        text = self.env.get(name, "")
        if not text:
            return None
        try:
            value = float(text)
        except ValueError:
            value = -1.0
        if not 0 <= value < 1e9:  # also turns NaN away
            self._say("%s=%r is no duration in seconds; taking the default" % (name, text))
            return None
        return value


def state_dir(env: Dict[str, str]) -> str:
    """Directory of the control socket: the same for the agent and for ``deskagent ctl`` beside it."""
    told = env.get("INCIDENTDESK_STATE_DIR")
    if told:
        return told
    parts: List[str] = [
        part for part in (env.get("INCIDENTDESK_POD_UID"), env.get("INCIDENTDESK_CONTAINER")) if part
    ]
    base = env.get("TMPDIR") or "/tmp"
    return os.path.join(base, "incidentdesk-" + ("-".join(parts) or "agent-%d" % os.getuid()))


def _first_line(path: str) -> str:
    try:
        with open(path, encoding="utf-8") as file:
            return file.readline().strip()
    except (OSError, UnicodeDecodeError):
        return ""
