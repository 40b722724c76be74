"""Several writes to ZooKeeper that happen all or not at all."""

from collections.abc import Callable
from typing import Any, Final, Self

from kazoo import exceptions as kz

from headrace.coordination.errors import TooLargeError
from headrace.coordination.nodes import translate

REQUEST_MAX_BYTES: Final = 1024 * 1024 - 1
"""ZooKeeper's `jute.maxbuffer`, unless it was set. A longer request ends the connection, each time that it is
sent: other calls of the session fail, too."""
HEAD_BYTES: Final = 64
STEP_BYTES: Final = 48
"""Of a creation, besides its path and data; other steps have less."""


class Transaction:
    """Writes collected for one atomic `commit()`.

    `begin` makes the library's transaction; `call` runs a function, and repeats it after a lost connection.
    `prefix_bytes`: what the library puts before each path.
    """

    def __init__(self, begin: Callable[[], Any], call: Callable[..., Any], prefix_bytes: int = 0) -> None:
        self._begin = begin
        self._call = call
        self._prefix_bytes = prefix_bytes
        self._size_bytes = HEAD_BYTES
        self._steps: list[tuple[str, str, Callable[[Any], None]]] = []

    def _add(self, verb: str, path: str, data: bytes, step: Callable[[Any], None]) -> Self:
        self._steps.append((verb, path, step))
        self._size_bytes += STEP_BYTES + self._prefix_bytes + len(path.encode()) + len(data)
        return self

    def create(self, path: str, data: bytes = b"", *, ephemeral: bool = False) -> Self:
        return self._add("create", path, data, lambda t: t.create(path, data, ephemeral=ephemeral))

    def check(self, path: str, *, version: int = -1) -> Self:
        """Lets the whole transaction fail unless the node exists, in this version (-1: any)."""
        return self._add("check", path, b"", lambda t: t.check(path, version))

    def set(self, path: str, data: bytes, *, version: int = -1) -> Self:
        return self._add("set", path, data, lambda t: t.set_data(path, data, version=version))

    def delete(self, path: str, *, version: int = -1) -> Self:
        return self._add("delete", path, b"", lambda t: t.delete(path, version=version))

    def check_size(self) -> None:
        """Raises `TooLargeError` for more than ZooKeeper takes in one request."""
        if self._size_bytes > REQUEST_MAX_BYTES:
            raise TooLargeError(
                f"{self._steps[0][1]}: a change of {self._size_bytes} bytes in {len(self._steps)} nodes; "
                f"ZooKeeper takes at most {REQUEST_MAX_BYTES} at once"
            )

    def commit(self) -> None:
        """Makes all the writes. Raises the error of the first one that failed, and `TooLargeError`; then none
        was made."""
        self.check_size()

        def run() -> list[Any]:
            transaction = self._begin()
            for _, _, step in self._steps:
                step(transaction)
            return list(transaction.commit())

        for (verb, path, _), result in zip(self._steps, self._call(run), strict=True):
            if isinstance(result, Exception) and not isinstance(result, kz.RolledBackError):
                raise translate(result, f"{path} ({verb})")
