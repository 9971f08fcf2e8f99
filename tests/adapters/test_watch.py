"""The generic watch against an API server that follows a script."""

from __future__ import annotations

import json
import random
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest

from adapters.facts import ChangeType, NamespaceFact
from adapters.kubernetes.cluster import NAMESPACES
from adapters.kubernetes.watch import Batch, Watcher
from recovery.errors import ClusterError, ClusterUnavailable, WatchExpired

Step = bytes | ClusterError | list[Any]


def thing(uid: str, version: int) -> dict[str, Any]:
    return {"metadata": {"uid": uid, "name": f"name-{uid}", "resourceVersion": str(version)}}


def page(*things: dict[str, Any], version: int, more: str = "") -> bytes:
    return json.dumps(
        {"metadata": {"resourceVersion": str(version), "continue": more}, "items": list(things)}
    ).encode()


def event(type_: str, body: dict[str, Any]) -> bytes:
    return json.dumps({"type": type_, "object": body}).encode()


def bookmark(version: int) -> bytes:
    return event("BOOKMARK", {"kind": "Namespace", "metadata": {"resourceVersion": str(version)}})


GONE = event("ERROR", {"kind": "Status", "code": 410, "reason": "Expired", "message": "too old"})


@dataclass
class Script:
    """Answers reads and streams in order, and notes what was asked. At its end it stops the watcher."""

    lists: list[bytes | ClusterError]
    streams: list[list[bytes | ClusterError] | ClusterError]
    stop: threading.Event
    asked: list[Mapping[str, str]] = field(default_factory=list)

    def read(self, path: str, query: Mapping[str, str]) -> bytes:
        self.asked.append(dict(query))
        answer = self.lists.pop(0)
        if isinstance(answer, ClusterError):
            raise answer
        return answer

    def stream(self, path: str, query: Mapping[str, str], *, read_timeout_seconds: float) -> Lines:
        assert read_timeout_seconds > float(query["timeoutSeconds"])
        self.asked.append(dict(query))
        if not self.streams:
            self.stop.set()
            return Lines([])
        answer = self.streams.pop(0)
        if isinstance(answer, ClusterError):
            raise answer
        return Lines(answer)

    def merge_patch(self, path: str, body: Mapping[str, Any], query: Mapping[str, str]) -> bytes:
        raise AssertionError("a watch writes nothing")

    def ask(self, path: str, body: Mapping[str, Any]) -> bytes:
        raise AssertionError("a watch asks for no review")


@dataclass
class Lines:
    steps: list[bytes | ClusterError]

    def __iter__(self) -> Iterator[bytes]:
        for step in self.steps:
            if isinstance(step, ClusterError):
                raise step
            yield step

    def close(self) -> None: ...


class Quick(random.Random):
    """No waiting: every draw is the lowest."""

    def uniform(self, a: float, b: float) -> float:
        return 0.0 if b <= 1.0 else b


Run = Callable[..., tuple[list[Batch[NamespaceFact]], list[Mapping[str, str]]]]


@pytest.fixture
def follow() -> Run:
    def run(
        lists: list[bytes | ClusterError],
        streams: list[list[bytes | ClusterError] | ClusterError],
        known: dict[str, str] | None = None,
    ) -> tuple[list[Batch[NamespaceFact]], list[Mapping[str, str]]]:
        stop = threading.Event()
        script = Script(lists, streams, stop)
        heard: list[Batch[NamespaceFact]] = []
        watcher = Watcher(
            script,
            NAMESPACES,
            heard.append,
            known={} if known is None else known,
            timeout_seconds=30,
            stop=stop,
            chance=Quick(),
        )
        watcher.run()
        assert not script.lists, "every page was read"
        return heard, script.asked

    return run


def told(heard: list[Batch[NamespaceFact]]) -> list[tuple[str, str]]:
    return [(str(change.type), change.uid) for batch in heard for change in batch.changes]


