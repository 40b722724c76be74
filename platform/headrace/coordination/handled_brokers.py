"""Which registration of each broker the controllers have handled: `/headrace/brokers/<id>`, persistent.

A broker that was registered again, in a later broker epoch, has died and come back, even if no controller saw
it gone. Its log directory's id tells whether it came back with the same disk (KIP-858's directory.id).
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from headrace.coordination import documents, znodes
from headrace.coordination.brokers import BrokerRegistration
from headrace.coordination.errors import BadVersionError, CorruptNodeError, GuardError, NoNodeError
from headrace.coordination.nodes import Node
from headrace.coordination.session import ZooKeeperSession

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class NewRegistration:
    """A registration that no controller has handled. `has_other_disk`: its log directory is another one."""

    broker: BrokerRegistration
    has_other_disk: bool


class HandledBrokers:
    """Keeps what it has read, since only the controller writes it."""

    def __init__(self, session: ZooKeeperSession) -> None:
        self._session = session
        self._handled: dict[int, int] = {}

    def new_among(self, brokers: Iterable[BrokerRegistration]) -> list[NewRegistration]:
        """Returns which of these registrations no controller has handled."""
        unknown = [broker for broker in brokers if self._handled.get(broker.broker_id) != broker.epoch]
        nodes = self._session.get_many(znodes.handled_broker(broker.broker_id) for broker in unknown)
        new: list[NewRegistration] = []
        for broker, node in zip(unknown, nodes, strict=True):
            epoch, directory_id = parse_handled(node)
            if epoch == broker.epoch:
                self._handled[broker.broker_id] = epoch
            else:
                other = bool(directory_id) and directory_id != broker.directory_id
                new.append(NewRegistration(broker, other))
        return new

    def note(self, brokers: Sequence[BrokerRegistration], guard: Mapping[str, int]) -> None:
        """Notes that these registrations were handled. Raises `GuardError`: see
        `TopicRegistry.set_partition_states`."""
        for broker in brokers:
            path = znodes.handled_broker(broker.broker_id)
            self._session.ensure_path(path)
            change = self._session.transaction()
            for held, version in guard.items():
                change.check(held, version=version)
            fields = {"epoch": broker.epoch, "directory_id": broker.directory_id}
            try:
                change.set(path, documents.encode(fields)).commit()
            except (BadVersionError, NoNodeError) as error:
                raise GuardError(str(error)) from None
            self._handled[broker.broker_id] = broker.epoch

    def is_handled(self, broker_id: int, epoch: int) -> bool:
        """Whether a controller has handled this registration."""
        return parse_handled(self._session.get_or_none(znodes.handled_broker(broker_id)))[0] == epoch


def parse_handled(node: Node | None) -> tuple[int, str]:
    """Returns the broker epoch and the directory's id; nothing handled where it cannot be read."""
    if node is None or not node.data:
        return 0, ""
    try:
        fields = documents.decode(znodes.HANDLED_BROKERS, node.data)
        epoch = fields["epoch"]
        return (epoch if isinstance(epoch, int) else 0), str(fields.get("directory_id", ""))
    except (CorruptNodeError, KeyError) as error:
        logger.error("%s: not a handled registration: %s", znodes.HANDLED_BROKERS, error)
        return 0, ""
