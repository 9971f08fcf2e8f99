"""Typed readers of the environment."""

import os

import environ
from django.core.exceptions import ImproperlyConfigured

_env = environ.Env()


def text(name: str, default: str = "") -> str:
    """The variable as text, or ``default`` when it is not set."""
    return str(_env.str(name, default=default))


def number(name: str, default: int) -> int:
    """The variable as a whole number, or ``default``; anything else raises ImproperlyConfigured."""
    return int(_env.int(name, default=default))


def flag(name: str, default: bool = False) -> bool:
    """The variable as a boolean (1, true, yes, on)."""
    return bool(_env.bool(name, default=default))


def words(name: str) -> list[str]:
    """The variable as a comma-separated list; empty when it is not set."""
    return [str(word) for word in _env.list(name, default=[])]


def database(name: str = "DATABASE_URL") -> dict[str, object]:
    """Django's database settings from a URL such as postgresql://user@/name?host=/run/socket.

    ImproperlyConfigured, with what to do, when it is not set or is no URL.
    """
    if not os.environ.get(name):
        raise ImproperlyConfigured(
            f"{name} is not set. Beside a desk that runs here (./desk demo, ./desk up) take ./desk manage instead"
            f" of manage.py; for a database of your own set {name}=postgresql://USER:PASSWORD@HOST/NAME."
        )
    try:
        return dict(_env.db_url(name, engine="django.db.backends.postgresql"))
    except ValueError:
        # Its words may hold a part of the password: what stands before an unquoted / is taken for a port.
        raise ImproperlyConfigured(
            f"{name} is no URL of a database: give postgresql://USER:PASSWORD@HOST:PORT/NAME, and write / : @ and % in"
            " a password as %2F, %3A, %40 and %25."
        ) from None
