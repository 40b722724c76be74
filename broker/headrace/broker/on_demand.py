"""Topics that are created because a client asked for them by name (auto.create.topics.enable).

Owns the bounds of that: a client that asks for ever new names fills neither ZooKeeper nor the disk. Topics
that an administrator creates are not counted here.
"""

from __future__ import annotations

import logging
import time
from collections import Counter, deque
from collections.abc import Callable
from typing import Final

from headrace.broker.errors import Refused
from headrace.broker.fair_workers import FairWorkers
from headrace.broker.promise import Promise
from headrace.broker.topics import NewTopic, TopicAdmin
from headrace.coordination.topics import TopicState
from headrace.wire.errors import ErrorCode

logger = logging.getLogger(__name__)

CREATE_WAIT_MAX_S: Final = 4.0
PER_HOST_MAX: Final = 100  # topics that one host may have created within WINDOW_S
WINDOW_S: Final = 60.0
HOSTS_MAX: Final = 1_000  # hosts remembered; beyond it the one that asked first is forgotten
AT_ONCE_MAX: Final = 100  # topics being created
PER_HOST_AT_ONCE_MAX: Final = 10  # of them, topics that one host asked for: one host never has all of them
TOPICS_MAX: Final = 2_000  # with so many topics in the datacenter, none is created on demand
WARN_EVERY_S: Final = 60.0

When = Callable[[Callable[[], bool], float], Promise[None]]


class TopicsOnDemand:
    """`topic_count` returns how many topics exist; `when` is `BrokerState.when`: it waits without a thread.
    Called on the loop's thread.
    """

    def __init__(
        self,
        admin: TopicAdmin,
        control: FairWorkers,
        topic_count: Callable[[], int],
        when: When,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._admin = admin
        self._control = control
        self._topic_count = topic_count
        self._when = when
        self._clock_s = clock_s
        self._creating: dict[str, Promise[None]] = {}
        self._creating_for: Counter[str] = Counter()  # by host, how many
        self._created_s: dict[str, deque[float]] = {}  # by host: when it asked for new topics
        self._warned_s = -WARN_EVERY_S

    def create(self, name: str, host: str) -> Promise[None] | None:
        """Creates a topic with all defaults, once for concurrent requests; the promise resolves when that has
        succeeded or failed. None if a bound is reached: the client may ask again later.
        """
        promise = self._creating.get(name)
        if promise is not None:
            return promise
        bound = self._reached_bound(host)
        if bound is not None:
            self._warn(f"topic {name!r} is not created on demand for {host}: {bound}")
            return None
        self._created_s[host].append(self._clock_s())
        promise = self._creating[name] = Promise()
        self._creating_for[host] += 1

        def ended(_: object) -> None:
            self._creating_for[host] -= 1
            if not self._creating_for[host]:
                del self._creating_for[host]
            self._creating.pop(name).resolve(None)

        def created(topic: TopicState | None, error: Exception | None) -> None:
            if topic is not None:
                left = dict(topic.partitions)
                deadline_s = self._clock_s() + CREATE_WAIT_MAX_S
                self._when(lambda: self._admin.is_usable(topic, left), deadline_s).then(ended)
                return
            if not (isinstance(error, Refused) and error.code is ErrorCode.TOPIC_ALREADY_EXISTS):
                logger.warning("creating topic %s on demand failed: %s", name, error)
            ended(None)

        self._control.submit(lambda: self._admin.create(NewTopic(name), validate_only=False), created)
        return promise

    def _reached_bound(self, host: str) -> str | None:
        if len(self._creating) >= AT_ONCE_MAX:
            return f"{AT_ONCE_MAX} are being created"
        if self._creating_for[host] >= PER_HOST_AT_ONCE_MAX:
            return f"{PER_HOST_AT_ONCE_MAX} are being created for it"
        if self._topic_count() + len(self._creating) >= TOPICS_MAX:
            return f"there are {TOPICS_MAX} topics; create more by CreateTopics"
        asked = self._created_s.setdefault(host, deque())
        if len(self._created_s) > HOSTS_MAX:
            del self._created_s[next(iter(self._created_s))]
        since_s = self._clock_s() - WINDOW_S
        while asked and asked[0] <= since_s:
            asked.popleft()
        if len(asked) >= PER_HOST_MAX:
            return f"it had {PER_HOST_MAX} created within {WINDOW_S:g} s"
        return None

    def _warn(self, problem: str) -> None:
        """Logs at most one warning a minute: clients ask again and again."""
        now_s = self._clock_s()
        if now_s - self._warned_s >= WARN_EVERY_S:
            self._warned_s = now_s
            logger.warning("%s", problem)
