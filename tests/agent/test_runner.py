"""Helper programs under a real loop, in a process of its own (the loop reaps every child it has)."""

import json
import subprocess
import sys
from pathlib import Path

SCRIPT = """
import json, sys, threading
from agent.loop import Loop
from agent.process import ProcessTable
from agent.runner import Runner
import os
loop = Loop()
runner = Runner(loop, ProcessTable(loop), dict(os.environ))
found = {}
def attempt(name, call):
    try:
        found[name] = call()
    except OSError as error:
        found[name] = type(error).__name__
def work():
    python = sys.executable
    attempt("code and output", lambda: runner(["sh", "-c", "echo out; echo err >&2; exit 3"], 20))
    attempt("signal", lambda: runner(["sh", "-c", "kill -9 $$"], 20))
    attempt("late", lambda: runner(["sh", "-c", "echo first; exec sleep 1000"], 0.3))
    attempt("missing", lambda: runner(["/no/such/program"], 20))
    echo = runner.keep([python, "-u", "-c", ECHO])
    attempt("first", lambda: echo.ask("one", 20))
    attempt("second", lambda: echo.ask("two", 20))
    attempt("hangs", lambda: echo.ask("hang", 0.3))
    attempt("after a hang", lambda: echo.ask("three", 20))
    attempt("ends", lambda: echo.ask("end", 20))
    attempt("after an end", lambda: echo.ask("four", 20))
    attempt("no helper", lambda: runner.keep(["/no/such/program"]).ask("x", 20))
    loop.post(loop.stop)
ECHO = '''
import os, sys, time
for line in iter(sys.stdin.readline, ""):
    if line == "end\\\\n":
        sys.exit(3)
    print(line, end="")
    if line == "hang\\\\n":
        time.sleep(1000)
    print()
'''
threading.Thread(target=work).start()
loop.run()
print(json.dumps(found))
"""


def test_helpers_answer_hang_end_and_come_back() -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {
        "code and output": [3, "out\nerr\n"],
        "signal": [137, ""],
        "late": [None, "first\n"],
        "missing": "FileNotFoundError",
        "first": [True, ["one"]],
        "second": [True, ["two"]],
        "hangs": [False, ["hang"]],
        "after a hang": [True, ["three"]],
        "ends": "OSError",
        "after an end": [True, ["four"]],
        "no helper": "FileNotFoundError",
    }
