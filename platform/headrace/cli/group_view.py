"""How `headrace groups` shows a group: its members, its partitions and lags, what a reset changes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from headrace.cli.group_reset import Change
from headrace.cli.group_state import GroupState, Kind
from headrace.cli.output import in_bytes, in_duration, out, plain, print_json, print_table

if TYPE_CHECKING:
    from headrace.client.cluster import TopicPartition
    from headrace.client.lag import Lag
    from headrace.client.survey import Survey

NOT_KNOWN: Final = "not known"


def partition_rows(
    found: GroupState,
    survey: Survey,
    stored: Mapping[TopicPartition, int],
    behind: Mapping[TopicPartition, Lag],
) -> list[dict[str, Any]]:
    """Returns a row for each partition of the group's topics."""
    readers = {key: member for member in found.members or () for key in member.partitions}
    rows = []
    for topic in found.topics:
        for number in sorted(survey.topics[topic].partitions) if topic in survey.topics else ():
            key = (topic, number)
            log, lag, reader = survey.ranges.get(key), behind.get(key), readers.get(key)
            rows.append(
                {
                    "topic": topic,
                    "partition": number,
                    "offset": stored.get(key),
                    "end": log.end if log else None,
                    "lag_bytes": lag.lag_bytes if lag else None,
                    "lag_records": lag.lag_records if lag else None,
                    "lag_records_exact": lag.is_exact if lag else None,
                    "lag_s": lag.lag_s if lag else None,
                    "deleted_bytes": lag.deleted_bytes if lag else 0,
                    "member": reader.member_id if reader else None,
                    "client_id": reader.client_id if reader else None,
                    "host": reader.host if reader else None,
                    "problem": survey.problems.get(key),
                }
            )
    return rows


def as_json(found: GroupState, rows: list[dict[str, Any]]) -> dict[str, Any]:
    members = [
        {
            "member": member.member_id,
            "client_id": member.client_id,
            "host": member.host,
            "partitions": [{"topic": topic, "partition": number} for topic, number in member.partitions],
        }
        for member in found.members or ()
    ]
    return {
        "group": found.name,
        "kind": found.kind,
        "state": found.state,
        "coordinator": found.coordinator,
        "members": None if found.members is None else members,
        "partitions": rows,
    }


def print_members(found: GroupState) -> None:
    count = NOT_KNOWN if found.members is None else str(len(found.members))
    out.print(
        f"[bold]{plain(found.name)}[/]: kind {found.kind}, state {found.state}, members {count}, "
        f"coordinator broker {found.coordinator}"
    )
    if found.kind is Kind.BOTH:
        out.print(
            "[red]members of both kinds have this name and overwrite each other's offsets; rename one[/]"
        )
    if found.members:
        print_table(
            [">#", "client id", "host", ">partitions", "member"],
            [
                (
                    number,
                    plain(member.client_id or "-"),
                    plain(member.host or "-"),
                    len(member.partitions),
                    plain(member.member_id),
                )
                for number, member in enumerate(found.members, start=1)
            ],
            empty="",
        )


def print_partitions(rows: list[dict[str, Any]]) -> None:
    print_table(
        ["topic", ">partition", ">stored offset", ">end", ">lag", ">records", ">time", "read by"],
        [
            (
                plain(row["topic"]),
                row["partition"],
                "-" if row["offset"] is None else f"{row['offset']:,}",
                "-" if row["end"] is None else f"{row['end']:,}",
                "-" if row["lag_bytes"] is None else in_bytes(row["lag_bytes"]),
                _records(row),
                "-" if row["lag_s"] is None else in_duration(row["lag_s"]),
                plain(row["problem"] or row["client_id"] or row["member"] or "none"),
            )
            for row in rows
        ],
        empty="it has stored no offsets, and its members read no topic",
    )
    for row in rows:
        if row["deleted_bytes"]:
            out.print(
                f"{plain(row['topic'])}-{row['partition']}: {in_bytes(row['deleted_bytes'])} were deleted by "
                "retention before the group had read them"
            )


def _records(row: dict[str, Any]) -> str:
    if row["lag_records"] is None:
        return "-"
    return ("" if row["lag_records_exact"] else "~") + f"{row['lag_records']:,}"


def print_changes(group: str, changes: list[Change], *, is_done: bool, json: bool) -> None:
    if json:
        rows = [
            {
                "topic": change.topic,
                "partition": change.partition,
                "before": change.before,
                "after": change.after,
                "lag_bytes": change.end - change.after,
            }
            for change in changes
        ]
        print_json({"group": group, "changed": is_done, "partitions": rows})
        return
    out.print(f"{plain(group)} {'continues' if is_done else 'would continue, nothing is changed yet'}:")
    print_table(
        ["topic", ">partition", ">before", "", ">after", ">lag after"],
        [
            (
                plain(change.topic),
                change.partition,
                "-" if change.before is None else f"{change.before:,}",
                "→",
                f"{change.after:,}",
                in_bytes(change.end - change.after),
            )
            for change in changes
        ],
        empty="",
    )
