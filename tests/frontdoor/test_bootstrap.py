"""From nothing but python3: finding Python, getting the locked uv, and saying what is missing."""

import ast
import hashlib
import io
import os
import runpy
import shutil
import subprocess
import sys
import threading
import zipfile
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from incidentdesk.frontdoor import __main__ as frontdoor
from incidentdesk.frontdoor import bootstrap, places
from incidentdesk.frontdoor.places import CHECKOUT

PLAIN_SCRIPTS = ["bootstrap.py", "clean.py"]


@pytest.mark.parametrize("script", PLAIN_SCRIPTS)
def test_plain_scripts_are_python_38_of_the_standard_library(script: str) -> None:
    path = CHECKOUT / "incidentdesk" / "frontdoor" / script
    tree = ast.parse(path.read_text(), feature_version=(3, 8))
    imported = [n for node in ast.walk(tree) if isinstance(node, ast.Import) for n in node.names]
    assert not [n for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) for n in node.names]
    assert {name.name.partition(".")[0] for name in imported} <= sys.stdlib_module_names


# -- which wheel -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("system", "machine", "musl", "part"),
    [
        ("Linux", "x86_64", False, "manylinux_2_17_x86_64"),
        ("Linux", "aarch64", False, "manylinux_2_17_aarch64"),
        ("Linux", "x86_64", True, "musllinux_1_1_x86_64"),
        ("Linux", "aarch64", True, "musllinux_1_1_aarch64"),
        ("Darwin", "arm64", False, "macosx_11_0_arm64"),
        ("Darwin", "x86_64", False, "macosx_10_12_x86_64"),
    ],
)
def test_lock_has_a_uv_for_each_platform(system: str, machine: str, musl: bool, part: str) -> None:
    wheel = bootstrap.wheel_for(bootstrap.locked_wheels("uv"), system, machine, musl)
    assert part in wheel[0]
    assert len(wheel[1]) == 64


def test_other_platforms_have_none() -> None:
    wheels = bootstrap.locked_wheels("uv")
    assert bootstrap.wheel_for(wheels, "SunOS", "sparc", False) is None
    assert bootstrap.wheel_for(wheels, "Linux", "vax", False) is None


def test_only_the_named_package_is_read() -> None:
    assert all("/uv-" in url for url, _ in bootstrap.locked_wheels("uv"))
    assert bootstrap.locked_wheels("no-such-package") == []


# -- download --------------------------------------------------------------------------------------


@pytest.fixture
def wheel() -> bytes:
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        archive.writestr("uv-9.9.9.data/scripts/uv", "#!/bin/sh\necho uv 9.9.9\n")
        archive.writestr("uv-9.9.9.data/scripts/uvx", "no")
    return content.getvalue()


@pytest.fixture
def shelf(wheel: bytes) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Length", str(len(wheel)))
            self.end_headers()
            self.wfile.write(wheel)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class's name
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/uv-9.9.9-py3-none-any.whl"
        server.shutdown()


def offer(monkeypatch: pytest.MonkeyPatch, url: str, digest: str) -> None:
    monkeypatch.setattr(bootstrap, "wheel_for", lambda *_: (url, digest))


