"""Who stands behind a datacenter's balancer: `/headrace/fronts/<broker id>`, one ephemeral node a broker that
wants connections from it, and `/headrace/balanced/<broker id>-<balancer>`, one for each pair that is in use.

A broker that is to go takes its front back first and waits until no balancer's mark names it any more: then
no new connection can be on its way to it. Without balancers there is no mark, and nothing to wait for. So a
balancer marks a broker before it gives it connections, and takes the mark back after it has stopped.
"""

import contextlib
from collections.abc import Callable
from dataclasses import dataclass

from headrace.coordination import documents, znodes
from headrace.coordination.errors import CorruptNodeError, NoNodeError
from headrace.coordination.session import HeldNode, Watch, ZooKeeperSession


@dataclass(frozen=True, slots=True)
class Front:
    """Where a balancer connects to reach this broker."""

    broker_id: int
    host: str
    port: int


class FrontRegistry:
    def __init__(self, session: ZooKeeperSession) -> None:
        self._session = session

    def announce(self, front: Front) -> HeldNode:
        """Asks for connections until the node is released; put back by itself after a session loss.

        A node left by a killed predecessor is waited for, at most three session timeouts; then
        `NodeHeldError`.
        """
        data = documents.encode({"host": front.host, "port": front.port})
        return self._session.hold_ephemeral(znodes.front(front.broker_id), data)

    def live(self) -> list[Front]:
        """All fronts that are announced now, by broker id."""
        return self._read(self._session.children_or_empty(znodes.FRONTS))

    def watch(self, callback: Callable[[list[Front]], None]) -> Watch:
        """Calls `callback` in the session's callback thread with all fronts, now and after every change."""
        return self._session.watch_children(znodes.FRONTS, lambda names: callback(self._read(names)))

    def mark(self, broker_id: int, balancer: str) -> HeldNode:
        """Says that `balancer` gives this broker new connections. The name is the process's own: nobody else
        may hold it. Begins with the address it listens on, and a dash."""
        return self._session.hold_ephemeral(znodes.balanced(broker_id, balancer), b"", wait_s=0.0)

    def forget(self, address: str) -> None:
        """Takes back the marks of whoever listened on this address before: it is dead, its session may live
        on for a while."""
        for name in self._session.children_or_empty(znodes.BALANCED):
            broker_id, _, balancer = name.partition("-")
            if balancer.startswith(f"{address}-"):
                with contextlib.suppress(NoNodeError):
                    self._session.delete(znodes.balanced(int(broker_id), balancer))

    def balancers_of(self, broker_id: int) -> list[str]:
        """The balancers that may still give this broker new connections."""
        pairs = (name.partition("-") for name in self._session.children_or_empty(znodes.BALANCED))
        return sorted(balancer for marked, _, balancer in pairs if marked == str(broker_id))

    def _read(self, names: list[str]) -> list[Front]:
        ids = sorted(int(name) for name in names if name.isdecimal())
        nodes = self._session.get_many(znodes.front(broker_id) for broker_id in ids)
        pairs = zip(ids, nodes, strict=True)
        return [_parse(broker_id, node.data) for broker_id, node in pairs if node is not None]


def _parse(broker_id: int, data: bytes) -> Front:
    path = znodes.front(broker_id)
    fields = documents.decode(path, data)
    try:
        return Front(broker_id, str(fields["host"]), int(fields["port"]))
    except (KeyError, TypeError, ValueError) as error:
        raise CorruptNodeError(f"{path}: not a broker's front: {error!r}") from None
