"""A secret key that is made once and kept in a file of its own."""

import contextlib
import os
import secrets
import tempfile
from pathlib import Path


def kept_secret(path: Path) -> str:
    """The secret kept in ``path`` (0600), made now if it is not there. Safe when several start at once.

    RuntimeError when the file is there and empty.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.exists():
        # Written whole under another name first: whoever loses the race must not read an empty file.
        with tempfile.NamedTemporaryFile("w", dir=path.parent, prefix=path.name) as fresh:
            fresh.write(secrets.token_urlsafe(50))
            fresh.flush()
            os.fsync(fresh.fileno())
            with contextlib.suppress(FileExistsError):
                os.link(fresh.name, path)
    kept = path.read_text()
    if not kept:
        raise RuntimeError(f"{path} is empty; delete it, and a new key is made at the next start")
    return kept
