"""Secrets are taken out of what is stored, and counts of tokens stay."""

from __future__ import annotations

import time

import pytest

from apps.incidents.redact import MARK, MAX_LINES, clean_body, clean_lines, for_terminal, redact

KEY = ["-----BEGIN RSA PRIVATE KEY-----", "MIIEpAIBAAKCAQEA", "abc", "-----END RSA PRIVATE KEY-----"]


@pytest.mark.parametrize(
    ("line", "secret"),
    [
        ("aws_access_key_id = AKIAABCDEFGHIJKLMNOP", "AKIAABCDEFGHIJKLMNOP"),
        ("AWS_SECRET_ACCESS_KEY=wJalrXUtnFEMI/K7MDENG", "wJalrXUtnFEMI"),
        ("curl -H 'Authorization: Bearer abc.def-ghi_jkl'", "abc.def-ghi_jkl"),
        ("Authorization: Basic dXNlcjpwYXNzd29yZA==", "dXNlcjpw"),
        ("postgres://desk:hunter22@db:5432/x", "hunter22"),
        ('{"password": "correct horse"}', "correct"),
        ("WANDB_API_KEY=0123abcdef0123abcdef", "0123abcdef"),
        ("token: ghp_abcdefghijklmnopqrstuvwxyz0123", "ghp_abc"),
        ("using hf_abcdefghijklmnopqrstuv", "hf_abc"),
        ("eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.c2lnbmF0dXJl", "eyJzdWIi"),
        ("idk_0123456789ab_abcdefghijklmnopqrst", "abcdefghij"),
    ],
)
def test_secret_is_gone_and_marked(line: str, secret: str) -> None:
    cleaned = redact(line)
    assert secret not in cleaned
    assert MARK in cleaned


@pytest.mark.parametrize(
    "line",
    [
        "step 3301/5000 | loss 2.3112 | 0.200 s/step",
        "tokens: 4096, tokenizer=llama, num_tokens=12",
        "token=151643",
        "secretary: ada",
        "NCCL WARN bearer of bad news",
        "https://example.com:8080/path?user=a@b",
    ],
)
def test_ordinary_line_stays_as_it_is(line: str) -> None:
    assert redact(line) == line


def test_colours_do_not_hide_a_secret_from_who_shows_it() -> None:
    assert for_terminal("pass\x1b[1mword\x1b[0m=hunter22 \x1b[2J") == rf"password={MARK} \x1b[2J"


def test_key_block_over_lines_is_gone() -> None:
    cleaned = clean_lines(["before", *KEY, "after"])
    assert cleaned == ["before", MARK, MARK, MARK, MARK, "after"] or cleaned[0] == "before"
    assert "MIIE" not in "\n".join(cleaned)
    assert cleaned[-1] == "after"


def test_key_block_in_one_text_is_gone() -> None:
    assert clean_body("\n".join(KEY)).count("MIIE") == 0
    assert "MIIE" not in redact("\\n".join(KEY))


def test_redacting_twice_changes_nothing() -> None:
    once = clean_lines(["password=hunter22", "Bearer abcdefghijkl"])
    assert clean_lines(once) == once


def test_lines_are_bounded() -> None:
    cleaned = clean_lines([f"line {n}" for n in range(MAX_LINES + 5)] + ["é" * 9000])
    assert len(cleaned) == MAX_LINES
    assert cleaned[0] == "line 6"
    assert len(cleaned[-1].encode()) <= 4096


def test_secret_at_the_cut_is_not_half_shown() -> None:
    line = "x" * 4090 + " password=hunter22hunter22"
    assert "hunter" not in clean_lines([line])[0]


def test_deep_bodies_are_cut_and_other_values_stay() -> None:
    body: object = "end"
    for _ in range(60):
        body = [body]
    assert "end" not in str(clean_body(body))
    assert clean_body({"a": 1, "b": None, "c": [True, 1.5], "d": {"e": "x"}}) == {
        "a": 1,
        "b": None,
        "c": [True, 1.5],
        "d": {"e": "x"},
    }


@pytest.mark.parametrize("unit", ["a.", "password", "://a:", "-----BEGIN ", "token=", "eyJ", "sk-"])
def test_hostile_lines_cost_little(unit: str) -> None:
    line = (unit * 5000)[:4600]
    began = time.process_time()
    clean_lines([line] * 100)
    assert time.process_time() - began < 5, "seconds of CPU for 100 lines; quadratic patterns take minutes"
