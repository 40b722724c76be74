"""A mirror's page for people. Pure: a status in, a page out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from headrace.process.page import Link, Mark, Page, Table, Tone, size
from headrace.process.text import counted

PROBLEMS_MAX: Final = 20

_TONES: Final = {"caught_up": Tone.GOOD, "copying": Tone.GOOD, "locating": Tone.WARN, "halted": Tone.BAD}
_ORDER: Final = ("halted", "locating", "copying", "caught_up")


def page(status: Mapping[str, Any]) -> Page:
    """Shows what `MirrorService.status` returns, halted copies first."""
    partitions = sorted(status["partitions"], key=_rank)
    counts = {state: sum(row["state"] == state for row in partitions) for state in _ORDER}
    problems = [status["trouble"]] if status["trouble"] else []
    problems += [f"topic {topic}: {problem}" for topic, problem in sorted(status["topic_troubles"].items())]
    if counts["halted"]:
        problems.append(f"{counted(counts['halted'], 'copy is', 'copies are')} halted; the table says why.")
    if waits := sum(row["state"] == "locating" and bool(row["reason"]) for row in partitions):
        problems.append(f"{counted(waits, 'copy waits', 'copies wait')}; the table says for what.")
    if problems:
        state = Mark("has a problem", Tone.BAD)
    elif counts["caught_up"] == len(partitions):
        state = Mark("caught up", Tone.GOOD)
    else:
        state = Mark("copying", Tone.GOOD)
    return Page(
        title=f"Mirror of {status['source']} into {status['target']}",
        state=state,
        about=f"It copies the logs of {status['source']} byte for byte: same bytes, same addresses.",
        problems=problems[:PROBLEMS_MAX],
        figures=(
            ("not copied yet", size(status["lag_bytes"])),
            ("partitions", len(partitions)),
            ("caught up", counts["caught_up"]),
            ("copying", counts["copying"]),
            ("looking for its place", counts["locating"]),
            ("halted", counts["halted"]),
            ("copied since its start", size(sum(row["bytes_copied"] for row in partitions))),
            ("skipped by accepted gaps", size(sum(row["skipped_bytes"] for row in partitions))),
        ),
        tables=(
            Table(
                "Partitions",
                (
                    "topic",
                    "partition",
                    "state",
                    "lag",
                    "copied to",
                    "source ends at",
                    "copied",
                    "why",
                ),
                [_row(row) for row in partitions],
            ),
        ),
        links=(Link("/status (JSON)", "/status"),),
    )


def _rank(row: Mapping[str, Any]) -> tuple[int, int]:
    order = _ORDER.index(row["state"]) if row["state"] in _ORDER else 0
    return order, -row["lag_bytes"]


def _row(row: Mapping[str, Any]) -> tuple[Any, ...]:
    state = row["state"].replace("_", " ")
    return (
        row["topic"],
        row["partition"],
        Mark(state, _TONES.get(row["state"], Tone.PLAIN)),
        size(row["lag_bytes"]),
        row["address"],
        row["source_end"],
        size(row["bytes_copied"]),
        row["reason"],
    )
