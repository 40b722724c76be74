"""Which member of a group reads which partition: the paper's Algorithm 1, as pure functions. Every member
computes the same result."""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, Protocol, TypeVar


class Sortable(Protocol):
    def __lt__(self, other: Any, /) -> bool: ...


M = TypeVar("M", bound=Sortable)
P = TypeVar("P", bound=Sortable)


class StreamId(NamedTuple):
    """One message stream of one member: what owns partitions."""

    member: str
    stream: int

    def __str__(self) -> str:
        return f"{self.member}-{self.stream}"


def assign(members: Iterable[M], partitions: Iterable[P]) -> dict[M, list[P]]:
    """Divides the sorted partitions of one topic into contiguous shares, one for each sorted member (paper
    §3.2, Algorithm 1).

    If the paper's N = |P| / |C| leaves a remainder, the first members get one more each, as in Kafka. Every
    partition is in exactly one share; shares differ by at most one; the result is empty without members.
    """
    consumers = sorted(set(members))
    pieces = sorted(set(partitions))
    if not consumers:
        return {}
    share, extra = divmod(len(pieces), len(consumers))
    shares: dict[M, list[P]] = {}
    for j, consumer in enumerate(consumers):
        start = j * share + min(j, extra)
        shares[consumer] = pieces[start : start + share + (1 if j < extra else 0)]
    return shares


def assign_streams(
    subscriptions: Mapping[str, Mapping[str, int]], partitions: Mapping[str, Iterable[int]]
) -> dict[StreamId, list[tuple[str, int]]]:
    """Returns the (topic, partition)s of every stream of every member, idle streams included.

    `subscriptions`: member → topic → number of streams. `partitions`: topic → partition ids.
    """
    shares: dict[StreamId, list[tuple[str, int]]] = {
        StreamId(member, stream): []
        for member, wanted in subscriptions.items()
        for stream in range(max(wanted.values(), default=0))
    }
    for topic in sorted(partitions):
        streams = [
            StreamId(member, stream)
            for member, wanted in subscriptions.items()
            for stream in range(wanted.get(topic, 0))
        ]
        for stream_id, share in assign(streams, partitions[topic]).items():
            shares[stream_id] += [(topic, partition) for partition in share]
    return shares
