#!/usr/bin/env python3
"""Django's command line for IncidentDesk."""

import os
import sys

# Commands that wake workers need the Celery app; the others start a second sooner without it.
_WAKING = {"watch", "shell"}
# Commands that only compute start where no database is set; one that they open by mistake is not there.
_WITHOUT_DATABASE = {"backtest", "economics", "diagnose", "explore", "try_rules"}
_OF_THE_DESK = "--cluster"  # with it they read what the desk has seen


_HELP = {"help", "-h", "--help"}


def main() -> None:
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "incidentdesk.settings.dev")
    # What was typed, where something else has become this program; not for what we start in turn.
    typed = os.environ.pop("INCIDENTDESK_TYPED", "manage.py")
    is_of_the_desk = any(word.split("=")[0] == _OF_THE_DESK for word in sys.argv)
    only_computes = _WITHOUT_DATABASE.intersection(sys.argv[1:2]) and not is_of_the_desk
    if only_computes or _HELP.intersection(sys.argv) or not sys.argv[1:]:
        os.environ.setdefault("DATABASE_URL", "postgresql:///none")
    from django.core.exceptions import ImproperlyConfigured
    from django.core.management import ManagementUtility

    if _WAKING.intersection(sys.argv[1:2]):
        import incidentdesk.celery  # noqa: F401

    try:
        command_line = ManagementUtility([typed, *sys.argv[1:]])
        command_line.prog_name = typed
        command_line.execute()
    except ImproperlyConfigured as error:  # a setting that is missing or wrong: its sentence says enough
        if "--traceback" in sys.argv:
            raise
        sys.exit(str(error))


if __name__ == "__main__":
    main()
