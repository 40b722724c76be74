"""The live brokers of a datacenter: `/brokers/ids/<id>`, one ephemeral node per broker (paper §3.2, "broker
registry")."""

import logging
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import TypeVar

from headrace.coordination import documents, znodes
from headrace.coordination.errors import CorruptNodeError
from headrace.coordination.session import ZooKeeperSession
from headrace.coordination.standing import HeldNode, Watch
from headrace.process.text import is_host

logger = logging.getLogger(__name__)

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class BrokerRegistration:
    """A broker and its client listener; the listener for balancers is registered in `coordination.fronts`.

    `rack`: replicas of a partition are spread over racks; by default the host. `epoch`: the broker epoch,
    which grows with each registration (its node's czxid, KIP-380); 0 before it is registered. `directory_id`
    is its log directory's: a disk that was replaced has another one.
    """

    broker_id: int
    host: str
    port: int
    datacenter: str
    rack: str = ""
    epoch: int = 0
    directory_id: str = ""

    def __post_init__(self) -> None:
        if not self.rack:
            object.__setattr__(self, "rack", self.host)

    @property
    def shown_rack(self) -> str:
        """Returns what clients see as the rack: the datacenter, unless the broker's rack was set."""
        return self.datacenter if self.rack == self.host else self.rack


class BrokerRegistry:
    def __init__(self, session: ZooKeeperSession) -> None:
        self._session = session

    def register(self, registration: BrokerRegistration, *, wait_s: float | None = None) -> HeldNode:
        """Registers the broker until the node is released or this process ends; survives session losses.

        Waits for the node of a killed predecessor to expire, at most `wait_s` (default: three session
        timeouts); then raises `NodeHeldError`: another live broker has this id.
        """
        fields = asdict(registration)
        del fields["epoch"]
        return self._session.hold_ephemeral(
            znodes.broker(registration.broker_id),
            documents.encode(fields),
            wait_s=wait_s,
            counter=znodes.registrations(registration.broker_id),
        )

    def live(self) -> list[BrokerRegistration]:
        """Returns the live brokers, sorted by id; leaves out damaged registrations, and logs them."""
        return self._read(self._session.children_or_empty(znodes.BROKER_IDS))

    def watch(self, callback: Callable[[list[BrokerRegistration]], None]) -> Watch:
        """Calls `callback` with all live brokers, now and after every change; runs in the session's callback
        thread."""
        return self._session.watch_children(znodes.BROKER_IDS, lambda names: callback(self._read(names)))

    def _read(self, names: list[str]) -> list[BrokerRegistration]:
        ids = documents.numbers(names)
        nodes = self._session.get_many(znodes.broker(broker_id) for broker_id in ids)
        pairs = zip(ids, nodes, strict=True)
        return [
            replace(registration, epoch=node.stat.created_zxid)
            for broker_id, node in pairs
            if node is not None and (registration := read_or_log(parse, broker_id, node.data)) is not None
        ]


def parse(broker_id: int, data: bytes) -> BrokerRegistration:
    """Reads a registration from a node's bytes. Raises `CorruptNodeError`."""
    path = znodes.broker(broker_id)
    fields = documents.decode(path, data)
    del fields["version"]
    try:
        registration = BrokerRegistration(**{**fields, "broker_id": broker_id, "epoch": 0})
    except TypeError as error:
        raise CorruptNodeError(f"{path}: not a broker's registration: {error}") from None
    check_address(path, registration.host, registration.port)
    for name in ("rack", "directory_id"):
        if not isinstance(value := getattr(registration, name), str):
            raise CorruptNodeError(f"{path}: {str(value)[:80]!r} is not a {name}")
    return registration


def check_address(path: str, host: object, port: object) -> None:
    """Raises `CorruptNodeError` for what is no host or no port: balancers and clients connect there."""
    if not isinstance(host, str) or not is_host(host):
        raise CorruptNodeError(f"{path}: {str(host)[:80]!r} is not a host")
    if not isinstance(port, int) or not 0 < port <= 65535:
        raise CorruptNodeError(f"{path}: {str(port)[:20]!r} is not a port")


def read_or_log(read: Callable[[int, bytes], T], broker_id: int, data: bytes) -> T | None:
    """Returns what the node of one broker says. If it is damaged, the others are read all the same."""
    try:
        return read(broker_id, data)
    except CorruptNodeError as error:
        logger.error("broker %d is ignored: %s", broker_id, error)
        return None