def test_locked_uv_is_taken_out_of_its_wheel(
    shelf: str, wheel: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    offer(monkeypatch, shelf, hashlib.sha256(wheel).hexdigest())
    target = tmp_path / "bin" / "uv"
    bootstrap.install_uv(str(target))
    assert bootstrap.uv_version(str(target)) == (9, 9)
    assert [path.name for path in target.parent.iterdir()] == ["uv"]


def test_wheel_with_another_sum_is_not_installed(
    shelf: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    offer(monkeypatch, shelf, "0" * 64)
    with pytest.raises(bootstrap.Sentence, match="another SHA-256"):
        bootstrap.install_uv(str(tmp_path / "bin" / "uv"))
    assert not (tmp_path / "bin").exists()


def test_no_network_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    offer(monkeypatch, "http://127.0.0.1:9/uv.whl", "0" * 64)
    monkeypatch.setattr(bootstrap.time, "sleep", lambda seconds: None)
    with pytest.raises(bootstrap.Sentence, match="could not be downloaded"):
        bootstrap.install_uv(str(tmp_path / "uv"))


def test_old_uv_on_path_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old = tmp_path / "uv"
    old.write_text("#!/bin/sh\necho uv 0.4.1\n")
    old.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(bootstrap, "STATE", str(tmp_path / "state"))
    installed: list[str] = []
    monkeypatch.setattr(bootstrap, "install_uv", installed.append)
    bootstrap.find_uv()
    assert installed == [str(tmp_path / "state" / "bin" / "uv")]


# -- Python ----------------------------------------------------------------------------------------


def fake_python(path: Path, version: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{version}\n")
    path.chmod(0o755)
    return path


@pytest.fixture
def nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine without any Python of ours: empty PATH and pyenv."""
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path / "pyenv"))
    monkeypatch.delenv("INCIDENTDESK_PYTHON", raising=False)
    monkeypatch.setattr(bootstrap.sys, "executable", "/nonexistent")
    return tmp_path


def test_shim_that_does_not_run_is_passed_over_for_pyenvs_own(nowhere: Path) -> None:
    fake_python(nowhere / "bin" / "python3.13", "exit 127")
    fake_python(nowhere / "pyenv/versions/3.13.2/bin/python3.13", "echo cpython 3 13")
    newer = fake_python(nowhere / "pyenv/versions/3.13.11/bin/python3.13", "echo cpython 3 13")
    assert bootstrap.find_python("uv") == str(newer)


def test_312_is_taken_where_there_is_no_313(nowhere: Path) -> None:
    found = fake_python(nowhere / "bin" / "python3.12", "echo cpython 3 12")
    assert bootstrap.find_python("uv") == str(found)


def test_313_is_preferred(nowhere: Path) -> None:
    fake_python(nowhere / "bin" / "python3.12", "echo cpython 3 12")
    found = fake_python(nowhere / "pyenv/versions/3.13.0/bin/python3.13", "echo cpython 3 13")
    assert bootstrap.find_python("uv") == str(found)


def test_uv_downloads_one_where_there_is_none_and_it_is_said(
    nowhere: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    downloaded = fake_python(nowhere / "managed", "echo cpython 3 13")
    done = nowhere / "done"
    uv = fake_python(
        nowhere / "bin" / "uv",
        f"case $2 in install) : > '{done}';; find) test -e '{done}' && echo '{downloaded}';; esac",
    )
    assert bootstrap.find_python(str(uv)) == str(downloaded)
    assert "uv downloads 3.13" in capsys.readouterr().err


def test_no_python_and_no_download_is_one_sentence(nowhere: Path) -> None:
    uv = fake_python(nowhere / "bin" / "uv", "exit 2")
    with pytest.raises(bootstrap.Sentence, match=r"No Python 3\.13 or 3\.12 here"):
        bootstrap.find_python(str(uv))


def test_asked_for_python_must_work(nowhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INCIDENTDESK_PYTHON", "/nonexistent")
    with pytest.raises(bootstrap.Sentence, match="INCIDENTDESK_PYTHON is /nonexistent"):
        bootstrap.find_python("uv")


def test_uv_writes_only_below_the_checkout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("UV_CACHE_DIR", raising=False)
    env = bootstrap.uv_environment()
    for name in ("UV_CACHE_DIR", "UV_PYTHON_INSTALL_DIR", "PYTHONPYCACHEPREFIX"):
        assert Path(env[name]).is_relative_to(CHECKOUT / ".desk")
    assert env["UV_PROJECT_ENVIRONMENT"] == str(CHECKOUT / ".venv")
    monkeypatch.setenv("UV_CACHE_DIR", "/somewhere")
    assert bootstrap.uv_environment()["UV_CACHE_DIR"] == "/somewhere"


@pytest.mark.parametrize(("certificates", "expected"), [(["authority.pem"], "true"), ([], None)])
def test_uv_trusts_what_the_machine_trusts(
    certificates: list[str], expected: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("UV_SYSTEM_CERTS", raising=False)
    paths = bootstrap.ssl.get_default_verify_paths()._replace(cafile=None, capath=str(tmp_path))
    monkeypatch.setattr(bootstrap.ssl, "get_default_verify_paths", lambda: paths)
    for name in certificates:
        (tmp_path / name).write_text("")
    assert bootstrap.uv_environment().get("UV_SYSTEM_CERTS") == expected


def test_macos_is_told_in_one_sentence_what_cannot_work(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(bootstrap.platform, "system", lambda: "Darwin")
    monkeypatch.setattr(bootstrap.sys, "argv", ["bootstrap.py", "demo"])
    monkeypatch.setattr(bootstrap, "is_installed", lambda tools: True)
    started: list[list[str]] = []
    monkeypatch.setattr(bootstrap.os, "execve", lambda python, command, env: started.append(command))
    bootstrap.main()
    assert capsys.readouterr().err == bootstrap.ON_MACOS + "\n"
    assert started[0][1:] == ["-m", "incidentdesk.frontdoor", "demo"]  # untried is not refused


# -- the shell script ------------------------------------------------------------------------------


def run_desk(*words: str, desk: Path = CHECKOUT / "desk", **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["sh", str(desk), *words], capture_output=True, text=True, check=False, env=os.environ | env, cwd="/"
    )


def test_help_lists_the_commands_and_needs_nothing() -> None:
    answer = run_desk("--help")
    assert answer.returncode == 0
    for command in ("demo", "test", "check", "drill", "bench", "up", "clean"):
        assert f"\n  {command} " in answer.stdout


def test_missing_python3_is_one_sentence(tmp_path: Path) -> None:
    desk = tmp_path / "desk"
    text = (CHECKOUT / "desk").read_text()
    assert "/usr/bin/python3 /usr/local/bin/python3" in text
    desk.write_text(text.replace("/usr/bin/python3 /usr/local/bin/python3", ""))
    tools = tmp_path / "bin"
    tools.mkdir()
    for tool in ("dirname", "sh"):
        (tools / tool).symlink_to(subprocess.check_output(["which", tool], text=True).strip())
    fake_python(tools / "python3", "exit 127")
    answer = subprocess.run(
        [str(tools / "sh"), str(desk), "demo"],
        capture_output=True,
        text=True,
        check=False,
        env={"PATH": str(tools)},
    )
    assert answer.returncode == 1
    assert answer.stderr.count("\n") == 1
    assert answer.stderr.startswith("IncidentDesk needs python3, 3.8 or newer")


def test_errors_of_the_system_become_a_sentence() -> None:
    assert "is full" in str(bootstrap.explain(OSError(28, "No space left on device")))
    assert "may not write to /x" in str(bootstrap.explain(OSError(13, "Permission denied", "/x")))
    assert bootstrap.explain(OSError(2, "No such file")) is None


# -- what is refused before anything is downloaded -------------------------------------------------


@pytest.fixture
def fresh_clone(tmp_path: Path) -> Path:
    """A checkout of nothing but the script and bootstrap.py: whatever goes further fails for want of uv.lock."""
    script = tmp_path / "incidentdesk" / "frontdoor" / "bootstrap.py"
    script.parent.mkdir(parents=True)
    shutil.copy(CHECKOUT / "incidentdesk" / "frontdoor" / "bootstrap.py", script)
    shutil.copy(CHECKOUT / "desk", tmp_path / "desk")
    return tmp_path


NO_DESK = {"DATABASE_URL": "", "INCIDENTDESK_STATE": ""}


def test_unknown_command_is_one_sentence_and_downloads_nothing(fresh_clone: Path) -> None:
    answer = run_desk("dance", desk=fresh_clone / "desk")
    assert answer.returncode == 1
    assert answer.stderr == "There is no command `dance`: ./desk --help lists them.\n"
    assert not (fresh_clone / ".desk").exists()


def test_manage_without_a_desk_says_so_and_downloads_nothing(fresh_clone: Path) -> None:
    answer = run_desk("manage", "guards", desk=fresh_clone / "desk", **NO_DESK)
    assert answer.returncode == 1
    assert answer.stderr == (
        "No desk runs here, and `guards` needs one: start ./desk demo or ./desk up, or name a database in "
        "DATABASE_URL.\n"
    )
    elsewhere = {**NO_DESK, "INCIDENTDESK_STATE": "/nowhere"}
    answer = run_desk("manage", "guards", desk=fresh_clone / "desk", **elsewhere)
    assert answer.stderr.startswith("No desk runs in /nowhere, which INCIDENTDESK_STATE names, and `guards`")
    assert not (fresh_clone / ".desk").exists()


@pytest.mark.parametrize(
    ("words", "needed"),
    [
        (["guards"], True),
        (["guards", "--cluster", "demo"], True),
        (["economics", "mtbf", "--cluster", "demo"], True),
        (["economics", "mtbf", "--cluster=demo"], True),
        (["economics", "mtbf", "TRACE"], False),
        (["guards", "--help"], False),
        (["help"], False),
        ([], False),
        *((([name]), False) for name in bootstrap.WITHOUT_DATABASE),
    ],
)
def test_what_computes_or_explains_needs_no_desk(
    words: list[str], needed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("DATABASE_URL", raising=False)
    assert bootstrap.needs_desk(words) is needed
    monkeypatch.setenv("DATABASE_URL", "postgresql:///theirs")
    assert not bootstrap.needs_desk(words)


def test_desk_runs_while_it_holds_its_lock(tmp_path: Path) -> None:
    roots = [str(tmp_path / "other"), str(tmp_path)]
    assert not bootstrap.desk_runs(roots)
    (tmp_path / places.ENVIRONMENT_NOTE).write_text("{}")
    lock = places.take_lock(tmp_path / "desk.lock")
    assert lock is not None
    assert bootstrap.desk_runs(roots)
    lock.close()
    assert not bootstrap.desk_runs(roots)


def test_lists_of_the_plain_script_are_those_of_what_it_hands_over_to() -> None:
    assert set(bootstrap.COMMANDS) == set(frontdoor.COMMANDS) | {"clean"}
    assert all(f"\n  {command} " in bootstrap.HELP for command in bootstrap.COMMANDS)
    manage = runpy.run_path(str(CHECKOUT / "manage.py"))
    assert set(bootstrap.WITHOUT_DATABASE) == manage["_WITHOUT_DATABASE"]
    assert manage["_OF_THE_DESK"] == bootstrap.OF_THE_DESK
    assert bootstrap.NOTE == places.ENVIRONMENT_NOTE
