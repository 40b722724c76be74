"""The turn to restart a broker: of all programs that change the brokers of a cluster, one has it at a time.

It is an ephemeral node, so that it ends with its holder's session, however that ends.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from headrace.coordination import documents, znodes
from headrace.coordination.errors import CoordinationError, CorruptNodeError, NodeHeldError
from headrace.coordination.session import ZooKeeperSession

HOLDER_SHOWN_MAX: Final = 200  # characters of what a node says

logger = logging.getLogger(__name__)


@contextmanager
def turn(zookeeper: str, me: str, connect_timeout_s: float) -> Iterator[str]:
    """Has the turn to restart a broker of the cluster; yields "", or who has it instead. Where ZooKeeper does
    not answer there are no turns.
    """
    session = ZooKeeperSession(zookeeper, name="headrace-restart")
    try:
        try:
            session.start(connect_timeout_s=connect_timeout_s)
            holder = "" if take_turn(session, me) else holder_of(session) or "another program"
        except CoordinationError as error:
            logger.warning("whether another program restarts a broker is not known: %s", error)
            holder = ""
        yield holder
    finally:
        session.close()


def take_turn(session: ZooKeeperSession, holder: str) -> bool:
    """Takes the turn until the session is closed; returns whether it was free. `holder`: for people, who look
    at `holder_of`. Raises `CoordinationError`."""
    try:
        session.hold_ephemeral(znodes.RESTARTING, documents.encode({"holder": holder}), wait_s=0.0)
    except NodeHeldError:
        return False
    return True


def holder_of(session: ZooKeeperSession) -> str:
    """Returns who has the turn; "" if nobody has, or if that is not known. Raises `CoordinationError`."""
    node = session.get_or_none(znodes.RESTARTING)
    try:
        if node is None:
            return ""
        return str(documents.decode(znodes.RESTARTING, node.data).get("holder", ""))[:HOLDER_SHOWN_MAX]
    except CorruptNodeError:
        return ""
