"""Physical plants in a table's own files: Parquet and manifests on a disk, which `verify` must name.

Each plant gets a table of its own, of a few committed loads, in a folder that stands for HDFS. One file of it
is changed as a careless hand, a program or a disk would change it; the truth is which path must be named.
"""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from drill.drill_tables import (
    ADDRESSES_PER_ROW,
    HOUR,
    Drilled,
    Table,
    Tested,
    drilled_table,
    encoded,
    fill,
    table_of,
)
from drill.drill_truth import Outcome

Plant = Callable[[Table], Path]
"""Changes one thing; returns the path that must be named. It is chosen before the change."""


def _rewritten(change: Callable[[pa.Table, random.Random], pa.Table]) -> Plant:
    def plant(table: Table) -> Path:
        file = table.any_file()
        file.write_bytes(encoded(change(pq.read_table(file), table.rng)))
        return file

    return plant


def _at(table: pa.Table, rng: random.Random) -> int:
    return rng.randrange(table.num_rows)


def rows_dropped(table: pa.Table, rng: random.Random) -> pa.Table:
    at = _at(table, rng)
    return pa.concat_tables([table.slice(0, at), table.slice(at + 1)])


def rows_doubled(table: pa.Table, rng: random.Random) -> pa.Table:
    return pa.concat_tables([table, table.slice(_at(table, rng), 1)])


def row_replaced(table: pa.Table, rng: random.Random) -> pa.Table:
    """One row gives its place to a copy of another: the number of rows stays."""
    return pa.concat_tables([table.slice(1), table.slice(1 + rng.randrange(table.num_rows - 1), 1)])


def addresses_moved(table: pa.Table, rng: random.Random) -> pa.Table:
    """The rows claim addresses that the load did not consume: their number and size stay."""
    column = table.column_names.index("_offset")
    moved = pa.array([each + 10**7 for each in table["_offset"].to_pylist()], pa.int64())
    return table.set_column(column, table.schema.field(column), moved)


def value_changed(table: Table) -> Path:
    """One byte of a value: the size and the number of rows stay."""
    file = table.any_file()
    data = bytearray(file.read_bytes())
    at = data.index(b"/", 8) + 1
    data[at] = data[at] ^ 1
    file.write_bytes(data)
    return file


def file_deleted(table: Table) -> Path:
    file = table.any_file()
    file.unlink()
    return file


def file_emptied(table: Table) -> Path:
    file = table.any_file()
    file.write_bytes(b"")
    return file


def file_cut(table: Table) -> Path:
    file = table.any_file()
    data = file.read_bytes()
    file.write_bytes(data[: table.rng.randrange(1, len(data))])
    return file


def file_zeroed(table: Table) -> Path:
    file = table.any_file()
    file.write_bytes(bytes(file.stat().st_size))
    return file


def footer_damaged(table: Table) -> Path:
    file = table.any_file()
    data = file.read_bytes()
    file.write_bytes(data[:-8] + b"\xff" * 4 + data[-4:])
    return file


def file_copied(table: Table) -> Path:
    file = table.any_file()
    beside = file.with_name(f"copy-of-{file.name}")
    shutil.copyfile(file, beside)
    return beside


def file_moved(table: Table) -> Path:
    file = table.any_file()
    other = file.parent.with_name("hour=23")
    other.mkdir(exist_ok=True)
    file.rename(other / file.name)
    return file


def files_swapped(table: Table) -> Path:
    """Two hours' files change places."""
    first, second = (table.hdfs.at(file.path) for file in table.rng.sample(table.files, 2))
    one, other = first.read_bytes(), second.read_bytes()
    first.write_bytes(other)
    second.write_bytes(one)
    return first


def older_file(table: Table) -> Path:
    """A file of one load is put into the place of another load's of the same hour."""
    first, second = [table.hdfs.at(file.path) for file in table.files if file.hour_ms == HOUR][:2]
    second.write_bytes(first.read_bytes())
    return second


