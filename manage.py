#!/usr/bin/env python3
"""Django's command line for IncidentDesk."""

import os
import select
import sys

# Commands that wake workers need the Celery app; the others start a second sooner without it.
_WAKING = {"watch", "shell"}
# Commands that only compute start where no database is set; one that they open by mistake is not there.
_WITHOUT_DATABASE = {"backtest", "economics", "diagnose", "explore", "try_rules"}
_OF_THE_DESK = "--cluster"  # with it they read what the desk has seen


_HELP = {"help", "-h", "--help"}

_NOT_ASKED = 2  # as for wrong arguments: the command has not begun
_INTERRUPTED, _READER_GONE = 130, 141  # as a shell tells SIGINT and SIGPIPE


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
    from django.db.utils import OperationalError, ProgrammingError

    if _WAKING.intersection(sys.argv[1:2]):
        import incidentdesk.celery  # noqa: F401

    try:
        command_line = ManagementUtility([typed, *sys.argv[1:]])
        command_line.prog_name = typed
        command_line.execute()
    except ImproperlyConfigured as error:  # a setting that is missing or wrong: its sentence says enough
        if "--traceback" in sys.argv:
            raise
        _end(str(error))
    except (OperationalError, ProgrammingError) as error:
        sentence = _database_sentence(error, typed)
        if sentence is None or "--traceback" in sys.argv:
            raise
        _end(sentence)


def _database_sentence(error: Exception, typed: str) -> str | None:
    """What to do about a database that is not there or not ready; None for any other error, which is ours."""
    state = getattr(error.__cause__, "sqlstate", None)
    first = (str(error).strip() or "no reason told").splitlines()[0]
    if state in ("42P01", "42703"):  # undefined_table, undefined_column
        return f"The database of DATABASE_URL is of another version ({first}): run {typed} migrate."
    # No SQLSTATE: no server answered. 28 and 3D: it knows no such login or database. 57P0: it starts or ends.
    if (state is None and type(error).__name__ == "OperationalError") or str(state)[:2] in ("28", "3D"):
        return f"The database of DATABASE_URL cannot be asked: {first}. Is its server running, and the URL right?"
    if str(state).startswith("57P0"):
        return f"The database of DATABASE_URL is starting or ending: {first}. Try again."
    return None


def _end(sentence: str) -> None:
    print(sentence, file=sys.stderr)
    sys.exit(_NOT_ASKED)


def run() -> None:
    """`main`, with no traceback for what a shell does to a command: closed streams, a reader that left, Ctrl-C."""
    sys.stdin, sys.stdout, sys.stderr = (
        stream or open(os.devnull, mode)  # noqa: PTH123, SIM115
        for stream, mode in ((sys.stdin, "r"), (sys.stdout, "w"), (sys.stderr, "w"))
    )
    for argument in sys.argv[1:]:
        if any("\ud800" <= letter <= "\udfff" for letter in argument):
            _end(f"{argument!r} is not UTF-8: give it as such")
    try:
        try:
            main()
        finally:
            sys.stdout.flush()  # not at exit, where a reader that left would be told as a fault
    except BrokenPipeError:
        if not _reader_left():
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # what is still to be flushed goes nowhere
        sys.exit(_READER_GONE)
    except KeyboardInterrupt:
        sys.exit(_INTERRUPTED)


def _reader_left() -> bool:
    """Whether nobody reads our output any more, as under `| head`; else it is another pipe that broke."""
    poll = select.poll()
    poll.register(1, 0)
    return any(what & select.POLLERR for _, what in poll.poll(0))


if __name__ == "__main__":
    run()
