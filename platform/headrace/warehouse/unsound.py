"""Files of a table that are not as the commit log has them: gone, cut, unreadable, or with other bytes.

Changes that write a file's rows again ask here first: a rewrite of changed bytes would give them a checksum
that fits, and nobody could tell any more.
"""

from headrace.warehouse.change import TopicTable
from headrace.warehouse.checksums import read_checksum
from headrace.warehouse.counting import NotParquetError, count_file
from headrace.warehouse.hdfs.errors import LOST, HdfsDamagedError
from headrace.warehouse.layout import hour_name
from headrace.warehouse.manifest import DataFile, TableState


def unsound_files(table: TopicTable, state: TableState, hour_ms: int) -> list[tuple[DataFile, str]]:
    """Returns the files of an hour that are not as the commit log has them, each with what is wrong.

    Reads all of them.
    """
    found = [(file, problem_of_file(table, file)) for file in state.hours().get(hour_ms, [])]
    return [(file, problem) for file, problem in found if problem]


def refusal_of(table: TopicTable, file: DataFile) -> str:
    """Reads a file, and returns why its rows are not to be written again; "" if they may be."""
    problem, hour = problem_of_file(table, file), hour_name(file.hour_ms)
    if not problem:
        return ""
    return (
        f"{hour}: {file.path} {problem}, so the hour stays as it is; `headrace audit repair "
        f"{table.topic} --hour {hour}` brings the file's rows again"
    )


def problem_of_file(table: TopicTable, file: DataFile) -> str:
    """Reads a file, and returns what is wrong with it; "" if nothing is. Raises `HdfsError`."""
    status = table.hdfs.status(file.path)
    if status is None:
        return "is missing"
    if status.size_bytes != file.size_bytes:
        return f"has {status.size_bytes} bytes, not {file.size_bytes}"
    try:
        rows = count_file(table.hdfs, file.path, file.size_bytes).rows
        if rows != file.rows:
            return f"has {rows} rows, not {file.rows}"
        if file.checksum and read_checksum(table.hdfs, file.path, file.size_bytes) != file.checksum:
            return "has other bytes than when it was written"
    except NotParquetError as error:
        return str(error)
    except HdfsDamagedError:
        return f"can't be read: {LOST}"
    return ""
