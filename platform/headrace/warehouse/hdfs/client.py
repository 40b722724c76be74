"""A client of WebHDFS for the warehouse's files and directories, on any HDFS.

Owns the only use of the library `hdfs` (and so of requests) in headrace, waiting until HDFS is available, and
the outcome of a repeated call whose first response was lost. Knows no path of the warehouse.
"""

import getpass
import time
from collections.abc import Callable, Iterable
from typing import Any, Final, NamedTuple, Self, TypeVar
from urllib.parse import quote, urlsplit

import requests
from hdfs import InsecureClient
from hdfs.util import HdfsError as LibraryError
from urllib3.exceptions import HTTPError

from headrace.warehouse.hdfs.answers import BoundedAnswers
from headrace.warehouse.hdfs.errors import (
    DAMAGED,
    HdfsDamagedError,
    HdfsError,
    HdfsExistsError,
    HdfsFullError,
    HdfsMissingError,
    HdfsNoTargetError,
    HdfsNotEmptyError,
    HdfsUnreachableError,
    explain,
)

REQUEST_TIMEOUT_S: Final = 30.0
PATIENCE_S: Final = 30.0
READ_SIZE_MAX_BYTES: Final = 64 << 20
LINE_MAX_CHARS: Final = 500
DEPTH_MAX: Final = 100
"""Of directories that are walked through."""
_SHAPELESS: Final = (ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError)
"""What reading an answer raises that has another shape."""
_PAUSE_MAX_S: Final = 2.0
_STATE_QUERY: Final = "/jmx?qry=Hadoop:service=NameNode,name=FSNamesystemState"

_NO_DATANODE: Final = "Failed to find datanode"
_NO_REPLICA: Final = "nodes contain this block"
_BLOCK_SIZE_BYTES: Final = 128 << 20
"""Hadoop's default. The NameNode chooses only DataNodes with room for a whole block."""

_T = TypeVar("_T")


class FileStatus(NamedTuple):
    """A file or directory."""

    name: str
    is_dir: bool
    size_bytes: int
    modified_ms: int


