"""The brokers behind a datacenter's balancers, as ephemeral nodes.

`/headrace/fronts/<broker id>` (the *front*): this broker accepts connections from balancers.
`/headrace/balanced/<broker id>-<balancer>` (the *mark*): this balancer sends connections to that broker.

A balancer marks a broker before it sends it connections and removes the mark after it has stopped. A broker
that shuts down releases its front, then waits until no mark names it: no new connection can arrive then.
"""

import contextlib
from collections.abc import Callable
from dataclasses import dataclass

from headrace.coordination import documents, znodes
from headrace.coordination.brokers import check_address, read_or_log
from headrace.coordination.errors import CorruptNodeError, NoNodeError
from headrace.coordination.session import ZooKeeperSession
from headrace.coordination.standing import HeldNode, Watch


@dataclass(frozen=True, slots=True)
class Front:
    """The listener of a broker for connections from balancers."""

    broker_id: int
    host: str
    port: int


class FrontRegistry:
    def __init__(self, session: ZooKeeperSession) -> None:
        self._session = session

    def announce(self, front: Front) -> HeldNode:
        """Registers a front until the node is released; survives session losses.

        Waits for the node of a killed predecessor to expire, at most three session timeouts; then raises
        `NodeHeldError`.
        """
        data = documents.encode({"host": front.host, "port": front.port})
        return self._session.hold_ephemeral(znodes.front(front.broker_id), data)

    def live(self) -> list[Front]:
        """Returns the registered fronts, sorted by broker id; leaves out damaged ones, and logs them."""
        return self._read(self._session.children_or_empty(znodes.FRONTS))

    def watch(self, callback: Callable[[list[Front]], None]) -> Watch:
        """Calls `callback` with all fronts, now and after every change; runs in the session's callback
        thread."""
        return self._session.watch_children(znodes.FRONTS, lambda names: callback(self._read(names)))

    def mark(self, broker_id: int, balancer: str) -> HeldNode:
        """Marks that `balancer` may send new connections to this broker.

        `balancer` is unique to one process: its listen address (HOST:PORT), a dash, and a suffix.
        """
        return self._session.hold_ephemeral(znodes.balanced(broker_id, balancer), b"", wait_s=0.0)

    def forget(self, address: str) -> None:
        """Removes the marks of an earlier balancer on this listen address: that process is dead, but its
        session may not have expired yet."""
        for name in self._session.children_or_empty(znodes.BALANCED):
            if name.partition("-")[2].startswith(f"{address}-"):
                with contextlib.suppress(NoNodeError):
                    self._session.delete(f"{znodes.BALANCED}/{name}")

    def balancers_of(self, broker_id: int) -> list[str]:
        """Returns the balancers that may still send new connections to this broker."""
        pairs = (name.partition("-") for name in self._session.children_or_empty(znodes.BALANCED))
        return sorted(balancer for marked, _, balancer in pairs if marked == str(broker_id))

    def _read(self, names: list[str]) -> list[Front]:
        ids = documents.numbers(names)
        nodes = self._session.get_many(znodes.front(broker_id) for broker_id in ids)
        pairs = zip(ids, nodes, strict=True)
        return [
            front
            for broker_id, node in pairs
            if node is not None and (front := read_or_log(_parse, broker_id, node.data)) is not None
        ]


def _parse(broker_id: int, data: bytes) -> Front:
    path = znodes.front(broker_id)
    fields = documents.decode(path, data)
    try:
        host, port = fields["host"], int(fields["port"])
    except (KeyError, TypeError, ValueError) as error:
        raise CorruptNodeError(f"{path}: not a broker's front: {error!r}") from None
    check_address(path, host, port)
    return Front(broker_id, host, port)
