import http.client
import json
import socket
import ssl
import threading
import urllib.request
from collections.abc import Iterator
from typing import Any

import jwt
import pytest

from sim.tokens import User
from tests.sim.apiserver import ADMIN, READER, Api, make_pod, serve

PODS = "/api/v1/namespaces/default/pods"
TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json"
PARTIAL = "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io"
POD_AS_PROTOBUF = b"k8s\0\x0a\x09\x0a\x02v1\x12\x03Pod"
STRATEGIC = "application/strategic-merge-patch+json"


@pytest.fixture
def api() -> Iterator[Api]:
    with serve() as served:
        yield served


# Objects


def test_object_is_created_read_changed_and_deleted(api: Api) -> None:
    created = api.call("POST", PODS, make_pod("a", node="n1"))
    assert (created.status, created.body["kind"]) == (201, "Pod")
    assert api.call("GET", f"{PODS}/a").body == created.body
    patched = api.call("PATCH", f"{PODS}/a", {"metadata": {"labels": {"x": "1"}}}, content_type=STRATEGIC)
    assert patched.body["metadata"]["labels"] == {"x": "1"}
    patched.body["metadata"]["labels"] = {"x": "2"}
    assert api.call("PUT", f"{PODS}/a", patched.body).body["metadata"]["labels"] == {"x": "2"}
    deleted = api.call("DELETE", f"{PODS}/a", {"gracePeriodSeconds": 7})
    assert deleted.body["metadata"]["deletionGracePeriodSeconds"] == 7
    assert api.call("DELETE", f"{PODS}/a?gracePeriodSeconds=0").status == 200
    missing = api.call("GET", f"{PODS}/a")
    assert (missing.status, missing.body["reason"], missing.body["message"]) == (
        404,
        "NotFound",
        'pods "a" not found',
    )


def test_stale_put_is_a_conflict(api: Api) -> None:
    old = api.call("POST", PODS, make_pod("a")).body
    api.call("PATCH", f"{PODS}/a", {"metadata": {"labels": {"x": "1"}}}, content_type=STRATEGIC)
    refused = api.call("PUT", f"{PODS}/a", old)
    assert (refused.status, refused.body["reason"]) == (409, "Conflict")


def test_patch_with_stale_version_or_other_uid_is_a_conflict(api: Api) -> None:
    old = api.call("POST", PODS, make_pod("a")).body
    api.call("PATCH", f"{PODS}/a", {"metadata": {"labels": {"x": "1"}}}, content_type=STRATEGIC)
    for meta in ({"resourceVersion": old["metadata"]["resourceVersion"]}, {"uid": "another"}):
        body = {"metadata": meta | {"labels": {"x": "2"}}}
        assert api.call("PATCH", f"{PODS}/a", body, content_type=STRATEGIC).status == 409
    assert api.call("GET", f"{PODS}/a").body["metadata"]["labels"] == {"x": "1"}


def test_delete_with_another_uid_is_a_conflict(api: Api) -> None:
    api.call("POST", PODS, make_pod("a"))
    assert api.call("DELETE", f"{PODS}/a", {"preconditions": {"uid": "another"}}).status == 409
    assert api.call("GET", f"{PODS}/a").status == 200


def test_status_is_written_by_its_own_path(api: Api) -> None:
    api.call("POST", PODS, make_pod("a"))
    body = {"status": {"phase": "Running"}, "metadata": {"labels": {"x": "1"}}}
    assert api.call("PATCH", f"{PODS}/a", body, content_type=STRATEGIC).body["status"]["phase"] == "Pending"
    assert (
        api.call("PATCH", f"{PODS}/a/status", body, content_type=STRATEGIC).body["status"]["phase"]
        == "Running"
    )


