"""The live brokers of a datacenter: `/brokers/ids/<id>`, one ephemeral node per broker (paper §3.2, "broker
registry")."""

from collections.abc import Callable
from dataclasses import asdict, dataclass

from headrace.coordination import documents, znodes
from headrace.coordination.errors import CorruptNodeError
from headrace.coordination.session import ZooKeeperSession
from headrace.coordination.standing import HeldNode, Watch


@dataclass(frozen=True, slots=True)
class BrokerRegistration:
    """A broker and its client listener; the listener for balancers is registered in `coordination.fronts`."""

    broker_id: int
    host: str
    port: int
    datacenter: str


class BrokerRegistry:
    def __init__(self, session: ZooKeeperSession) -> None:
        self._session = session

    def register(self, registration: BrokerRegistration, *, wait_s: float | None = None) -> HeldNode:
        """Registers the broker until the node is released or this process ends; survives session losses.

        Waits for the node of a killed predecessor to expire, at most `wait_s` (default: three session
        timeouts); then raises `NodeHeldError`: another live broker has this id.
        """
        path = znodes.broker(registration.broker_id)
        return self._session.hold_ephemeral(path, documents.encode(asdict(registration)), wait_s=wait_s)

    def live(self) -> list[BrokerRegistration]:
        """Returns the live brokers, sorted by id."""
        return self._read(self._session.children_or_empty(znodes.BROKER_IDS))

    def watch(self, callback: Callable[[list[BrokerRegistration]], None]) -> Watch:
        """Calls `callback` with all live brokers, now and after every change; runs in the session's callback
        thread."""
        return self._session.watch_children(znodes.BROKER_IDS, lambda names: callback(self._read(names)))

    def _read(self, names: list[str]) -> list[BrokerRegistration]:
        ids = sorted(int(name) for name in names if name.isdecimal())
        nodes = self._session.get_many(znodes.broker(broker_id) for broker_id in ids)
        pairs = zip(ids, nodes, strict=True)
        return [parse(broker_id, node.data) for broker_id, node in pairs if node is not None]


def parse(broker_id: int, data: bytes) -> BrokerRegistration:
    """Reads a registration from a node's bytes. Raises `CorruptNodeError`."""
    path = znodes.broker(broker_id)
    fields = documents.decode(path, data)
    del fields["version"]
    try:
        return BrokerRegistration(**{**fields, "broker_id": broker_id})
    except TypeError as error:
        raise CorruptNodeError(f"{path}: not a broker's registration: {error}") from None
