"""A file in HDFS as pyarrow reads files: seekable, over WebHDFS, a range at a time."""

from io import BytesIO
from typing import Final

from headrace.warehouse.hdfs.client import READ_SIZE_MAX_BYTES, HdfsClient

WHOLE_FILE_MAX_BYTES: Final = 4 << 20
TAIL_SIZE_BYTES: Final = 128 << 10


class RemoteFile:
    """A file in HDFS for pyarrow, which reads it in small pieces: they come from a range fetched at once."""

    def __init__(self, hdfs: HdfsClient, path: str, size_bytes: int) -> None:
        self._hdfs = hdfs
        self._path = path
        self._size_bytes = size_bytes
        self._at = 0
        self._held = BytesIO()
        self._held_from = 0
        self.closed = False
        whole = size_bytes <= WHOLE_FILE_MAX_BYTES
        self.fetch(0 if whole else size_bytes - TAIL_SIZE_BYTES, size_bytes)

    def fetch(self, start: int, end: int) -> None:
        """Fetches the bytes `[start, end)`, unless they are held already."""
        if self._holds(start, end):
            return
        pieces = [
            self._hdfs.read(self._path, offset=at, length=min(READ_SIZE_MAX_BYTES, end - at))
            for at in range(start, end, READ_SIZE_MAX_BYTES)
        ]
        self._held, self._held_from = BytesIO(b"".join(pieces)), start

    def _holds(self, start: int, end: int) -> bool:
        return self._held_from <= start and end <= self._held_from + len(self._held.getbuffer())

    def read(self, size: int = -1) -> bytes:
        end = self._size_bytes if size < 0 else min(self._at + size, self._size_bytes)
        self.fetch(self._at, end)
        self._held.seek(self._at - self._held_from)
        data = self._held.read(end - self._at)
        self._at += len(data)
        return data

    def seek(self, offset: int, whence: int = 0) -> int:
        base = {0: 0, 1: self._at, 2: self._size_bytes}[whence]
        self._at = base + offset
        return self._at

    def tell(self) -> int:
        return self._at

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def writable(self) -> bool:
        return False

    def flush(self) -> None:
        pass

    def close(self) -> None:
        self.closed = True