@pytest.mark.parametrize(
    ("method", "path", "body", "content_type", "status", "reason"),
    [
        ("POST", PODS, b"{", "application/json", 400, "BadRequest"),
        ("POST", PODS, {"kind": "Node", "metadata": {"name": "a"}}, "application/json", 400, "BadRequest"),
        ("POST", PODS, make_pod("a", metadata={"namespace": "x"}), "application/json", 400, "BadRequest"),
        ("POST", PODS, make_pod("a", spec={"containers": []}), "application/json", 422, "Invalid"),
        ("POST", PODS, make_pod("a", metadata={"labels": "x"}), "application/json", 400, "BadRequest"),
        ("POST", PODS, make_pod("a", spec={"containers": [None]}), "application/json", 400, "BadRequest"),
        ("DELETE", f"{PODS}/a", {"gracePeriodSeconds": "soon"}, "application/json", 400, "BadRequest"),
        ("POST", PODS, {"spec": []}, "application/json", 400, "BadRequest"),
        ("POST", PODS, b"\x00", "application/vnd.kubernetes.protobuf", 400, "BadRequest"),
        ("POST", PODS, b"k8s\0\x0a\x09", "application/vnd.kubernetes.protobuf", 400, "BadRequest"),
        ("POST", PODS, POD_AS_PROTOBUF, "application/vnd.kubernetes.protobuf", 415, "UnsupportedMediaType"),
        ("POST", PODS, b"<a/>", "application/xml", 415, "UnsupportedMediaType"),
        ("PATCH", f"{PODS}/a", {}, "application/json", 415, "UnsupportedMediaType"),
        (
            "POST",
            "/apis/apps/v1/namespaces/default/replicasets",
            {},
            "application/json",
            405,
            "MethodNotAllowed",
        ),
        ("GET", "/api/v1/unicorns", None, "application/json", 404, "NotFound"),
        ("GET", f"{PODS}?fieldSelector=spec.x=1", None, "application/json", 400, "BadRequest"),
        ("GET", f"{PODS}?labelSelector=a%20b", None, "application/json", 400, "BadRequest"),
        ("GET", f"{PODS}?limit=many", None, "application/json", 400, "BadRequest"),
        ("GET", f"{PODS}?resourceVersion=99999", None, "application/json", 504, "Timeout"),
        ("GET", f"{PODS}?watch=1&sendInitialEvents=true", None, "application/json", 422, "Invalid"),
        ("GET", f"{PODS}?sendInitialEvents=true", None, "application/json", 400, "BadRequest"),
        ("POST", f"{PODS}?dryRun=Some", make_pod("a"), "application/json", 400, "BadRequest"),
    ],
)
def test_refusal(
    api: Api, method: str, path: str, body: Any, content_type: str, status: int, reason: str
) -> None:
    refused = api.call(method, path, body, content_type=content_type)
    assert (refused.status, refused.body["kind"], refused.body["reason"]) == (status, "Status", reason)
    assert refused.body["code"] == status
    assert refused.body["message"]


def test_dry_run_stores_nothing_and_is_marked_in_the_audit(api: Api) -> None:
    assert api.call("POST", f"{PODS}?dryRun=All", make_pod("a")).status == 201
    assert api.call("GET", f"{PODS}/a").status == 404
    assert api.store.audit[-1].dry_run
    api.call("POST", PODS, make_pod("a"))
    assert api.call("DELETE", f"{PODS}/a", {"dryRun": ["All"]}).status == 200
    assert api.call(
        "PATCH", f"{PODS}/a?dryRun=All", {"metadata": {"labels": {"x": "1"}}}, content_type=STRATEGIC
    ).body["metadata"]["labels"] == {"x": "1"}
    assert "labels" not in api.call("GET", f"{PODS}/a").body["metadata"]


def test_deletecollection_takes_what_the_selector_names(api: Api) -> None:
    for name in ("a", "b"):
        api.call("POST", PODS, make_pod(name, metadata={"labels": {"name": name}}))
    assert api.call("DELETE", f"{PODS}?labelSelector=name=a").body["kind"] == "PodList"
    assert [one["metadata"]["name"] for one in api.call("GET", PODS).body["items"]] == ["b"]


def test_job_delete_without_policy_warns(api: Api) -> None:
    template = {"spec": {"restartPolicy": "Never", "containers": [{"name": "c", "image": "i"}]}}
    jobs = "/apis/batch/v1/namespaces/default/jobs"
    api.call("POST", jobs, {"metadata": {"name": "j"}, "spec": {"template": template}})
    deleted = api.call("DELETE", f"{jobs}/j")
    assert deleted.body["status"] == "Success"
    assert "child pods are preserved" in deleted.headers["Warning"]


