"""The channel to the desk: one connection for the long-poll, one for reports.

Two threads: the poll thread enrols, then keeps a poll open; the report thread sends what the outbox
holds, at once. Whatever comes is handed to the session in the loop's thread, so neither thread ever
touches a process.
"""

from __future__ import annotations

import json
import os
import threading
import time
from typing import Any, Callable, Dict, List, Optional, Protocol, Tuple, cast

from agent import wire
from agent.outbox import Outbox

TYPE_CHECKING = False
if TYPE_CHECKING:
    import http.client
    import ssl

CONNECT_SECONDS = 5.0
ANSWER_SECONDS = 10.0  # beyond the time that a poll is held open
POLL_SECONDS = 2.0  # until the desk tells another
BACKOFF_FIRST_SECONDS = 0.1
BACKOFF_MAX_SECONDS = 2.0
# A poll that was answered early and brought nothing: the first is repeated almost at once, because an
# order may follow; a desk that does not hold polls open is not asked in a busy loop.
EARLY_FIRST_SECONDS = 0.02
REFUSED_RETRY_SECONDS = 30.0


class Listener(Protocol):
    """What the session hears, called through ``post``, in the loop's thread."""

    def on_enrolled(self, answer: wire.EnrolResponse) -> None: ...

    def on_poll(self, answer: wire.PollResponse) -> None: ...

    def on_fenced(self) -> None: ...

    def poll_state(self) -> Dict[str, Any]:
        """Fields of a poll; called from the poll thread."""
        ...


class Unreachable(Exception):
    """No usable answer. ``retry_after`` is what the desk asked for, else None."""

    def __init__(self, reason: str, retry_after: Optional[float] = None) -> None:
        super().__init__(reason)
        self.retry_after = retry_after


class Rejected(Exception):
    """An answer that repeating does not change; ``status`` is its HTTP status."""

    def __init__(self, status: int, detail: str) -> None:
        super().__init__("%d %s" % (status, detail))
        self.status = status


def encode(body: Any) -> bytes:
    """One JSON body. Not ASCII only: escapes would make six bytes of a character in a log line."""
    return json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")


def jittered(seconds: float) -> float:
    """Between half of it and all of it, so that agents which lost the desk together come back apart."""
    share = int.from_bytes(os.urandom(4), "big") / 2.0**32
    return seconds * (0.5 + share / 2.0)


class Backoff:
    """Growing waits between tries; ``reset`` after a success."""

    def __init__(self, most: float = BACKOFF_MAX_SECONDS) -> None:
        self._most = most
        self._next = BACKOFF_FIRST_SECONDS

    def next(self, told: Optional[float] = None) -> float:
        wait = self._next
        self._next = min(self._most, self._next * 2)
        return jittered(wait) if told is None else told + jittered(wait)

    def reset(self) -> None:
        self._next = BACKOFF_FIRST_SECONDS


