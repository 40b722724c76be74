"""How topics are shown: a row for each topic and each partition, and what is wrong with them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headrace.client.admin import Admin
    from headrace.client.survey import Survey

from headrace.cli.output import in_bytes, out, plain, print_table

Row = dict[str, Any]


def offline_logs(admin: Admin, topic: str, survey: Survey) -> dict[int, str]:
    """Returns why partitions without leader are not served, in the words of their brokers.

    Brokers that the survey has found silent are not asked again.
    """
    from headrace.client.errors import ClientError
    from headrace.wire.errors import ErrorCode

    by_broker: dict[int, list[int]] = {}
    for part in survey.topic(topic).partitions.values():
        if part.leader < 0:
            for broker_id in part.replicas[:1]:
                by_broker.setdefault(broker_id, []).append(part.partition)
    found: dict[int, str] = {}
    live = set(admin.describe_cluster().brokers) if by_broker else set()
    for broker_id in (by_broker.keys() & live) - {each.broker_id for each in survey.silent}:
        try:
            folders = admin.describe_log_dirs(broker_id, {topic: by_broker[broker_id]})
        except ClientError:
            continue  # it has just fallen silent
        for folder in folders:
            if folder.error is not ErrorCode.NONE:
                why = folder.problem or f"{folder.path}: {folder.error.name}"
                found |= {
                    partition: f"offline: {why}" for name, partition in folder.replicas if name == topic
                }
    return found


def print_topics(rows: Sequence[Row]) -> None:
    """Prints the list of topics; columns of problems only if there are any."""
    columns = {"not known": "unknown_partitions", "under-replicated": "under_replicated_partitions"}
    shown = {title: key for title, key in columns.items() if any(row[key] for row in rows)}
    print_table(
        ["topic", ">partitions", ">size", *shown],
        [
            (row["topic"], row["partitions"], _size(row), *(_partitions(row[key]) for key in shown.values()))
            for row in rows
        ],
        empty="there are no topics (--all lists internal ones, too)",
    )


def _size(row: dict[str, Any]) -> str:
    if len(row["unknown_partitions"]) == row["partitions"] > 0:
        return "-"
    return ("more than " if row["unknown_partitions"] else "") + in_bytes(row["bytes"])


def _partitions(numbers: list[int]) -> str:
    """Returns `partitions 1, 4`; "" without any."""
    if not numbers:
        return ""
    return f"partition{'' if len(numbers) == 1 else 's'} {', '.join(map(str, numbers))}"


def partition_rows(
    survey: Survey, topic: str, problems: Mapping[int, str], eligible: Mapping[int, Sequence[int]]
) -> list[Row]:
    """Returns what is known of each partition. Addresses and lags that are not known are None."""
    info = survey.topic(topic)
    under_replicated = survey.under_replicated(topic)
    rows = []
    for number, part in sorted(info.partitions.items()):
        found = survey.ranges.get((topic, number))
        moving = survey.reassignments.get((topic, number))
        rows.append(
            {
                "partition": number,
                "leader": part.leader,
                "leader_epoch": part.leader_epoch if part.leader_epoch >= 0 else None,
                "replicas": list(part.replicas),
                "in_sync": list(part.isr),
                "eligible": list(eligible.get(number, ())),
                "adding": list(moving.adding) if moving else [],
                "removing": list(moving.removing) if moving else [],
                "lag_bytes": {str(each): lag for each, lag in survey.lag_bytes(topic, part).items()},
                "is_under_replicated": number in under_replicated,
                "is_offline": part.leader < 0,
                "start_address": found.start if found else None,
                "end_address": found.end if found else None,
                "problem": problems.get(number),
            }
        )
    return rows


def print_partitions(topic: str, rows: Sequence[Row]) -> None:
    """Prints the partitions as a table, then a line for each thing that is wrong."""
    print_table(
        [
            ">partition",
            ">leader",
            ">epoch",
            "replicas",
            "in sync",
            "lag",
            ">start address",
            ">end address",
            ">size",
        ],
        [
            (
                row["partition"],
                row["leader"] if row["leader"] >= 0 else "none",
                "-" if row["leader_epoch"] is None else row["leader_epoch"],
                ",".join(map(str, row["replicas"])),
                ",".join(map(str, row["in_sync"])),
                _lags(row["lag_bytes"]),
                "-" if row["start_address"] is None else f"{row['start_address']:,}",
                "-" if row["end_address"] is None else f"{row['end_address']:,}",
                "-" if row["end_address"] is None else in_bytes(row["end_address"] - row["start_address"]),
            )
            for row in rows
        ],
        empty="the topic has no partitions",
    )
    for row in rows:
        name = f"{plain(topic)}-{row['partition']}"
        if row["problem"]:
            out.print(f"[red]{name} is not served[/]: {plain(row['problem'])}")
        if row["is_under_replicated"]:
            missing = sorted(set(row["replicas"]) - set(row["in_sync"]) - set(row["adding"]))
            out.print(f"[yellow]{name} is under-replicated[/]: {_brokers(missing)} not in sync")
        if row["eligible"]:
            out.print(f"{name}: {_brokers(row['eligible'])} eligible to lead, with all that was acknowledged")
        if row["adding"] or row["removing"]:
            out.print(f"{name} moves: it gains {row['adding']} and loses {row['removing']}")


def _brokers(numbers: Sequence[int]) -> str:
    """Returns `broker 2` or `brokers 2, 3`."""
    return f"broker{'' if len(numbers) == 1 else 's'} {', '.join(map(str, numbers))}"


def _lags(lags: Mapping[str, int | None]) -> str:
    """Returns `2: 0 B, 3: 4.0 KiB`, in the order of the replicas; `-` without followers."""
    return ", ".join(f"{each}: {'?' if lag is None else in_bytes(lag)}" for each, lag in lags.items()) or "-"