def test_server_side_apply_creates_changes_and_refuses(api: Api) -> None:
    path, media = "/api/v1/namespaces/default/configmaps/c", "application/apply-patch+yaml"
    text = b"apiVersion: v1\nkind: ConfigMap\nmetadata: {name: c}\ndata: {a: '1'}\n"
    assert api.call("PATCH", f"{path}?fieldManager=one", text, content_type=media).status == 201
    changed = text.replace(b"'1'", b"'2'")
    refused = api.call("PATCH", f"{path}?fieldManager=two", changed, content_type=media)
    assert (refused.status, refused.body["details"]["causes"][0]["field"]) == (409, ".data.a")
    forced = api.call("PATCH", f"{path}?fieldManager=two&force=true", changed, content_type=media)
    assert forced.body["data"] == {"a": "2"}
    assert [one["manager"] for one in forced.body["metadata"]["managedFields"]] == ["two"]


# Lists and forms


def test_pages_and_expired_token(api: Api) -> None:
    for index in range(5):
        api.call("POST", PODS, make_pod(f"p{index}"))
    first = api.call("GET", f"{PODS}?limit=2").body
    assert first["metadata"]["remainingItemCount"] == 3
    token = first["metadata"]["continue"]
    second = api.call("GET", f"{PODS}?limit=2&continue={token}").body
    assert [one["metadata"]["name"] for one in second["items"]] == ["p2", "p3"]
    api.store.compact()
    gone = api.call("GET", f"{PODS}?limit=2&continue={token}")
    assert (gone.status, gone.body["reason"]) == (410, "Expired")
    assert gone.body["metadata"]["continue"]


def test_table_has_the_columns_of_kubectl(api: Api) -> None:
    api.call("POST", PODS, make_pod("a", node="n1"))
    shown = api.call("GET", PODS, accept=TABLE).body
    assert (shown["kind"], shown["apiVersion"]) == ("Table", "meta.k8s.io/v1")
    cells = dict(
        zip([one["name"] for one in shown["columnDefinitions"]], shown["rows"][0]["cells"], strict=True)
    )
    assert cells["Name"] == "a"
    assert cells["Ready"] == "0/1"
    assert cells["Status"] == "Pending"
    assert cells["Node"] == "n1"
    assert shown["rows"][0]["object"]["kind"] == "PartialObjectMetadata"


def test_partial_metadata_leaves_the_rest_out(api: Api) -> None:
    api.call("POST", PODS, make_pod("a"))
    listed = api.call("GET", PODS, accept=PARTIAL).body
    assert listed["kind"] == "PartialObjectMetadataList"
    assert set(listed["items"][0]) == {"kind", "apiVersion", "metadata"}


def test_form_that_is_not_served_is_not_acceptable(api: Api) -> None:
    assert api.call("GET", PODS, accept="application/vnd.kubernetes.protobuf").status == 406


def message(*fields: tuple[int, bytes | int]) -> bytes:
    """A protobuf message of short fields."""
    text = b""
    for number, value in fields:
        if isinstance(value, int):
            text += bytes([number << 3, value])
        else:
            text += bytes([number << 3 | 2, len(value)]) + value
    return text


def test_small_objects_are_read_as_protobuf(api: Api) -> None:
    pair = message((1, b"app"), (2, b"train"))
    meta = message((1, b"b"), (3, b"default"))
    spec = message((1, message((1, 1), (3, b"50%"))), (2, message((1, pair))))
    about = message((1, b"policy/v1"), (2, b"PodDisruptionBudget"))
    body = b"k8s\0" + message((1, about), (2, message((1, meta), (2, spec))))
    path = "/apis/policy/v1/namespaces/default/poddisruptionbudgets"
    made = api.call("POST", path, body, content_type="application/vnd.kubernetes.protobuf")
    assert made.status == 201
    assert made.body["spec"] == {"minAvailable": "50%", "selector": {"matchLabels": {"app": "train"}}}


def test_events_are_shown_by_both_groups(api: Api) -> None:
    about = {"kind": "Pod", "name": "a", "namespace": "default", "uid": "u1"}
    event = {
        "metadata": {"name": "e"},
        "involvedObject": about,
        "message": "hello",
        "reason": "Started",
        "count": 2,
    }
    api.call("POST", "/api/v1/namespaces/default/events", event)
    path = "/apis/events.k8s.io/v1/namespaces/default/events"
    shown = api.call("GET", f"{path}?fieldSelector=regarding.uid=u1").body["items"][0]
    assert (shown["apiVersion"], shown["note"], shown["regarding"]["name"]) == (
        "events.k8s.io/v1",
        "hello",
        "a",
    )
    assert shown["deprecatedCount"] == 2
    core = api.call("GET", "/api/v1/events?fieldSelector=involvedObject.name=a,reason=Started").body["items"]
    assert core[0]["message"] == "hello"


