"""What `headrace brokers` shows: what each broker holds, what a plan moves, the room on disks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from headrace.cli.output import in_bytes, out, print_table

if TYPE_CHECKING:
    from headrace.client.replicas import ReplicaSurvey
    from headrace.reassignment.model import Load, Move
    from headrace.reassignment.room import DiskUse

MOVES_SHOWN_MAX: Final = 50


def print_brokers(rows: Iterable[Mapping[str, Any]]) -> None:
    print_table(
        [
            ">broker",
            "address",
            "rack",
            ">epoch",
            "alive",
            "drained",
            ">leads",
            ">replicas",
            ">out of sync",
            ">size",
            ">free",
        ],
        [
            (
                row["broker"],
                _known(row["address"]),
                _known(row["rack"]),
                _known(row["epoch"]),
                "yes" if row["alive"] else "no",
                "yes" if row["drained"] else "no",
                row["leaders"],
                row["replicas"],
                row["out_of_sync"],
                _bytes(row["bytes"]),
                _bytes(row["free_bytes"]),
            )
            for row in rows
        ],
        empty="no broker is registered",
    )


def _bytes(size_bytes: int | None) -> str:
    return "-" if size_bytes is None else in_bytes(size_bytes)


def _known(value: object) -> object:
    return "-" if value is None else value


def broker_rows(survey: ReplicaSurvey, known: Mapping[int, str]) -> list[dict[str, Any]]:
    """Returns a row for each broker that is registered, has replicas, is drained, or should be there."""
    held: dict[int, list[tuple[str, int]]] = {}
    for key, part in survey.partitions.items():
        for each in part.replicas:
            held.setdefault(each, []).append(key)
    answering = set(survey.brokers) - {each.broker_id for each in survey.silent}
    rows = []
    for broker_id in sorted({*survey.brokers, *held, *survey.drained, *known}):
        standing = survey.brokers.get(broker_id)
        keys = held.get(broker_id, [])
        adding = {key for key in keys if key in survey.reassignments}
        rows.append(
            {
                "broker": broker_id,
                "address": str(standing.address) if standing else known.get(broker_id),
                "rack": standing.rack if standing else None,
                "epoch": standing.epoch if standing and standing.epoch >= 0 else None,
                "alive": standing is not None,
                "drained": broker_id in survey.drained,
                "leaders": sum(survey.partitions[key].leader == broker_id for key in keys),
                "replicas": len(keys),
                "out_of_sync": sum(
                    broker_id not in survey.partitions[key].isr
                    and not (key in adding and broker_id in survey.reassignments[key].adding)
                    for key in keys
                ),
                "bytes": sum(
                    replica.size_bytes for name, replica in survey.stored.items() if name[0] == broker_id
                )
                if broker_id in answering
                else None,
                "free_bytes": survey.rooms[broker_id].free_bytes if broker_id in survey.rooms else None,
            }
        )
    return rows


def move_rows(moves: tuple[Move, ...]) -> list[dict[str, Any]]:
    return [
        {
            "topic": move.key[0],
            "partition": move.key[1],
            "before": list(move.before),
            "after": list(move.after),
            "bytes": move.copied_bytes,
        }
        for move in moves
    ]


def print_moves(moves: tuple[Move, ...]) -> None:
    print_table(
        ["partition", "replicas", "then", ">to copy"],
        [
            (move.name, _ids(move.before), _ids(move.after), in_bytes(move.copied_bytes))
            for move in moves[:MOVES_SHOWN_MAX]
        ],
        empty="nothing has to move",
    )
    if len(moves) > MOVES_SHOWN_MAX:
        out.print(f"and {len(moves) - MOVES_SHOWN_MAX} more (--json lists them)")


def disk_rows(disks: Iterable[DiskUse]) -> list[dict[str, Any]]:
    return [
        {
            "brokers": list(each.disk.brokers),
            "free_bytes": each.disk.free_bytes,
            "reserve_bytes": each.disk.reserve_bytes,
            "owed_bytes": each.disk.owed_bytes,
            "needed_bytes": each.needed_bytes,
        }
        for each in disks
    ]


def print_disks(disks: Sequence[DiskUse]) -> None:
    """Prints the room of the disks to which a plan copies anything."""
    used = [each for each in disks if each.needed_bytes]
    if used:
        print_table(
            [">broker", ">free", ">its reserve", ">on their way", ">room", ">needed"],
            [
                (
                    _ids(each.disk.brokers),
                    in_bytes(each.disk.free_bytes),
                    in_bytes(each.disk.reserve_bytes),
                    in_bytes(each.disk.owed_bytes),
                    in_bytes(each.disk.room_bytes),
                    in_bytes(each.needed_bytes),
                )
                for each in used
            ],
            empty="",
        )


def _ids(replicas: tuple[int, ...]) -> str:
    return ",".join(map(str, replicas))


def print_loads(before: Mapping[int, Load], after: Mapping[int, Load]) -> None:
    print_table(
        [">broker", ">replicas", ">then", ">preferred leader", ">then", ">size", ">then"],
        [
            (
                each,
                load.replicas,
                after[each].replicas,
                load.leaders,
                after[each].leaders,
                in_bytes(load.size_bytes),
                in_bytes(after[each].size_bytes),
            )
            for each, load in sorted(before.items())
        ],
        empty="no broker can take replicas",
    )
