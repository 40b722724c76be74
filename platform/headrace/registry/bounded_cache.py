"""A cache of the values used last, bounded in bytes. Thread-safe."""

import threading
from collections import OrderedDict
from typing import Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")


class BoundedCache(Generic[K, V]):
    """Holds at most `bytes_max`, as the callers of `put` count them; drops what was used least recently."""

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.bytes_now = 0
        self._entries: OrderedDict[K, tuple[V, int]] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: K) -> V | None:
        with self._lock:
            found = self._entries.get(key)
            if found is None:
                return None
            self._entries.move_to_end(key)
            return found[0]

    def put(self, key: K, value: V, size_bytes: int) -> None:
        with self._lock:
            before = self._entries.pop(key, None)
            if before is not None:
                self.bytes_now -= before[1]
            self._entries[key] = (value, size_bytes)
            self.bytes_now += size_bytes
            while self.bytes_now > self.bytes_max:
                _, (_, dropped) = self._entries.popitem(last=False)
                self.bytes_now -= dropped

    def drop(self, key: K) -> None:
        with self._lock:
            before = self._entries.pop(key, None)
            if before is not None:
                self.bytes_now -= before[1]

    def __contains__(self, key: K) -> bool:
        with self._lock:
            return key in self._entries

    def __len__(self) -> int:
        return len(self._entries)
