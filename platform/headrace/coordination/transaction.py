"""Several writes to ZooKeeper that happen all or not at all."""

from collections.abc import Callable
from typing import Any, Self

from kazoo import exceptions as kz

from headrace.coordination.nodes import translate


class Transaction:
    """Writes collected for one atomic `commit()`.

    `begin` makes the library's transaction; `call` runs a function, and repeats it after a lost connection.
    """

    def __init__(self, begin: Callable[[], Any], call: Callable[..., Any]) -> None:
        self._begin = begin
        self._call = call
        self._steps: list[tuple[str, str, Callable[[Any], None]]] = []

    def create(self, path: str, data: bytes = b"", *, ephemeral: bool = False) -> Self:
        self._steps.append(("create", path, lambda t: t.create(path, data, ephemeral=ephemeral)))
        return self

    def check(self, path: str, *, version: int = -1) -> Self:
        """Lets the whole transaction fail unless the node exists, in this version (-1: any)."""
        self._steps.append(("check", path, lambda t: t.check(path, version)))
        return self

    def set(self, path: str, data: bytes, *, version: int = -1) -> Self:
        self._steps.append(("set", path, lambda t: t.set_data(path, data, version=version)))
        return self

    def delete(self, path: str, *, version: int = -1) -> Self:
        self._steps.append(("delete", path, lambda t: t.delete(path, version=version)))
        return self

    def commit(self) -> None:
        """Makes all the writes. Raises the error of the first one that failed; then none was made."""

        def run() -> list[Any]:
            transaction = self._begin()
            for _, _, step in self._steps:
                step(transaction)
            return list(transaction.commit())

        for (verb, path, _), result in zip(self._steps, self._call(run), strict=True):
            if isinstance(result, Exception) and not isinstance(result, kz.RolledBackError):
                raise translate(result, f"{path} ({verb})")
