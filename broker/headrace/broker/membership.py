"""This broker among the others, in ZooKeeper: it registers, stands for controller, leaves.

Every method blocks, and is called on a control thread. Knows nothing of partitions or connections.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from headrace.broker.leadership.controller import Controller
from headrace.coordination import znodes
from headrace.coordination.brokers import BrokerRegistration, BrokerRegistry, parse
from headrace.coordination.election import controller_of
from headrace.coordination.errors import CoordinationError, CorruptNodeError, NoNodeError
from headrace.coordination.fronts import Front, FrontRegistry
from headrace.coordination.handled_brokers import HandledBrokers
from headrace.coordination.session import ZooKeeperSession
from headrace.coordination.session_files import forget_session
from headrace.coordination.standing import HeldNode

logger = logging.getLogger(__name__)

# How long a broker that stops waits for balancers to see that it leaves.
LEAVE_WAIT_MAX_S: Final = 5.0
POLL_S: Final = 0.02
# How long a broker that starts waits for the controller to give it the partitions that have no other leader.
HANDLED_WAIT_MAX_S: Final = 3.0


@dataclass(slots=True)
class Membership:
    """`announce_offline` says which logs of this broker are offline, before it is registered. `folder`: the
    data directory, where the session's file is left for who supervises this process."""

    folder: Path
    session: ZooKeeperSession
    controller: Controller
    announce_offline: Callable[[int], None]
    held: HeldNode | None = None
    held_front: HeldNode | None = None

    def register(self, registration: BrokerRegistration, front: Front | None) -> HeldNode:
        """Registers this broker, stands for controller, and waits until the controller knows of it."""
        self._leave_session()
        self.session.on_restored(self._leave_session)
        self.announce_offline(registration.broker_id)
        self.held = BrokerRegistry(self.session).register(registration)
        if front is not None:
            self.held_front = FrontRegistry(self.session).announce(front)
        self.controller.start()
        self._wait_until_handled(registration.broker_id)
        return self.held

    def withdraw_front(self) -> None:
        """Tells balancers to send no new connections."""
        if self.held_front is not None:
            self.held_front.release()

    def leave_balancers(self, broker_id: int) -> list[str]:
        """Waits until no balancer uses this broker, and returns those that do when time is up."""
        if self.held_front is None:
            return []
        fronts = FrontRegistry(self.session)
        deadline_s = time.monotonic() + LEAVE_WAIT_MAX_S
        while (balancers := fronts.balancers_of(broker_id)) and time.monotonic() < deadline_s:
            time.sleep(POLL_S)
        return balancers

    def leave(self) -> None:
        """Resigns and deregisters: at once the others know."""
        try:
            if self.held is not None:
                self.held.release()
                self.controller.close()
            self.session.close()
            forget_session(self.folder)
        except CoordinationError as error:
            logger.warning("leaving ZooKeeper: %s", error)

    def _leave_session(self) -> None:
        left = self.session.left_session()
        try:
            if left is not None:
                left.write(self.folder)
        except OSError as error:
            logger.warning(
                "%s: %s; should this process be killed, its session ends by timeout", self.folder, error
            )

    def _wait_until_handled(self, broker_id: int) -> None:
        """Waits until the controller has seen the registration: then the partitions that only this broker
        can lead are its own, before any client asks."""
        handled = HandledBrokers(self.session)
        deadline_s = time.monotonic() + HANDLED_WAIT_MAX_S
        while time.monotonic() < deadline_s:
            stat = self.session.exists(znodes.broker(broker_id))
            if stat is not None and handled.is_handled(broker_id, stat.created_zxid):
                return
            time.sleep(POLL_S)
        logger.warning(
            "no controller has seen this broker within %.0f s; serving all the same", HANDLED_WAIT_MAX_S
        )

    def remove_predecessor(self, registration: BrokerRegistration) -> None:
        """Removes what a dead broker with this id and address has left: its session may live on.

        That it is dead is certain: we hold the lock of the data directory.
        """
        node = self.session.get_or_none(znodes.broker(registration.broker_id))
        if node is not None:
            try:
                before = parse(registration.broker_id, node.data)
            except CorruptNodeError:
                return
            if (before.host, before.port) != (registration.host, registration.port):
                return
            self._delete(znodes.broker(registration.broker_id))
        self._delete(znodes.stopping(registration.broker_id))
        self._delete(znodes.front(registration.broker_id))
        if controller_of(self.session) == registration.broker_id:
            self._delete(znodes.CONTROLLER)

    def _delete(self, path: str) -> None:
        try:
            self.session.delete(path)
        except NoNodeError:
            return
