"""A follower's half of its Fetch session (KIP-227): what the leader takes each request to have asked for.

A partition that a request neither names nor forgets is asked for again, as it was named last. The leader's
half is `handlers.follower_session`. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, Generic, TypeVar
from uuid import UUID

from headrace.wire.errors import ErrorCode
from headrace.wire.fetch import FetchPartition, FetchTopic, ForgottenTopic

EPOCH_MAX: Final = 2**31 - 1
SESSION_ENDED: Final = frozenset(
    {ErrorCode.FETCH_SESSION_ID_NOT_FOUND, ErrorCode.INVALID_FETCH_SESSION_EPOCH}
)

Key = tuple[UUID, int]
Asked = TypeVar("Asked")


class FetchSession(Generic[Asked]):
    """`id`: 0 while the leader has granted none; then each request names all that it asks for. `held`: what
    is asked for, with the caller's note of it.
    """

    __slots__ = ("_gone", "epoch", "held", "id")

    def __init__(self) -> None:
        self.id = 0
        self.epoch = 0  # of the last request
        self.held: dict[Key, Asked] = {}
        self._gone: dict[Key, None] = {}

    def drop(self, key: Key) -> None:
        """Forgets a partition with the next request. If that names it, too, it is new to the leader,
        which tells again what it has told before.
        """
        if key in self.held:
            self._gone[key] = None

    @property
    def asks(self) -> bool:
        """Whether a request that names nothing asks for anything."""
        return len(self.held) > len(self._gone)

    def next_request(
        self, named: Mapping[Key, tuple[FetchPartition, Asked]]
    ) -> tuple[list[FetchTopic], tuple[ForgottenTopic, ...]]:
        """Begins the next request, which names these partitions: returns its topics."""
        if self.id:
            self.epoch = self.epoch % EPOCH_MAX + 1
        topics: dict[UUID, list[FetchPartition]] = {}
        for key, (part, asked) in named.items():
            topics.setdefault(key[0], []).append(part)
            self.held[key] = asked
        forgotten = _by_topic(self._gone)
        for key in self._gone.keys() - named.keys():
            del self.held[key]
        self._gone.clear()
        return [FetchTopic("", topic_id, parts) for topic_id, parts in topics.items()], forgotten

    def granted(self, session_id: int) -> None:
        """Takes the id that an answer to a request without a session gave."""
        self.id = session_id

    def end(self) -> None:
        """Names everything with the next request."""
        self.id = self.epoch = 0
        self.held.clear()
        self._gone.clear()


def _by_topic(keys: Iterable[Key]) -> tuple[ForgottenTopic, ...]:
    topics: dict[UUID, list[int]] = {}
    for topic_id, index in keys:
        topics.setdefault(topic_id, []).append(index)
    return tuple(ForgottenTopic("", topic_id, indexes) for topic_id, indexes in topics.items())
