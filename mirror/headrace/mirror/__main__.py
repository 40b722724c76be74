"""`python -m headrace.mirror`: one mirroring service, from one source datacenter into the analysis cluster.

Exits with 0 on SIGTERM or SIGINT, with 1 and one line on stderr if it cannot start or continue. Prints
"mirror of EAST runs, status on http://HOST:PORT/status" once it runs.
"""

from __future__ import annotations

import argparse
import sys

from headrace.mirror.metrics import metrics
from headrace.mirror.page import page
from headrace.mirror.service import MirrorService, MirrorSettings
from headrace.process.command_line import on_stop_signals, pattern, set_up_logging
from headrace.process.status import StatusServer


def main(arguments: list[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    set_up_logging()
    try:
        mirror = MirrorService(
            MirrorSettings(
                source_datacenter=options.source_datacenter,
                source_bootstrap=options.source_bootstrap,
                target_bootstrap=options.target_bootstrap,
                target_zookeeper=options.target_zookeeper,
                include=options.topics,
                exclude=options.exclude,
                target_datacenter=options.target_datacenter,
                registry_url=options.registry,
            )
        )
    except ValueError as error:
        print(f"the mirror cannot start: {error}", file=sys.stderr)
        return 1
    try:
        server = StatusServer(options.status, mirror.status, page, metrics=metrics)
    except (OSError, ValueError) as error:
        print(f"the mirror cannot serve its status on {options.status}: {error}", file=sys.stderr)
        mirror.close()
        return 1
    on_stop_signals(mirror.stop)
    print(f"mirror of {options.source_datacenter} runs, status on http://{server.address}/status", flush=True)
    try:
        mirror.run()
    except RuntimeError as error:
        print(f"the mirror of {options.source_datacenter} ended: {error}", file=sys.stderr)
        return 1
    finally:
        server.close()
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m headrace.mirror",
        description="Copies every topic of a datacenter, byte for byte, into the analysis cluster.",
    )
    add = parser.add_argument
    add("--source-datacenter", required=True, metavar="NAME", help="the datacenter to mirror, such as east")
    add("--source-bootstrap", required=True, metavar="HOST:PORT,…", help="brokers to read from")
    add("--target-bootstrap", required=True, metavar="HOST:PORT,…", help="brokers of the analysis cluster")
    add("--target-zookeeper", required=True, metavar="HOST:PORT", help="its ZooKeeper, for the mirrors' map")
    add("--target-datacenter", default="analysis", metavar="NAME", help="its name (default: analysis)")
    add("--topics", "--include", default=".*", type=pattern, metavar="REGEX", help="topics to mirror (all)")
    add("--exclude", default=None, type=pattern, metavar="REGEX", help="topics not to mirror")
    add("--registry", default=None, metavar="URL,…", help="schema registries, to report gaps to the audit")
    add(
        "--status",
        default="127.0.0.1:0",
        metavar="HOST:PORT",
        help="where to serve its page and its status",
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
