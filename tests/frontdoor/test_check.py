"""What `./desk check` finds, on small trees with one fault each, and how it says so."""

import sys
from pathlib import Path

import pytest

from incidentdesk.frontdoor import check, links, wording
from incidentdesk.frontdoor.errors import FrontDoorError


def write(root: Path, name: str, text: str) -> Path:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


# -- links -----------------------------------------------------------------------------------------


def test_links_that_hold_are_no_fault(tmp_path: Path) -> None:
    write(
        tmp_path,
        "README.md",
        "# Top\n[a](docs/a.md#two-words-api) [b](#top) ![c](docs/c.png) [d](https://desk.example.com) `[e](none)`\n"
        "```\n[f](none.md)\n```\n",
    )
    write(tmp_path, "docs/a.md", "# One\n## Two words: `API`\n## One\n[again](#one-1) [up](../README.md)\n")
    write(tmp_path, "docs/c.png", "")
    assert list(links.broken_links(tmp_path)) == []


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[a](docs/none.md)", "docs/none.md does not exist"),
        ("![a](none.png)", "none.png does not exist"),
        ("[a](#nowhere)", "no such heading"),
        ("[a](docs/a.md#nowhere)", "no such heading"),
        ('[a](<docs/b.md> "title")', "does not exist"),
    ],
)
def test_broken_link_is_found(tmp_path: Path, text: str, said: str) -> None:
    write(tmp_path, "docs/a.md", "# One\n```\n# nowhere\n```\n")
    write(tmp_path, "README.md", f"# Top\n{text}\n")
    found = list(links.broken_links(tmp_path))
    assert len(found) == 1
    assert found[0].startswith("README.md: ")
    assert said in found[0]


# -- wording ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "line",
    [
        "see https://registry.somewhere.org/simple",
        "cd /root/desk",
        "open('/home/somebody/x')",
        "# TODO: later",
        "FIXME",
        "<<<<<<< HEAD",
    ],
)
def test_what_must_not_be_said_is_found(tmp_path: Path, line: str) -> None:
    path = write(tmp_path, "a.py", f"x = 1\n{line}\n")
    assert len(list(wording.faults(tmp_path, [path]))) == 1


@pytest.mark.parametrize(
    "line",
    [
        "http://127.0.0.1:8080/x https://desk.example.com http://{host}:1/ https://kubernetes.default.svc",
        "# TODO(#12): when the registry answers",
        'xmlns="http://www.w3.org/2000/svg"',
        "WORKDIR /srv/incidentdesk",
        "templates/root/x /proc/1/root/y",
    ],
)
def test_what_may_be_said_is_not(tmp_path: Path, line: str) -> None:
    assert list(wording.faults(tmp_path, [write(tmp_path, "a.py", f"{line}\n")])) == []


# -- the command -----------------------------------------------------------------------------------


def test_one_line_for_each_check_and_the_output_of_those_that_fail(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    checks = {
        "good": check.command(sys.executable, "-c", "print('quiet')"),
        "bad": check.command(sys.executable, "-c", "print('the reason'); raise SystemExit(3)"),
        "list": check.findings(lambda: ["a.py:1 is wrong"]),
    }
    monkeypatch.setattr(check, "CHECKS", checks)
    assert check.main([]) == 1
    said = capsys.readouterr().out
    assert "ok      good" in said
    assert "FAILED  bad" in said
    assert "    the reason" in said
    assert "    a.py:1 is wrong" in said
    assert "quiet" not in said
    assert said.splitlines()[-1].startswith("2 of 3 checks failed: ")
    assert check.main(["good"]) == 0


def test_unknown_check_is_one_sentence() -> None:
    with pytest.raises(FrontDoorError, match="There is no check `style`; there are: types, "):
        check.main(["style"])
