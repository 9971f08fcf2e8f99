#!/usr/bin/env python3
"""Django's command line for IncidentDesk."""

import os
import sys

# Commands that wake workers need the Celery app; the others start a second sooner without it.
_WAKING = {"watch", "shell"}


def main() -> None:
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "incidentdesk.settings.dev")
    from django.core.management import execute_from_command_line

    if _WAKING.intersection(sys.argv[1:2]):
        import incidentdesk.celery  # noqa: F401

    execute_from_command_line(sys.argv)


if __name__ == "__main__":
    main()
