from __future__ import annotations

import io
import json
from types import SimpleNamespace

import pytest
from django.core.management import call_command
from django.core.management.base import CommandError

from apps.incidents.trying_rules import try_rules

ECC = "RuntimeError: CUDA error: uncorrectable ECC error encountered"


def run(monkeypatch: pytest.MonkeyPatch, log: bytes, *words: str) -> str:
    monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=io.BytesIO(log)))
    out = io.StringIO()
    call_command("try_rules", *words, stdout=out)
    return out.getvalue()


def test_log_is_answered_with_its_hits_and_the_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    text = run(monkeypatch, f"step 3\n{ECC}\n".encode(), "--signals", '{"exit_code": 1}')
    assert text.startswith("ecc.program ")
    assert f"    {ECC}" in text
    assert "remedy isolate_node, blame node" in text
    assert "way back: " in text


def test_json_holds_what_was_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    tried = json.loads(run(monkeypatch, b"\xff\x1b[31m\n" * 5000, "--json"))
    assert (tried["hits"], tried["verdict"]["category"]) == ([], "unknown")
    assert tried["unread_lines"] == 3000


def test_secrets_of_the_log_are_not_shown() -> None:
    secret = f"{ECC} api_key=sk-abcdefghijklmnopqrstuvwx"
    tried = try_rules([secret], {"exit_code": 1, "kernel_log": [secret]})
    assert "[redacted]" in tried["hits"][0]["lines"][0]
    assert "abcdefghijklmnop" not in json.dumps(tried)


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
