"""Files that lie in a table's folders, and that no change of the table has written: somebody put them there.

Readers of the folder read their rows, too. One in the folder of an hour that the table has is a problem of
that hour; any other one is a problem of the table.
"""

from collections.abc import Collection, Mapping

from headrace.audit.topic.said_of_tables import IN_NO_MANIFEST, NO_HOUR_MS, TableProblem
from headrace.warehouse.change import TopicTable
from headrace.warehouse.counting import UNREADABLE, count_file
from headrace.warehouse.manifest import TableState


def files_beside(
    table: TopicTable, state: TableState, present: Mapping[str, int], hours: Collection[int] | None
) -> list[TableProblem]:
    """Returns those of the present files (path → size in bytes) that are in no manifest.

    Their rows are counted in `hours` (starts in ms; None: in all).
    """
    known = state.hours()
    found: list[TableProblem] = []
    for path in sorted(path for path in present if path not in state.files):
        hour_ms = table.paths.hour_of(path)
        text = f"{path} {IN_NO_MANIFEST}"
        if hour_ms is None or hour_ms not in known:
            found.append(TableProblem(NO_HOUR_MS, "", 0, False, text))
            continue
        rows = _rows(table, path, present[path]) if hours is None or hour_ms in hours else 0
        found.append(TableProblem(hour_ms, path, rows, False, text))
    return found


def _rows(table: TopicTable, path: str, size_bytes: int) -> int:
    try:
        return count_file(table.hdfs, path, size_bytes).rows
    except UNREADABLE:
        return 0
