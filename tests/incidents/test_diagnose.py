from __future__ import annotations

import json
from collections.abc import Iterator
from io import BytesIO, StringIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from django.core.management import call_command
from django.core.management.base import CommandError

from apps.incidents import rules as rules_in_force
from apps.incidents.diagnosing import NotUnderstood
from apps.incidents.policy import current_policy

OOM = {"id": "a", "signals": {"exit_code": 137, "pod_reason": "OOMKilled", "log_tail": ["Killed"]}}


def diagnose(path: Path, *words: str) -> tuple[list[dict[str, object]], str]:
    out, err = StringIO(), StringIO()
    call_command("diagnose", str(path), *words, stdout=out, stderr=err)
    return [json.loads(line) for line in out.getvalue().splitlines()], err.getvalue()


def test_a_line_a_case_in_the_words_of_the_labels(tmp_path: Path) -> None:
    file = tmp_path / "cases.jsonl"
    file.write_text(json.dumps(OOM) + "\n\n")
    lines, _ = diagnose(file)
    assert lines == [
        {"id": "a", "category": "host_oom", "action": "fail_fast", "blame": "job", "culprit_rank": None}
    ]


def test_wrong_lines_are_told_with_their_number_and_the_rest_is_judged(tmp_path: Path) -> None:
    file = tmp_path / "cases.jsonl"
    wrong = [b"{", b"[]", b'{"id": "x"}', b'{"signals": {}}', b"\xff\xfe", b"[" * 100_000]
    file.write_bytes(b"\n".join([*wrong, json.dumps(OOM).encode()]))
    out, err = StringIO(), StringIO()
    with pytest.raises(CommandError, match="6 of the lines"):
        call_command("diagnose", str(file), stdout=out, stderr=err)
    assert [json.loads(line)["id"] for line in out.getvalue().splitlines()] == ["a"]
    assert [line.split(":")[0].rsplit(" ", 1)[1] for line in err.getvalue().splitlines()] == list("123456")


def test_reasons_go_to_standard_error(tmp_path: Path) -> None:
    file = tmp_path / "cases.jsonl"
    file.write_text(json.dumps(OOM))
    _, told = diagnose(file, "--explain")
    assert "host_oom, fail_fast, blame job" in told
    assert "  not       isolate_node: " in told


def test_terminal_obeys_nothing_of_a_case(tmp_path: Path) -> None:
    file = tmp_path / "cases.jsonl"
    log = ["\x1b]0;pwned\x07\x1b[31mCUDA out of memory\x1b[2J password=hunter2\nforged"]
    file.write_text(json.dumps({"id": "\x1b[2J", "signals": {"log_tail": log, "\x1bx": 1}}))
    lines, told = diagnose(file, "--explain")
    assert lines[0]["id"] == "\x1b[2J"
    assert all(line.isprintable() for line in told.splitlines())
    assert (
        r"  evidence  \x1b]0;pwned\x07CUDA out of memory\x1b[2J password=[redacted]\nforged (gpu.oom, 0.80)"
        in told
    )
    assert r"line 1: \x1bx: no rule reads a key of this name" in told


def test_id_comes_back_as_it_was_given(tmp_path: Path) -> None:
    file = tmp_path / "cases.jsonl"
    file.write_text("\n".join(json.dumps(OOM | {"id": each}) for each in (7, "7", "")))
    assert [line["id"] for line in diagnose(file)[0]] == [7, "7", ""]


def test_what_was_not_understood_is_told_once_a_kind_and_the_rest_counted(tmp_path: Path) -> None:
    file = tmp_path / "cases.jsonl"
    odd: list[dict[str, Any]] = [
        {"exit_code": "137", "pod_reason": "OOMKilled"},
        {"chekcs": {"gpu": "fail"}, "ranks": [{"rank": 0}, {"nod": "a"}, {"nod": "b"}]},
        {"chekcs": {}, "checks": {"gpu": "failed"}, "exit_code": [1]},
        {f"odd{n}": 1 for n in range(100)},
    ]
    file.write_text("\n".join(json.dumps({"id": n, "signals": each}) for n, each in enumerate(odd)))
    lines, told = diagnose(file)
    assert (len(lines), lines[0]["category"]) == (4, "host_oom")
    said = told.splitlines()
    assert said[0] == (
        f'{file}, line 1: exit_code: "137" is not a whole number such as 137. The case is judged without it.'
    )
    assert [line.split(": ")[0].rsplit(" ", 1)[1] + " " + line.split(": ")[1] for line in said[1:4]] == [
        "2 chekcs", "2 ranks.1.nod", "3 checks.gpu",
    ]  # fmt: skip
    assert said[-1] == f"{file}: 87 more like these were not understood"
    assert len(said) == 21


