from typing import Any

import pytest

from sim.errors import BadRequest, Invalid
from sim.patch import json_patch, merge_patch, strategic_patch


def op(name: str, path: str, value: Any = None, **more: Any) -> dict[str, Any]:
    return {"op": name, "path": path, "value": value} | more


@pytest.mark.parametrize(
    ("document", "operations", "expected"),
    [
        ({"a": 1}, [op("add", "/b", 2)], {"a": 1, "b": 2}),
        ({"a": [1, 3]}, [op("add", "/a/1", 2), op("add", "/a/-", 4)], {"a": [1, 2, 3, 4]}),
        ({"a": {"b/c": 1, "d~e": 2}}, [op("remove", "/a/b~1c"), op("remove", "/a/d~0e")], {"a": {}}),
        ({"a": 1}, [op("replace", "/a", {"x": []})], {"a": {"x": []}}),
        ({"a": 1}, [{"op": "move", "from": "/a", "path": "/b"}], {"b": 1}),
        (
            {"a": [1]},
            [{"op": "copy", "from": "/a", "path": "/b"}, op("add", "/b/-", 2)],
            {"a": [1], "b": [1, 2]},
        ),
        ({"a": 1}, [op("test", "/a", 1), op("replace", "/a", 2)], {"a": 2}),
        ({"a": 1}, [op("replace", "", {"z": 1})], {"z": 1}),
        ({"a": None}, [op("test", "/missing")], {"a": None}),
    ],
)
def test_json_patch(document: Any, operations: list[Any], expected: Any) -> None:
    before = repr(document)
    assert json_patch(document, operations) == expected
    assert repr(document) == before


@pytest.mark.parametrize(
    ("operation", "text"),
    [
        (op("test", "/a", 2), "testing path /a failed"),
        (op("remove", "/missing"), "missing"),
        (op("replace", "/missing", 1), "missing key"),
        (op("add", "/l/9", 1), "out of range"),
        (op("add", "a", 1), "no JSON pointer"),
        (op("frob", "/a"), "unexpected kind"),
    ],
)
def test_json_patch_that_does_not_apply_is_unprocessable(operation: Any, text: str) -> None:
    with pytest.raises(Invalid, match=text):
        json_patch({"a": 1, "l": []}, [operation])


def test_json_patch_must_be_a_list() -> None:
    with pytest.raises(BadRequest):
        json_patch({}, {"op": "add"})


@pytest.mark.parametrize(
    ("document", "patch", "expected"),
    [
        ({"a": "b"}, {"a": "c"}, {"a": "c"}),
        ({"a": "b", "b": "c"}, {"a": None}, {"b": "c"}),
        ({"a": ["b"]}, {"a": ["c"]}, {"a": ["c"]}),
        ({"a": {"b": "c"}}, {"a": {"b": "d", "c": None}}, {"a": {"b": "d"}}),
        ({"a": "foo"}, {"a": {"bb": {"ccc": None}}}, {"a": {"bb": {}}}),
        ({}, {"a": {"b": None, "c": 1}}, {"a": {"c": 1}}),
    ],
)
def test_merge_patch(document: Any, patch: Any, expected: Any) -> None:
    assert merge_patch(document, patch) == expected


CONTAINERS = [{"name": "a", "image": "1", "env": [{"name": "X", "value": "1"}]}, {"name": "b", "image": "1"}]


