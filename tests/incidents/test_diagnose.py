from __future__ import annotations

import json
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from django.core.management import call_command
from django.core.management.base import CommandError

from apps.incidents import rules as rules_in_force

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


def test_a_desk_with_a_wrong_rule_file_starts_with_the_builtin_rules(tmp_path: Path, settings: Any) -> None:
    settings.RULES_FILE = str(tmp_path / "missing.toml")
    rules_in_force.forget()
    try:
        assert rules_in_force.current_rules() is rules_in_force.builtin_rules()
        assert "missing.toml: cannot be read" in rules_in_force.refusal()
    finally:
        rules_in_force.forget()
