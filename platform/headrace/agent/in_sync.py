"""One restart of a broker, as its cluster sees it: whether the broker has in sync again what it had before.

A broker that answers is not back yet: until its replicas have fetched what they missed, the next broker's
restart may leave a partition with too few replicas in sync. Units of other kinds have nothing to fetch.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Final

from headrace.agent.probes import BrokerProbe
from headrace.agent.unit import Unit

if TYPE_CHECKING:
    from collections.abc import Collection

    from headrace.client.cluster import TopicInfo, TopicPartition

ANSWER_MAX_S: Final = 5.0
POLL_S: Final = 0.25
LOOKS: Final = 2
"""So often in a row a broker must be in sync: the first look may be older than the restart."""
NAMED_MAX: Final = 3


class InSyncWatch:
    """Notes what a unit has in sync, if it is a broker, so that its restart can be waited for.

    A broker that does not tell has nothing to be waited for: it may be restarted just because it is ill.
    """

    def __init__(self, unit: Unit) -> None:
        self._probe = unit.probe if isinstance(unit.probe, BrokerProbe) else None
        self._before: Collection[TopicPartition] = ()
        if self._probe is not None and isinstance(topics := _topics(self._probe), dict):
            from headrace.client.in_sync import in_sync_of

            self._before = in_sync_of(self._probe.broker_id, topics)

    def wait(self, wait_s: float, ending: threading.Event) -> str | None:
        """Returns None once the broker is in sync again, or what it still lacks: after `wait_s`, or when
        `ending` is set.
        """
        if self._probe is None or not self._before:
            return None
        deadline_s = time.monotonic() + wait_s
        looks = 0
        while True:
            problem = self._lacks(self._probe)
            looks = 0 if problem else looks + 1
            if looks == LOOKS:
                return None
            if time.monotonic() >= deadline_s or ending.wait(POLL_S):
                return problem or "whether it is in sync again was not seen in time"

    def _lacks(self, probe: BrokerProbe) -> str | None:
        from headrace.client.in_sync import behind

        topics = _topics(probe)
        if isinstance(topics, str):
            return f"what it has in sync is not known: {topics}"
        late = behind(probe.broker_id, topics, self._before)
        if not late:
            return None
        some = ", ".join(f"{topic}-{number}" for topic, number in late[:NAMED_MAX])
        more = ", …" if len(late) > NAMED_MAX else ""
        return f"it still fetches {len(late)} of its partitions ({some}{more})"


def _topics(probe: BrokerProbe) -> dict[str, TopicInfo] | str:
    """Returns all topics as the broker tells them, or why it does not."""
    # Imported here because it takes half a second, and only restarts of brokers need it.
    from headrace.client.admin import Admin
    from headrace.client.errors import ClientError
    from headrace.wire.errors import WireError

    try:
        with Admin(str(probe.address), timeout_ms=1000 * ANSWER_MAX_S) as admin:
            return admin.topics()
    except (OSError, ClientError, WireError) as error:
        return str(error)
