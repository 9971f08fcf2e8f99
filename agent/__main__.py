"""``python3 -m agent`` or ``python3 agent``: the same as the built ``deskagent``."""

import os
import sys

if __package__ in (None, ""):
    sys.path[0] = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))

from agent.cli import main

code = main(sys.argv[1:])
sys.stdout.flush()
sys.stderr.flush()
os._exit(code)  # threads that wait for the desk or for a stuck reader are not waited for
