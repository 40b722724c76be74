"""The map from source partitions to partitions of the analysis cluster: `/headrace/mirrors/<topic>`.

A topic keeps its name. Its analysis partitions are assigned to (datacenter, source partition) in the order of
claims and never reassigned. The map is stored in the analysis cluster's ZooKeeper only.
"""

from typing import NamedTuple

from headrace.coordination import documents, znodes
from headrace.coordination.errors import BadVersionError, CorruptNodeError, NodeExistsError
from headrace.coordination.nodes import Node
from headrace.coordination.session import ZooKeeperSession


class MirrorSource(NamedTuple):
    """The source partition that a mirror partition copies."""

    datacenter: str
    partition: int


class MirrorMap:
    def __init__(self, session: ZooKeeperSession) -> None:
        self._session = session

    def topics(self) -> list[str]:
        return self._session.children_or_empty(znodes.MIRRORS)

    def sources(self, topic: str) -> list[MirrorSource]:
        """Returns the source of each analysis partition, in partition order; empty if the topic is not
        mirrored."""
        return self._parse(topic, self._session.get_or_none(znodes.mirror(topic)))

    def claim(self, datacenter: str, topic: str, source_partition_count: int) -> list[int]:
        """Assigns an analysis partition to each of a source topic's partitions that has none yet.

        Returns the analysis partitions of source partitions 0, 1, …. Concurrent claims of several mirrors
        never get the same one.
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