@pytest.mark.parametrize(
    ("kind", "document", "patch", "expected"),
    [
        pytest.param(
            "Pod",
            {"spec": {"containers": CONTAINERS}},
            {"spec": {"containers": [{"name": "a", "env": [{"name": "Y", "value": "2"}]}]}},
            {
                "spec": {
                    "containers": [
                        {
                            "name": "a",
                            "image": "1",
                            "env": [{"name": "X", "value": "1"}, {"name": "Y", "value": "2"}],
                        },
                        {"name": "b", "image": "1"},
                    ]
                }
            },
            id="containers and env merge by name",
        ),
        pytest.param(
            "Pod",
            {"spec": {"containers": CONTAINERS}},
            {"spec": {"containers": [{"name": "a", "$patch": "delete"}]}},
            {"spec": {"containers": CONTAINERS[1:]}},
            id="$patch delete removes an element",
        ),
        pytest.param(
            "Pod",
            {"spec": {"containers": CONTAINERS}},
            {"spec": {"containers": [{"$patch": "replace"}, {"name": "z"}]}},
            {"spec": {"containers": [{"name": "z"}]}},
            id="$patch replace replaces a list",
        ),
        pytest.param(
            "Pod",
            {"metadata": {"labels": {"a": "1", "b": "2"}}},
            {"metadata": {"labels": {"$patch": "replace", "c": "3"}}},
            {"metadata": {"labels": {"c": "3"}}},
            id="$patch replace replaces a map",
        ),
        pytest.param(
            "Pod",
            {"metadata": {"annotations": {"a": "1", "b": "2"}}},
            {"metadata": {"annotations": {"a": None}}},
            {"metadata": {"annotations": {"b": "2"}}},
            id="null removes a key",
        ),
        pytest.param(
            "Pod",
            {"spec": {"volumes": [{"name": "v", "emptyDir": {}}]}},
            {
                "spec": {
                    "volumes": [
                        {"name": "v", "$retainKeys": ["name", "hostPath"], "hostPath": {"path": "/x"}}
                    ]
                }
            },
            {"spec": {"volumes": [{"name": "v", "hostPath": {"path": "/x"}}]}},
            id="$retainKeys drops the other keys",
        ),
        pytest.param(
            "Node",
            {"spec": {"taints": [{"key": "a", "effect": "NoSchedule"}, {"key": "a", "effect": "NoExecute"}]}},
            {"spec": {"taints": [{"key": "a", "effect": "NoExecute"}]}},
            {"spec": {"taints": [{"key": "a", "effect": "NoExecute"}]}},
            id="taints are atomic, as kubectl taint relies on",
        ),
        pytest.param(
            "Node",
            {
                "status": {
                    "conditions": [{"type": "Ready", "status": "True"}, {"type": "Disk", "status": "False"}]
                }
            },
            {"status": {"conditions": [{"type": "Ready", "status": "False"}]}},
            {
                "status": {
                    "conditions": [{"type": "Ready", "status": "False"}, {"type": "Disk", "status": "False"}]
                }
            },
            id="conditions merge by type",
        ),
        pytest.param(
            "Node",
            {
                "status": {
                    "conditions": [
                        {"type": "A", "status": "1"},
                        {"type": "B", "status": "1"},
                        {"type": "C", "status": "1"},
                    ]
                }
            },
            {
                "status": {
                    "$setElementOrder/conditions": [{"type": "C"}, {"type": "A"}, {"type": "B"}],
                    "conditions": [{"type": "C", "status": "2"}],
                }
            },
            {
                "status": {
                    "conditions": [
                        {"type": "C", "status": "2"},
                        {"type": "A", "status": "1"},
                        {"type": "B", "status": "1"},
                    ]
                }
            },
            id="$setElementOrder orders the list",
        ),
        pytest.param(
            "Pod",
            {"metadata": {"finalizers": ["a", "b"]}},
            {"metadata": {"$deleteFromPrimitiveList/finalizers": ["a"], "finalizers": ["c"]}},
            {"metadata": {"finalizers": ["b", "c"]}},
            id="finalizers are a set",
        ),
        pytest.param(
            "Pod",
            {"spec": {"tolerations": [{"key": "a"}]}},
            {"spec": {"tolerations": [{"key": "b"}]}},
            {"spec": {"tolerations": [{"key": "b"}]}},
            id="tolerations are atomic",
        ),
        pytest.param(
            "Job",
            {"spec": {"template": {"spec": {"containers": CONTAINERS}}}},
            {"spec": {"suspend": True, "template": {"spec": {"containers": [{"name": "b", "image": "2"}]}}}},
            {
                "spec": {
                    "suspend": True,
                    "template": {"spec": {"containers": [CONTAINERS[0], {"name": "b", "image": "2"}]}},
                }
            },
            id="a job's template merges like a pod",
        ),
        pytest.param(
            "Pod",
            {"spec": {"containers": []}},
            {"spec": {"affinity": {"nodeAffinity": {"x": None, "y": 1}}}},
            {"spec": {"containers": [], "affinity": {"nodeAffinity": {"y": 1}}}},
            id="nulls of a new map are dropped",
        ),
    ],
)
def test_strategic_patch(kind: str, document: Any, patch: Any, expected: Any) -> None:
    before = repr((document, patch))
    assert strategic_patch(kind, document, patch) == expected
    assert repr((document, patch)) == before


def test_strategic_patch_of_a_keyed_list_needs_the_key() -> None:
    with pytest.raises(BadRequest, match="merge key: name"):
        strategic_patch(
            "Pod", {"spec": {"containers": CONTAINERS}}, {"spec": {"containers": [{"image": "2"}]}}
        )
