"""Get Python, uv and the locked dependencies, then hand over to `incidentdesk.frontdoor`.

A plain script for any Python from 3.8 on, standard library only, no compiler, pip, venv or root. All that it
makes lies in `.desk/` and `.venv/`.
"""

import errno
import glob
import hashlib
import io
import json
import os
import platform
import re
import shutil
import ssl
import subprocess
import sys
import time
import urllib.error
import urllib.request
import zipfile

CHECKOUT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
STATE = os.path.join(CHECKOUT, ".desk")
VENV = os.path.join(CHECKOUT, ".venv")
STAMP = "incidentdesk.json"
BYTECODE = os.path.join(STATE, "pycache")
LOCK = os.path.join(CHECKOUT, "uv.lock")
PYTHONS = ((3, 13), (3, 12))  # in the order of preference
OLDEST_UV = (0, 9)
HELP_WORDS = ("-h", "--help", "help")
# What runs the product only; everything else also needs the tools of the dev group (300 MB more).
PRODUCT_COMMANDS = ("demo", "up", "manage", "drill", "bench")
COMMANDS = PRODUCT_COMMANDS + (
    "test",
    "check",
    "clean",
)  # tests hold this list to __main__.COMMANDS and to HELP
# Commands of manage.py that only compute or explain, so that no desk need run; as in manage.py, by a test.
WITHOUT_DATABASE = ("backtest", "economics", "diagnose", "explore", "try_rules")
OF_THE_DESK = "--cluster"  # with it they read what the desk has seen
NOTE = "environment.json"  # places.ENVIRONMENT_NOTE

HELP = """\
IncidentDesk keeps large training jobs alive.

usage: ./desk COMMAND [options]

  demo [--port N]     the whole desk with a simulated cluster whose training processes really run and die
  test [--long] [...] the tests; further arguments go to pytest
  check               format, lint, types, import rules, templates, migrations, agent, docs
  drill NAME          one real failure through the whole loop, read back from cluster and database
  bench NAME          a measurement, on a quiet machine
  up [--port N]       the desk for the cluster of INCIDENTDESK_KUBECONFIG, with its own database
  manage NAME [...]   a command of manage.py on the desk that runs here: guards, create_token, add_person ...
  clean               stop what runs and remove .desk/ and .venv/

Environment: INCIDENTDESK_PORT, DATABASE_URL and REDIS_URL (servers of your own), INCIDENTDESK_PYTHON.
"""


ON_MACOS = (
    "macOS is untried: the simulated cluster's training processes cannot run there, because its containers and the "
    "worker agent stop what a launcher has put in a session of its own by Linux' child subreapers and /proc."
)


class Sentence(Exception):
    """What a person has to know, in one sentence."""


def say(text):
    print(text, file=sys.stderr, flush=True)


# -- what is asked ---------------------------------------------------------------------------------


def refuse(name, arguments):
    """Raise Sentence for what cannot be done here, before anything is downloaded for it."""
    if name not in COMMANDS:
        raise Sentence("There is no command `%s`: ./desk --help lists them." % name)
    if name == "manage" and needs_desk(arguments):
        asked = os.environ.get("INCIDENTDESK_STATE")
        if not desk_runs([asked] if asked else [STATE, os.path.join(STATE, "up")]):
            where = "in %s, which INCIDENTDESK_STATE names" % asked if asked else "here"
            raise Sentence(
                "No desk runs %s, and `%s` needs one: start ./desk demo or ./desk up, or name a database in"
                " DATABASE_URL." % (where, arguments[0])
            )


def needs_desk(arguments):
    """Whether a command of manage.py needs a desk's database, and none is named."""
    explains = not arguments or arguments[0] in HELP_WORDS or {"-h", "--help"}.intersection(arguments)
    if explains or os.environ.get("DATABASE_URL"):
        return False
    asks_desk = any(word.split("=")[0] == OF_THE_DESK for word in arguments)
    return asks_desk or arguments[0] not in WITHOUT_DATABASE


def desk_runs(roots):
    """Whether a desk holds its lock now in one of these directories."""
    import fcntl

    for root in roots:
        lock = os.path.join(root, "desk.lock")
        if os.path.isfile(os.path.join(root, NOTE)) and os.path.isfile(lock):
            with open(lock) as stream:
                try:
                    fcntl.flock(stream, fcntl.LOCK_SH | fcntl.LOCK_NB)
                except OSError:
                    return True
    return False


