import json
from typing import Any

import pytest

from sim.errors import BadRequest, Conflict
from sim.managed_fields import apply, note_update, read_fields, write_fields

NOW = "2026-11-29T12:00:00Z"


def by(
    manager: str, live: dict[str, Any] | None, config: dict[str, Any], *, force: bool = False
) -> dict[str, Any]:
    config = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}} | config
    return apply("Pod", live, config, manager=manager, force=force, subresource="", now=NOW)


def updated(manager: str, old: dict[str, Any], **changes: Any) -> dict[str, Any]:
    new = old | changes
    new["metadata"] = dict(new["metadata"])
    note_update("Pod", old, new, manager=manager, api_version="v1", subresource="", now=NOW)
    return new


def owners(obj: dict[str, Any]) -> dict[tuple[str, str], Any]:
    return {(one["manager"], one["operation"]): one["fieldsV1"] for one in obj["metadata"]["managedFields"]}


def test_applied_fields_belong_to_the_manager() -> None:
    made = by("a", None, {"spec": {"containers": [{"name": "train", "image": "1"}]}})
    assert owners(made)["a", "Apply"] == {
        "f:spec": {"f:containers": {'k:{"name":"train"}': {".": {}, "f:image": {}, "f:name": {}}}}
    }


def test_field_of_another_manager_is_a_conflict_that_names_it() -> None:
    made = by("a", None, {"spec": {"containers": [{"name": "train", "image": "1"}]}})
    with pytest.raises(Conflict) as refused:
        by("b", made, {"spec": {"containers": [{"name": "train", "image": "2"}]}})
    assert refused.value.details["causes"] == [
        {
            "reason": "FieldManagerConflict",
            "message": 'conflict with "a" using v1',
            "field": '.spec.containers[name="train"].image',
        }
    ]


def test_force_takes_the_field_over() -> None:
    made = by("a", None, {"metadata": {"name": "p", "labels": {"x": "1", "y": "1"}}})
    taken = by("b", made, {"metadata": {"name": "p", "labels": {"x": "2"}}}, force=True)
    assert taken["metadata"]["labels"] == {"x": "2", "y": "1"}
    assert owners(taken)["a", "Apply"] == {"f:metadata": {"f:labels": {"f:y": {}}}}
    assert owners(taken)["b", "Apply"] == {"f:metadata": {"f:labels": {"f:x": {}}}}


def test_same_value_is_shared_and_stays_until_both_let_go() -> None:
    made = by("a", None, {"metadata": {"name": "p", "labels": {"x": "1"}}})
    both = by("b", made, {"metadata": {"name": "p", "labels": {"x": "1"}}})
    one = by("a", both, {"metadata": {"name": "p", "labels": {}}})
    assert one["metadata"]["labels"] == {"x": "1"}
    none = by("b", one, {"metadata": {"name": "p"}})
    assert "x" not in none["metadata"].get("labels", {})


def test_field_no_longer_applied_is_removed_with_its_element() -> None:
    env = [{"name": "X", "value": "1"}, {"name": "Y", "value": "1"}]
    made = by("a", None, {"spec": {"containers": [{"name": "train", "image": "1", "env": env}]}})
    less = by("a", made, {"spec": {"containers": [{"name": "train", "image": "1", "env": env[:1]}]}})
    assert less["spec"]["containers"] == [{"name": "train", "image": "1", "env": env[:1]}]


def test_element_that_another_manager_extended_is_kept() -> None:
    made = by("a", None, {"spec": {"containers": [{"name": "train", "image": "1"}]}})
    both = by("b", made, {"spec": {"containers": [{"name": "train", "env": [{"name": "X", "value": "1"}]}]}})
    left = by("a", both, {"spec": {}})
    assert left["spec"]["containers"] == [{"name": "train", "env": [{"name": "X", "value": "1"}]}]


def test_update_takes_what_it_changes() -> None:
    made = by("a", None, {"metadata": {"name": "p", "labels": {"x": "1", "y": "1"}}})
    edited = updated("editor", made, metadata=made["metadata"] | {"labels": {"x": "2", "y": "1"}})
    assert owners(edited)["editor", "Update"] == {"f:metadata": {"f:labels": {"f:x": {}}}}
    assert owners(edited)["a", "Apply"] == {"f:metadata": {"f:labels": {"f:y": {}}}}
    with pytest.raises(Conflict, match=r'conflict with "editor" using v1: \.metadata\.labels\.x'):
        by("a", edited, {"metadata": {"name": "p", "labels": {"x": "1", "y": "1"}}})


def test_update_that_changes_nothing_owns_nothing() -> None:
    made = by("a", None, {"metadata": {"name": "p", "labels": {"x": "1"}}})
    assert list(owners(updated("editor", made))) == [("a", "Apply")]


def client_side(value: str, last_applied: str) -> dict[str, Any]:
    """A pod as a client-side `kubectl apply` left it, or somebody after it."""
    applied = json.dumps({"metadata": {"name": "p", "labels": {"x": last_applied}}})
    annotations = {"kubectl.kubernetes.io/last-applied-configuration": applied}
    metadata = {"name": "p", "labels": {"x": value}, "annotations": annotations}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata}


def test_kubectl_takes_over_its_own_client_side_apply() -> None:
    new = client_side("1", "1")
    note_update(
        "Pod", None, new, manager="kubectl-client-side-apply", api_version="v1", subresource="", now=NOW
    )
    config = {"metadata": {"name": "p", "labels": {"x": "2"}}}
    assert by("kubectl", new, config)["metadata"]["labels"] == {"x": "2"}
    with pytest.raises(Conflict):
        by("other", new, config)


def test_kubectl_does_not_take_over_what_somebody_changed_since() -> None:
    new = client_side("edited", "1")
    note_update("Pod", None, new, manager="editor", api_version="v1", subresource="", now=NOW)
    with pytest.raises(Conflict, match='conflict with "editor"'):
        by("kubectl", new, {"metadata": {"name": "p", "labels": {"x": "2"}}})


def test_atomic_lists_are_owned_whole() -> None:
    made = by("a", None, {"spec": {"tolerations": [{"key": "k"}]}})
    assert owners(made)["a", "Apply"] == {"f:spec": {"f:tolerations": {}}}


def test_managed_fields_are_not_applied() -> None:
    with pytest.raises(BadRequest, match="managedFields must be nil"):
        by("a", None, {"metadata": {"name": "p", "managedFields": [{"manager": "x"}]}})


def test_field_sets_survive_their_wire_form() -> None:
    fields = {"f:spec": {"f:containers": {'k:{"name":"a"}': {".": {}, "f:image": {}}}}}
    assert write_fields(read_fields(fields)) == fields
