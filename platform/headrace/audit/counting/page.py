"""An auditor's page for people. Pure: a status in, a page out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from headrace.process.page import Cell, Link, Mark, Page, Table, Tone, state_of
from headrace.process.text import counted


def page(status: Mapping[str, Any]) -> Page:
    """Shows what `AuditorProcess.status` returns, partitions that do not go on first."""
    store = status.get("store")
    partitions = sorted(status["partitions"], key=lambda row: not row["reason"])
    stuck_count = sum(bool(row["reason"]) for row in partitions)
    problems = [status["trouble"]] if status["trouble"] else []
    if stuck_count:
        problems.append(
            f"{counted(stuck_count, 'partition is', 'partitions are')} not counted on; the table says why."
        )
    if store and store["trouble"]:
        problems.append(f"the audit store: {store['trouble']}")
    figures: list[tuple[str, Cell]] = [
        ("partitions that it counts", len(partitions)),
        ("reports that are not published yet", status["unsaid"]),
        ("damaged batches that it met", status["corrupt"]),
        ("reports taken by HTTP", status["reports_of_counts"]),
    ]
    if store:
        figures += [
            ("records in the audit store, since its start", store["folded"]),
            ("records refused: they cannot be true", store["refused"]),
            ("records that cannot be decoded", store["unreadable"]),
        ]
        if drill := store["drill"]:
            found = (
                f"{drill['found']} of {drill['plants']}" if drill["drills"] else "none in the last 24 hours"
            )
            figures.append(
                ("planted failures that it found", found if drill["is_good"] else Mark(found, Tone.BAD))
            )
            if drill["slowest_ms"] is not None:
                figures.append(("the slowest of them, in seconds", round(drill["slowest_ms"] / 1_000)))
        if store["set_aside_store"]:
            figures.append(("an unusable store was set aside as", store["set_aside_store"]))
    return Page(
        title=f"Auditor of {status['datacenter']}",
        state=state_of(problems, "counting"),
        about=_about(status["datacenter"], has_store=bool(store)),
        problems=problems,
        figures=figures,
        tables=(
            Table(
                "Partitions",
                ("topic", "partition", "from datacenter", "counted to address", "why it does not go on"),
                [
                    (
                        row["topic"],
                        row["partition"],
                        row["datacenter"],
                        row["counted_to"],
                        Mark(row["reason"], Tone.BAD) if row["reason"] else None,
                    )
                    for row in partitions
                ],
            ),
            _set_aside([*status["set_aside"], *(store["set_aside"] if store else ())]),
        ),
        links=(Link("/status (JSON)", "/status"),),
    )


def _about(datacenter: str, *, has_store: bool) -> str:
    text = (
        f"It counts the logs of {datacenter} from their batch headers, and reports the counts to the audit."
    )
    if has_store:
        text += " It also collects all reports: `headrace audit report` shows the verdicts."
    return text


def _set_aside(rows: list[Mapping[str, Any]]) -> Table:
    return Table(
        "Records of the audit topics that were set aside",
        ("topic", "partition", "records", "first offset", "last offset", "last problem"),
        [
            tuple(
                row[name]
                for name in ("topic", "partition", "records", "first_offset", "last_offset", "problem")
            )
            for row in rows
        ],
    )
