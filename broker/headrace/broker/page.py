"""A broker's page for people. Pure: a status in, a page out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from headrace.process.disk import DiskSpace
from headrace.process.page import Amount, Link, Mark, Page, Table, Tone, size
from headrace.process.text import counted


def page(status: Mapping[str, Any]) -> Page:
    """Shows what `Broker.status` returns."""
    disk, connections, offline = status["disk"], status["connections"], status["offline"]
    problems = []
    if disk["refuses_appends"]:
        problems.append(
            f"Appends are refused: the disk has less free space than its reserve of "
            f"{size(disk['reserve_bytes']).text}. Free space there, or delete topics."
        )
    if offline["count"]:
        problems.append(
            f"{counted(offline['count'], 'partition is', 'partitions are')} offline: the log cannot be used."
        )
    if status["clock"]["is_apart"]:
        ahead_s = round(status["clock"]["ahead_ms"] / 1000)
        problems.append(
            f"The clock of its host is {abs(ahead_s)} s {'ahead of' if ahead_s > 0 else 'behind'} "
            "ZooKeeper's. "
            "Events expire by the one that is behind. Set the clock that is wrong."
        )
    if status["loop"]["is_stuck"]:
        problems.append(
            f"Its event loop has not turned for {round(status['loop']['late_ms'] / 1000)} s: it serves "
            "nobody. Look at the disks of its host, and restart it."
        )
    return Page(
        title=f"Broker {status['broker']} of {status['datacenter']}",
        state=_state(status, problems),
        about="It keeps the logs of its partitions on disk, and serves them by Kafka's protocol.",
        problems=problems,
        figures=(
            ("partitions that it leads", status["partitions"]),
            ("of them with too few replicas in sync", status["under_replicated"]),
            ("partitions of the cluster without leader", status["leaderless"]),
            ("free on its disk", _size(disk["free_bytes"])),
            ("size of its disk", _size(disk["size_bytes"])),
            ("open connections", connections["open"]),
            ("at most", connections["max"]),
            ("accepted since its start", connections["accepted"]),
            ("requests in memory", size(connections["receiving_bytes"])),
            ("responses in memory", size(connections["unsent_bytes"])),
        ),
        tables=(
            Table(
                "Offline partitions",
                ("partition", "problem"),
                [(row["partition"], Mark(row["problem"], Tone.BAD)) for row in offline["partitions"]],
            ),
            _ends("Refused connections, by setting", connections["refused"]),
            _ends("Connections that it closed, by cause", connections["closed_by_broker"]),
        ),
        links=(Link("/status (JSON)", "/status"),),
    )


def _size(size_bytes: int | None) -> Amount | None:
    return None if size_bytes is None else size(size_bytes)


def _state(status: Mapping[str, Any], problems: list[str]) -> Mark:
    disk = status["disk"]
    if status["loop"]["is_stuck"]:
        return Mark("stuck", Tone.BAD)
    if problems:
        return Mark("serving, with problems", Tone.BAD)
    if disk["free_bytes"] is not None and disk["size_bytes"] is not None:
        space = DiskSpace(disk["directory"], disk["free_bytes"], disk["size_bytes"])
        if space.is_nearly_full:
            return Mark(f"serving; its disk is {space.used_share:.0%} full", Tone.WARN)
    return Mark("serving", Tone.GOOD)


def _ends(title: str, counts: Mapping[str, int]) -> Table:
    rows = sorted(((name, count) for name, count in counts.items() if count), key=lambda row: -row[1])
    return Table(title, ("what", "count"), rows)
