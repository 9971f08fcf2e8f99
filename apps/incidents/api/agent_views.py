"""POST /agent/v1/enrol and /agent/v1/report: small plain views, for they are the hot path.

The poll is answered before Django (apps/jobs/poll.py). What agent and desk say: ``agent.wire``.
"""

from __future__ import annotations

import ipaddress
import logging
import time
from collections.abc import Callable
from functools import wraps
from typing import Annotated, Any

import msgspec
from django.db import InterfaceError, OperationalError
from django.http import HttpRequest, HttpResponse
from django.views.decorators.csrf import csrf_exempt

from agent import wire
from apps.incidents.redact import storable
from apps.incidents.services.reporting import InboxFullError, enrol_agent, record_report
from apps.jobs import tokens, waiting_times
from apps.jobs.clock_offset import MOST_UNIX_SECONDS
from apps.jobs.services.enrolment import AgentStart, Enrolled, NotEnrolled
from recovery.errors import BadInput, Conflict, NotFound

_log = logging.getLogger(__name__)
_encode = msgspec.json.Encoder().encode

RETRY_AFTER_SECONDS = 1

_Name = Annotated[str, msgspec.Meta(max_length=253)]
_Short = Annotated[str, msgspec.Meta(max_length=63)]
_Moment = Annotated[float, msgspec.Meta(ge=0, le=MOST_UNIX_SECONDS)]


class _EnrolRequest(msgspec.Struct):
    version: int
    nonce: Annotated[str, msgspec.Meta(min_length=16, max_length=64)]
    pod_uid: Annotated[str, msgspec.Meta(max_length=64)] = ""
    pod_name: _Name = ""
    namespace: _Name = ""
    container: _Short = ""
    node_name: _Name = ""
    ip: Annotated[str, msgspec.Meta(max_length=45)] = ""
    agent_version: Annotated[str, msgspec.Meta(max_length=32)] = ""
    pid: Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)] | None = None
    sent_at: _Moment | None = None


class _ReportRequest(msgspec.Struct):
    version: int
    incarnation: int
    messages: Annotated[list[dict[str, Any]], msgspec.Meta(max_length=wire.MAX_MESSAGES)]
    sent_at: _Moment | None = None


_enrol_decoder = msgspec.json.Decoder(_EnrolRequest)
_report_decoder = msgspec.json.Decoder(_ReportRequest)


class _Refusal(Exception):
    def __init__(self, status: int, code: str, detail: str) -> None:
        super().__init__(detail)
        self.status = status
        self.code = code


def _agent_view(view: Callable[[HttpRequest], dict[str, Any]]) -> Callable[[HttpRequest], HttpResponse]:
    """One answer for every error of an agents' endpoint, and the size and version checked before."""

    @csrf_exempt
    @wraps(view)
    def answer(request: HttpRequest) -> HttpResponse:
        if request.method != "POST":
            return _error(405, "method_not_allowed", "Use POST.")
        try:
            return HttpResponse(_encode(view(request)), content_type="application/json")
        except _Refusal as refusal:
            return _error(refusal.status, refusal.code, str(refusal))
        except BadInput as error:
            return _error(400, error.code, f"{error.field}: {error}")
        except InboxFullError as error:
            return _error(429, error.code, str(error))
        except Conflict as error:
            return _error(409, error.code, str(error))
        except NotFound as error:
            return _error(401, "unknown_incarnation", f"{error} Enrol again.")
        except (OperationalError, InterfaceError) as error:
            _log.warning("agent.unavailable path=%s error=%s", request.path, str(error).strip())
            return _error(503, "database_unavailable", "The database is away; send this again.")

    return answer


