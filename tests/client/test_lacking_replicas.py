"""Who lacks what a broker has, and what a broker with several log directories has room for."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.client.cluster import BrokerAddress, PartitionInfo
from headrace.client.in_sync import Lack, lack_of
from headrace.client.log_dirs import LogDirectory
from headrace.client.replicas import BrokerStanding, DiskRoom, Reassignment, ReplicaSurvey, room_of_folders
from headrace.wire.errors import ErrorCode

KEY = ("t", 0)


def survey(
    replicas: tuple[int, ...], isr: tuple[int, ...], alive: set[int], moving: Reassignment | None = None
) -> ReplicaSurvey:
    return ReplicaSurvey(
        brokers={n: BrokerStanding(n, BrokerAddress("h", n), f"rack-{n}", 1) for n in alive},
        partitions={KEY: PartitionInfo(0, isr[0], 0, replicas, isr)},
        reassignments={} if moving is None else {KEY: moving},
        unsettled=frozenset(),
        stored={},
        drained=frozenset(),
        drained_for_all=frozenset(),
        silent=(),
    )


@pytest.mark.parametrize(
    ("found", "lacking", "gone"),
    [
        (survey((1, 2, 3), (1, 2, 3), {1, 2, 3}), [], []),
        (survey((1, 2, 3), (1, 3), {1, 2, 3}), [2], []),
        (survey((1, 2, 3), (1, 3), {1, 3}), [2], [2]),
        (survey((1, 2, 3), (1, 2, 3), {1, 3}), [2], [2]),  # it died a moment ago
        (survey((1, 2, 3), (1, 2), {1, 2, 3}), [], []),  # 3 itself has nothing to lose
        (survey((1, 2, 3), (1, 3), {1, 2}), [], []),  # nor has a dead one
        (survey((1, 2), (1,), {1, 2, 3}), [], []),
        # What is on its way is not due yet, what leaves is until it has left.
        (survey((1, 3, 4), (1, 3), {1, 3, 4}, Reassignment((4,), ())), [], []),
        (survey((1, 3, 4, 2), (1, 3), {1, 3, 4}, Reassignment((4,), (2,))), [2], [2]),
    ],
)
def test_who_lacks_what_broker_3_has(found: ReplicaSurvey, lacking: list[int], gone: list[int]) -> None:
    partitions: dict[Any, Any] = {KEY: lacking} if lacking else {}
    assert lack_of(found, 3) == Lack(partitions, tuple(lacking), tuple(gone))
    assert lack_of(found, 3, {"t"}) == Lack({}, (), ())


def folder(usable_bytes: int, reserve_bytes: int = -1, error: ErrorCode = ErrorCode.NONE) -> LogDirectory:
    name = f"disk-{usable_bytes}"
    return LogDirectory(f"/{name}", error, "", {}, 10_000, usable_bytes, name, reserve_bytes)


@pytest.mark.parametrize(
    ("folders", "room"),
    [
        ([folder(500, 100)], DiskRoom(500, 100, "disk-500")),
        ([folder(500), folder(300)], DiskRoom(300, -1, "disk-300")),
        ([folder(500, 400), folder(300)], DiskRoom(500, 400, "disk-500")),
        ([folder(500), folder(7, error=ErrorCode.KAFKA_STORAGE_ERROR)], DiskRoom(500, -1, "disk-500")),
        ([folder(500), folder(-1)], None),
        ([folder(500, error=ErrorCode.KAFKA_STORAGE_ERROR)], None),
        ([], None),
    ],
)
def test_of_several_log_directories_the_fullest_counts(
    folders: list[LogDirectory], room: DiskRoom | None
) -> None:
    assert room_of_folders(folders) == room