class Connection:
    """One kept-open HTTP connection. Belongs to one thread."""

    def __init__(self, url: str, ca_file: Optional[str]) -> None:
        """``url`` is http(s)://host[:port][/prefix]; raises ValueError for anything else."""
        self._is_tls, self._host, self._port, self._prefix = split_url(url)
        self._ca_file = ca_file
        self._connection: Optional[http.client.HTTPConnection] = None

    def post(self, path: str, body: Dict[str, Any], bearer: str, seconds: float) -> Dict[str, Any]:
        """Send one body, give the answer's.

        Raises:
            Unreachable: Worth trying again. Rejected: Not worth it as it is.
        """
        import http.client

        payload = encode(body)
        for is_last in (False, True):
            was_open = self._connection is not None
            try:
                return self._exchange(path, payload, bearer, seconds)
            except (OSError, http.client.HTTPException) as error:
                self.close()
                # The desk may close an idle connection at any time: that says nothing, so once more.
                if is_last or not was_open or isinstance(error, TimeoutError) or "timed out" in str(error):
                    raise Unreachable("%s: %s" % (type(error).__name__, error)) from error
        raise AssertionError("the second try returns or raises")

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _exchange(self, path: str, payload: bytes, bearer: str, seconds: float) -> Dict[str, Any]:
        connection = self._connection or self._open()
        if connection.sock is not None:
            connection.sock.settimeout(seconds)
        headers = {"Content-Type": "application/json", "Authorization": "Bearer " + bearer}
        connection.request("POST", self._prefix + path, payload, headers)
        if connection.sock is not None:
            connection.sock.settimeout(seconds)
        answer = connection.getresponse()
        text = answer.read(wire.MAX_BODY_BYTES * 4)
        if answer.will_close:
            self.close()
        if answer.status == 200:
            try:
                found = json.loads(text)
            except ValueError as error:
                raise Unreachable("answer is no JSON: %s" % error) from error
            if not isinstance(found, dict):
                raise Unreachable("answer is no JSON object")
            return found
        detail = text[:300].decode("utf-8", "replace")
        if answer.status in (400, 401, 409, 413):
            raise Rejected(answer.status, detail)
        retry_after = _seconds(answer.getheader("Retry-After"))
        raise Unreachable("HTTP %d %s" % (answer.status, detail), retry_after)

    def _open(self) -> http.client.HTTPConnection:
        import http.client

        connection: http.client.HTTPConnection
        if self._is_tls:
            connection = http.client.HTTPSConnection(
                self._host, self._port, timeout=CONNECT_SECONDS, context=self._tls()
            )
        else:
            connection = http.client.HTTPConnection(self._host, self._port, timeout=CONNECT_SECONDS)
        connection.connect()
        self._connection = connection
        return connection

    def _tls(self) -> ssl.SSLContext:
        """Trust made anew for each connection: the mounted CA may have been rotated."""
        import ssl

        has_own = (
            self._ca_file is not None and os.path.isfile(self._ca_file) and os.path.getsize(self._ca_file) > 0
        )
        return ssl.create_default_context(cafile=self._ca_file if has_own else None)