# -- Python ----------------------------------------------------------------------------------------


def version_of(python):
    """Give (major, minor) of a working CPython, or None: a shim on PATH may exist and yet not run."""
    try:
        answer = subprocess.run(
            [python, "-I", "-c", "import sys; print(sys.implementation.name, *sys.version_info[:2])"],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            stdin=subprocess.DEVNULL,
            timeout=20,
        )
        name, major, minor = answer.stdout.decode().split()
    except (OSError, ValueError, subprocess.TimeoutExpired):
        return None
    return (int(major), int(minor)) if answer.returncode == 0 and name == "cpython" else None


def python_candidates():
    """List where a Python may be: PATH, pyenv's versions, uv's own, in the order of preference."""
    pyenv = os.environ.get("PYENV_ROOT") or os.path.join(os.path.expanduser("~"), ".pyenv")
    for major, minor in PYTHONS:
        name = "python%d.%d" % (major, minor)
        for folder in os.environ.get("PATH", "").split(os.pathsep):
            yield os.path.join(folder, name)
        patches = glob.glob(os.path.join(pyenv, "versions", "%d.%d.*" % (major, minor), "bin", name))
        for path in sorted(
            patches, key=lambda path: [int(n) for n in re.findall(r"\d+", path)], reverse=True
        ):
            yield path
    yield sys.executable
    python3 = shutil.which("python3")
    if python3:
        yield python3