class HdfsClient:
    """A client of one HDFS.

    Every call raises a subclass of `HdfsError`. It retries a transient problem (a NameNode that restarts or
    is in safe mode) for up to `patience_s` before it raises.
    """

    def __init__(
        self,
        url: str,
        *,
        user: str | None = None,
        patience_s: float = PATIENCE_S,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        session = requests.Session()
        # Requests to a NameNode must not go through a proxy from the environment.
        session.trust_env = False
        for scheme in ("http://", "https://"):
            session.mount(scheme, BoundedAnswers())
        self.url = url.rstrip("/")
        self.user = user or getpass.getuser()
        self._session = session
        self._client = InsecureClient(self.url, user=self.user, timeout=REQUEST_TIMEOUT_S, session=session)
        self._patience_s = patience_s
        self._clock = clock
        self._sleep = sleep

    def close(self) -> None:
        self._session.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def problem(self) -> str | None:
        """Returns why this HDFS can't take writes now, in one line; None if it can. Does not wait."""
        return self._state()[0]

    def _state(self) -> tuple[str | None, int]:
        """The problem, if any, and how many bytes are free as far as the NameNode knows."""
        try:
            response = self._session.get(self.url + _STATE_QUERY, timeout=5)
            state = response.json()["beans"][0]
            free_bytes, total_bytes = int(state["CapacityRemaining"]), int(state["CapacityTotal"])
            live, is_operational = int(state["NumLiveDataNodes"]), state["FSState"] == "Operational"
        except (requests.RequestException, *_SHAPELESS) as error:
            return f"the NameNode at {self.url} doesn't answer: {type(error).__name__}", 0
        if not is_operational:
            return f"the NameNode at {self.url} is in safe mode", free_bytes
        if live < 1:
            return f"no DataNode is connected to the NameNode at {self.url}", free_bytes
        if total_bytes < 1:
            cause = "it has just started, or all of its disk is reserved"
            return f"the DataNode of the NameNode at {self.url} offers no room at all: {cause}", free_bytes
        return None, free_bytes

    def entries(self, path: str) -> list[FileStatus]:
        """Returns the contents of a directory, by name; nothing if there is no such directory."""

        def listed() -> list[FileStatus]:
            found = self._client.list(path, status=True)
            return sorted(_file_status(_entry_name(name), status) for name, status in found)

        try:
            return self._call(f"list {path}", listed)
        except HdfsMissingError:
            return []

    def walk(self, path: str) -> list[tuple[str, FileStatus]]:
        """Returns every file below `path`, with its full path."""
        files: list[tuple[str, FileStatus]] = []
        if path.count("/") > DEPTH_MAX:
            raise HdfsError(f"HDFS at {self.url}: {path[:200]}… nests deeper than {DEPTH_MAX} directories")
        for entry in self.entries(path):
            full = f"{path.rstrip('/')}/{entry.name}"
            files.extend(self.walk(full) if entry.is_dir else [(full, entry)])
        return files

    def usage(self, path: str) -> tuple[int, int]:
        """Returns the number of files below `path` and their bytes; zeros if there is no such path."""

        def summed() -> tuple[int, int]:
            found = self._client.content(path)
            return int(found["fileCount"]), int(found["length"])

        try:
            return self._call(f"sum up {path}", summed)
        except HdfsMissingError:
            return 0, 0

    def status(self, path: str) -> FileStatus | None:
        """Returns the file or directory itself, or None."""

        name = path.rsplit("/", 1)[-1]
        try:
            return self._call(f"look at {path}", lambda: _file_status(name, self._client.status(path)))
        except HdfsMissingError:
            return None

    def read(self, path: str, *, offset: int = 0, length: int | None = None) -> bytes:
        """Returns the file's bytes `[offset, offset + length)`, at most `READ_SIZE_MAX_BYTES` of them.

        Raises `HdfsDamagedError` if HDFS has lost some of them.
        """

        def read() -> bytes:
            data = bytearray()
            with self._client.read(path, offset=offset, length=length) as reader:
                try:
                    # Only the read that finds the end raises an error if that came too early.
                    while piece := reader.read(READ_SIZE_MAX_BYTES + 1 - len(data)):
                        data += piece
                except (requests.RequestException, HTTPError) as error:
                    # A DataNode that finds a block rotten ends its answer, as one does that is killed.
                    if self._has_rotten_block(path):
                        where = f"HDFS at {self.url} (as {self.user})"
                        raise HdfsDamagedError(f"{where}: read {path}: {DAMAGED}") from error
                    raise
            if len(data) > READ_SIZE_MAX_BYTES:
                raise HdfsError(
                    f"read {path}: over the limit of {READ_SIZE_MAX_BYTES} bytes; read it in parts"
                )
            if length is not None and len(data) > length:
                raise HdfsError(
                    f"HDFS at {self.url}: read {path}: the answer has {len(data)} bytes instead of {length}"
                )
            return bytes(data)

        return self._call(f"read {path}", read)

    def _has_rotten_block(self, path: str) -> bool:
        """Whether the NameNode knows that all replicas of one of the file's blocks are rotten."""
        try:
            response = self._session.get(
                f"{self.url}/webhdfs/v1{quote(path)}",
                params={"op": "GET_BLOCK_LOCATIONS"},
                timeout=REQUEST_TIMEOUT_S,
            )
            blocks = response.json()["LocatedBlocks"]["locatedBlocks"]
            return any(each["isCorrupt"] is True for each in blocks)
        except (requests.RequestException, *_SHAPELESS):
            return False

    def write(self, path: str, data: bytes, *, overwrite: bool = False) -> None:
        """Writes a whole file, and makes its directories.

        Raises `HdfsExistsError` if the file exists, unless `overwrite`.
        """
        self._call(f"write {path}", lambda: self._client.write(path, data, overwrite=overwrite))

    def write_stream(self, path: str, pieces: Iterable[bytes]) -> None:
        """Writes a new file of any size, and makes its directories. Not repeated: the pieces come once."""
        try:
            with self._client.write(path, overwrite=True) as writer:
                for piece in pieces:
                    writer.write(piece)
        except (LibraryError, requests.RequestException) as error:
            raise self._explained(error, f"write {path}") from error

    def makedirs(self, path: str) -> None:
        self._call(f"make {path}", lambda: self._client.makedirs(path))

    def now_ms(self, scratch: str) -> int:
        """Returns the NameNode's time. Makes a directory `scratch`, which must not exist, and deletes it."""
        self.makedirs(scratch)
        made = self.status(scratch)
        self.delete_empty(scratch)
        if made is None:
            raise HdfsMissingError(f"HDFS at {self.url}: {scratch}, which was just made, is gone; repeat")
        return made.modified_ms

    def rename(self, source: str, target: str) -> bool:
        """Renames `source` to `target`. Returns False if `target` exists or `source` does not.

        This is the one atomic test-and-set of HDFS. After False the caller must check what `target` is: a
        first try, whose response was lost, may have succeeded.
        """

        def rename() -> bool:
            try:
                self._client.rename(source, target)
            except LibraryError as error:
                if getattr(error, "exception", None) is None:
                    # The library's own error: the NameNode returned `false`.
                    return False
                raise
            return True

        try:
            return self._call(f"rename {source} to {target}", rename)
        except (HdfsExistsError, HdfsMissingError):
            return False

    def delete(self, path: str) -> bool:
        """Deletes a file, or a directory with its contents. Returns False if there was none."""
        return bool(self._call(f"delete {path}", lambda: self._client.delete(path, recursive=True)))

    def delete_empty(self, path: str) -> bool:
        """Deletes a file or an empty directory. Returns False if there was none, or it is not empty."""
        try:
            return bool(self._call(f"delete {path}", lambda: self._client.delete(path, recursive=False)))
        except HdfsNotEmptyError:
            return False

    def _call(self, what: str, call: Callable[[], _T]) -> _T:
        deadline = self._clock() + self._patience_s
        pause_s = 0.1
        while True:
            try:
                return call()
            except HdfsError:
                raise
            except (LibraryError, requests.RequestException, HTTPError) as error:
                problem = self._explained(error, what)
            except _SHAPELESS as error:
                cause = f"{type(error).__name__}: {error}"[:200]
                raise HdfsError(
                    f"HDFS at {self.url} (as {self.user}): {what}: the answer is not one of WebHDFS "
                    f"({cause}); check the address"
                ) from error
            if not problem.retriable or self._clock() + pause_s > deadline:
                raise problem
            self._sleep(pause_s)
            pause_s = min(pause_s * 2, _PAUSE_MAX_S)

    def _explained(self, error: Exception, what: str) -> HdfsError:
        what = f"HDFS at {self.url} (as {self.user}): {what}"
        if isinstance(error, LibraryError):
            text = f"{getattr(error, 'exception', None) or ''} {error}"
            if _NO_DATANODE in text:
                problem, free_bytes = self._state()
                if problem is not None:
                    return HdfsUnreachableError(f"{what}: {problem}; start it, then repeat")
                if free_bytes >= _BLOCK_SIZE_BYTES:
                    # A DataNode that has just connected reports its room only with its first heartbeat.
                    return HdfsNoTargetError(
                        f"{what}: no DataNode takes a block, although {free_bytes} bytes are free; repeat"
                    )
                return HdfsFullError(
                    f"{what}: no DataNode has room for another block; add space, then repeat"
                )
            if _NO_REPLICA in text:
                problem = self._state()[0]
                if problem is not None:
                    return HdfsUnreachableError(f"{what}: {problem}; start it, then repeat")
                return HdfsDamagedError(f"{what}: {DAMAGED}")
            return explain(text, what) or HdfsError(f"{what}: {_first_line(error)}")
        if isinstance(error, HTTPError):
            return HdfsUnreachableError(f"{what}: the answer ended too early; start HDFS, then repeat")
        if isinstance(error, requests.ConnectionError | requests.Timeout):
            if (datanode := self._datanode_of(error)) is not None:
                return HdfsUnreachableError(
                    f"{what}: the DataNode at {datanode} doesn't answer; start it, then repeat"
                )
            return HdfsUnreachableError(f"{what}: no response; start HDFS or fix the address, then repeat")
        return HdfsError(f"{what}: {_first_line(error)}")

    def _datanode_of(self, error: requests.RequestException) -> str | None:
        """The DataNode that the NameNode redirected a failed request to; None if the NameNode failed."""
        failed = urlsplit(getattr(error.request, "url", None) or self.url).netloc
        return None if failed == urlsplit(self.url).netloc else failed


def _first_line(error: Exception) -> str:
    return "".join(str(error).splitlines()[:1])[:LINE_MAX_CHARS] or type(error).__name__


def _entry_name(name: str) -> str:
    """Returns the name of an entry of a listing. Raises `ValueError` for one that leads elsewhere."""
    if not isinstance(name, str) or name in ("", ".", "..") or "/" in name:
        raise ValueError(f"{str(name)[:80]!r} is no name of a file")
    return name


def _file_status(name: str, status: dict[str, Any]) -> FileStatus:
    return FileStatus(
        name, status["type"] == "DIRECTORY", int(status["length"]), int(status["modificationTime"])
    )
