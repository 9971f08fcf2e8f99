"""Messages between worker agents and the desk, version 1.

Python 3.8 and the standard library only, because the agent runs inside the user's image. Every
body is one JSON object with ``version``. Times are Unix seconds (float) of the sender's own clock.
Unknown fields are ignored, so that this version and the two before can speak to each other.

Paths (all POST, ``Authorization: Bearer …``):

- ``/agent/v1/enrol``   EnrolRequest  -> EnrolResponse; bearer is the projected token or the enrolment secret
- ``/agent/v1/poll``    PollRequest   -> PollResponse; a long-poll: heartbeat and doorbell in one
- ``/agent/v1/report``  ReportRequest -> ReportResponse; answered once the messages are committed

Answers other than 200: 400 (``{"code", "detail"}``, never repeat), 401 (enrol again), 409 (a newer
incarnation of this worker exists: obey nothing any more), 413, 429 and 503 (``Retry-After``).
"""

from typing import Any, Dict, List, Optional

try:  # 3.8 has TypedDict, without Required
    from typing import TypedDict
except ImportError:  # pragma: no cover
    raise SystemExit("the worker agent needs Python 3.8 or newer") from None

VERSION = 1
SPOKEN_VERSIONS = (1,)

MAX_BODY_BYTES = 1024 * 1024
MAX_MESSAGES = 500
MAX_LOG_LINES = 200
MAX_LINE_BYTES = 4096

# Message types (DOMAIN: ACK, Order, Error, Finish) and those that carry evidence only.
ACK = "ACK"
ORDER = "Order"
ERROR = "Error"
FINISH = "Finish"
MARK = "Mark"  # data: {"mark": MARKS, "step"?, "checkpoint"?, "pids"?}: a moment of a start or of progress
HANG = "Hang"  # data: {"seconds_since_progress", "step", "confirmed": bool, "judged_as", "allowed_seconds"}
QUIT = "Quit"  # a request for Stopped, by the job's token; data: {"reason", "at_safe_point": bool}
CHECKPOINT = "Checkpoint"  # data: {"step", "path", "state": "written"|"committed", "bytes", "shards"}

TYPES = (ACK, ORDER, ERROR, FINISH, MARK, HANG, QUIT, CHECKPOINT)

# Phases of a message.
BOOTCHECK = "bootcheck"
COMMAND = "command"
TROUBLESHOOT = "troubleshoot"
PHASES = (BOOTCHECK, COMMAND, TROUBLESHOOT)

# Marks, in the order in which a start passes them.
MARK_STARTED = "started"  # the training process runs; data has "pids": {"agent", "command", "rank"?}
MARK_RESTORED = "restored"  # state loaded; data has "step", "seconds"
MARK_REBUILT = "rebuilt"  # rendezvous and communicator up; data has "seconds"
MARK_FIRST_STEP = "first_step"  # first step of this start done; data has "step"
MARK_STEADY = (
    "steady"  # ten steps done in this start, so that step time is known; data has "step", "step_seconds"
)
MARKS = (MARK_STARTED, MARK_RESTORED, MARK_REBUILT, MARK_FIRST_STEP, MARK_STEADY)

# What an enrolment answers.
ENROLLED = "enrolled"
AGAIN = "again"  # the desk has not seen this pod yet, or cannot say: ask again after retry_after_seconds
UNPROTECTED = "unprotected"  # run the command now, transparently (observe, not opted in, unknown job)
REFUSED = "refused"  # the credential is not this pod's: run unprotected and say so

# What a poll may direct beside orders.
CONTINUE = "continue"
RUN_UNPROTECTED = "run_unprotected"  # barrier gave up: start the command, transparent until the next start
EXTEND_WAIT = "extend_wait"  # the desk is still deciding: wait for extend_seconds more before leaving

# Exit codes that the agent makes itself: never 0, outside 1, 2, 126-165 and 255.
EXIT_ORDERED = 78  # ended by an order (restart of the container)
EXIT_ORDER_WAIT = 79  # protected, no order in time and the command left no code of its own
EXIT_STOPPED = 80  # the job was stopped while no command ran
EXIT_CHECK_FAILED = 81  # boot check failed, the worker must leave
EXIT_USAGE = 82  # wrong arguments or environment


