"""What a drill does to files of the canary's table, as a careless hand, a program or a disk does it.

Each kind has an hour of its own, so that one load writes a file for each: of the drill's hour, and of those
before it. The truth is written down before the file is touched. The last kind harms nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from headrace.warehouse.hdfs.client import HdfsClient
    from headrace.warehouse.manifest import DataFile

from headrace.audit.findings import LOAD_HOP, Status
from headrace.audit.topic.drills import DrillPlant

Harm = Callable[["HdfsClient", "DataFile", str], None]
"""Harms a file; its last argument is the path that must be named."""


class FileKind(NamedTuple):
    """One kind. `hours_back`: its file's hour, before the drill's own. `is_copy`: not the file itself must be
    named, but one that is put beside it.
    """

    hours_back: int
    statuses: tuple[Status, ...]
    harm: Harm
    is_copy: bool = False


def deleted(hdfs: HdfsClient, file: DataFile, _path: str) -> None:
    """The file is gone."""
    hdfs.delete(file.path)


def cut(hdfs: HdfsClient, file: DataFile, _path: str) -> None:
    """Its second half is gone, and with it the footer."""
    hdfs.write(file.path, hdfs.read(file.path)[: file.size_bytes // 2], overwrite=True)


def altered(hdfs: HdfsClient, file: DataFile, _path: str) -> None:
    """One byte of its first column is another one; size, rows and addresses stay."""
    # Imported here because the names of kinds are known without the libraries of the warehouse.
    import pyarrow as pa
    import pyarrow.parquet as pq

    from headrace.warehouse.decode import ADDRESS_COLUMNS
    from headrace.warehouse.page_sizes import start_of

    data = bytearray(hdfs.read(file.path))
    chunk = pq.ParquetFile(pa.BufferReader(bytes(data))).metadata.row_group(0).column(0)
    assert chunk.path_in_schema not in ADDRESS_COLUMNS, chunk.path_in_schema
    data[start_of(chunk) + chunk.total_compressed_size // 2] ^= 0xFF
    hdfs.write(file.path, bytes(data), overwrite=True)


def copied(hdfs: HdfsClient, file: DataFile, path: str) -> None:
    """A copy lies beside it: who reads the folder reads its rows twice."""
    hdfs.write(path, hdfs.read(file.path))


def left_alone(_hdfs: HdfsClient, _file: DataFile, _path: str) -> None:
    """Nothing is wrong."""


FILE_KINDS: Final[dict[str, FileKind]] = {
    "file deleted in HDFS": FileKind(1, (Status.LOST,), deleted),
    "file cut in HDFS": FileKind(2, (Status.CORRUPT,), cut),
    "file altered in HDFS": FileKind(3, (Status.CORRUPT,), altered),
    "file copied beside in HDFS": FileKind(4, (Status.CORRUPT,), copied, is_copy=True),
    "file left alone in HDFS": FileKind(0, (), left_alone),
}
COPY_PREFIX: Final = "copy-"


def of_file(plant: DrillPlant, kind: FileKind) -> DrillPlant:
    """Returns the truth about a plant whose file is not written yet."""
    return replace(plant, hop=LOAD_HOP, statuses=kind.statuses)


def harm_file(
    hdfs: HdfsClient, kind: FileKind, plant: DrillPlant, file: DataFile, tell: Callable[[DrillPlant], None]
) -> None:
    """Tells the truth about this file, and harms it. Raises `HdfsError`, `OSError`."""
    path = file.path
    if kind.is_copy:
        path = f"{file.path.rpartition('/')[0]}/{COPY_PREFIX}{plant.service}.parquet"
    tell(replace(plant, path=path, record_count=file.rows))
    kind.harm(hdfs, file, path)
