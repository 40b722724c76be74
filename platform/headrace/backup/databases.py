"""SQLite files in a backup: copied by SQLite itself, as one state, while others read and write them."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Final

from headrace.backup.writer import Writer

TIMEOUT_S: Final = 60.0
SCRATCH: Final = "database.tmp"


def copy(path: str, source: Path, writer: Writer) -> str | None:
    """Copies a database; returns what is wrong with it, None if nothing is. Raises `sqlite3.Error`,
    `OSError`.
    """
    scratch = writer.folder / SCRATCH
    for companion in ("", "-wal", "-shm", "-journal"):
        scratch.with_name(scratch.name + companion).unlink(missing_ok=True)
    with (
        closing(sqlite3.connect(f"file:{_quoted(source)}?mode=ro", uri=True, timeout=TIMEOUT_S)) as there,
        closing(sqlite3.connect(scratch)) as here,
    ):
        there.backup(here)  # in one step, of one state: writers are not kept waiting in WAL mode
        # One file alone is the whole database.
        here.execute("PRAGMA journal_mode=DELETE")
        found = here.execute("PRAGMA quick_check(1)").fetchone()
    problem = (
        None if found and found[0] == "ok" else f"{source} is damaged: {found[0] if found else 'unknown'}"
    )
    writer.adopt(path, scratch)
    return problem


def _quoted(path: Path) -> str:
    return path.as_uri().removeprefix("file://")
