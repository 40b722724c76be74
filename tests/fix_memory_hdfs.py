"""HDFS in memory: its rules for names, and calls that fail or whose responses are lost."""

from collections.abc import Callable
from dataclasses import dataclass, field

from headrace.warehouse.hdfs.client import FileStatus, HdfsClient
from headrace.warehouse.hdfs.errors import HdfsExistsError, HdfsMissingError


@dataclass
class MemoryHdfs(HdfsClient):
    """HDFS's rules for names, without HDFS. Each change calls `before` and `after` with its name."""

    files: dict[str, bytes] = field(default_factory=dict)
    before: Callable[[str], None] = lambda _: None
    after: Callable[[str], None] = lambda _: None
    time_ms: int = 1 << 62
    """The NameNode's time: later than any clock of a test."""

    def __post_init__(self) -> None:
        self.dirs: set[str] = set()

    def entries(self, path: str) -> list[FileStatus]:
        prefix = path.rstrip("/") + "/"
        below = {name[len(prefix) :] for name in (*self.files, *self.dirs) if name.startswith(prefix)}
        names = sorted({name.split("/")[0] for name in below})
        found = [(name, self.files.get(f"{prefix}{name}")) for name in names]
        return [FileStatus(name, data is None, len(data or b""), 0) for name, data in found]

    def status(self, path: str) -> FileStatus | None:
        return FileStatus(path, False, len(self.files[path]), 0) if path in self.files else None

    def read(self, path: str, *, offset: int = 0, length: int | None = None) -> bytes:
        if path not in self.files:
            raise HdfsMissingError(path)
        end = None if length is None else offset + length
        return self.files[path][offset:end]

    def write(self, path: str, data: bytes, *, overwrite: bool = False) -> None:
        self.before("write")
        if path in self.files and not overwrite:
            raise HdfsExistsError(path)
        self.files[path] = data
        self.makedirs(path.rsplit("/", 1)[0])

    def makedirs(self, path: str) -> None:
        while path:
            self.dirs.add(path)
            path = path.rpartition("/")[0]

    def now_ms(self, scratch: str) -> int:
        return self.time_ms

    def rename(self, source: str, target: str) -> bool:
        self.before("rename")
        if target in self.files or target in self.dirs:
            return False
        if source in self.dirs:
            self._rename_below(source, target)
        elif source in self.files:
            self.files[target] = self.files.pop(source)
        else:
            return False
        self.after("rename")
        return True

    def _rename_below(self, source: str, target: str) -> None:
        def renamed(name: str) -> str:
            return target + name[len(source) :] if f"{name}/".startswith(f"{source}/") else name

        self.files = {renamed(name): data for name, data in self.files.items()}
        self.dirs = {renamed(name) for name in self.dirs}

    def delete_empty(self, path: str) -> bool:
        self.before("delete")
        if self.entries(path):
            return False
        self.dirs.discard(path)
        return True

    def delete(self, path: str) -> bool:
        self.before("delete")
        deleted = [name for name in self.files if name == path or name.startswith(f"{path}/")]
        for name in deleted:
            del self.files[name]
        self.dirs = {name for name in self.dirs if name != path and not name.startswith(f"{path}/")}
        return bool(deleted)
