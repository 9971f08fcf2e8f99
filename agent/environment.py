"""The environment report: which versions and devices the training will find here.

Versions are read by a short program in the user's own Python, from package metadata and version
files; no framework is imported, because that takes seconds and may initialise a device. What is
absent is said, and is no error.
"""

from __future__ import annotations

import glob
import json
import os
import sys
import threading
import time
from typing import Any, Callable, Dict, List, Optional, Tuple

from agent.loop import Loop

TIMEOUT_SECONDS = 10.0
DRIVER_QUERY_SECONDS = 5.0

# Runs in the user's Python (3.6 or newer), which need not be the agent's.
PROBE = r"""
import json, os, sys
found = {"python": "%d.%d.%d" % sys.version_info[:3]}
try:
    from importlib.metadata import distributions, version
except ImportError:
    distributions = version = None
def package(*names):
    for name in names:
        try:
            return version(name)
        except Exception:
            pass
for key, names in {
    "torch": ["torch"], "jax": ["jax"], "jaxlib": ["jaxlib"], "tensorflow": ["tensorflow"],
    "deepspeed": ["deepspeed"], "megatron": ["megatron-core"], "transformers": ["transformers"],
    "numpy": ["numpy"],
    "nccl": ["nvidia-nccl-cu13", "nvidia-nccl-cu12", "nvidia-nccl-cu11"],
    "cudnn": ["nvidia-cudnn-cu13", "nvidia-cudnn-cu12", "nvidia-cudnn-cu11"],
    "cuda": ["nvidia-cuda-runtime-cu12", "nvidia-cuda-runtime", "nvidia-cuda-runtime-cu11"],
}.items():
    value = package(*names)
    if value:
        found[key] = value
for root in sys.path:
    path = os.path.join(root or ".", "torch", "version.py")
    if os.path.isfile(path):
        values = {}
        try:
            exec(compile(open(path).read(), path, "exec"), values)
        except Exception:
            break
        found["torch"] = str(values.get("__version__") or found.get("torch"))
        if values.get("cuda"):
            found["cuda"] = str(values["cuda"])
        if values.get("hip"):
            found["rocm"] = str(values["hip"])
        break
print(json.dumps(found))
"""

# A runner starts a program in the loop's thread: (argv, timeout in seconds) -> (exit code, output),
# exit code None when it was killed by the time-out; OSError when it could not be started.
Runner = Callable[[List[str], float], Tuple[Optional[int], str]]


class EnvironmentLook:
    """One look, in a thread of its own. Belongs to the loop's thread; ``found`` is None until it is over."""

    def __init__(self, run: Runner, env: Dict[str, str], loop: Loop) -> None:
        self._run = run
        self._env = env
        self._loop = loop
        self._waiting: List[Callable[[], None]] = []
        self.found: Optional[Dict[str, Any]] = None

    def start(self) -> None:
        def look() -> None:
            self._loop.post(self._done, report(self._run, self._env))

        threading.Thread(target=look, name="environment", daemon=True).start()

    def when_found(self, call: Callable[[], None]) -> None:
        """Call when the look is over, at once if it is."""
        if self.found is None:
            self._waiting.append(call)
        else:
            call()

    def _done(self, found: Dict[str, Any]) -> None:
        self.found = found
        waiting, self._waiting = self._waiting, []
        for call in waiting:
            call()