class Channel:
    """Enrols, polls and reports until the process ends or a newer incarnation fences this one."""

    def __init__(
        self,
        *,
        url: str,
        ca_file: Optional[str],
        credential: Callable[[], str],
        request: Callable[[], wire.EnrolRequest],
        outbox: Outbox,
        post: Callable[..., None],
        listener: Listener,
        say: Callable[[str], None],
    ) -> None:
        """``credential`` reads the enrolment's bearer anew each time (it rotates); OSError when absent."""
        self._poll_connection = Connection(url, ca_file)
        self._report_connection = Connection(url, ca_file)
        self._url = url
        self._credential = credential
        self._request = request
        self._outbox = outbox
        self._post = post
        self._listener = listener
        self._say = say
        self._token: Optional[str] = None
        self._incarnation = 0
        self._cursor = 0
        self._poll_seconds = POLL_SECONDS
        self._is_over = False
        self._changed = threading.Condition()
        self._kicks = 0
        self._last_problem: Optional[str] = None
        self.last_contact: Optional[float] = None  # monotonic
        self.is_in_contact = False

    def start(self) -> None:
        for name, work in (("poll", self._poll_until_over), ("report", self._report_until_over)):
            threading.Thread(target=self._keep_at, args=(work,), name=name, daemon=True).start()

    def set_poll_seconds(self, seconds: float) -> None:
        self._poll_seconds = min(120.0, max(0.05, seconds))

    @property
    def can_send(self) -> bool:
        """Whether a report would arrive, as far as the last try says."""
        return self.is_in_contact and self._token is not None

    def _keep_at(self, work: Callable[[], None]) -> None:
        """Run one of the two threads. An answer that nobody foresaw must not silence the agent for good."""
        while not self._is_over:
            try:
                work()
            except Exception as error:  # noqa: BLE001 - the outermost loop of a thread
                self._lost(error)
                self._wait(jittered(BACKOFF_MAX_SECONDS))

    # The poll thread

    def _poll_until_over(self) -> None:
        backoff = Backoff()
        early = 0
        while not self._is_over:
            token = self._token
            if token is None:
                self._enrol()
                continue
            began = time.monotonic()
            hold = self._poll_seconds
            try:
                answer = self._poll(token, hold)
            except Unreachable as problem:
                self._lost(problem)
                self._wait(backoff.next(problem.retry_after))
                continue
            except Rejected as problem:
                if problem.status == 401:
                    self._forget_token(token)
                elif problem.status == 409:
                    self._fence()
                else:
                    self._lost(problem)
                    self._wait(REFUSED_RETRY_SECONDS)
                continue
            backoff.reset()
            self._met()
            is_news = self._take(answer)
            held = time.monotonic() - began
            if is_news or held >= hold * 0.8:
                early = 0
            else:
                self._wait(min(hold - held, EARLY_FIRST_SECONDS * 2.0 ** min(early, 12)))
                early += 1

    def _poll(self, token: str, hold: float) -> wire.PollResponse:
        body: Dict[str, Any] = self._listener.poll_state()
        body.update(
            version=wire.VERSION,
            incarnation=self._incarnation,
            cursor=self._cursor,
            wait_seconds=hold,
            sent_at=time.time(),
            unsent=self._outbox.unsent,
        )
        return cast(
            "wire.PollResponse",
            self._poll_connection.post("/agent/v1/poll", body, token, hold + ANSWER_SECONDS),
        )

    def _take(self, answer: wire.PollResponse) -> bool:
        """Hand an answer to the session. The cursor moves first, so the next poll goes out at once."""
        orders = [
            order for order in answer.get("orders") or [] if int(order.get("sequence", 0)) > self._cursor
        ]
        if orders:
            self._cursor = max(int(order["sequence"]) for order in orders)
        if answer.get("token"):
            with self._changed:
                self._token = answer["token"]
        if (answer.get("limits") or {}).get("poll_seconds"):
            self.set_poll_seconds(float(answer["limits"]["poll_seconds"]))
        answer["orders"] = orders
        self._post(self._listener.on_poll, answer)
        return bool(orders)

    def _enrol(self) -> None:
        backoff = Backoff()
        while not self._is_over:
            try:
                bearer = self._credential()
                answer: wire.EnrolResponse = self._poll_connection.post(  # type: ignore[assignment]
                    "/agent/v1/enrol", dict(self._request()), bearer, ANSWER_SECONDS
                )
            except OSError as error:
                self._lost(Unreachable("enrolment credential not readable: %s" % error))
                self._wait(backoff.next())
                continue
            except Unreachable as problem:
                self._lost(problem)
                self._wait(backoff.next(problem.retry_after))
                continue
            except Rejected as problem:
                if problem.status == 409:
                    self._fence()
                    return
                # 400 and 401 at enrolment are not mended by asking again with the same words
                self._post(
                    self._listener.on_enrolled,
                    {"status": wire.REFUSED, "reason": "the desk turned the enrolment away: %s" % problem},
                )
                self._wait(REFUSED_RETRY_SECONDS)
                continue
            status = answer.get("status")
            if status == wire.AGAIN:
                told = float(answer.get("retry_after_seconds") or 0.0)
                self._wait(jittered(told) if told else backoff.next())
                continue
            self._accept(answer)
            if self._token is not None:
                return
            # Not taken in now: ask again only where the desk says when, and only to be able to report.
            told = float(answer.get("retry_after_seconds") or 0.0)
            if not told:
                self._is_over = True
                self.is_in_contact = False
                return
            self._wait(told + jittered(told))

    def _accept(self, answer: wire.EnrolResponse) -> None:
        token = answer.get("token")
        if token:
            incarnation = int(answer.get("incarnation", 0))
            if self._incarnation != incarnation:
                # Orders up to this one were for those before us; ours have higher sequences.
                self._cursor = int(answer.get("sequence", 0))
                self._incarnation = incarnation
            limits = answer.get("limits") or {}
            if limits.get("poll_seconds"):
                self.set_poll_seconds(float(limits["poll_seconds"]))
            self._outbox.begin_incarnation(incarnation)
        self._met()
        self._post(self._listener.on_enrolled, answer)
        with self._changed:
            self._token = token or None
            self._changed.notify_all()

    def _forget_token(self, token: str) -> None:
        with self._changed:
            if self._token == token:
                self._token = None

    def _fence(self) -> None:
        with self._changed:
            self._is_over = True
            self._changed.notify_all()
        self.is_in_contact = False
        self._post(self._listener.on_fenced)

    # The report thread

    def _report_until_over(self) -> None:
        backoff = Backoff()
        most: Optional[int] = None
        while True:
            self._outbox.wait_for_some()
            with self._changed:
                self._changed.wait_for(lambda: self._token is not None or self._is_over)
                token, kicks = self._token, self._kicks
                if self._is_over or token is None:
                    return
            messages = self._outbox.batch()[:most]
            if not messages:
                continue
            try:
                self._report(token, messages)
                most = None
                backoff.reset()
            except Unreachable as problem:
                self._lost(problem)
                self._wait(backoff.next(problem.retry_after), kicks)
            except Rejected as problem:
                if problem.status == 401:
                    self._forget_token(token)
                    self._wait(backoff.next(), kicks)
                elif problem.status == 409:
                    self._fence()
                elif len(messages) > 1:
                    most = max(1, len(messages) // 2)  # find the one that cannot be taken
                else:
                    self._say("the desk turned a message away: %s" % problem)
                    self._outbox.settle([messages[0]["n"]])
                    most = None

    def _report(self, token: str, messages: List[wire.Message]) -> None:
        body = {
            "version": wire.VERSION,
            "incarnation": self._incarnation,
            "sent_at": time.time(),
            "messages": messages,
        }
        answer = self._report_connection.post("/agent/v1/report", body, token, ANSWER_SECONDS)
        done = [int(n) for n in answer.get("accepted") or []]
        for rejected in answer.get("rejected") or []:
            done.append(int(rejected["n"]))
            self._say("the desk turned message %s away: %s" % (rejected["n"], rejected.get("detail", "")))
        if not self._outbox.settle(done):
            raise Unreachable("the desk confirmed none of %d messages" % len(messages))
        self._met()

    # Both

    def _met(self) -> None:
        self.last_contact = time.monotonic()
        if not self.is_in_contact:
            with self._changed:
                self.is_in_contact = True
                self._kicks += 1  # what waits after a failed try goes out now
                self._changed.notify_all()
        if self._last_problem is not None:
            self._last_problem = None
            self._say("the desk answers again")

    def _lost(self, problem: Exception) -> None:
        self.is_in_contact = False
        if self._last_problem is None:
            self._say("no contact to the desk at %s: %s" % (self._url, problem))
        self._last_problem = str(problem)

    def _wait(self, seconds: float, kicks: Optional[int] = None) -> None:
        with self._changed:
            self._changed.wait_for(
                lambda: self._is_over or (kicks is not None and self._kicks != kicks), max(0.0, seconds)
            )


def split_url(url: str) -> Tuple[bool, str, Optional[int], str]:
    """(is TLS, host, port or None, path prefix without a final slash).

    Raises:
        ValueError: Not an http or https address.
    """
    scheme, separator, rest = url.partition("://")
    if not separator or scheme not in ("http", "https"):
        raise ValueError("the desk's address %r must begin with http:// or https://" % url)
    place, slash, path = rest.partition("/")
    if place.startswith("["):
        host, _bracket, port_text = place[1:].partition("]")
        port_text = port_text.lstrip(":")
    else:
        host, _colon, port_text = place.partition(":")
    if not host or (port_text and not port_text.isdigit()):
        raise ValueError("the desk's address %r has no usable host and port" % url)
    return scheme == "https", host, int(port_text) if port_text else None, (slash + path).rstrip("/")


def _seconds(text: Optional[str]) -> Optional[float]:
    """A Retry-After in seconds; a date, or nonsense, counts as not told."""
    try:
        value = float(text) if text is not None else -1.0
    except ValueError:
        return None
    return value if 0 <= value < 3600 else None
