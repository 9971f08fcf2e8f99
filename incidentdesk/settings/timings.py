"""Every waiting time by name: what production uses, and the short one of drills, tests and demo.

``INCIDENTDESK_TIMINGS`` chooses the column: production, demo or short. A single time can be set by
``INCIDENTDESK_<NAME>``. All are seconds but the two counts of steps and restarts.
"""

from typing import NamedTuple

from incidentdesk import env


class Timing(NamedTuple):
    """One waiting time: production, demo, short, and what waits."""

    production: float
    demo: float
    short: float
    meaning: str


TIMINGS: dict[str, Timing] = {
    "STEADY_SECONDS": Timing(300, 20, 3, "training must run this long before an incident is resolved"),
    "STEADY_STEPS": Timing(20, 20, 5, "and this many steps"),
    "ENROL_BARRIER_SECONDS": Timing(
        60, 5, 5, "from the last pod Running until an agent that is missing ends protection"
    ),
    "NO_CONTACT_SECONDS": Timing(60, 5, 5, "an agent without contact starts its command unprotected"),
    "ORDER_WAIT_SECONDS": Timing(20, 20, 5, "an agent waits for an order after an end"),
    "FINISH_WAIT_SECONDS": Timing(300, 60, 20, "a finished worker keeps its container for the others"),
    "STOP_ACK_SECONDS": Timing(30, 15, 10, "bound for the acknowledgement of a stop, beyond its grace"),
    "STOP_GRACE_SECONDS": Timing(5, 5, 5, "from SIGTERM to SIGKILL when processes are stopped"),
    "CHECK_SECONDS": Timing(5, 5, 5, "budget of the quick checks, as waited for"),
    "CAUSE_HOLD_SECONDS": Timing(
        30, 10, 3, "a failure of which only a symptom is known may still be a preemption: no job ends over it"
    ),
    "START_SECONDS": Timing(1800, 120, 60, "a started attempt must reach its first step"),
    "RESTART_PROCESS_DEADLINE_SECONDS": Timing(30, 30, 15, "every agent reports its new process"),
    "STOP_JOB_DEADLINE_SECONDS": Timing(300, 60, 30, "suspended and no pod running"),
    "ASK_PERSON_DEADLINE_SECONDS": Timing(3600, 3600, 3600, "notice delivered"),
    "REOPEN_SECONDS": Timing(900, 900, 60, "a resolved incident reopens for the same cause"),
    "CAPACITY_DEADLINE_SECONDS": Timing(300, 60, 20, "waiting for capacity is shown with its reason"),
    "BACKOFF_BASE_SECONDS": Timing(5, 2, 0.2, "first wait between restarts, once they are not free"),
    "BACKOFF_CAP_SECONDS": Timing(300, 60, 2, "longest wait between restarts"),
    "BACKOFF_FREE_RESTARTS": Timing(2, 2, 2, "restarts in the window that wait for nothing"),
    "BACKOFF_WINDOW_SECONDS": Timing(3600, 600, 60, "window in which restarts are counted for the backoff"),
    "NO_PROGRESS_RESTARTS": Timing(3, 5, 10, "restarts at the same step until it is said to be no progress"),
    "ALIKE_WINDOW_SECONDS": Timing(
        120, 120, 60, "failures of other jobs of the cluster this close in time may have one cause"
    ),
    "POLL_SECONDS": Timing(2, 2, 1, "heartbeat of an agent in a small fleet"),
    "AGENT_LOST_SECONDS": Timing(10, 10, 5, "an agent without heartbeat is called silent"),
    "ACTION_LEASE_SECONDS": Timing(
        30, 30, 6, "lease of a claimed action; longer than the client's time-out plus 5 s"
    ),
    "CLUSTER_TIMEOUT_SECONDS": Timing(20, 10, 1, "client's time-out for one call to the cluster"),
    "WATCH_LEASE_SECONDS": Timing(15, 6, 3, "lease of the leading watch process"),
    "API_PROBE_SECONDS": Timing(10, 10, 5, "the watch measures how long the cluster takes to answer a call"),
    "WATCH_TIMEOUT_SECONDS": Timing(270, 60, 30, "length of one watch request, jittered"),
    "FEED_KEEP_SECONDS": Timing(3600, 3600, 3600, "rows of the live feed are kept"),
    "UNPLACED_KEEP_SECONDS": Timing(3600, 3600, 60, "a signal about something unknown waits to be placed"),
    "PERSON_LOCK_SECONDS": Timing(2, 2, 2, "a person's request waits for the subject's lock"),
}

_COLUMNS = {"production": 0, "demo": 1, "short": 2}


def load() -> dict[str, float]:
    """The times in force, by name. An unknown column is an error that names the ones there are."""
    name = env.text("INCIDENTDESK_TIMINGS", "production")
    if name not in _COLUMNS:
        raise ValueError(f"INCIDENTDESK_TIMINGS is {name!r}; use one of {', '.join(_COLUMNS)}")
    column = _COLUMNS[name]
    times = {}
    for key, timing in TIMINGS.items():
        override = env.text(f"INCIDENTDESK_{key}")
        times[key] = float(override) if override else float(timing[column])
    return times
