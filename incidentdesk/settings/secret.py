"""A secret key that is made once and kept in a file of its own."""

import os
import secrets
from pathlib import Path


def kept_secret(path: Path) -> str:
    """The secret kept in ``path`` (0600), made now if it is not there. Safe when two start at once."""
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        kept = path.read_text()
        if kept:
            return kept
        raise RuntimeError(f"{path} is empty; delete it, and a new key is made at the next start") from None
    secret = secrets.token_urlsafe(50)
    with os.fdopen(descriptor, "w") as file:
        file.write(secret)
    return secret
