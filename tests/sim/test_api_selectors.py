import pytest

from sim.errors import BadRequest
from sim.selectors import from_object, parse_fields, parse_labels

LABELS = {"app": "train", "tier": "gpu", "index": "7"}


@pytest.mark.parametrize(
    ("text", "matches"),
    [
        ("", True),
        ("app=train", True),
        ("app==train", True),
        ("app = train , tier=gpu", True),
        ("app=other", False),
        ("app!=other", True),
        ("app!=train", False),
        ("missing!=x", True),
        ("app in (train, other)", True),
        ("app in (other)", False),
        ("app notin (other)", True),
        ("missing notin (other)", True),
        ("app", True),
        ("missing", False),
        ("!missing", True),
        ("!app", False),
        ("index>6", True),
        ("index<7", False),
        ("app>1", False),
        ("app in (train),tier in (cpu,gpu),!missing", True),
        ("app=", False),
        ("incidentdesk.io/rack!=r1", True),
    ],
)
def test_label_selector(text: str, matches: bool) -> None:
    assert parse_labels(text)(LABELS) is matches


@pytest.mark.parametrize("text", ["app=(x", "=x", "a b", "app in x", "index>many"])
def test_label_selector_that_cannot_be_read_is_refused(text: str) -> None:
    with pytest.raises(BadRequest, match="parse requirement"):
        parse_labels(text)


@pytest.mark.parametrize(
    ("text", "matches"),
    [
        ("status.phase=Running", True),
        ("status.phase==Running,spec.nodeName=n1", True),
        ("status.phase!=Running", False),
        ("spec.nodeName=", False),
        ("status.phase=Failed", False),
        (r"spec.nodeName=n1", True),
    ],
)
def test_field_selector(text: str, matches: bool) -> None:
    fields = {"status.phase": "Running", "spec.nodeName": "n1"}
    assert parse_fields(text, frozenset(fields))(fields) is matches


def test_field_selector_on_a_field_without_index_is_refused() -> None:
    with pytest.raises(BadRequest, match=r'field label not supported: "spec\.hostname"'):
        parse_fields("spec.hostname=a", frozenset({"spec.nodeName"}))


@pytest.mark.parametrize(
    ("selector", "matches"),
    [
        (None, False),
        ({}, True),
        ({"matchLabels": {"app": "train"}}, True),
        ({"matchExpressions": [{"key": "tier", "operator": "NotIn", "values": ["gpu"]}]}, False),
        ({"matchExpressions": [{"key": "tier", "operator": "Exists"}]}, True),
        (
            {"matchLabels": {"app": "train"}, "matchExpressions": [{"key": "x", "operator": "DoesNotExist"}]},
            True,
        ),
    ],
)
def test_selector_of_an_object(selector: dict[str, object] | None, matches: bool) -> None:
    assert from_object(selector)(LABELS) is matches