# Watches


def test_watch_streams_changes_and_resumes(api: Api) -> None:
    since = api.store.revision
    api.call("POST", PODS, make_pod("a"))
    with api.watch(f"{PODS}?watch=1&resourceVersion={since}") as events:
        first = next(events)
        assert (first["type"], first["object"]["metadata"]["name"]) == ("ADDED", "a")
        api.call("DELETE", f"{PODS}/a")
        assert next(events)["type"] == "DELETED"
    with api.watch(
        f"{PODS}?watch=1&resourceVersion={first['object']['metadata']['resourceVersion']}"
    ) as events:
        assert next(events)["type"] == "DELETED"


def test_watch_after_compaction_is_told_410(api: Api) -> None:
    since = api.store.revision
    api.call("POST", PODS, make_pod("a"))
    api.store.compact()
    with api.watch(f"{PODS}?watch=1&resourceVersion={since}") as events:
        only = list(events)
    assert [(one["type"], one["object"]["code"], one["object"]["reason"]) for one in only] == [
        ("ERROR", 410, "Expired")
    ]


def test_watch_ends_at_its_timeout_with_a_bookmark(api: Api) -> None:
    query = f"watch=1&resourceVersion={api.store.revision}&timeoutSeconds=1&allowWatchBookmarks=true"
    with api.watch(f"{PODS}?{query}") as events:
        only = list(events)
    assert [one["type"] for one in only] == ["BOOKMARK"]
    assert only[0]["object"]["kind"] == "Pod"
    assert only[0]["object"]["metadata"]["resourceVersion"] == str(api.store.revision)


def test_bookmarks_come_while_nothing_happens() -> None:
    with serve(bookmark_seconds=0.05) as api:
        query = f"watch=1&resourceVersion={api.store.revision}&allowWatchBookmarks=true"
        with api.watch(f"{PODS}?{query}") as events:
            before = next(events)["object"]["metadata"]["resourceVersion"]
            api.call("POST", "/api/v1/namespaces", {"metadata": {"name": "other"}})
            after = before
            while after == before:
                event = next(events)
                assert event["type"] == "BOOKMARK"
                after = event["object"]["metadata"]["resourceVersion"]
        assert int(after) > int(before)


def test_watch_without_revision_begins_with_what_there_is(api: Api) -> None:
    api.call("POST", PODS, make_pod("a"))
    with api.watch(f"{PODS}?watch=1") as events:
        assert next(events)["object"]["metadata"]["name"] == "a"


def test_watch_that_lists_first_marks_the_end_of_the_list(api: Api) -> None:
    api.call("POST", PODS, make_pod("a"))
    query = "watch=1&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true"
    with api.watch(f"{PODS}?{query}") as events:
        assert next(events)["object"]["metadata"]["name"] == "a"
        mark = next(events)
        api.call("POST", PODS, make_pod("b"))
        assert next(events)["object"]["metadata"]["name"] == "b"
    assert mark["type"] == "BOOKMARK"
    assert mark["object"]["metadata"]["annotations"] == {"k8s.io/initial-events-end": "true"}


def test_watch_as_table_gives_the_columns_once(api: Api) -> None:
    with api.watch(f"{PODS}?watch=1", accept=TABLE) as events:
        api.call("POST", PODS, make_pod("a"))
        first = next(events)["object"]
        api.call("POST", PODS, make_pod("b"))
        second = next(events)["object"]
    assert first["columnDefinitions"]
    assert not second["columnDefinitions"]
    assert second["rows"][0]["cells"][0] == "b"


def test_sixty_watches_all_see_a_change(api: Api) -> None:
    ready, seen = threading.Barrier(61, timeout=30), []

    def follow() -> None:
        with api.watch(f"{PODS}?watch=1&resourceVersion={since}") as events:
            ready.wait()
            seen.append(next(events)["object"]["metadata"]["name"])

    since = api.store.revision
    threads = [threading.Thread(target=follow) for _ in range(60)]
    for thread in threads:
        thread.start()
    ready.wait()
    api.call("POST", PODS, make_pod("a"))
    for thread in threads:
        thread.join(20)
    assert seen == ["a"] * 60


