"""`python -m sim`: serve a simulated cluster, or talk to one that runs."""

from __future__ import annotations

import argparse
import json
import signal
import sys
import threading
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any

DEFAULT_DIRECTORY = Path(".desk/sim")
REQUEST_SECONDS = 60


class NotServed(Exception):
    """No cluster answers for the directory, or it refused."""


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m sim", description="A simulated Kubernetes cluster.")
    commands = parser.add_subparsers(dest="command", required=True)

    serve = commands.add_parser("serve", help="run a cluster until SIGTERM")
    _add_directory(serve)
    serve.add_argument("--port", type=int, default=0, help="0: any free port")
    serve.add_argument("--nodes", type=int, default=None, help="default 4, with --large 10000")
    serve.add_argument("--gpus", type=int, default=8, help="GPUs of each node")
    serve.add_argument(
        "--agent", type=Path, help="worker agent as a zipapp; stands for `deskagent` in containers"
    )
    serve.add_argument("--desk-url", help="where the pods' forwarders lead to")
    serve.add_argument("--timings", choices=("short", "real"), default="real", help="table of waiting times")
    serve.add_argument("--seed", type=int, help="uids and names from this seed")
    serve.add_argument(
        "--no-token-keys", action="store_true", help="publish no token keys: tokens are proven by review only"
    )
    serve.add_argument("--large", action="store_true", help="many objects, no processes")
    serve.add_argument("--pods", type=int, default=100_000, help="with --large")
    serve.add_argument("--changes", type=float, default=50.0, help="with --large: changes a second")

    submit = commands.add_parser("submit", help="submit a training job")
    _add_directory(submit)
    submit.add_argument("--job", required=True, help="NAMESPACE/NAME")
    submit.add_argument("--workers", type=int)
    submit.add_argument("--gpus", type=int, help="GPUs of each worker")
    submit.add_argument("--steps", type=int)
    submit.add_argument("--step-seconds", type=float)
    submit.add_argument("--checkpoint-every", type=int)
    submit.add_argument("--max-retry", type=int)
    submit.add_argument(
        "--protect", action="store_true", default=None, help="annotate the job for protection"
    )
    submit.add_argument("--protect-namespace", action="store_true", default=None)
    submit.add_argument("--restart-policy", choices=("Never", "OnFailure"))
    submit.add_argument("--collective-timeout-seconds", type=float)
    submit.add_argument(
        "--reset", action="store_true", default=None, help="survivors fail at once, as with gloo"
    )
    submit.add_argument("--suspend", action="store_true", default=None)
    submit.add_argument("--priority", type=int)
    submit.add_argument("--stop-grace-seconds", type=float)
    submit.add_argument("--termination-grace-seconds", type=int)
    submit.add_argument("--no-contact-seconds", type=float)
    submit.add_argument("--backoff-limit", type=int)
    submit.add_argument(
        "--trainer-arguments", help="more arguments for the trainer, e.g. '--fail-at-step 40'"
    )

    fault = commands.add_parser("fault", help="inject a fault; without a name, list them")
    fault.add_argument("name", nargs="?")
    _add_directory(fault)
    fault.add_argument("--job", help="NAMESPACE/NAME")
    fault.add_argument("--index", type=int)
    fault.add_argument("--indices", help="comma-separated")
    fault.add_argument("--signal")
    fault.add_argument("--code", type=int)
    fault.add_argument("--oom", action="store_true", default=None)
    fault.add_argument("--node")

    audit = commands.add_parser("audit", help="print every write as JSON lines")
    _add_directory(audit)
    audit.add_argument("--since", type=int, default=0, help="records after this number")

    processes = commands.add_parser("processes", help="print the pods' processes as JSON")
    _add_directory(processes)
    processes.add_argument("--job", help="NAMESPACE/NAME")
    return parser


