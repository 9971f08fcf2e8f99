"""The browser of the browser tests: found, or installed from Debian's packages where that is possible."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
# The browser draws no text without a font; this one is 2 MB.
PACKAGES = ("chromium", "fonts-dejavu-core")


def find() -> str | None:
    """Give the path of an installed Chromium, or None. INCIDENTDESK_CHROMIUM comes first."""
    asked = os.environ.get("INCIDENTDESK_CHROMIUM")
    return asked or next((found for name in NAMES if (found := shutil.which(name))), None)


def why_not() -> str:
    """Say why there is no browser here, for the tests that are skipped."""
    return "no Chromium on PATH: install it, or set INCIDENTDESK_CHROMIUM"


def can_install() -> bool:
    """Whether this is Debian and we are root. (Ubuntu's package is a snap, which does not run everywhere.)"""
    try:
        is_debian = "\nID=debian" in "\n" + Path("/etc/os-release").read_text()
    except OSError:
        return False
    return is_debian and os.geteuid() == 0 and shutil.which("apt-get") is not None


def ensure() -> str | None:
    """Find Chromium, else install it; None when neither works, which is said on standard error."""
    if (found := find()) or not can_install():
        return found
    print("Installing Chromium for the browser tests from Debian's packages ...", file=sys.stderr, flush=True)
    env = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
    answer = None
    for _ in range(2):  # a mirror may hiccup once
        for command in (
            ["apt-get", "update"],
            ["apt-get", "install", "-y", "--no-install-recommends", *PACKAGES],
        ):
            answer = subprocess.run(
                command,
                env=env,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                check=False,
            )
            if answer.returncode != 0:
                break
        if answer is not None and answer.returncode == 0:
            return find()
    last = (answer.stderr.strip().splitlines() or ["no reason given"])[-1] if answer else ""
    print(
        f"Chromium could not be installed ({last}): browser tests are skipped.", file=sys.stderr, flush=True
    )
    return None
