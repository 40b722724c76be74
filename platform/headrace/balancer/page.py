"""The balancer's page for people. Pure: a status in, a page out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from headrace.balancer.withdrawn import Condition
from headrace.process.page import Amount, Cell, Link, Mark, Page, Table, Tone, instant, size

_CONDITION_TONES: Final = {Condition.SILENT: Tone.BAD, Condition.ENDED: Tone.PLAIN}


def page(status: Mapping[str, Any], statistics_url: str | None = None) -> Page:
    """Shows what `Control.status` returns. `statistics_url`: HAProxy's own page, if there is one."""
    backends, withdrawn = status["backends"], status["withdrawn"]
    healthy_count = sum(bool(row["is_up"]) for row in backends)
    silent = [row for row in withdrawn if row["condition"] == Condition.SILENT]
    problems = [status["problem"]] if status["problem"] else []
    problems += [
        f"broker {row['broker_id']} at {row['address']} does not answer, and gets no connections"
        for row in silent
    ]
    count = len({row["broker_id"] for row in (*backends, *silent)})
    state = Mark(f"{healthy_count} of {count} brokers healthy", Tone.GOOD)
    if status["problem"]:
        state = Mark("not serving", Tone.BAD)
    elif healthy_count < count:
        state = state._replace(tone=Tone.WARN)
    tables = [
        Table(
            "Brokers",
            (
                *("broker", "address", "phase", "healthy", "last check", "connections", "since the start"),
                *("failed attempts", "from clients", "to clients"),
            ),
            [_row(row) for row in backends],
        )
    ]
    if withdrawn:
        tables.append(_withdrawn(withdrawn))
    links = [Link("/status (JSON)", "/status")]
    if statistics_url:
        links.append(Link("HAProxy's own statistics", statistics_url))
    return Page(
        title=f"Producers connect to {status['listen']}",
        state=state,
        about=status["why"],
        problems=problems,
        tables=tables,
        links=links,
    )


def _row(row: Mapping[str, Any]) -> tuple[Cell, ...]:
    return (
        str(row["broker_id"]),
        row["address"],
        Mark(row["phase"], Tone.WARN if row["phase"] == "draining" else Tone.PLAIN),
        Mark("yes", Tone.GOOD) if row["is_up"] else Mark("no", Tone.BAD),
        row.get("check"),
        row.get("connections"),
        row.get("connections_total"),
        row.get("connect_errors"),
        _bytes(row.get("bytes_in")),
        _bytes(row.get("bytes_out")),
    )


def _bytes(count: int | None) -> Amount | None:
    return None if count is None else size(count)


def _withdrawn(rows: list[Mapping[str, Any]]) -> Table:
    return Table(
        "Brokers whose front is withdrawn",
        ("broker", "address", "condition", "last check", "withdrawn"),
        [
            (
                str(row["broker_id"]),
                row["address"],
                Mark(row["condition"], _CONDITION_TONES.get(row["condition"], Tone.WARN)),
                row["check"],
                instant(row["withdrawn_ms"]),
            )
            for row in rows
        ],
        "A broker withdraws its front when it stops; ZooKeeper does it for one that hangs or has died. One "
        "that has ended stays in this table for an hour.",
    )