def test_signals_of_every_labelled_case_are_understood() -> None:
    for file in sorted((Path(__file__).parents[1] / "cases").glob("*.jsonl")):
        understood = NotUnderstood()
        for line in file.read_text().splitlines():
            assert list(understood.of(json.loads(line)["signals"])) == []
        assert understood.more == 0


def test_log_that_is_one_text_is_read_as_its_lines(tmp_path: Path) -> None:
    file = tmp_path / "cases.jsonl"
    file.write_text(json.dumps({"id": 1, "signals": {"exit_code": 1, "log_tail": "x\nCUDA out of memory\n"}}))
    lines, told = diagnose(file)
    assert (lines[0]["category"], told) == ("gpu_oom", "")


def test_nothing_told_is_said_and_no_more(tmp_path: Path) -> None:
    file = tmp_path / "cases.jsonl"
    file.write_text('{"id": 1, "signals": {}}\n{"id": 2, "signals": {"log_tail": ["hello"]}}')
    _, told = diagnose(file, "--explain")
    because = [line.split("because", 1)[1].strip() for line in told.splitlines() if "because" in line]
    assert because == [
        "Nothing was told of it: nothing is done before something is",
        "Nothing that is known explains this: no end is told, so nothing is killed: look into it",
    ]


def test_no_case_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "cases.jsonl"
    file.write_text("\n\n")
    assert diagnose(file) == ([], f"{file} holds no case: nothing was judged\n")
    monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=BytesIO(b""), isatty=lambda: True))
    lines, told = diagnose(Path("-"))
    assert (lines, told.splitlines()) == (
        [],
        [
            "Reading cases from this terminal, one a line; end them with Ctrl-D.",
            "- holds no case: nothing was judged",
        ],
    )


def test_no_such_file_is_told(tmp_path: Path) -> None:
    with pytest.raises(CommandError, match="cannot be read"):
        call_command("diagnose", str(tmp_path / "none.jsonl"))


OWN = """
[[rule]]
id = "own.maintenance"
match = ["planned maintenance of the site"]
class = "end"
specificity = 90
category = "preempted"
remedy = "restart_container"
blame = "none"
reason = "The site is being maintained"
source = "our calendar"
examples = ["planned maintenance of the site begins"]
"""


def test_an_operators_file_is_used_and_a_wrong_one_refused(tmp_path: Path) -> None:
    cases, own = tmp_path / "cases.jsonl", tmp_path / "own.toml"
    log = ["planned maintenance of the site begins"]
    cases.write_text(json.dumps({"id": "m", "signals": {"exit_code": 1, "log_tail": log}}))
    own.write_text(OWN)
    assert diagnose(cases, "--rules", str(own))[0][0]["action"] == "restart_container"
    own.write_text(OWN.replace("of the site begins", "ends"))
    with pytest.raises(CommandError, match=r"own\.toml, line 2, rule own\.maintenance, examples\[0\]"):
        diagnose(cases, "--rules", str(own))


@pytest.fixture
def in_force(settings: Any, tmp_path: Path) -> Iterator[Path]:
    """The operator's rule file, read at the next use of the rules."""
    settings.RULES_FILE = str(tmp_path / "own.toml")
    rules_in_force.forget()
    yield tmp_path / "own.toml"
    rules_in_force.forget()


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (None, "own.toml: cannot be read"),
        (OWN.replace('"end"', '["end"]'), "own.toml, line 2, rule own.maintenance, class: a list"),
        (OWN.replace("specificity = 90", f"specificity = {'9' * 5000}"), "own.toml, line 6: a number in it"),
        (
            OWN.replace("specificity = 90", "specificity = 90\ntags = [{}]"),
            "rule own.maintenance, tags[0]: a table",
        ),
        ('disable = "xid.79"', "own.toml, line 1, disable: a list of ids"),
        ("\xff", "own.toml: cannot be read"),
    ],
)
def test_a_desk_with_a_wrong_rule_file_decides_by_the_builtin_rules(
    in_force: Path, content: str | None, says: str, caplog: pytest.LogCaptureFixture
) -> None:
    if content is not None:
        in_force.write_text(content, encoding="latin-1")
    assert current_policy().rules == rules_in_force.builtin_rules().digest
    assert says in rules_in_force.refusal()
    assert [
        says in record.getMessage() for record in caplog.records if "rules.refused" in record.message
    ] == [True]


def test_a_file_that_breaks_the_loader_itself_stops_no_decision(
    in_force: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def breaks(path: Path) -> None:
        raise TypeError("unhashable type: 'list'")

    monkeypatch.setattr(rules_in_force, "rules_with", breaks)
    assert current_policy().rules == rules_in_force.builtin_rules().digest
    assert rules_in_force.refusal().startswith(f"{in_force}: it cannot be used (TypeError)")
