"""Builds ``deskagent``, a zipapp: the same sources and interpreters give the same bytes.

    python3 -m agent.build --out .desk/deskagent.pyz [--python PATH ...]

The archive holds the sources, which any Python from 3.8 on runs, and bytecode for the interpreter
that builds and for each one named, because compiling at each start would cost more than starting.
"""

from __future__ import annotations

import argparse
import base64
import io
import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

SHEBANG = b"#!/usr/bin/env python3\n"
LEFT_OUT = {"build.py", "__main__.py"}
EPOCH = (1980, 1, 1, 0, 0, 0)

MAIN = """\
import os
import sys

if sys.version_info < (3, 8):
    sys.stderr.write("deskagent needs Python 3.8 or newer; this is %d.%d\\n" % sys.version_info[:2])
    sys.exit(82)
archive = sys.path[0]
tag = sys.implementation.cache_tag
sys.path[0] = os.path.join(archive, tag if tag in COMPILED else "source")

from agent.cli import main

code = main(sys.argv[1:])
sys.stdout.flush()
sys.stderr.flush()
os._exit(code)  # threads that wait for the desk or for a stuck reader are not waited for
"""

# Runs in each interpreter that bytecode is made for: JSON {name: source} in, {name: pyc as base64} out.
COMPILE = """\
import base64, importlib.util, json, marshal, sys
made = {}
for name, source in json.load(sys.stdin).items():
    code = compile(source, "agent/" + name, "exec", dont_inherit=True)
    pyc = importlib.util.MAGIC_NUMBER + bytes(12) + marshal.dumps(code)
    made[name] = base64.b64encode(pyc).decode()
json.dump({"tag": sys.implementation.cache_tag, "made": made}, sys.stdout)
"""


def build(out: Path, pythons: list[str]) -> None:
    """Write the archive to ``out``, replacing what is there in one step.

    Raises:
        subprocess.CalledProcessError: An interpreter could not compile the sources.
    """
    sources = {
        path.name: path.read_text(encoding="utf-8")
        for path in sorted(Path(__file__).parent.glob("*.py"))
        if path.name not in LEFT_OUT
    }
    files: dict[str, bytes] = {"source/agent/" + name: text.encode() for name, text in sources.items()}
    tags: list[str] = []
    for python in pythons:
        tag, compiled = _compile(python, sources)
        if tag in tags:
            continue
        tags.append(tag)
        for name, pyc in compiled.items():
            files[f"{tag}/agent/{name}c"] = pyc
    files["__main__.py"] = (f"COMPILED = {tuple(sorted(tags))!r}\n" + MAIN).encode()
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_STORED) as zipped:
        for name in sorted(files):
            entry = zipfile.ZipInfo(name, EPOCH)
            entry.external_attr = 0o644 << 16
            zipped.writestr(entry, files[name])
    out.parent.mkdir(parents=True, exist_ok=True)
    unfinished = out.with_name(f"{out.name}.{os.getpid()}.tmp")
    unfinished.write_bytes(SHEBANG + archive.getvalue())
    unfinished.chmod(0o755)
    unfinished.replace(out)


def _compile(python: str, sources: dict[str, str]) -> tuple[str, dict[str, bytes]]:
    # A fresh process with a fixed hash seed: the order of sets in constants is part of the bytes.
    answer = subprocess.run(
        [python, "-S", "-c", COMPILE],
        input=json.dumps(sources),
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONHASHSEED": "0", "PYTHONDONTWRITEBYTECODE": "1"},
    )
    found = json.loads(answer.stdout)
    return found["tag"], {name: base64.b64decode(text) for name, text in found["made"].items()}


def main() -> None:
    parser = argparse.ArgumentParser(description="Build the worker agent as a zipapp.")
    parser.add_argument("--out", type=Path, default=Path(".desk/deskagent.pyz"))
    parser.add_argument("--python", action="append", default=[], help="make bytecode for this one too")
    options = parser.parse_args()
    build(options.out, [sys.executable, *options.python])
    print(f"built {options.out}, {options.out.stat().st_size} bytes")


if __name__ == "__main__":
    main()
