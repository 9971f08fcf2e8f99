"""Typed readers of the environment."""

import environ

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
    """Django's database settings from a URL such as postgresql://user@/name?host=/run/socket."""
    return dict(_env.db_url(name, engine="django.db.backends.postgresql"))
