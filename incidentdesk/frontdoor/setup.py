"""Make database, tables, and the cluster known: one process, so that Django is imported once, while
PostgreSQL still starts.

    python -m incidentdesk.frontdoor.setup --greeting FILE (--endpoint FILE | --cluster SLUG)

With `--endpoint` it waits for the simulated cluster and seeds the demo; with `--cluster` it registers the
cluster of the settings. What the commands print for a person, logins above all, goes to `--greeting`.
"""

import argparse
import contextlib
import io
import sys
import time
from pathlib import Path
from typing import Any

import django
import psycopg
from django.conf import settings
from django.core.management import call_command
from psycopg import sql

WAIT_SECONDS = 60.0
POLL_SECONDS = 0.05


def create_database() -> None:
    """Wait for the server, then create the database of the settings unless it exists."""
    given: dict[str, Any] = settings.DATABASES["default"]
    options = {key: value for key, value in given["OPTIONS"].items() if key == "host"}
    keys = {"HOST": "host", "PORT": "port", "USER": "user", "PASSWORD": "password"}
    options |= {name: given[key] for key, name in keys.items() if given.get(key)}
    deadline = time.monotonic() + WAIT_SECONDS
    while True:
        try:
            with psycopg.connect(dbname=given["NAME"], connect_timeout=5, **options):
                return
        except psycopg.OperationalError as error:
            if "does not exist" in str(error):
                break
            if time.monotonic() > deadline:
                raise
            time.sleep(POLL_SECONDS)
    with psycopg.connect(dbname="postgres", autocommit=True, **options) as connection:
        # Another process may be faster.
        with contextlib.suppress(psycopg.errors.DuplicateDatabase, psycopg.errors.UniqueViolation):
            connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(given["NAME"])))


def timed(what: str, begun: float) -> float:
    now = time.monotonic()
    print(f"{what} {now - begun:.2f} s", flush=True)
    return now


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--endpoint", type=Path)
    parser.add_argument("--cluster")
    parser.add_argument("--greeting", type=Path, required=True)
    options = parser.parse_args()
    begun = time.monotonic()
    django.setup()
    begun = timed("django", begun)
    create_database()
    begun = timed("database", begun)
    call_command("migrate", interactive=False, verbosity=0)
    begun = timed("tables", begun)
    greeting = io.StringIO()
    if options.endpoint:
        if not wait_for(options.endpoint):
            print(f"the simulated cluster did not write {options.endpoint}", file=sys.stderr)
            return 1
        import incidentdesk.celery  # noqa: F401 - retiring the last start's cluster wakes a worker

        call_command("demo_setup", stdout=greeting)
        timed("demo", begun)
    elif options.cluster:
        call_command("register_cluster", slug=options.cluster, stdout=greeting)
        call_command("first_person", stdout=greeting)
    options.greeting.write_text(greeting.getvalue())
    return 0


def wait_for(path: Path) -> bool:
    """Wait until a file is there; False when the time is up first."""
    deadline = time.monotonic() + WAIT_SECONDS
    while not path.exists():
        if time.monotonic() > deadline:
            return False
        time.sleep(POLL_SECONDS)
    return True


if __name__ == "__main__":
    sys.exit(main())
