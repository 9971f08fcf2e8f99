"""`./desk drill NAME …`: run drills on one stack of their own; exit 0 only if every one ended well."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from incidentdesk.drills.field import DrillFailed, running_stack
from incidentdesk.frontdoor.errors import FrontDoorError
from incidentdesk.frontdoor.places import CHECKOUT, remove_state


def main(words: list[str]) -> int:
    """Run the named drills one after the other and print what was seen."""
    from incidentdesk.drills.registry import DESCRIPTIONS

    parser = argparse.ArgumentParser(prog="./desk drill", description="Real failures through the whole desk.")
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(DESCRIPTIONS))
    parser.add_argument("--long", action="store_true", help="with production's waiting times")
    parser.add_argument("--json", metavar="FILE", help="write one JSON line a drill there as well")
    parser.add_argument("--seed", type=int, default=1, help="seed of drills that choose moments by chance")
    parser.add_argument("--state", metavar="DIR", help="directory for the stack's data (default .desk/drill)")
    options = parser.parse_args(words)
    unknown = [name for name in options.names if name not in DESCRIPTIONS]
    if unknown or not options.names:
        for name, sentence in DESCRIPTIONS.items():
            print(f"  {name:<20} {sentence}")
        if unknown:
            print(f"There is no drill {', '.join(unknown)}.", file=sys.stderr)
        return 2
    root = Path(options.state) if options.state else CHECKOUT / ".desk" / f"drill-{os.getpid()}"
    try:
        return _run(options, root)
    except FrontDoorError as error:
        print(error, file=sys.stderr)
        return 1
    finally:
        if not options.state:
            remove_state(root)


def _run(options: argparse.Namespace, root: Path) -> int:
    failed = []
    lines: list[dict[str, Any]] = []
    with running_stack(root, is_long=options.long, say=print) as field:
        from incidentdesk.drills.registry import DRILLS

        print(f"waiting times: {field.stack.profile.timings}")
        for name in options.names:
            print(f"\n== {name}")
            started = time.monotonic()
            result: dict[str, Any] = {"drill": name}
            try:
                result |= DRILLS[name](field, seed=options.seed)
                result["ok"] = True
                print(f"== {name}: ended well, {time.monotonic() - started:.1f} s")
            except DrillFailed as error:
                failed.append(name)
                result |= {"ok": False, "failure": str(error)}
                print(f"== {name}: FAILED: {error}")
            lines.append(result)
            field.clean_up()
            if options.json:
                Path(options.json).write_text("".join(json.dumps(line, default=str) + "\n" for line in lines))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
