"""`./desk bench NAME`: measure and print."""

from __future__ import annotations

import argparse
import os
import sys

from incidentdesk.drills.field import DrillFailed, running_stack
from incidentdesk.frontdoor.errors import FrontDoorError
from incidentdesk.frontdoor.places import CHECKOUT, remove_state

DESCRIPTIONS = {
    "restart": "from SIGKILL of a rank to all ranks stepping again, beside a cold start",
    "guards": "a reservation in every guard, as a share of a decision, with 10,000 nodes",
    "verdicts": "verdicts a second on one core over the labelled cases, and what hostile logs cost",
    "storm": "1,000 jobs die in one second: the admission queue, backoff with full jitter, all at once",
}
MAX_LOAD = 1.0
# A bench restarts one job many times: the backoff between restarts is not what it measures.
BENCH_ENV = {"INCIDENTDESK_BACKOFF_FREE_RESTARTS": "1000", "INCIDENTDESK_NO_PROGRESS_RESTARTS": "1000"}


def main(words: list[str]) -> int:
    """Run one bench on a stack of its own; 1 when it could not be measured or its bar was missed."""
    parser = argparse.ArgumentParser(prog="./desk bench", description="Measured figures.")
    parser.add_argument("name", nargs="?", choices=DESCRIPTIONS)
    parser.add_argument("--pairs", type=int, default=10, help="pairs of cold start and restart (default 10)")
    parser.add_argument("--seed", type=int, default=1, help="seed of the storm (default 1)")
    options = parser.parse_args(words)
    if options.name is None:
        for name, sentence in DESCRIPTIONS.items():
            print(f"  {name:<12} {sentence}")
        return 2
    if options.name == "storm":
        from incidentdesk.bench import storm

        return storm.measure(seed=options.seed)  # it is played, not timed: load does not matter
    if options.name == "verdicts":
        from incidentdesk.bench import verdicts

        return verdicts.measure()  # processor time, so load matters little
    load = os.getloadavg()[0]
    print(f"load over the last minute: {load:.2f}, {os.cpu_count()} processors")
    if load > MAX_LOAD:
        print(
            f"The machine is busy: a figure taken above a load of {MAX_LOAD} says nothing. Try again when it rests."
        )
        return 1
    if options.name == "guards":
        from incidentdesk.bench import guards

        return guards.measure()
    root = CHECKOUT / ".desk" / f"bench-{os.getpid()}"
    try:
        with running_stack(root, is_long=False, say=print, env=BENCH_ENV) as field:
            from incidentdesk.bench.restart import measure

            return measure(field, pairs=options.pairs)
    except (DrillFailed, FrontDoorError) as error:
        print(error, file=sys.stderr)
        return 1
    finally:
        remove_state(root)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
