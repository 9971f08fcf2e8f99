"""What no file of ours may say: addresses of package registries and other hosts, paths of one machine, loose ends."""

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

# Hosts that may stand in a file: this machine, names reserved for examples, and XML's names of formats.
FREE_HOSTS = re.compile(
    r"^(localhost|127(\.\d+){3}|0\.0\.0\.0|\[?::1\]?|www\.w3\.org|json-schema\.org"
    r"|192\.0\.2\.\d+|198\.51\.100\.\d+|203\.0\.113\.\d+"  # RFC 5737
    r"|([\w-]+\.)*(example|test|invalid|local|svc)(\.\w+)*|[\w-]+|([\w-]+\.)*example\.(com|org|net))$"
)
URL = re.compile(r"https?://[\w\[\].:-]+")
# A home or work directory of whoever wrote the line; container paths in manifests are under /srv, /var, /etc.
MACHINE_PATH = re.compile(r"(?<![\w./$}])/(?:work|root|home/\w+|Users/\w+)/\w")
LOOSE_END = re.compile(r"\b(?:TODO|FIXME|XXX)\b(?!\s*\(?#\d+)")
CONFLICT = re.compile(r"^(?:<<<<<<<|>>>>>>>) ", re.MULTILINE)
TEXT = {
    ".py",
    ".md",
    ".html",
    ".css",
    ".js",
    ".sh",
    ".toml",
    ".yaml",
    ".yml",
    ".json",
    ".txt",
    ".svg",
    ".ini",
    "",
}
# The lock is full of addresses by its nature, and these last two have the words that are looked for.
SKIPPED = ("uv.lock", "LICENSE", "incidentdesk/frontdoor/wording.py", "tests/frontdoor/test_check.py")
VENDORED = "/vendor/"  # as their makers wrote them


def our_files(root: Path) -> list[Path]:
    """List the files that git knows or would add; without git, all below `root` that are not hidden."""
    answer = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"],
        cwd=root,
        capture_output=True,
        text=True,
        check=False,
    )
    if answer.returncode == 0:
        return sorted(root / name for name in answer.stdout.split("\0") if name)
    return sorted(
        p for p in root.rglob("*") if not any(part.startswith(".") for part in p.relative_to(root).parts)
    )


def faults(root: Path, files: list[Path] | None = None) -> Iterator[str]:
    """List each line that says what must not be said."""
    for path in our_files(root) if files is None else files:
        name = path.relative_to(root).as_posix()
        if path.suffix not in TEXT or name in SKIPPED or VENDORED in name or not path.is_file():
            continue
        text = path.read_text(errors="replace")
        for number, line in enumerate(text.splitlines(), start=1):
            for url in URL.findall(line):
                host = urlsplit(url).hostname or ""
                if host and not FREE_HOSTS.match(host):
                    yield f"{name}:{number} names the host {host}"
            if MACHINE_PATH.search(line):
                yield f"{name}:{number} names a path of one machine: {line.strip()[:80]}"
            if LOOSE_END.search(line):
                yield f"{name}:{number} is a loose end without the number of its issue: {line.strip()[:80]}"
        if CONFLICT.search(text):
            yield f"{name} holds a merge conflict"
