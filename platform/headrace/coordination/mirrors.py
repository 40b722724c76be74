"""Which partition of the analysis cluster holds the mirror of which source partition:
`/headrace/mirrors/<topic>`.

A topic keeps its name; its analysis partitions are given to (datacenter, source partition) in order of
arrival and never change hands. Only the mirror's own ZooKeeper (the analysis cluster's) holds this.
"""

from collections.abc import Callable
from typing import NamedTuple

from headrace.coordination import documents, znodes
from headrace.coordination.errors import BadVersionError, CorruptNodeError, NodeExistsError, NoNodeError
from headrace.coordination.session import Node, Watch, ZooKeeperSession


class MirrorSource(NamedTuple):
    """Where a mirror partition's bytes come from."""

    datacenter: str
    partition: int


class MirrorMap:
    def __init__(self, session: ZooKeeperSession) -> None:
        self._session = session

    def topics(self) -> list[str]:
        return self._session.children_or_empty(znodes.MIRRORS)

    def sources(self, topic: str) -> list[MirrorSource]:
        """The source of each analysis partition, in partition order; empty for a topic that is not
        mirrored."""
        return self._parse(topic, self._session.get_or_none(znodes.mirror(topic)))

    def claim(self, datacenter: str, topic: str, source_partition_count: int) -> list[int]:
        """Gives each of a source topic's partitions an analysis partition, those that have one keep it.

        Answers the analysis partition of source partition 0, 1, …. Concurrent claims of several mirrors
        never share one.
        """
        path = znodes.mirror(topic)
        wanted = [MirrorSource(datacenter, partition) for partition in range(source_partition_count)]
        while True:
            node = self._session.get_or_none(path)
            sources = self._parse(topic, node)
            added = [source for source in wanted if source not in sources]
            if not added:
                return [sources.index(source) for source in wanted]
            data = documents.encode({"partitions": [*sources, *added]})
            try:
                if node is None:
                    self._session.create(path, data, make_parents=True)
                else:
                    self._session.set(path, data, version=node.stat.version)
            except (BadVersionError, NodeExistsError):
                continue

    def forget(self, topic: str) -> None:
        """Drops a topic's map, after its mirror partitions were deleted. A later mirror starts numbering
        anew."""
        try:
            self._session.delete(znodes.mirror(topic))
        except NoNodeError:
            return

    def watch(self, topic: str, callback: Callable[[list[MirrorSource]], None]) -> Watch:
        """Calls `callback` in the session's callback thread with `sources(topic)`, now and after every
        change."""
        return self._session.watch_data(znodes.mirror(topic), lambda node: callback(self._parse(topic, node)))

    @staticmethod
    def _parse(topic: str, node: Node | None) -> list[MirrorSource]:
        if node is None:
            return []
        path = znodes.mirror(topic)
        try:
            return [
                MirrorSource(str(dc), int(p)) for dc, p in documents.decode(path, node.data)["partitions"]
            ]
        except (KeyError, ValueError, TypeError):
            raise CorruptNodeError(f"{path}: not a list of mirror sources: {node.data[:80]!r}") from None