def _add_directory(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--dir", type=Path, default=DEFAULT_DIRECTORY, help="the cluster's directory")


def main(argv: list[str] | None = None) -> int:
    options = build_parser().parse_args(argv)
    try:
        if options.command == "serve":
            return serve(options)
        if options.command == "submit":
            return _submit(options)
        if options.command == "fault":
            return _fault(options)
        if options.command == "audit":
            for record in call(options.dir, "GET", f"/sim/v1/audit?since={options.since}")["items"]:
                print(json.dumps(record))
            return 0
        return _processes(options)
    except NotServed as problem:
        print(f"sim: {problem}", file=sys.stderr)
        return 1


def serve(options: argparse.Namespace) -> int:
    """Run until SIGTERM or SIGINT; 0 when everything it started has ended."""
    # Imported here: the other commands only send a request and need none of it.
    from sim.cluster import Cluster, DirectoryInUse, Settings
    from sim.large import LargeCluster
    from sim.network import AddressesExhausted
    from sim.timings import TABLES

    asked_to_stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: asked_to_stop.set())
    if options.agent is not None and not options.agent.is_file():
        raise NotServed(f"no agent at {options.agent}")
    cluster: Cluster | LargeCluster
    try:
        if options.large:
            cluster = LargeCluster(
                options.dir,
                port=options.port,
                nodes=10_000 if options.nodes is None else options.nodes,
                pods=options.pods,
                changes_per_second=options.changes,
                seed=options.seed or 0,
            )
        else:
            cluster = Cluster(
                Settings(
                    directory=options.dir,
                    timings=TABLES[options.timings],
                    port=options.port,
                    nodes=4 if options.nodes is None else options.nodes,
                    gpus=options.gpus,
                    agent=options.agent,
                    desk_url=options.desk_url,
                    seed=options.seed,
                    publishes_keys=not options.no_token_keys,
                )
            )
        cluster.start()
    except (DirectoryInUse, AddressesExhausted, ValueError, OSError) as problem:
        raise NotServed(str(problem)) from None
    print(f"sim: ready on {cluster.url}", flush=True)
    asked_to_stop.wait()
    cluster.stop()
    return 0


def call(directory: Path, method: str, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
    """One request to the control API of the cluster in ``directory``.

    Raises:
        NotServed: No cluster runs there, or it refused; the text is for the operator.
    """
    try:
        endpoint = json.loads((directory / "endpoint.json").read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise NotServed(
            f"no simulated cluster runs in {directory}; start one with: python -m sim serve"
        ) from None
    request = urllib.request.Request(
        endpoint["url"] + path,
        method=method,
        data=None if body is None else json.dumps(body).encode(),
        headers={"Authorization": f"Bearer {endpoint['admin_token']}", "Content-Type": "application/json"},
    )
    try:
        with urllib.request.urlopen(request, timeout=REQUEST_SECONDS) as response:
            answer: dict[str, Any] = json.load(response)
            return answer
    except urllib.error.HTTPError as error:
        text = error.read().decode(errors="replace")
        try:
            refusal = json.loads(text)
            text = f"{refusal['code']}: {refusal['detail']}"
        except (ValueError, KeyError, TypeError):
            pass
        raise NotServed(text) from None
    except OSError as error:
        raise NotServed(f"no answer from {endpoint['url']}: {error}") from None


def _split(job: str) -> tuple[str, str]:
    namespace, slash, name = job.partition("/")
    if not slash or not namespace or not name:
        raise NotServed(f"--job must be NAMESPACE/NAME, not {job!r}")
    return namespace, name


def _submit(options: argparse.Namespace) -> int:
    namespace, name = _split(options.job)
    left_out = ("command", "dir", "job")
    given = {key: value for key, value in vars(options).items() if key not in left_out and value is not None}
    job = call(options.dir, "POST", "/sim/v1/jobs", {"namespace": namespace, "name": name, **given})
    print(json.dumps(job))
    return 0


def _fault(options: argparse.Namespace) -> int:
    if options.name is None:
        for fault in call(options.dir, "GET", "/sim/v1/faults")["faults"]:
            names = " ".join(f"--{p['name']}" for p in fault["parameters"] if p["name"] != "namespace")
            print(f"{fault['fault']:14} {fault['sentence']}  {names}")
        return 0
    body: dict[str, Any] = {"fault": options.name}
    if options.job:
        body["namespace"], body["job"] = _split(options.job)
    for name in ("index", "signal", "code", "oom", "node"):
        if getattr(options, name) is not None:
            body[name] = getattr(options, name)
    if options.indices:
        body["indices"] = [int(each) for each in options.indices.split(",")]
    print(json.dumps(call(options.dir, "POST", "/sim/v1/faults", body)))
    return 0


def _processes(options: argparse.Namespace) -> int:
    query = ""
    if options.job:
        namespace, name = _split(options.job)
        query = "?" + urllib.parse.urlencode({"namespace": namespace, "job": name})
    print(json.dumps(call(options.dir, "GET", f"/sim/v1/processes{query}"), indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
