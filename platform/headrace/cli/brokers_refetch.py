"""`headrace brokers refetch`: a replica that differs is fetched again from its leader."""

from __future__ import annotations

from typing import Annotated

import typer

from headrace.cli import names
from headrace.cli.brokers import BrokerArgument, TimeoutOption, admin_of, interruptible, reporter
from headrace.cli.cluster import brokers_of
from headrace.cli.context import BootstrapOption, DatacenterOption
from headrace.cli.output import JsonOption, in_bytes, out, print_json
from headrace.cli.values import parse_span_ms


def refetch(
    broker: BrokerArgument,
    topic: Annotated[str, typer.Argument(help="The topic.", show_default=False, autocompletion=names.topics)],
    partition: Annotated[int, typer.Argument(help="The partition.", min=0, show_default=False)],
    timeout: TimeoutOption = "1h",
    where: DatacenterOption = None,
    brokers: BootstrapOption = None,
    json: JsonOption = False,
) -> None:
    """Delete a broker's replica of a partition, and have it fetched again from the leader.

    For a replica that the audit says has other bytes than were counted. A leader gives its leadership up by
    that. Another replica must be in sync. It may be interrupted, and run again: it continues.
    """
    from headrace.reassignment.refetching import refetch as fetch_again

    timeout_s = parse_span_ms(timeout, "s", option="--timeout", least_ms=1000) / 1000
    with admin_of(brokers_of(where, brokers)) as admin, interruptible():
        size_bytes = fetch_again(admin, (topic, partition), broker, timeout_s=timeout_s, report=reporter())
    if json:
        print_json({"broker": broker, "topic": topic, "partition": partition, "copied_bytes": size_bytes})
    else:
        copied = in_bytes(size_bytes)
        out.print(f"broker {broker} has fetched {topic}-{partition} again: {copied}")
