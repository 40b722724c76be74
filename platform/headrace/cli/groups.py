"""`headrace groups`: the consumer groups that coordinate through ZooKeeper, their offsets and lag.

Lag is in bytes, because an offset is a byte address.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headrace.cli.context import DatacenterOption, datacenter, parse_time_ms
from headrace.cli.errors import CommandError, ExitCode
from headrace.cli.output import JsonOption, in_bytes, out, plain, print_json, print_table

if TYPE_CHECKING:
    from headrace.client.admin import Admin
    from headrace.coordination.consumers import ConsumerRegistry
    from headrace.coordination.session import ZooKeeperSession

app = typer.Typer(help="Consumer groups: their members, offsets and lag.", no_args_is_help=True)

GroupArgument = Annotated[str, typer.Argument(help="A group's name.")]
CONNECT_TIMEOUT_S = 5.0
ADMIN_TIMEOUT_MS = 8_000.0


@contextmanager
def _session(where: str | None) -> Iterator[ZooKeeperSession]:
    from headrace.coordination.session import ZooKeeperSession

    session = ZooKeeperSession(str(datacenter(where).zookeeper), name="headrace-groups")
    session.start(connect_timeout_s=CONNECT_TIMEOUT_S)
    try:
        yield session
    finally:
        session.close()


@app.command("list")
def list_(where: DatacenterOption = None, json: JsonOption = False) -> None:
    """List the groups: number of members, and topics."""
    from headrace.coordination.consumers import ConsumerRegistry, groups

    rows = []
    with _session(where) as session:
        for name in sorted(groups(session)):
            registry = ConsumerRegistry(session, name)
            topics = sorted({topic for topic, _ in registry.all_offsets()} | _subscribed(registry))
            rows.append((name, len(registry.members()), topics))
    if json:
        print_json([{"group": name, "members": members, "topics": topics} for name, members, topics in rows])
        return
    print_table(
        ["group", ">members", "topics"],
        [(plain(name), members, plain(", ".join(topics))) for name, members, topics in rows],
        empty="there are no groups",
    )


@app.command()
def describe(group: GroupArgument, where: DatacenterOption = None, json: JsonOption = False) -> None:
    """Show the owner, the stored offset and the lag in bytes of each partition that a group reads."""
    from headrace.client.admin import Admin
    from headrace.coordination.consumers import ConsumerRegistry

    with _session(where) as session, Admin(datacenter(where).bootstrap, timeout_ms=ADMIN_TIMEOUT_MS) as admin:
        registry = ConsumerRegistry(session, group)
        stored, members = registry.all_offsets(), registry.members()
        topics = sorted({topic for topic, _ in stored} | _subscribed(registry))
        if not topics:
            raise CommandError(f"there is no group {group!r}; `headrace groups list` lists the groups")
        rows: list[dict[str, Any]] = []
        for topic in topics:
            owners = registry.owners(topic)
            for partition, end in _ends(admin, topic).items():
                offset = stored.get((topic, partition))
                owner = owners.get(partition)
                rows.append(
                    {
                        "topic": topic,
                        "partition": partition,
                        "owner": owner.name if owner else None,
                        "offset": offset,
                        "end": end,
                        "lag_bytes": None if offset is None else max(0, end - offset),
                    }
                )
    if json:
        print_json({"group": group, "members": sorted(members), "partitions": rows})
        return
    out.print(f"[bold]{plain(group)}[/]: {len(members)} members")
    print_table(
        ["topic", ">partition", ">stored offset", ">end", ">lag", "owner"],
        [
            (
                row["topic"],
                row["partition"],
                "-" if row["offset"] is None else f"{row['offset']:,}",
                f"{row['end']:,}",
                "-" if row["lag_bytes"] is None else in_bytes(row["lag_bytes"]),
                plain(row["owner"] or "none"),
            )
            for row in rows
        ],
        empty="its topics have no partitions",
    )


@app.command()
def reset(
    group: GroupArgument,
    topic: Annotated[str, typer.Option("--topic", "-t", help="The topic whose offsets are set.")],
    to: Annotated[str, typer.Option("--to", help="beginning, end, or a time such as 2015-05-17T10.")],
    where: DatacenterOption = None,
    json: JsonOption = False,
) -> None:
    """Set the offsets at which a group continues. Stop its members first."""
    from headrace.client.admin import EARLIEST, LATEST, Admin
    from headrace.coordination.consumers import ConsumerRegistry

    moment = {"beginning": EARLIEST, "end": LATEST}.get(to)
    if moment is None:
        moment = parse_time_ms(to)
    with _session(where) as session, Admin(datacenter(where).bootstrap, timeout_ms=ADMIN_TIMEOUT_MS) as admin:
        registry = ConsumerRegistry(session, group)
        if members := registry.members():
            raise CommandError(
                f"group {group} has {len(members)} members; stop them first, or they overwrite the offsets",
                ExitCode.NEGATIVE,
            )
        ends = _ends(admin, topic)
        offsets = {
            # A partition without a record at this time or later continues at its end.
            partition: first.offset if first.offset >= 0 else ends[partition]
            for partition, first in admin.list_offsets(topic, moment).items()
        }
        for partition, offset in offsets.items():
            registry.commit(topic, partition, offset)
    if json:
        print_json({"group": group, "topic": topic, "offsets": offsets})
    else:
        text = ", ".join(f"{partition} at {offset:,}" for partition, offset in offsets.items())
        out.print(f"{plain(group)} continues {topic}: partition {text}")


def _subscribed(registry: ConsumerRegistry) -> set[str]:
    return {topic for subscription in registry.members().values() for topic in subscription}


def _ends(admin: Admin, topic: str) -> dict[int, int]:
    from headrace.client.admin import LATEST

    return {partition: end.offset for partition, end in admin.list_offsets(topic, LATEST).items()}
