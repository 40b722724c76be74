"""The files of an HDFS in a backup: by WebHDFS from one that runs, else the files of the stopped one.

Owns how a tree that changes meanwhile is copied whole: rounds, until one has seen no change of any commit
log. The paths below `tree/` are HDFS's own; below `files/` they are those of the unit's data directory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final

from headrace.agent.configuration import HdfsConfiguration
from headrace.backup.errors import DamagedBackupError
from headrace.backup.manifest import checked_path
from headrace.backup.units import HomeUnit
from headrace.backup.writer import SourceChangedError, Writer
from headrace.warehouse.hdfs.client import FileStatus, HdfsClient
from headrace.warehouse.hdfs.errors import HdfsMissingError

TREE: Final = "tree"
FILES: Final = "files"
ROUNDS_MAX: Final = 10
READ_BYTES: Final = 8 << 20
# Of a stopped HDFS: the rest is written at each start.
_KEPT_FOLDERS: Final = ("name", "data")
_LOG_PARTS: Final = frozenset({"_log", "_sealed"})
_STAGING: Final = "_staging"


def url_of(unit: HomeUnit) -> str:
    assert isinstance(unit.configuration, HdfsConfiguration)
    return f"http://{unit.configuration.host}:{unit.configuration.http_port}"


def copy(
    unit: HomeUnit, writer: Writer, *, with_data: bool, observe: Callable[[str], None]
) -> tuple[dict[str, Any], list[str]]:
    """Copies the tree; without `with_data` only commit logs and seals. Returns facts and problems.

    Raises `HdfsError`, `UnitUnreachableError`, `OSError`.
    """
    if not unit.is_asked():
        return _copy_files(unit, writer), []
    with HdfsClient(url_of(unit)) as hdfs:
        problems = _copy_tree(hdfs, unit.name, writer, with_data=with_data)
    prefix = f"{unit.name}/{TREE}/"
    mine = [entry for path, entry in writer.files.items() if path.startswith(prefix)]
    observe(f"{unit.name}  {len(mine):,} files, {sum(each.size_bytes for each in mine):,} bytes")
    return {"form": TREE, "with_data": with_data, "files": len(mine)}, problems


def size_of(unit: HomeUnit) -> int:
    """Returns the bytes of all files, earlier backups not considered."""
    if unit.pid is None:
        return sum(path.stat().st_size for path in _files_of(unit))
    with HdfsClient(url_of(unit)) as hdfs:
        return hdfs.usage("/")[1]


def _files_of(unit: HomeUnit) -> list[Path]:
    found = [path for name in _KEPT_FOLDERS for path in (unit.directory / name).rglob("*")]
    return sorted(
        path for path in found if path.is_file() and not path.is_symlink() and path.name != "in_use.lock"
    )


def _copy_files(unit: HomeUnit, writer: Writer) -> dict[str, Any]:
    for path in _files_of(unit):
        writer.copy(f"{unit.name}/{FILES}/{path.relative_to(unit.directory)}", path)
    return {"form": FILES, "with_data": True}


def _copy_tree(hdfs: HdfsClient, name: str, writer: Writer, *, with_data: bool) -> list[str]:
    changed: list[str] = []
    for _ in range(ROUNDS_MAX):
        listed = {path: status for path, status in hdfs.walk("/") if with_data or _is_log(path)}
        changed = []
        # Commit logs first: what they name is there before they name it.
        for path in sorted(listed, key=lambda path: (not _is_log(path), path)):
            if not _copy_one(hdfs, name, path, listed[path], writer):
                changed.append(path)
        for path in [path for path in writer.files if path.startswith(f"{name}/{TREE}/")]:
            if path.removeprefix(f"{name}/{TREE}") not in listed:
                writer.forget(path)
        walked = dict(hdfs.walk("/"))
        if _logs_of(walked) == _logs_of(listed):
            new = walked.keys() - listed.keys()
            changed = [path for path in changed if not _is_staged(path) or _was_moved(path, new)]
            if not changed:
                return []
    last = ", ".join(changed[:3]) or "its commit logs"
    return [f"{name}: HDFS changed during each of {ROUNDS_MAX} rounds, last {last}: repeat"]


def _logs_of(files: Mapping[str, FileStatus]) -> dict[str, FileStatus]:
    return {path: status for path, status in files.items() if _is_log(path)}


def _is_staged(path: str) -> bool:
    return f"/{_STAGING}/" in path


def _was_moved(staged: str, new: Iterable[str]) -> bool:
    """Whether a staged file that is gone may be one of these new files: the load that it belongs to was
    committed before the round, and moved its files during it."""
    table = staged.partition(f"{_STAGING}/")[0]
    return any(path.startswith(table) and not _is_staged(path) for path in new)


def _is_log(path: str) -> bool:
    return bool(_LOG_PARTS.intersection(path.split("/")))


def _copy_one(hdfs: HdfsClient, name: str, path: str, status: FileStatus, writer: Writer) -> bool:
    """Returns False if the file is gone, or is being written."""
    target = f"{name}/{TREE}{path}"
    stamp = f"{status.modified_ms}"
    known = writer.files.get(target)
    if known is not None and (known.size_bytes, known.stamp) == (status.size_bytes, stamp):
        return True
    try:
        writer.add(target, partial(_pieces, hdfs, path, status.size_bytes), status.size_bytes, stamp)
    except (HdfsMissingError, SourceChangedError):
        return False
    return True


def _pieces(hdfs: HdfsClient, path: str, size_bytes: int) -> Iterator[bytes]:
    at = 0
    while at < size_bytes:
        piece = hdfs.read(path, offset=at, length=min(READ_BYTES, size_bytes - at))
        if not piece:
            raise SourceChangedError(f"{path} in HDFS ends at {at} bytes, and had {size_bytes} before")
        at += len(piece)
        yield piece


def restore_tree(url: str, folder: Path) -> int:
    """Writes what is below `folder` into an empty HDFS; returns the number of files. Raises `HdfsError`,
    `DamagedBackupError`, `OSError`.
    """
    count = 0
    with HdfsClient(url) as hdfs:
        for path in sorted(path for path in folder.rglob("*") if path.is_file()):
            inside = checked_path(str(path.relative_to(folder)))
            hdfs.write_stream(f"/{inside}", _local_pieces(path))
            status = hdfs.status(f"/{inside}")
            if status is None or status.size_bytes != path.stat().st_size:
                raise DamagedBackupError(f"HDFS did not take {path} as a whole")
            count += 1
    return count


def _local_pieces(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while piece := file.read(READ_BYTES):
            yield piece