def _edited(change: Callable[[dict[str, Any]], None], *, is_last: bool) -> Plant:
    def plant(table: Table) -> Path:
        file = table.manifest(table.last if is_last else table.rng.randrange(table.last))
        data = json.loads(file.read_text())
        change(data)
        file.write_text(json.dumps(data, indent=1))
        return file

    return plant


def _range_moved(data: dict[str, Any]) -> None:
    data["ranges"][0]["to_address"] += 30 * ADDRESSES_PER_ROW


def _rows_edited(data: dict[str, Any]) -> None:
    data["files"][0]["rows"] -= 1
    data["rows"] -= 1


def manifest_deleted(table: Table) -> Path:
    file = table.manifest(table.rng.randrange(table.last))
    file.unlink()
    return file


def manifest_cut(table: Table) -> Path:
    file = table.manifest(table.rng.randrange(table.last + 1))
    file.write_bytes(file.read_bytes()[:-40])
    return file


def manifest_of_another_table(table: Table) -> Path:
    """A manifest gives its place to that of another table, of the same change."""
    other = Table(table.hdfs, table_of(table.hdfs, "other").log, table.rng)
    fill(other)
    sequence = table.rng.randrange(table.last + 1)
    shutil.copyfile(other.manifest(sequence), table.manifest(sequence))
    return table.manifest(sequence)


KINDS: Final[dict[str, Plant]] = {
    "Parquet: a row dropped": _rewritten(rows_dropped),
    "Parquet: a row doubled": _rewritten(rows_doubled),
    "Parquet: a row replaced by another": _rewritten(row_replaced),
    "Parquet: rows at other addresses": _rewritten(addresses_moved),
    "Parquet: a value changed": value_changed,
    "Parquet: a file deleted": file_deleted,
    "Parquet: a file emptied": file_emptied,
    "Parquet: a file cut": file_cut,
    "Parquet: a file zeroed": file_zeroed,
    "Parquet: a footer damaged": footer_damaged,
    "Parquet: a file copied beside": file_copied,
    "Parquet: a file moved to another hour": file_moved,
    "Parquet: two files swapped": files_swapped,
    "Parquet: an older load's file": older_file,
    "manifest: range moved": _edited(_range_moved, is_last=False),
    "manifest: range of the last one moved": _edited(_range_moved, is_last=True),
    "manifest: rows edited": _edited(_rows_edited, is_last=False),
    "manifest: rows of the last one edited": _edited(_rows_edited, is_last=True),
    "manifest: deleted": manifest_deleted,
    "manifest: cut": manifest_cut,
    "manifest: another table's": manifest_of_another_table,
}

KNOWN_MISSES: Final[dict[str, str]] = {}
"""Kinds that `verify` does not see yet, and why. They make the drill fail as any other."""


def run(kind: str, seed: int) -> Tested:
    """Plants one failure; returns what `verify` made of it, and how many files it accused that are whole."""
    with drilled_table(f"{kind}/{seed}") as drilled:
        before = drilled.contents()
        return judged(drilled, KINDS[kind](drilled.table), before)


def judged(drilled: Drilled, named: Path, before: dict[str, bytes]) -> Tested:
    """Returns what `verify` makes of a table, of which this file must be named."""
    after = drilled.contents()
    whole = {path for path, data in before.items() if after.get(path) == data}
    found, path = drilled.problems(), drilled.shown(named)
    # A manifest that says something else of a file accuses both: which of them is wrong, nobody can tell.
    others = [each for each in found if path not in each and named.suffix != ".json"]
    false = sum(each in problem for problem in others for each in whole if each.endswith(".parquet"))
    if not found:
        return Tested(Outcome.MISSED, false)
    is_manifest = named.suffix == ".json" and named.stem.isdigit()
    words = [path, f"change {int(named.stem)}:"] if is_manifest else [path]
    is_named = any(word in problem for problem in found for word in words)
    return Tested(Outcome.NAMED if is_named else Outcome.WRONG_PLACE, false, (path, *found))
