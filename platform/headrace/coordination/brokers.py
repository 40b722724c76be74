"""The live brokers of a datacenter: `/brokers/ids/<id>`, one ephemeral node per broker (paper §3.2, "broker
registry").

A broker that stops says so by a second node, `/headrace/stopping/<id>` (KIP-841), and not in its
registration, which brokers of earlier versions could not read then. The node counts while the session that
registered the broker owns it. So it ends with the registration, and one that a predecessor or a stranger left
says nothing.
"""

import logging
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Final, Self, TypeVar

from headrace.coordination import documents, znodes
from headrace.coordination.errors import CorruptNodeError
from headrace.coordination.session import ZooKeeperSession
from headrace.coordination.standing import HeldNode, Watch
from headrace.process.text import is_host

logger = logging.getLogger(__name__)

T = TypeVar("T")

TEXT_MAX_BYTES: Final = 2**15 - 1
"""Of a string in Kafka's protocol."""


@dataclass(frozen=True, slots=True)
class BrokerRegistration:
    """A broker and its client listener; the listener for balancers is registered in `coordination.fronts`.

    `rack`: replicas of a partition are spread over racks; by default the host. `epoch`: the broker epoch,
    which grows with each registration (its node's czxid, KIP-380); 0 before it is registered. `directory_id`
    is its log directory's: a disk that was replaced has another one. `is_stopping`: it gives its partitions
    away, and will be gone in seconds.
    """

    broker_id: int
    host: str
    port: int
    datacenter: str
    rack: str = ""
    epoch: int = 0
    directory_id: str = ""
    is_stopping: bool = False

    def __post_init__(self) -> None:
        if not self.rack:
            object.__setattr__(self, "rack", self.host)

    def is_of_same_process(self, other: Self) -> bool:
        """Whether both have the same id, address and disk, which no two processes hold at once."""
        here, there = ((each.broker_id, each.host, each.port, each.directory_id) for each in (self, other))
        return here == there

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
        timeouts); then raises `NodeHeldError`: another live broker has this id. Raises `CorruptNodeError` for
        what other brokers would not believe.
        """
        fields = asdict(registration)
        del fields["epoch"], fields["is_stopping"]
        data = documents.encode(fields)
        parse(registration.broker_id, data)
        return self._session.hold_ephemeral(
            znodes.broker(registration.broker_id),
            data,
            wait_s=wait_s,
            counter=znodes.registrations(registration.broker_id),
        )

    def announce_stop(self, broker_id: int) -> HeldNode:
        """Says that this session's broker stops, until the session ends.

        From then on no write of partition states takes it into an in-sync set: the node is counted like a
        registration, and a write that has not seen it fails. Raises `NodeHeldError` if another session holds
        the node.
        """
        path, counter = znodes.stopping(broker_id), znodes.registrations(broker_id)
        return self._session.hold_ephemeral(path, b"", wait_s=0.0, counter=counter)

    def live(self) -> list[BrokerRegistration]:
        """Returns the live brokers, sorted by id; leaves out damaged registrations, and logs them."""
        return self._read(self._session.children_or_empty(znodes.BROKER_IDS))

    def watch(self, callback: Callable[[list[BrokerRegistration]], None]) -> Watch:
        """Calls `callback` with all live brokers, now and after every change, also when one says that it
        stops; runs in the session's callback thread."""
        self._session.watch_children(znodes.STOPPING, lambda _: callback(self.live()))
        return self._session.watch_children(znodes.BROKER_IDS, lambda names: callback(self._read(names)))

    def _read(self, names: list[str]) -> list[BrokerRegistration]:
        ids = documents.numbers(names)
        nodes = self._session.get_many(znodes.broker(broker_id) for broker_id in ids)
        owners = self._stopping(ids)
        pairs = zip(ids, nodes, strict=True)
        return [
            replace(
                registration,
                epoch=node.stat.created_zxid,
                is_stopping=node.stat.owner_session == owners.get(broker_id),
            )
            for broker_id, node in pairs
            if node is not None and (registration := read_or_log(parse, broker_id, node.data)) is not None
        ]

    def _stopping(self, ids: list[int]) -> dict[int, int]:
        """Returns the sessions which say that these brokers stop."""
        said = documents.numbers(self._session.children_or_empty(znodes.STOPPING))
        named = sorted(set(said).intersection(ids))
        stats = self._session.stat_many(map(znodes.stopping, named))
        pairs = zip(named, stats, strict=True)
        return {broker_id: stat.owner_session for broker_id, stat in pairs if stat and stat.owner_session}


def parse(broker_id: int, data: bytes) -> BrokerRegistration:
    """Reads a registration from a node's bytes. Raises `CorruptNodeError`."""
    path = znodes.broker(broker_id)
    fields = documents.decode(path, data)
    del fields["version"]
    try:
        known = {"broker_id": broker_id, "epoch": 0, "is_stopping": False}
        registration = BrokerRegistration(**{**fields, **known})
    except TypeError as error:
        raise CorruptNodeError(f"{path}: not a broker's registration: {error}") from None
    check_address(path, registration.host, registration.port)
    for name in ("datacenter", "rack", "directory_id"):
        if not _is_text(value := getattr(registration, name)):
            raise CorruptNodeError(
                f"{path}: {str(value)[:80]!r} is not a {name}: it must be UTF-8, of at most {TEXT_MAX_BYTES} "
                "bytes"
            )
    return registration


def _is_text(value: object) -> bool:
    """Whether it fits into what clients get: other text would end each Metadata request of everybody."""
    try:
        return isinstance(value, str) and len(value.encode()) <= TEXT_MAX_BYTES
    except UnicodeEncodeError:  # half a character
        return False


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
