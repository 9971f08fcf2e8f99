"""Hash and compress the static files, unless nothing changed since they were last collected.

    python -m incidentdesk.frontdoor.static ROOT

Writes `ROOT/static/` and, last, `ROOT/static.stamp`.
"""

import hashlib
import sys
from pathlib import Path

from incidentdesk.frontdoor.places import CHECKOUT


def stamp() -> str:
    """Describe what the collected files are made from: our files by size and time, the packages by the lock."""
    digest = hashlib.sha256((CHECKOUT / "uv.lock").read_bytes())
    for path in sorted((CHECKOUT / "static").rglob("*")):
        if path.is_file():
            found = path.stat()
            digest.update(f"{path}\0{found.st_size}\0{found.st_mtime_ns}\n".encode())
    return digest.hexdigest()


def main(root: Path) -> int:
    note = root / "static.stamp"
    now = stamp()
    if note.is_file() and note.read_text() == now and (root / "static").is_dir():
        return 0
    # Imported only when there is work: Django takes longer than the look.
    import django
    from django.core.management import call_command

    django.setup()
    note.unlink(missing_ok=True)
    call_command("collectstatic", interactive=False, clear=(root / "static").is_dir(), verbosity=0)
    note.write_text(now)
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
