"""Reads of many nodes: many requests in flight at once, and many nodes by one request.

The second is ZooKeeper's MultiRead, which servers know since version 3.6 (ZOOKEEPER-3402), and for which the
library has no call. Each request costs the library two turns of its thread, and a process with busy threads
waits for each turn. The bytes are those of `MultiOperationRecord` and `MultiResponse` in ZooKeeper's source.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, TypeVar

from kazoo import exceptions as kz
from kazoo.client import KazooClient
from kazoo.protocol.states import ZnodeStat

from headrace.coordination.events import Fired
from headrace.coordination.nodes import Node, NodeStat, to_stat

T = TypeVar("T")
Asked = TypeVar("Asked")

PIPELINE_DEPTH_MAX: Final = 500
"""Nodes that are asked for, and not answered yet."""
SMALL_PER_REQUEST_MAX: Final = 100
REQUEST_MAX_BYTES: Final = 256 * 1024
"""Of one request's paths: a quarter of what ZooKeeper takes."""
MULTI_READ: Final = 22
GET_DATA: Final = 4
ERROR: Final = -1
_HEADER: Final = struct.Struct("!i?i")  # type of the operation, whether it is the end, error
_INT: Final = struct.Struct("!i")
_STAT: Final = struct.Struct("!qqqqiiiqiiq")


@dataclass(frozen=True, slots=True)
class MultiRead:
    """A request as the library's connection sends it, and reads its response."""

    paths: tuple[str, ...]
    type: int = MULTI_READ

    def serialize(self) -> bytes:
        read = _HEADER.pack(GET_DATA, False, ERROR)
        parts: list[bytes] = []
        for path in self.paths:
            encoded = path.encode()
            parts += (read, _INT.pack(len(encoded)), encoded, b"\0")  # the last byte: no watch
        return b"".join((*parts, _HEADER.pack(ERROR, True, ERROR)))

    def deserialize(self, answer: bytes, offset: int) -> list[Node | None]:
        """Returns the nodes in the order of the paths; None where there is no node. Raises the library's
        error if a node, or the answer, cannot be read.
        """
        try:
            nodes = self._nodes(answer, offset)
        except (struct.error, RuntimeError) as error:  # cut short, or an error that nobody knows
            raise kz.MarshallingError(f"an answer of {len(answer)} bytes: {error}") from None
        if len(nodes) != len(self.paths):
            raise kz.MarshallingError(f"{len(self.paths)} nodes asked for, {len(nodes)} answered")
        return nodes

    @staticmethod
    def _nodes(answer: bytes, offset: int) -> list[Node | None]:
        nodes: list[Node | None] = []
        while True:
            kind, is_end, _ = _HEADER.unpack_from(answer, offset)
            offset += _HEADER.size
            if is_end:
                return nodes
            (number,) = _INT.unpack_from(answer, offset)
            offset += _INT.size
            if kind == GET_DATA:
                data = answer[offset : offset + max(0, number)]
                offset += len(data)
                nodes.append(Node(data, to_stat(ZnodeStat(*_STAT.unpack_from(answer, offset)))))
                offset += _STAT.size
            elif number == kz.NoNodeError.code:
                nodes.append(None)
            else:
                raise kz.EXCEPTIONS[number]()


def begin(client: KazooClient, paths: Iterable[str]) -> Any:
    """Sends one request. Returns the library's pending result: `get()` gives the nodes, or raises."""
    pending = client.handler.async_result()
    prefixed = tuple((client.chroot + path.rstrip("/")) or "/" for path in paths)
    client._call(MultiRead(prefixed), pending)
    return pending


def in_requests(paths: Iterable[str], count_max: int) -> Iterator[list[str]]:
    """Yields the paths in groups for one request each."""
    group: list[str] = []
    size_bytes = 0
    for path in paths:
        path_bytes = 4 * len(path)  # as UTF-8, at most
        if group and (len(group) == count_max or size_bytes + path_bytes > REQUEST_MAX_BYTES):
            yield group
            group, size_bytes = [], 0
        group.append(path)
        size_bytes += path_bytes
    if group:
        yield group


class ManyReads:
    """The calls of a session that read many nodes. `_call` is its own: it repeats a call whose connection was
    lost, and raises the errors of this package.
    """

    _client: Any

    def _call(self, call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError

    def get_many(self, paths: Iterable[str], *, fired: Fired | None = None) -> list[Node | None]:
        """Reads many nodes, pipelined, in the order of `paths`; `None` where there is no node. Not one
        snapshot. `fired`: see `coordination.events`."""

        def node(result: Any) -> Node:
            return Node(result[0] or b"", to_stat(result[1]))

        return self._pipelined(partial(self._client.get_async, watch=fired), paths, node)

    def get_many_small(
        self, paths: Iterable[str], *, per_request_max: int = SMALL_PER_REQUEST_MAX
    ) -> list[Node | None]:
        """Reads as `get_many`, but many nodes a request. All their data come in one answer: the larger the
        nodes may be, the fewer a request may have."""
        requests = list(in_requests(paths, per_request_max))
        depth = max(1, PIPELINE_DEPTH_MAX // per_request_max)
        answers: list[list[Node | None] | None] = self._pipelined(
            partial(begin, self._client), requests, list, depth
        )
        return [node for nodes in answers for node in nodes or ()]

    def stat_many(self, paths: Iterable[str]) -> list[NodeStat | None]:
        """Returns the stats of many nodes, pipelined; `None` where there is no node."""
        return self._pipelined(self._client.exists_async, paths, to_stat)

    def children_many(self, paths: Iterable[str]) -> list[list[str] | None]:
        """Returns the names of the children of many nodes, pipelined; `None` where there is no node."""
        return self._pipelined(self._client.get_children_async, paths, sorted)

    def _pipelined(
        self,
        begin: Callable[[Asked], Any],
        wanted: Iterable[Asked],
        convert: Callable[[Any], T],
        depth: int = PIPELINE_DEPTH_MAX,
    ) -> list[T | None]:
        asked = list(wanted)
        found: list[T | None] = []
        for start in range(0, len(asked), depth):
            found += self._call(partial(_pipelined, begin, convert), asked[start : start + depth])
        return found


def _pipelined(
    begin: Callable[[Asked], Any], convert: Callable[[Any], T], wanted: Sequence[Asked]
) -> list[T | None]:
    """Sends all requests, then waits for each result; None where there is no node."""
    results: list[T | None] = []
    for pending in [begin(each) for each in wanted]:
        try:
            result = pending.get()
            results.append(None if result is None else convert(result))
        except kz.NoNodeError:
            results.append(None)
    return results


def first_of(arguments: Sequence[Any]) -> str:
    """Returns the path that an error names: that of a call, the first of a call for many."""
    first: Any = arguments
    while isinstance(first, Sequence) and not isinstance(first, str):
        if not first:
            return ""
        first = first[0]
    return str(first)