def report(run: Runner, env: Dict[str, str]) -> Dict[str, Any]:
    """Versions as strings, ``device_count``, ``device_name`` and the names of what is ``absent``.

    Takes up to ``TIMEOUT_SECONDS``. Keys of absent things are left out.
    """
    began = time.monotonic()
    found: Dict[str, Any] = {}
    problems: List[str] = []
    python = find_program("python3", env) or find_program("python", env) or sys.executable
    try:
        code, text = run([python, "-c", PROBE], TIMEOUT_SECONDS)
        if code == 0:
            found.update(json.loads(text.strip().splitlines()[-1]))
        else:
            problems.append("versions: %s" % ("timed out" if code is None else "probe ended with %d" % code))
    except (OSError, ValueError, IndexError) as error:
        problems.append("versions: %s" % error)
    found["agent_python"] = "%d.%d.%d" % sys.version_info[:3]
    found["kernel"] = os.uname().release
    found.setdefault(
        "framework", next((name for name in ("torch", "jax", "tensorflow") if name in found), None)
    )
    devices = _nvidia(run, env, problems) or _amd() or _other_accelerators()
    found.update(devices or {"device_count": 0})
    for key, names in (
        ("nccl", ("NCCL_VERSION",)),
        ("cuda", ("CUDA_VERSION",)),
        ("cudnn", ("NV_CUDNN_VERSION",)),
    ):
        for name in names:
            if key not in found and env.get(name):
                found[key] = env[name]  # what NVIDIA's base images say about themselves
    expected = ("torch", "jax", "cuda", "nccl", "cudnn", "driver", "device_name")
    found["absent"] = [name for name in expected if name not in found]
    if found["framework"] is None:
        del found["framework"]
    if problems:
        found["problems"] = problems
    found["seconds"] = round(time.monotonic() - began, 3)
    return found


def _nvidia(run: Runner, env: Dict[str, str], problems: List[str]) -> Optional[Dict[str, Any]]:
    found: Dict[str, Any] = {}
    names: List[str] = []
    for path in sorted(glob.glob("/proc/driver/nvidia/gpus/*/information")):
        text = read_text(path)
        for line in text.splitlines():
            if line.startswith("Model:"):
                names.append(line.partition(":")[2].strip())
    version = read_text("/proc/driver/nvidia/version")
    if version:
        words = version.split("Kernel Module", 1)[-1].split()
        found["driver"] = next((word for word in words if word[:1].isdigit()), version.splitlines()[0])
    smi = find_program("nvidia-smi", env)
    if smi is not None and (not names or "driver" not in found):
        try:
            code, text = run(
                [smi, "--query-gpu=driver_version,name", "--format=csv,noheader"], DRIVER_QUERY_SECONDS
            )
        except OSError as error:
            code, text = 1, str(error)
        if code == 0:
            rows = [line.split(",", 1) for line in text.strip().splitlines() if "," in line]
            names = [row[1].strip() for row in rows]
            if rows:
                found["driver"] = rows[0][0].strip()
        else:
            problems.append("nvidia-smi: %s" % ("timed out" if code is None else text.strip()[:200]))
    if not names and not found:
        return None
    found["device_count"] = len(names)
    if names:
        found["device_name"] = ", ".join(sorted(set(names)))
    return found


def _amd() -> Optional[Dict[str, Any]]:
    names = [
        read_text(path).strip() or "AMD GPU"
        for path in sorted(glob.glob("/sys/class/kfd/kfd/topology/nodes/*/name"))
        if read_text(os.path.join(os.path.dirname(path), "gpu_id")).strip() not in ("", "0")
    ]
    if not names:
        return None
    found: Dict[str, Any] = {"device_count": len(names), "device_name": ", ".join(sorted(set(names)))}
    driver = read_text("/sys/module/amdgpu/version").strip()
    if driver:
        found["driver"] = driver
    return found


def _other_accelerators() -> Optional[Dict[str, Any]]:
    paths = glob.glob("/dev/accel[0-9]*") + glob.glob("/dev/accel/accel[0-9]*")
    return {"device_count": len(paths), "device_name": "accelerator (/dev/accel)"} if paths else None


def read_text(path: str) -> str:
    """Text of a small file of the kernel; empty where there is none."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read(65536)
    except OSError:
        return ""


def find_program(name: str, env: Dict[str, str]) -> Optional[str]:
    """Path of an executable on the command's own PATH."""
    for directory in env.get("PATH", os.defpath).split(os.pathsep):
        path = os.path.join(directory, name)
        if os.access(path, os.X_OK) and os.path.isfile(path):
            return path
    return None