class Limits(TypedDict, total=False):
    """Waiting times told by the desk, in seconds."""

    poll_seconds: float  # how long a poll is held open at most, and the heartbeat's interval
    order_wait_seconds: float
    no_contact_seconds: float
    finish_wait_seconds: float
    stop_grace_seconds: float
    lost_seconds: float


class WorkerName(TypedDict):
    role: str
    index: int


class EnrolRequest(TypedDict, total=False):
    version: int
    nonce: str  # new for every start of the agent, 32 hex characters
    pod_uid: str
    pod_name: str
    namespace: str
    container: str
    node_name: str
    ip: str
    agent_version: str
    pid: int
    sent_at: float
    command: List[str]


class EnrolResponse(TypedDict, total=False):
    version: int
    status: str
    reason: str
    retry_after_seconds: float
    token: str
    token_expires_at: float
    incarnation: int
    job: str  # namespace/name
    worker: WorkerName
    world_size: int
    protected: bool
    limits: Limits
    sequence: int
    server_time: float


class ProcessState(TypedDict, total=False):
    state: str  # none | starting | running | stopping | exited
    pid: int
    started_at: float
    exit_code: int
    signal: int


class PollRequest(TypedDict, total=False):
    version: int
    incarnation: int
    cursor: int  # highest order sequence read by this agent
    wait_seconds: float
    sent_at: float
    inner_phase: str  # Pending | BootChecking | RunCommand | Troubleshooting | Succeeded | Failed
    sequence: int  # sequence of the order that is being carried out
    process: ProcessState
    step: Optional[int]
    step_at: Optional[float]
    step_seconds: Optional[float]
    checkpoint_step: Optional[int]
    skipped_bytes: int
    unsent: int  # messages still kept by the agent


class Message(TypedDict, total=False):
    n: int  # dense, from 1, per incarnation: the idempotency key with it
    job: str
    namespace: str
    pod: str  # pod name, or "*"
    type: str
    phase: str
    sequence: int  # the order set that this answers; names the attempt
    data: Dict[str, Any]
    time: float


class PollResponse(TypedDict, total=False):
    version: int
    orders: List[Message]  # type "Order", ascending by sequence, all > cursor
    protected: bool
    directive: str
    extend_seconds: float
    token: str
    token_expires_at: float
    limits: Limits
    server_time: float


class ReportRequest(TypedDict, total=False):
    version: int
    incarnation: int
    sent_at: float
    messages: List[Message]


class Rejected(TypedDict):
    n: int
    code: str
    detail: str


class ReportResponse(TypedDict, total=False):
    version: int
    accepted: List[int]  # committed, or known already
    rejected: List[Rejected]  # never to be sent again
    server_time: float


class CheckResult(TypedDict, total=False):
    """One check, in ACK data as ``{"checks": [CheckResult, …]}``."""

    check: str  # io | gpu | runtime | rdma | allreduce_conn | allreduce_perf | hang | disk | environment
    result: str  # pass | fail | timeout | could_not_run
    seconds: float
    detail: str


# Data of an Order, by phase:
#   bootcheck     {"environment": true, "checks": ["quick"]}
#   command       {"attempt": n, "resume": {"step", "path"} or null}
#   troubleshoot  {"stop": true, "checks": ["quick"], "grace_seconds": 5}
#                 or {"exit": true, "code": EXIT_ORDERED, "reason": "…"}: stop everything, then leave the container
#                 or {"finish": true}: all workers finished, leave with 0
# Data of an ACK, by phase:
#   bootcheck     {"environment": {…}, "checks": [CheckResult]}
#   command       {"pids": {"agent", "command"}, "started_at"}
#   troubleshoot  {"checks": [CheckResult], "stopped": {"seconds", "killed": n, "pids": [..]}}
# Data of an Error: {"exit_code" or "signal", "rank"?, "pid", "step"?, "log_tail": [..], "kernel_log"?,
#                    "first_error_at"?, "checks"?}
# Data of a Finish: {"exit_code": 0, "pid", "step"}