@_agent_view
def enrol_view(request: HttpRequest) -> dict[str, Any]:
    """Take an agent in: EnrolRequest -> EnrolResponse."""
    bearer = _bearer(request)
    if not bearer:
        raise _Refusal(401, "no_token", "Show the pod's projected token or the job's enrolment secret.")
    body: _EnrolRequest = _decode(_enrol_decoder, _body(request))
    _check_version(body.version)
    start = AgentStart(
        nonce=storable(body.nonce),
        pod_uid=storable(body.pod_uid),
        pod_name=storable(body.pod_name),
        namespace=storable(body.namespace),
        container=storable(body.container),
        node_name=storable(body.node_name),
        ip=_address(body.ip),
        agent_version=storable(body.agent_version),
        pid=body.pid,
        sent_at=body.sent_at,
    )
    answer = enrol_agent(bearer=bearer, start=start)
    if isinstance(answer, NotEnrolled):
        if answer.status != wire.AGAIN:
            _log.info(
                "agent.%s pod=%r/%r reason=%s", answer.status, start.namespace, start.pod_name, answer.reason
            )
        return dict(
            wire.EnrolResponse(
                version=wire.VERSION,
                status=answer.status,
                reason=answer.reason,
                retry_after_seconds=answer.retry_after_seconds,
                server_time=time.time(),
            )
        )
    return _enrolled(answer)


def _enrolled(answer: Enrolled) -> dict[str, Any]:
    job, life = answer.job, answer.incarnation
    token, expires_at = tokens.issue(job_id=job.pk, incarnation_id=life.pk, now=time.time())
    return dict(
        wire.EnrolResponse(
            version=wire.VERSION,
            status=wire.ENROLLED,
            reason=answer.reason,
            token=token,
            token_expires_at=float(expires_at),
            incarnation=life.pk,
            job=str(job),
            worker=wire.WorkerName(role=answer.worker.role, index=answer.worker.index),
            world_size=job.world_size,
            protected=answer.is_protected,
            # The first poll tells the interval for the present size of the fleet.
            limits=waiting_times.told_limits(agents=0, stop_grace_seconds=job.stop_grace_seconds),
            sequence=life.cursor,
            server_time=answer.now.timestamp(),
        )
    )


@_agent_view
def report_view(request: HttpRequest) -> dict[str, Any]:
    """Store messages: ReportRequest -> ReportResponse, once they are committed."""
    token = tokens.read(_bearer(request), now=time.time())
    if token is None:
        raise _Refusal(401, "bad_token", "An agent's valid token is needed; enrol again.")
    body: _ReportRequest = _decode(_report_decoder, _body(request))
    _check_version(body.version)
    if body.incarnation != token.incarnation_id:
        raise _Refusal(401, "other_incarnation", "The token is of another incarnation; enrol again.")
    outcome = record_report(
        job_id=token.job_id,
        incarnation_id=token.incarnation_id,
        messages=body.messages,
        sent_at=body.sent_at,
    )
    return dict(
        wire.ReportResponse(
            version=wire.VERSION,
            accepted=list(outcome.accepted),
            rejected=list(outcome.rejected),
            server_time=outcome.now.timestamp(),
        )
    )


def _body(request: HttpRequest) -> bytes:
    """The body, of at most MAX_BODY_BYTES by its announced length (a body without one is empty here)."""
    try:
        announced = int(request.headers.get("Content-Length") or 0)
    except ValueError:
        announced = 0
    if announced > wire.MAX_BODY_BYTES:
        raise _Refusal(413, "too_large", f"A body has at most {wire.MAX_BODY_BYTES} bytes.")
    return request.read(wire.MAX_BODY_BYTES)


def _decode(decoder: msgspec.json.Decoder[Any], body: bytes) -> Any:
    try:
        return decoder.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise _Refusal(400, "bad_input", str(error)) from None


def _check_version(version: int) -> None:
    if version not in wire.SPOKEN_VERSIONS:
        spoken = ", ".join(map(str, wire.SPOKEN_VERSIONS))
        raise _Refusal(400, "version", f"version: this desk speaks {spoken}, not {version}.")


def _bearer(request: HttpRequest) -> str:
    kind, _, text = request.headers.get("Authorization", "").partition(" ")
    return text.strip() if kind.lower() == "bearer" else ""


def _address(text: str) -> str | None:
    """An IP address, or None: what an agent says of itself is shown only when it is one."""
    try:
        return str(ipaddress.ip_address(text)) if text else None
    except ValueError:
        return None


def _error(status: int, code: str, detail: str) -> HttpResponse:
    response = HttpResponse(
        _encode({"code": code, "detail": detail}), content_type="application/json", status=status
    )
    if status in (429, 503):
        response["Retry-After"] = str(RETRY_AFTER_SECONDS)
    if status == 401:
        response["WWW-Authenticate"] = 'Bearer realm="incidentdesk"'
    return response