def test_list_is_read_in_pages_and_watched_from_its_version(follow: Run) -> None:
    heard, asked = follow([page(thing("a", 3), version=7, more="next"), page(thing("b", 5), version=7)], [])
    assert told(heard) == [("added", "a"), ("added", "b")]
    assert [batch.completes_list for batch in heard][:2] == [False, True]
    assert asked[1]["continue"] == "next"
    assert (asked[2]["watch"], asked[2]["resourceVersion"], asked[2]["allowWatchBookmarks"]) == (
        "true",
        "7",
        "true",
    )


def test_watch_that_ends_is_resumed_behind_its_last_event(follow: Run) -> None:
    heard, asked = follow(
        [page(version=7)], [[event("ADDED", thing("a", 9)), event("MODIFIED", thing("a", 12))]]
    )
    assert told(heard) == [("added", "a"), ("modified", "a")]
    assert [query["resourceVersion"] for query in asked if "watch" in query] == ["7", "12"]


def test_bookmark_moves_the_place_to_resume_and_is_heard(follow: Run) -> None:
    heard, asked = follow([page(version=7)], [[bookmark(90)]])
    assert [query["resourceVersion"] for query in asked if "watch" in query] == ["7", "90"]
    assert any(batch.resource_version == "90" and not batch.changes for batch in heard)


@pytest.mark.parametrize(
    "expiry",
    [pytest.param([GONE], id="error event"), pytest.param(WatchExpired("410 Gone"), id="HTTP status")],
)
def test_gap_lists_again_and_shows_what_vanished_and_changed_meanwhile(follow: Run, expiry: Any) -> None:
    heard, _ = follow(
        [
            page(thing("stays", 1), thing("goes", 2), thing("changes", 3), version=7),
            page(thing("stays", 1), thing("changes", 20), thing("comes", 21), version=30),
        ],
        [expiry],
    )
    again = [batch for batch in heard if batch.gap]
    assert len(again) == 1
    assert told(again) == [("modified", "changes"), ("added", "comes"), ("vanished", "goes")]
    assert again[0].changes[-1].fact is None


def test_known_objects_of_a_former_process_vanish_with_the_first_list(follow: Run) -> None:
    heard, _ = follow([page(thing("same", 4), version=7)], [], known={"same": "4", "old": "2"})
    assert told(heard) == [("vanished", "old")]


def test_expired_continue_begins_the_list_anew_without_telling_twice(follow: Run) -> None:
    heard, _ = follow(
        [
            page(thing("a", 3), version=7, more="next"),
            WatchExpired("continue token is too old"),
            page(thing("a", 3), thing("b", 8), version=9),
        ],
        [],
    )
    assert told(heard) == [("added", "a"), ("added", "b")]


def test_deleted_event_is_told_with_its_last_version(follow: Run) -> None:
    heard, _ = follow([page(thing("a", 3), version=7)], [[event("DELETED", thing("a", 8))]])
    (change,) = [change for batch in heard for change in batch.changes if change.is_gone]
    assert change.type is ChangeType.DELETED
    assert change.fact is not None
    assert change.fact.resource_version == "8"


def test_trouble_is_told_and_the_watch_goes_on_where_it_was(follow: Run) -> None:
    heard, asked = follow(
        [ClusterUnavailable("refused"), page(version=7)],
        [[event("ADDED", thing("a", 9)), ClusterUnavailable("broke off")], ClusterUnavailable("refused")],
    )
    assert [batch.trouble for batch in heard if batch.trouble] == ["refused", "broke off", "refused"]
    assert [query["resourceVersion"] for query in asked if "watch" in query] == ["7", "9", "9"]


def test_half_a_line_is_not_believed_and_comes_again(follow: Run) -> None:
    heard, asked = follow([page(version=7)], [[b'{"type":"ADDED","object":{"meta']])
    assert told(heard) == []
    assert [query["resourceVersion"] for query in asked if "watch" in query] == ["7", "7"]


def test_error_event_other_than_410_resumes_without_a_new_list(follow: Run) -> None:
    error = event("ERROR", {"kind": "Status", "code": 500, "message": "etcd: leader changed"})
    _, asked = follow([page(version=7)], [[error]])
    assert [query.get("resourceVersion") for query in asked] == [None, "7", "7"]