def find_python(uv):
    """Find Python 3.13, else 3.12; where neither is, let uv download one into .desk/."""
    asked = os.environ.get("INCIDENTDESK_PYTHON")
    if asked:
        if version_of(asked) not in PYTHONS:
            raise Sentence("INCIDENTDESK_PYTHON is %s, which is not a working Python 3.13 or 3.12." % asked)
        return asked
    tried = set()
    for path in python_candidates():
        if path in tried or not os.access(path, os.X_OK):
            continue
        tried.add(path)
        if version_of(path) in PYTHONS:
            return path
    wanted = "%d.%d" % PYTHONS[0]
    for attempt in (0, 1):
        found = subprocess.run(
            [uv, "python", "find", "--no-project", "--no-python-downloads", "--managed-python", wanted],
            env=uv_environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        path = found.stdout.decode().strip()
        if found.returncode == 0 and version_of(path) in PYTHONS:
            return path
        if attempt == 0:
            say("No Python 3.13 or 3.12 found on PATH or in pyenv: uv downloads 3.13 into .desk/ ...")
            if (
                subprocess.run([uv, "python", "install", "--no-bin", wanted], env=uv_environment()).returncode
                != 0
            ):
                break
    raise Sentence(
        "No Python 3.13 or 3.12 here, and none could be downloaded: install one, or set INCIDENTDESK_PYTHON."
    )


# -- uv --------------------------------------------------------------------------------------------


def uv_environment():
    """Give uv's environment: it may write nowhere but in .desk/ and .venv/, and asks no other configuration."""
    env = {name: value for name, value in os.environ.items() if name not in ("VIRTUAL_ENV", "UV_PROJECT")}
    env.setdefault("UV_CACHE_DIR", os.path.join(STATE, "uv-cache"))
    env["UV_PYTHON_INSTALL_DIR"] = os.path.join(STATE, "python")
    env["UV_PROJECT_ENVIRONMENT"] = VENV
    env["UV_NO_PROGRESS"] = "1"
    env["PYTHONPYCACHEPREFIX"] = BYTECODE
    if has_certificates():
        # uv brings a list of its own, which does not know a company's authority.
        env.setdefault("UV_SYSTEM_CERTS", "true")
    return env


def has_certificates():
    """Whether this machine has a store of authorities; a bare system may have none."""
    paths = ssl.get_default_verify_paths()
    folder = paths.capath or ""
    return bool(paths.cafile) or (os.path.isdir(folder) and bool(os.listdir(folder)))


def uv_version(uv):
    try:
        answer = subprocess.run(
            [uv, "--version"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, timeout=20
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    found = re.match(r"uv (\d+)\.(\d+)", answer.stdout.decode(errors="replace"))
    return (int(found.group(1)), int(found.group(2))) if found and answer.returncode == 0 else None


def find_uv():
    """Find uv on PATH or in .desk/bin, else put the locked one there."""
    ours = os.path.join(STATE, "bin", "uv")
    for path in (shutil.which("uv"), ours):
        if path and (uv_version(path) or (0, 0)) >= OLDEST_UV:
            return path
    install_uv(ours)
    return ours


def locked_wheels(package):
    """List (url, sha256) of a package's wheels in uv.lock, read by line: tomllib is younger than Python 3.8."""
    inside, wheels = False, []
    with open(LOCK, encoding="utf-8") as stream:
        for line in stream:
            if line.startswith("[[package]]"):
                inside = False
            elif line.startswith("name = "):
                inside = line.split('"')[1] == package
            elif inside:
                found = re.search(r'\{ url = "([^"]+\.whl)", hash = "sha256:([0-9a-f]{64})"', line)
                if found:
                    wheels.append(found.groups())
    return wheels


def uses_musl():
    """Whether this machine's programs are linked with musl; its loader has a name of its own."""
    return bool(glob.glob("/lib/ld-musl-*.so.1")) and platform.libc_ver()[0] != "glibc"


def fits(filename, system, machine, musl):
    """Whether a wheel's file name fits this machine; `macosx_12_0_arm64` and `manylinux_2_17_x86_64` are such tags."""
    tags = filename[: -len(".whl")].split("-")[-1].split(".")
    machine = {"arm64": "aarch64", "amd64": "x86_64"}.get(machine.lower(), machine.lower())
    if system == "Darwin":
        machine = {"aarch64": "arm64"}.get(machine, machine)
        return any(tag.startswith("macosx_") and tag.endswith("_" + machine) for tag in tags)
    kind = "musllinux_" if musl else "manylinux"
    return system == "Linux" and any(tag.startswith(kind) and tag.endswith("_" + machine) for tag in tags)


def wheel_for(wheels, system, machine, musl):
    """Choose the wheel with the lowest demands, so an old C library will do; None when none fits."""
    fitting = [wheel for wheel in wheels if fits(wheel[0].rsplit("/", 1)[1], system, machine, musl)]
    return (
        min(
            fitting,
            key=lambda wheel: (
                [int(n) for n in re.findall(r"linux_(\d+)_(\d+)", wheel[0])[0]]
                if "linux_" in wheel[0]
                else [0]
            ),
        )
        if fitting
        else None
    )


def install_uv(target):
    """Download the locked wheel of uv, check its sum, and take the program out of it."""
    chosen = wheel_for(locked_wheels("uv"), platform.system(), platform.machine(), uses_musl())
    if not chosen:
        raise Sentence(
            "There is no uv for %s on %s in uv.lock: please install uv 0.9 or newer."
            % (platform.system(), platform.machine())
        )
    url, digest = chosen
    say("uv is not on PATH: downloading the locked one into .desk/bin ...")
    content = b""
    for attempt in (1, 2, 3):
        try:
            with urllib.request.urlopen(url, timeout=60, context=certificates()) as answer:
                content = answer.read()
            break
        except (OSError, urllib.error.URLError) as error:
            if isinstance(getattr(error, "reason", error), ssl.SSLCertVerificationError):
                raise Sentence(
                    "uv could not be downloaded: this machine does not trust the certificate that it was shown."
                    " Install ca-certificates, or name a proxy's own authority in SSL_CERT_FILE."
                )
            if attempt == 3:
                raise Sentence(
                    "uv could not be downloaded (%s): check the network or proxy, or install uv." % error
                )
            time.sleep(attempt)
    if hashlib.sha256(content).hexdigest() != digest:
        raise Sentence("The downloaded uv has another SHA-256 than uv.lock says: nothing was installed.")
    os.makedirs(os.path.dirname(target), exist_ok=True)
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        names = [name for name in archive.namelist() if name.endswith(".data/scripts/uv")]
        if len(names) != 1:
            raise Sentence("The wheel of uv does not hold the program where it should: please install uv.")
        partial = target + ".partial"
        with archive.open(names[0]) as source, open(partial, "wb") as stream:
            shutil.copyfileobj(source, stream)
    os.chmod(partial, 0o755)  # noqa: S103 - a program
    os.replace(partial, target)


def certificates():
    """Trust what the machine trusts; a proxy's own authority is named by SSL_CERT_FILE, as for other programs."""
    context = ssl.create_default_context()
    for name in ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "PIP_CERT"):
        path = os.environ.get(name)
        if path and os.path.isfile(path):
            context.load_verify_locations(path)
    return context


# -- dependencies ----------------------------------------------------------------------------------


def stamp_now():
    """Describe what .venv must have been made from: it is made anew when any of it changes."""
    digest = hashlib.sha256()
    for name in ("uv.lock", "pyproject.toml"):
        with open(os.path.join(CHECKOUT, name), "rb") as stream:
            content = stream.read()
        if name == "pyproject.toml":  # the tools' sections change nothing of what is installed
            content = content.partition(b"[tool.")[0]
        digest.update(content)
    return {"inputs": digest.hexdigest(), "checkout": CHECKOUT}


def environment_python():
    return os.path.join(VENV, "bin", "python")


def is_installed(tools):
    """Whether .venv was made from the present lock, here, has the tools if wanted, and its Python still runs."""
    try:
        with open(os.path.join(VENV, STAMP), encoding="utf-8") as stream:
            stamp = json.load(stream)
    except (OSError, ValueError):
        return False
    had_tools = stamp.pop("tools", False)
    return stamp == stamp_now() and had_tools >= tools and os.access(environment_python(), os.X_OK)


def install(tools):
    """Make .venv from the lock. One at a time: a second ./desk waits for the first."""
    import fcntl

    os.makedirs(STATE, exist_ok=True)
    with open(os.path.join(STATE, "install.lock"), "a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if is_installed(tools):
            return
        begun = time.time()
        uv = find_uv()
        python = find_python(uv)
        say(
            "Installing the locked %s into .venv with Python %d.%d (%s) ..."
            % (("dependencies and tools" if tools else "dependencies",) + version_of(python) + (python,))
        )
        if os.path.isdir(VENV) and not os.path.exists(environment_python()):
            shutil.rmtree(VENV)  # half made, or its Python is gone
        # Compiling now, on all cores, is cheaper than in each of the processes that start at once.
        command = [uv, "sync", "--locked", "--quiet", "--compile-bytecode", "--python", python]
        if not tools:
            command += ["--no-dev", "--inexact"]  # tests that run beside it keep their tools
        if subprocess.run(command, cwd=CHECKOUT, env=uv_environment()).returncode != 0:
            if shutil.disk_usage(CHECKOUT).free < 2**30:
                raise Sentence(
                    "The dependencies need about 1 GB and the disk has less: make room and start again."
                )
            raise Sentence("The dependencies could not be installed; what uv said stands above.")
        with open(os.path.join(VENV, STAMP), "w", encoding="utf-8") as stream:
            json.dump(dict(stamp_now(), tools=tools), stream)
        say("Dependencies installed in %.1f s." % (time.time() - begun))


def main():
    arguments = sys.argv[1:]
    if not arguments or arguments[0] in HELP_WORDS:
        print(HELP, end="")
        return 0 if arguments else 2
    if os.name != "posix":
        raise Sentence("IncidentDesk runs on Linux, and untested on macOS; on Windows use WSL.")
    refuse(arguments[0], arguments[1:])
    if platform.system() == "Darwin":
        say(ON_MACOS)
    if arguments[0] == "clean":
        python = sys.executable  # what is removed cannot do the removing
    else:
        tools = arguments[0] not in PRODUCT_COMMANDS
        if not is_installed(tools):
            install(tools)
        python = environment_python()
    if arguments[0] == "clean":
        script = os.path.join(CHECKOUT, "incidentdesk", "frontdoor", "clean.py")
        os.execv(python, [python, "-I", "-B", script] + arguments[1:])
    env = dict(os.environ, PYTHONPATH=CHECKOUT, PYTHONPYCACHEPREFIX=BYTECODE)
    env.pop("PYTHONDONTWRITEBYTECODE", None)  # what we write is ours, and each start without it costs seconds
    os.execve(python, [python, "-m", "incidentdesk.frontdoor"] + arguments, env)
    return 0


def explain(problem):
    """Give the sentence for an error of the system that a person can do something about, or None."""
    if problem.errno == errno.ENOSPC:
        return "The disk that holds %s is full: make room and start again." % CHECKOUT
    if problem.errno in (errno.EACCES, errno.EROFS):
        return "This user may not write to %s: use a checkout of your own." % (problem.filename or CHECKOUT)
    return None


if __name__ == "__main__":
    try:
        sys.exit(main())
    except Sentence as sentence:
        say(str(sentence))
        sys.exit(1)
    except OSError as problem:
        if not explain(problem):
            raise
        say(explain(problem))
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)