def test_watch_of_a_client_that_left_is_forgotten(api: Api) -> None:
    with api.watch(f"{PODS}?watch=1&resourceVersion=0") as events:
        api.call("POST", PODS, make_pod("a"))
        next(events)
        assert api.store.open_watches == 1
    deadline = threading.Event()
    for _ in range(200):
        if api.store.open_watches == 0:
            break
        deadline.wait(0.05)
    assert api.store.open_watches == 0


# Who may what


def test_request_without_valid_token_is_unauthorized(api: Api) -> None:
    for token in (None, "wrong", "a.b.c"):
        refused = api.call("GET", PODS, token=token)
        assert (refused.status, refused.body["reason"]) == (401, "Unauthorized")
    assert api.call("GET", "/readyz", token=None).body == "ok"
    assert api.call("GET", "/version", token=None).body["gitVersion"].startswith("v1.")


def test_reader_may_read_but_not_write_nor_see_secrets(api: Api) -> None:
    assert api.call("GET", PODS, token=READER).status == 200
    assert api.call("GET", "/api/v1/namespaces/default/secrets", token=READER).status == 403
    refused = api.call("POST", PODS, make_pod("a"), token=READER)
    assert refused.status == 403
    assert refused.body["message"] == (
        'pods is forbidden: User "desk-reader" cannot create resource "pods" in API group "" '
        'in the namespace "default"'
    )
    record = api.store.audit[-1]
    assert (record.actor, record.verb, record.status, record.kind) == ("desk-reader", "create", 403, "Pod")


def test_audit_tells_user_agent_path_and_refusals(api: Api) -> None:
    last = api.store.audit.last
    api.call("POST", PODS, make_pod("a"))
    api.call("PATCH", f"{PODS}/a", {"metadata": {"uid": "no"}}, content_type=STRATEGIC)
    api.call("DELETE", f"{PODS}/a")
    records = api.store.audit.since(last)
    assert [(r.verb, r.status) for r in records] == [("create", 201), ("patch", 409), ("delete", 200)]
    assert {(r.actor, r.user_agent) for r in records} == {("kubernetes-admin", "test-agent/1.0")}
    assert records[1].path == f"{PODS}/a"
    assert records[1].uid == records[0].uid


# Service-account tokens


def request_token(api: Api, pod: dict[str, Any], **spec: Any) -> str:
    reference = {"kind": "Pod", "name": pod["metadata"]["name"], "uid": pod["metadata"]["uid"]}
    body = {"spec": {"audiences": ["incidentdesk"], "boundObjectRef": reference} | spec}
    answer = api.call("POST", "/api/v1/namespaces/default/serviceaccounts/default/token", body)
    assert answer.status == 201, answer.body
    return str(answer.body["status"]["token"])


def test_projected_token_names_its_pod_and_checks_against_the_published_key(api: Api) -> None:
    api.call("POST", "/api/v1/nodes", {"metadata": {"name": "n1"}})
    pod = api.call("POST", PODS, make_pod("a", node="n1")).body
    token = request_token(api, pod)
    keys = api.call("GET", "/openid/v1/jwks", token=None)
    assert (
        api.call("GET", "/.well-known/openid-configuration", token=None)
        .body["jwks_uri"]
        .endswith("/openid/v1/jwks")
    )
    key = jwt.PyJWKSet.from_dict(json.loads(keys.body) if isinstance(keys.body, str) else keys.body).keys[0]
    claims = jwt.decode(token, key.key, algorithms=["RS256"], audience="incidentdesk", issuer=api.server.url)
    assert claims["sub"] == "system:serviceaccount:default:default"
    about = claims["kubernetes.io"]
    assert about["pod"] == {"name": "a", "uid": pod["metadata"]["uid"]}
    assert about["node"]["name"] == "n1"
    assert about["serviceaccount"]["name"] == "default"


