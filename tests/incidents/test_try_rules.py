from __future__ import annotations

import io
import json
import re
from pathlib import Path
from types import SimpleNamespace

import pytest
from django.core.management import call_command
from django.core.management.base import CommandError

from apps.incidents.told_signals import problems_of
from apps.incidents.trying_rules import try_rules

ECC = "RuntimeError: CUDA error: uncorrectable ECC error encountered"


def run(monkeypatch: pytest.MonkeyPatch, log: bytes, *words: str) -> str:
    monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=io.BytesIO(log), isatty=lambda: False))
    out = io.StringIO()
    call_command("try_rules", *words, stdout=out)
    return out.getvalue()


def test_log_is_answered_with_its_hits_and_the_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    text = run(monkeypatch, f"step 3\n{ECC}\n".encode(), "--signals", '{"exit_code": 1}')
    assert text.startswith("ecc.program ")
    assert f"    {ECC}" in text
    assert "remedy isolate_node, blame node" in text
    assert "way back: " in text
    assert "\n2 lines read\n" in text


def test_json_holds_what_was_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    tried = json.loads(run(monkeypatch, b"\xff\x1b[31m\n" * 5000, "--json"))
    assert (tried["hits"], tried["verdict"]["category"]) == ([], "unknown")
    assert tried["unread_lines"] == 3000


def test_secrets_of_the_log_are_not_shown() -> None:
    secret = f"{ECC} api_key=sk-abcdefghijklmnopqrstuvwx"
    tried = try_rules([secret], {"exit_code": 1, "kernel_log": [secret]})
    assert "[redacted]" in tried["hits"][0]["lines"][0]
    assert "abcdefghijklmnop" not in json.dumps(tried)


def test_terminal_obeys_nothing_of_the_log(monkeypatch: pytest.MonkeyPatch) -> None:
    log = b"\x1b]0;pwned\x07\x1b[31mCUDA out of memory\x1b[2J password=hunter2\n"
    text = run(
        monkeypatch, log, "--signals", '{"metrics": {"jobs_failing_alike": 9, "failing_alike": "\\u001b[2J"}}'
    )
    assert r"    \x1b]0;pwned\x07CUDA out of memory\x1b[2J password=[redacted]" in text.splitlines()
    assert all(line.isprintable() for line in text.splitlines())


def test_who_types_at_a_terminal_is_told_how_to_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=io.BytesIO(b""), isatty=lambda: True))
    err = io.StringIO()
    call_command("try_rules", stdout=io.StringIO(), stderr=err)
    assert "end it with Ctrl-D" in err.getvalue()


def test_empty_log_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    text = run(monkeypatch, b"", "--signals", '{"exit_code": 1}')
    assert "\n0 lines read: no log was given, its signals alone are judged\nVerdict: " in text


def test_rule_file_is_called_by_its_path(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "site.toml"
    file.write_text('[[rule]]\nid = "a.b"\nmatch = ["abc"]\n')
    with pytest.raises(CommandError, match=rf"^{re.escape(str(file))}.* line 1, rule a\.b, reason: missing"):
        run(monkeypatch, b"x", "--rules", str(file))


@pytest.mark.parametrize(
    ("signals", "says"),
    [
        ({"exitcode": 1}, {"exitcode": "no rule reads a key of this name. Was exit_code meant?"}),
        ({"colour": 1}, {"colour": "no rule reads a key of this name. Known are exit_code, signal,"}),
        ({"exit_code": "x"}, {"exit_code": '"x" is not a whole number such as 137.'}),
        ({"exit_code": True, "signal": 9}, {"exit_code": "true is not", "signal": "9 is not a text such as"}),
        ({"checks": {"gpu": "failed"}}, {"checks.gpu": '"failed" is not one of pass, fail, timeout.'}),
        ({"checks": []}, {"checks": "[] is not an object"}),
        ({"metrics": {"gpu_util": [1]}}, {"metrics.gpu_util": "[1] is not a number"}),
        ({"kernel_log": [1]}, {"kernel_log": "[1] is not a list of texts."}),
        ({"phase": "RunCommand"}, {"phase": '"RunCommand" is not one of bootcheck, run, troubleshoot.'}),
        ({"ranks": [{"rank": 0, "nod": "a"}, 3]}, {"ranks.0.nod": "Was node meant?", "ranks.1": "3 is not"}),
        ({"log_tail": ["x"]}, {"log_tail": "leave it out"}),
    ],
)
def test_signals_that_would_be_passed_over_are_named(
    monkeypatch: pytest.MonkeyPatch, signals: dict[str, object], says: dict[str, str]
) -> None:
    found = problems_of(signals)
    assert list(found) == list(says)
    assert all(part in found[path] for path, part in says.items()), found
    with pytest.raises(CommandError, match=r"^--signals cannot be judged as it is:\n  [a-z]"):
        run(monkeypatch, b"x", "--signals", json.dumps(signals))


def test_signals_of_every_labelled_case_are_right() -> None:
    files = sorted(Path(__file__).parents[1].glob("cases/*.jsonl"))
    assert files
    for file in files:
        for line in file.read_text().splitlines():
            case = json.loads(line)
            signals = {key: value for key, value in case["signals"].items() if key != "log_tail"}
            assert not problems_of(signals), case["id"]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--signals", "{"), "not JSON"),
        (("--signals", "[]"), "JSON object"),
        (("--rules", "/no/such.toml"), "cannot be read"),
    ],
)
def test_what_is_wrong_is_told(monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], says: str) -> None:
    with pytest.raises(CommandError, match=says):
        run(monkeypatch, b"x", *words)
