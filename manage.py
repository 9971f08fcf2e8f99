#!/usr/bin/env python3
"""Django's command line for IncidentDesk."""

import os
import sys

# Commands that wake workers need the Celery app; the others start a second sooner without it.
_WAKING = {"watch", "shell"}
# Commands that only compute start where no database is set; one that they open by mistake is not there.
_WITHOUT_DATABASE = {"backtest", "economics", "diagnose", "explore", "try_rules"}


def main() -> None:
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "incidentdesk.settings.dev")
    if _WITHOUT_DATABASE.intersection(sys.argv[1:2]):
        os.environ.setdefault("DATABASE_URL", "postgresql:///none")
    from django.core.exceptions import ImproperlyConfigured
    from django.core.management import execute_from_command_line

    if _WAKING.intersection(sys.argv[1:2]):
        import incidentdesk.celery  # noqa: F401

    try:
        execute_from_command_line(sys.argv)
    except ImproperlyConfigured as error:  # a setting that is missing or wrong: its sentence says enough
        if "--traceback" in sys.argv:
            raise
        sys.exit(str(error))


if __name__ == "__main__":
    main()