def test_token_review_answers_for_the_audience_and_ends_with_the_pod(api: Api) -> None:
    pod = api.call("POST", PODS, make_pod("a")).body
    token = request_token(api, pod)

    def review(*audiences: str) -> dict[str, Any]:
        body = {"spec": {"token": token, "audiences": list(audiences)}}
        status = api.call("POST", "/apis/authentication.k8s.io/v1/tokenreviews", body).body["status"]
        assert isinstance(status, dict)
        return status

    good = review("incidentdesk", "other")
    assert good["authenticated"] is True
    assert good["audiences"] == ["incidentdesk"]
    assert good["user"]["username"] == "system:serviceaccount:default:default"
    assert good["user"]["extra"]["authentication.kubernetes.io/pod-uid"] == [pod["metadata"]["uid"]]
    assert "authenticated" not in review("other")
    fixed = {"spec": {"token": ADMIN, "audiences": ["incidentdesk"]}}
    answer = api.call("POST", "/apis/authentication.k8s.io/v1/tokenreviews", fixed)
    assert "authenticated" not in answer.body["status"]
    assert "authenticated" not in review()
    api.call("DELETE", f"{PODS}/a")
    assert "gone" in review("incidentdesk")["error"]


def test_cluster_without_published_keys_reviews_tokens_all_the_same() -> None:
    with serve(publishes_keys=False) as api:
        pod = api.call("POST", PODS, make_pod("a")).body
        for path in ("/openid/v1/jwks", "/.well-known/openid-configuration"):
            assert api.call("GET", path).status == 404
        spec = {"token": request_token(api, pod), "audiences": ["incidentdesk"]}
        answer = api.call("POST", "/apis/authentication.k8s.io/v1/tokenreviews", {"spec": spec})
        assert answer.body["status"]["authenticated"] is True


def test_service_account_may_only_ask_about_itself(api: Api) -> None:
    body: dict[str, Any] = {"spec": {}}
    path = "/api/v1/namespaces/default/serviceaccounts/default/token"
    token = api.call("POST", path, body).body["status"]["token"]
    assert api.call("GET", PODS, token=token).status == 403
    review = {"spec": {"resourceAttributes": {"verb": "list", "resource": "pods"}}}
    answer = api.call("POST", "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", review, token=token)
    assert answer.body["status"] == {"allowed": False}
    who = api.call("POST", "/apis/authentication.k8s.io/v1/selfsubjectreviews", {}, token=token)
    assert who.body["status"]["userInfo"]["username"] == "system:serviceaccount:default:default"
    reviews = "/apis/authentication.k8s.io/v1/tokenreviews"
    assert api.call("POST", reviews, {"spec": {"token": token}}, token=token).status == 403


@pytest.mark.parametrize(
    ("spec", "status"),
    [
        ({"expirationSeconds": 60}, 422),
        ({"boundObjectRef": {"kind": "Pod", "name": "missing"}}, 404),
        ({"boundObjectRef": {"kind": "Secret", "name": "s"}}, 400),
    ],
)
def test_token_request_that_is_refused(api: Api, spec: dict[str, Any], status: int) -> None:
    path = "/api/v1/namespaces/default/serviceaccounts/default/token"
    assert api.call("POST", path, {"spec": spec}).status == status


# The rest of the front


def test_tls_is_spoken_on_the_same_port(api: Api) -> None:
    context = ssl.create_default_context(cadata=api.server.ca_pem.decode())
    request = urllib.request.Request(
        f"{api.server.https_url}/api/v1/nodes", headers={"Authorization": f"Bearer {ADMIN}"}
    )
    with urllib.request.urlopen(request, context=context, timeout=10) as response:
        assert json.load(response)["kind"] == "NodeList"


def test_connection_is_kept_for_the_next_request(api: Api) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", api.server.port, timeout=10)
    ports = set()
    for _ in range(3):
        connection.request("GET", "/version")
        connection.getresponse().read()
        assert connection.sock is not None
        ports.add(connection.sock.getsockname())
    connection.close()
    assert len(ports) == 1


