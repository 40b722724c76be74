"""Physical plants around seals: an hour is sealed while a file of it is wrong; a seal is edited afterwards.

The first kinds are those of `drill_files`: what `verify` must name, the seal must refuse, by the file's path.
The others change a seal that was written over a sound hour: `verify` must name it.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from drill import drill_files
from drill.drill_tables import HOUR, Drilled, Table, Tested, drilled_table
from drill.drill_truth import Outcome
from headrace.warehouse.layout import HOUR_MS
from headrace.warehouse.manifest import ManifestError
from headrace.warehouse.seal import NotSealedError, Seal, seal_in

HOURS: Final = (HOUR, HOUR + HOUR_MS)

Proofs = dict[int, dict[str, Any]]


def proofs_of(table: Table) -> Proofs:
    """The audit's proof of each hour, as it is before anything is planted."""
    counted = table.log.state().counted
    return {
        hour_ms: {"complete": True, "counts": {"east": {"warehouse": rows}}, "judged_ms": hour_ms + HOUR_MS}
        for hour_ms, rows in counted.items()
    }


# --- a file is wrong, and the hour is to be sealed ---


def refused(drilled: Drilled, plant: drill_files.Plant) -> Tested:
    """Plants, then seals each hour; returns the outcome, and how many whole hours were refused."""
    table, proofs, before = drilled.table, proofs_of(drilled.table), drilled.contents()
    named = drilled.shown(plant(table))
    after = drilled.contents()
    changed = {path for path in before.keys() | after.keys() if before.get(path) != after.get(path)}
    problems: dict[int, str] = {}
    for hour_ms in HOURS:
        try:
            seal_in(table.log, {hour_ms: proofs[hour_ms]})
        except (NotSealedError, ManifestError) as error:
            problems[hour_ms] = str(error)
    harmed = {hour_ms for hour_ms in HOURS if any(_is_of(table, hour_ms, path) for path in changed)}
    false = len(problems.keys() - harmed)
    if harmed - problems.keys():
        return Tested(Outcome.MISSED, false, tuple(problems.values()))
    # The seal names the first file that is wrong: of two that were swapped, either.
    is_named = any(path in problem for problem in problems.values() for path in {named, *changed})
    return Tested(Outcome.NAMED if is_named else Outcome.WRONG_PLACE, false, (named, *problems.values()))


def _is_of(table: Table, hour_ms: int, path: str) -> bool:
    return path.startswith(table.log.paths.hour_dir(hour_ms) + "/")


# --- a seal is edited ---

Edit = Callable[[Table, Path], None]
"""Changes the seal in this file."""


def edited(drilled: Drilled, edit: Edit) -> Tested:
    """Seals each hour, then changes one seal; returns the outcome, and how many whole files were accused."""
    table = drilled.table
    seal_in(table.log, proofs_of(table))
    if problems := drilled.problems():
        raise AssertionError(f"the seals are not sound before anything is planted: {problems}")
    before, file = drilled.contents(), _seal_file(table, table.rng.choice(HOURS))
    edit(table, file)
    return drill_files.judged(drilled, file, before)


def _seal_file(table: Table, hour_ms: int) -> Path:
    return table.hdfs.at(table.log.paths.seal(hour_ms, 1))


def _changed(change: Callable[[dict[str, Any]], None], *, is_digested: bool = False) -> Edit:
    """`is_digested`: whoever edits the seal makes its digest again."""

    def edit(_table: Table, file: Path) -> None:
        data = json.loads(file.read_text())
        change(data)
        if is_digested:
            said = {name: value for name, value in data.items() if name not in ("format", "hour", "digest")}
            data["digest"] = Seal(**said).own_digest()
        file.write_text(json.dumps(data, indent=1))

    return edit


def _counts_edited(data: dict[str, Any]) -> None:
    data["proof"]["counts"]["east"]["warehouse"] += 3


def _verdict_edited(data: dict[str, Any]) -> None:
    data["proof"]["complete"] = False


def _rows_edited(data: dict[str, Any]) -> None:
    data["rows"] -= 1


def _files_edited(data: dict[str, Any]) -> None:
    data["files"].pop()


def _of_another_hour(table: Table, file: Path) -> None:
    (other,) = (each for each in (_seal_file(table, hour_ms) for hour_ms in HOURS) if each != file)
    file.write_bytes(other.read_bytes())


def _cut(table: Table, file: Path) -> None:
    data = file.read_bytes()
    file.write_bytes(data[: table.rng.randrange(len(data))])


EDITS: Final[dict[str, Edit]] = {
    "seal: its proof's counts edited": _changed(_counts_edited),
    "seal: its proof's verdict edited": _changed(_verdict_edited),
    "seal: its rows edited": _changed(_rows_edited),
    "seal: its list of files edited": _changed(_files_edited),
    "seal: counts and digest edited": _changed(_counts_edited, is_digested=True),
    "seal: rows and digest edited": _changed(_rows_edited, is_digested=True),
    "seal: another hour's in its place": _of_another_hour,
    "seal: cut": _cut,
}
REFUSALS: Final[dict[str, drill_files.Plant]] = {
    f"seal over {name.removeprefix('Parquet: ')}": plant
    for name, plant in drill_files.KINDS.items()
    if name.startswith("Parquet: ")
}
KINDS: Final[dict[str, object]] = {**REFUSALS, **EDITS}


def run(kind: str, seed: int) -> Tested:
    """Plants one failure; returns what came of it, and how many whole hours or files were accused."""
    with drilled_table(f"{kind}/{seed}") as drilled:
        if kind in EDITS:
            return edited(drilled, EDITS[kind])
        return refused(drilled, REFUSALS[kind])
