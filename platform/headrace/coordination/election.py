"""The election of a datacenter's controller, as in Kafka: who creates `/controller` is it.

Each election also raises `/controller_epoch`, in the same transaction. A controller guards each of its
writes by both nodes (`Reign.guard`): one that has lost its session, or that another one has followed, writes
nothing more, whatever it believes.
"""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from headrace.coordination import documents, znodes
from headrace.coordination.errors import (
    BadVersionError,
    CorruptNodeError,
    NodeExistsError,
    NoNodeError,
)
from headrace.coordination.nodes import Node
from headrace.coordination.session import ZooKeeperSession
from headrace.coordination.standing import Watch

logger = logging.getLogger(__name__)

NOBODY: Final = -1


@dataclass(frozen=True, slots=True)
class Reign:
    """What a broker knows of the controller. `guard` is empty unless it is this broker itself."""

    broker_id: int
    epoch: int
    guard: Mapping[str, int]

    @property
    def is_own(self) -> bool:
        return bool(self.guard)


class ControllerElection:
    """A broker's candidacy, from `start()` to `close()`.

    `on_change(reign)` runs in the session's callback thread, now and after every change of the controller;
    `reign` is None while nobody is elected.
    """

    def __init__(
        self, session: ZooKeeperSession, broker_id: int, on_change: Callable[[Reign | None], None]
    ) -> None:
        self._session = session
        self._broker_id = broker_id
        self._on_change = on_change
        self._closing = False
        self._watch: Watch | None = None

    def start(self) -> None:
        self._watch = self._session.watch_data(znodes.CONTROLLER, self._seen)

    def close(self) -> None:
        """Ends the candidacy. A controller resigns, so that another one is elected at once."""
        self._closing = True
        if self._watch is not None:
            self._watch.cancel()
        stat = self._session.exists(znodes.CONTROLLER)
        if stat is not None and stat.owner_session == self._session.session_id:
            try:
                self._session.delete(znodes.CONTROLLER)
            except NoNodeError:
                return

    def _seen(self, node: Node | None) -> None:
        if self._closing:
            return
        if node is None:
            self._on_change(None)
            self._stand()  # the watch tells who was elected
            return
        broker_id = _broker_of(znodes.CONTROLLER, node)
        if node.stat.owner_session != self._session.session_id:
            self._on_change(Reign(broker_id, 0, {}))
            return
        last = self._session.get_or_none(znodes.CONTROLLER_EPOCH)
        if last is None or _broker_of(znodes.CONTROLLER_EPOCH, last) != self._broker_id:
            return  # another one was elected meanwhile: the watch tells
        guard = {znodes.CONTROLLER: -1, znodes.CONTROLLER_EPOCH: last.stat.version}
        self._on_change(Reign(broker_id, _epoch_of(last), guard))

    def _stand(self) -> None:
        last = self._session.get_or_none(znodes.CONTROLLER_EPOCH)
        epoch = 1 + (0 if last is None else _epoch_of(last))
        document = documents.encode({"broker_id": self._broker_id, "epoch": epoch})
        change = self._session.transaction().create(znodes.CONTROLLER, document, ephemeral=True)
        if last is None:
            change.create(znodes.CONTROLLER_EPOCH, document)
        else:
            change.set(znodes.CONTROLLER_EPOCH, document, version=last.stat.version)
        try:
            change.commit()
        except (NodeExistsError, BadVersionError):
            return
        logger.info("broker %d is the controller, epoch %d", self._broker_id, epoch)


def controller_of(session: ZooKeeperSession) -> int:
    """Returns the controller's broker id, or NOBODY."""
    node = session.get_or_none(znodes.CONTROLLER)
    return NOBODY if node is None else _broker_of(znodes.CONTROLLER, node)


def _broker_of(path: str, node: Node) -> int:
    try:
        return documents.int32(documents.decode(path, node.data)["broker_id"])
    except (KeyError, ValueError, CorruptNodeError):
        logger.error("%s: no broker in %r", path, node.data[:80])
        return NOBODY


def _epoch_of(node: Node) -> int:
    """Returns the epoch of the last election; 0 where it cannot be read: the node's version fences, too."""
    try:
        return documents.int32(documents.decode(znodes.CONTROLLER_EPOCH, node.data)["epoch"])
    except (KeyError, ValueError, CorruptNodeError):
        logger.error("%s: no epoch in %r", znodes.CONTROLLER_EPOCH, node.data[:80])
        return 0
