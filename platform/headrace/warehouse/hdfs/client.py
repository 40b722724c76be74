"""WebHDFS: the metadata operations of the warehouse, on any HDFS, over the PyPI package `hdfs`.

Owns: the only use of `hdfs` (and so of requests) in headrace, waiting for HDFS to be there, and what a
repeated call means when an answer was lost. Knows no path of the warehouse.
"""

import getpass
import time
from collections.abc import Callable
from typing import Any, Final, NamedTuple, Self, TypeVar
from urllib.parse import urlsplit

import requests
from hdfs import InsecureClient
from hdfs.util import HdfsError as LibraryError

from headrace.warehouse.hdfs.errors import (
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
_PAUSE_MAX_S: Final = 2.0
_STATE_QUERY: Final = "/jmx?qry=Hadoop:service=NameNode,name=FSNamesystemState"

_NOWHERE_TO_WRITE: Final = "Failed to find datanode"
_BLOCK_SIZE_BYTES: Final = 128 << 20
"""Hadoop's default. The NameNode gives a block to a DataNode only where a whole one would fit."""

_T = TypeVar("_T")


class FileStatus(NamedTuple):
    """One file or directory."""

    name: str
    is_dir: bool
    size_bytes: int
    modified_ms: int


class HdfsClient:
    """One HDFS, asked over WebHDFS.

    Every call raises a child of `HdfsError`. Trouble that passes by itself (NameNode restarting, safe
    mode) is waited for up to `patience_s` seconds before it is raised.
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
        # A proxy from the environment must not come between us and a NameNode.
        session.trust_env = False
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

    def trouble(self) -> str | None:
        """Why this HDFS can't take writes now, in one line; None if it can. Doesn't wait."""
        return self._state()[0]

    def _state(self) -> tuple[str | None, int]:
        """The trouble, if any, and how many bytes are free as far as the NameNode knows."""
        try:
            answer = self._session.get(self.url + _STATE_QUERY, timeout=5)
            state = answer.json()["beans"][0]
        except (requests.RequestException, ValueError, KeyError, IndexError) as error:
            return f"the NameNode at {self.url} doesn't answer: {type(error).__name__}", 0
        free_bytes = int(state["CapacityRemaining"])
        if state["FSState"] != "Operational":
            return f"the NameNode at {self.url} is in safe mode", free_bytes
        if state["NumLiveDataNodes"] < 1:
            return f"no DataNode is connected to the NameNode at {self.url}", free_bytes
        if state["CapacityTotal"] < 1:
            reason = "no room at all: it has just started, or all of its disk is reserved"
            return f"the DataNode of the NameNode at {self.url} offers {reason}", free_bytes
        return None, free_bytes

    def wait_ready(self, timeout_s: float) -> None:
        """Wait until writes are taken. Raises `HdfsUnreachableError` with the reason after `timeout_s`."""
        deadline = self._clock() + timeout_s
        while (reason := self.trouble()) is not None:
            if self._clock() >= deadline:
                raise HdfsUnreachableError(f"{reason} (waited {timeout_s:.0f} s)")
            self._sleep(0.2)

    def entries(self, path: str) -> list[FileStatus]:
        """What is in the directory, by name; empty if it isn't there."""
        try:
            found = self._call(f"list {path}", lambda: self._client.list(path, status=True))
        except HdfsMissingError:
            return []
        return sorted(_entry(name, status) for name, status in found)

    def walk(self, path: str) -> list[tuple[str, FileStatus]]:
        """Every file below `path`, each with its full path."""
        files: list[tuple[str, FileStatus]] = []
        for entry in self.entries(path):
            full = f"{path.rstrip('/')}/{entry.name}"
            files.extend(self.walk(full) if entry.is_dir else [(full, entry)])
        return files

    def usage(self, path: str) -> tuple[int, int]:
        """How many files there are below `path`, and how many bytes they hold; nothing if it isn't there."""
        try:
            found = self._call(f"sum up {path}", lambda: self._client.content(path))
        except HdfsMissingError:
            return 0, 0
        return int(found["fileCount"]), int(found["length"])

    def status(self, path: str) -> FileStatus | None:
        """The file or directory itself, or None if it isn't there."""
        found = self._call(f"look at {path}", lambda: self._client.status(path, strict=False))
        return None if found is None else _entry(path.rsplit("/", 1)[-1], found)

    def read(self, path: str, *, offset: int = 0, length: int | None = None) -> bytes:
        """The file's bytes `[offset, offset + length)`, at most `READ_SIZE_MAX_BYTES` of them."""

        def read() -> bytes:
            with self._client.read(path, offset=offset, length=length) as reader:
                data = reader.read(READ_SIZE_MAX_BYTES + 1)
            if len(data) > READ_SIZE_MAX_BYTES:
                raise HdfsError(
                    f"read {path}: it is over the limit of {READ_SIZE_MAX_BYTES} bytes; read it in parts"
                )
            return bytes(data)

        return self._call(f"read {path}", read)

    def write(self, path: str, data: bytes, *, overwrite: bool = False) -> None:
        """Write a whole file; its directories are made.

        `HdfsExistsError` if it is there and may not be overwritten.
        """
        self._call(f"write {path}", lambda: self._client.write(path, data, overwrite=overwrite))

    def makedirs(self, path: str) -> None:
        self._call(f"make {path}", lambda: self._client.makedirs(path))

    def rename(self, source: str, target: str) -> bool:
        """Give `source` the name `target`. False if `target` is taken or `source` isn't there: then
        nothing changed.

        The one atomic test-and-set that HDFS has. Where the answer was lost the caller looks who holds the
        name.
        """

        def rename() -> bool:
            try:
                self._client.rename(source, target)
            except LibraryError as error:
                if getattr(error, "exception", None) is None:
                    # The library's own error: the NameNode said `false`.
                    return False
                raise
            return True

        try:
            return self._call(f"rename {source} to {target}", rename)
        except (HdfsExistsError, HdfsMissingError):
            return False

    def delete(self, path: str) -> bool:
        """Delete a file, or a directory with all it holds. False if it wasn't there."""
        return bool(self._call(f"delete {path}", lambda: self._client.delete(path, recursive=True)))

    def delete_empty(self, path: str) -> bool:
        """Delete a file or an empty directory. False if it wasn't there or isn't empty."""
        try:
            return bool(self._call(f"delete {path}", lambda: self._client.delete(path, recursive=False)))
        except HdfsNotEmptyError:
            return False

    def chmod(self, path: str, mode: int) -> None:
        self._call(f"change the mode of {path}", lambda: self._client.set_permission(path, f"{mode:o}"))

    def _call(self, what: str, call: Callable[[], _T]) -> _T:
        deadline = self._clock() + self._patience_s
        pause_s = 0.1
        while True:
            try:
                return call()
            except HdfsError:
                raise
            except (LibraryError, requests.RequestException) as error:
                named = self._named(error, what)
            if not named.retriable or self._clock() + pause_s > deadline:
                raise named
            self._sleep(pause_s)
            pause_s = min(pause_s * 2, _PAUSE_MAX_S)

    def _named(self, error: Exception, what: str) -> HdfsError:
        what = f"HDFS at {self.url} (as {self.user}): {what}"
        if isinstance(error, LibraryError):
            text = f"{getattr(error, 'exception', None) or ''} {error}"
            if _NOWHERE_TO_WRITE in text:
                reason, free_bytes = self._state()
                if reason is not None:
                    return HdfsUnreachableError(f"{what}: {reason}; start it, then repeat")
                if free_bytes >= _BLOCK_SIZE_BYTES:
                    # A DataNode that has just connected: it reports its room with its first heartbeat.
                    return HdfsNoTargetError(
                        f"{what}: no DataNode takes a block, although {free_bytes} bytes are free; repeat"
                    )
                return HdfsFullError(
                    f"{what}: no DataNode has room for another block; add space, then repeat"
                )
            return explain(text, what) or HdfsError(f"{what}: {str(error).splitlines()[0]}")
        if isinstance(error, requests.ConnectionError | requests.Timeout):
            if (datanode := self._datanode_of(error)) is not None:
                return HdfsUnreachableError(
                    f"{what}: the DataNode at {datanode} doesn't answer; start it, then repeat"
                )
            return HdfsUnreachableError(f"{what}: no answer; start HDFS or mend the address, then repeat")
        return HdfsError(f"{what}: {error}")

    def _datanode_of(self, error: requests.RequestException) -> str | None:
        """The DataNode that a request was sent on to, where it wasn't the NameNode that failed."""
        asked = urlsplit(getattr(error.request, "url", None) or self.url).netloc
        return None if asked == urlsplit(self.url).netloc else asked


def _entry(name: str, status: dict[str, Any]) -> FileStatus:
    return FileStatus(
        name, status["type"] == "DIRECTORY", int(status["length"]), int(status["modificationTime"])
    )
