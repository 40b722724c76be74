"""One restart of a broker, as its cluster sees it: whether the broker has in sync again what it had before.

A broker that answers is not back yet: until its replicas have fetched what they missed, the next broker's
restart may leave a partition with too few replicas in sync. Units of other kinds have nothing to fetch.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Final

from headrace.agent.probes import BrokerProbe
from headrace.agent.unit import Unit

if TYPE_CHECKING:
    from headrace.client.cluster import TopicInfo
    from headrace.client.in_sync import CatchUp

ANSWER_MAX_S: Final = 5.0
POLL_S: Final = 0.25


class InSyncWatch:
    """Notes what a unit has in sync, if it is a broker, so that its restart can be waited for.

    A broker that does not tell has nothing to be waited for: it may be restarted just because it is ill.
    """

    def __init__(self, unit: Unit) -> None:
        self._probe = unit.probe if isinstance(unit.probe, BrokerProbe) else None
        self._broker: CatchUp | None = None
        if self._probe is not None and isinstance(topics := _topics(self._probe), dict):
            from headrace.client.in_sync import CatchUp, in_sync_of

            if before := in_sync_of(self._probe.broker_id, topics):
                self._broker = CatchUp(self._probe.broker_id, before)

    def look(self) -> str | None:
        """Looks once: returns None if the broker is in sync again, else what it lacks. `wait` repeats it."""
        if self._probe is None or self._broker is None:
            return None
        return self._broker.look(_topics(self._probe))

    def wait(self, wait_s: float, ending: threading.Event) -> str | None:
        """Returns None once the broker is in sync again, or what it still lacks: after `wait_s`, or when
        `ending` is set.
        """
        from headrace.client.in_sync import wait_until_back

        if self._probe is None or self._broker is None:
            return None
        probe = self._probe
        return wait_until_back(self._broker, lambda: _topics(probe), lambda: ending.wait(POLL_S), wait_s)


def lacked_by_others(address: str, broker_id: int) -> str | None:
    """Returns which other brokers lack what a broker has in sync: a restart of it would leave partitions with
    too few replicas. None if nobody does, or if the broker does not tell."""
    # Imported here because it takes half a second, and only restarts of brokers need it.
    from headrace.client.errors import ClientError
    from headrace.client.in_sync import lack_of, some_of
    from headrace.client.replica_admin import ReplicaAdmin
    from headrace.wire.errors import WireError

    try:
        with ReplicaAdmin(address, timeout_ms=1000 * ANSWER_MAX_S) as admin:
            lack = lack_of(admin.replicas(), broker_id)
    except (OSError, ClientError, WireError):
        return None
    if not lack.partitions:
        return None
    return f"broker {', '.join(map(str, lack.brokers))} lacks replicas of {some_of(sorted(lack.partitions))}"


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