@pytest.mark.parametrize(
    ("text", "status"),
    [
        (b"NONSENSE\r\n\r\n", 400),
        (b"GET / HTTP/9\r\n\r\n", 505),
        (b"POST / HTTP/1.1\r\nContent-Length: 99999999\r\n\r\n", 413),
        (b"POST / HTTP/1.1\r\nContent-Length: -1\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n-5\r\n", 400),
        (b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nffffffff\r\n", 413),
        (b"GET / HTTP/1.1\r\nX: " + b"y" * 70_000 + b"\r\n\r\n", 431),
    ],
)
def test_malformed_http_is_answered_and_the_connection_closed(api: Api, text: bytes, status: int) -> None:
    with socket.create_connection(("127.0.0.1", api.server.port), timeout=10) as connection:
        connection.sendall(text)
        received = b""
        while chunk := connection.recv(4096):
            received += chunk
    assert received.startswith(f"HTTP/1.1 {status} ".encode())


def test_chunked_request_body_is_read(api: Api) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", api.server.port, timeout=10)
    text = json.dumps(make_pod("a")).encode()
    headers = {"Authorization": f"Bearer {ADMIN}", "Content-Type": "application/json"}
    connection.request("POST", PODS, iter([text[:10], text[10:]]), headers, encode_chunked=True)
    assert connection.getresponse().status == 201
    connection.close()


def test_discovery_lists_each_resource_in_both_forms(api: Api) -> None:
    old = {one["name"] for one in api.call("GET", "/api/v1").body["resources"]}
    assert {"pods", "pods/eviction", "pods/status", "pods/log", "nodes", "serviceaccounts/token"} <= old
    accept = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
    shown = api.call("GET", "/apis", accept=accept)
    assert shown.headers["Content-Type"] == accept
    groups = {one["metadata"]["name"]: one for one in shown.body["items"]}
    assert groups["batch"]["versions"][0]["resources"][0]["resource"] == "jobs"
    for path in api.call("GET", "/openapi/v3").body["paths"].values():
        assert api.call("GET", path["serverRelativeURL"]).body["openapi"] == "3.0.0"


def test_extra_routes_are_served_to_those_who_may() -> None:
    def handle(method: str, path: str, query: dict[str, str], body: Any, user: User) -> tuple[int, Any]:
        return 202, {"method": method, "path": path, "query": query, "body": body, "user": user.name}

    with serve(extra_routes={"/sim/v1/": handle}) as api:
        answer = api.call("POST", "/sim/v1/faults?x=1", {"fault": "kill-process"})
        assert answer.status == 202
        assert answer.body == {
            "method": "POST",
            "path": "/sim/v1/faults",
            "query": {"x": "1"},
            "body": {"fault": "kill-process"},
            "user": "kubernetes-admin",
        }
        assert api.call("GET", "/sim/v1/faults", token=READER).status == 202
        assert api.call("POST", "/sim/v1/faults", {}, token=READER).status == 403
        assert api.call("POST", "/sim/v1/faults", {}, token=None).status == 401


def test_log_is_read_cut_and_followed(tmp_path: Any) -> None:
    log = tmp_path / "0.log"
    log.write_text("one\ntwo\nthree\n")
    asked: list[tuple[str, str, str, bool]] = []

    def source(namespace: str, pod: str, container: str, previous: bool) -> Any:
        asked.append((namespace, pod, container, previous))
        return None if previous else log

    with serve(log_source=source) as api:
        api.call("POST", PODS, make_pod("a", node="n1"))
        assert api.call("GET", f"{PODS}/a/log").body == "one\ntwo\nthree\n"
        assert asked == [("default", "a", "train", False)]
        assert api.call("GET", f"{PODS}/a/log?tailLines=2").body == "two\nthree\n"
        assert api.call("GET", f"{PODS}/a/log?tailLines=0").body == ""
        assert api.call("GET", f"{PODS}/a/log?tailLines=9&limitBytes=3").body == "one"
        assert "previous terminated" in api.call("GET", f"{PODS}/a/log?previous=true").body["message"]
        assert api.call("GET", f"{PODS}/a/log?container=x").status == 400
        got: list[Any] = []
        follower = threading.Thread(
            target=lambda: got.append(api.call("GET", f"{PODS}/a/log?follow=true&tailLines=1"))
        )
        follower.start()
        with log.open("a") as file:
            file.write("four\n")
        api.store.mutate(
            "Pod",
            "default",
            "a",
            lambda pod: pod | {"status": {"phase": "Succeeded"}},
            actor="k",
            subresource="status",
        )
        follower.join(20)
        assert got[0].body in ("three\nfour\n", "four\n")  # by whether it began before the fourth line
