"""The turn to restart a broker: of all programs that change the brokers of a cluster, one has it at a time.

It is an ephemeral node, so that it ends with its holder's session, however that ends.
"""

from headrace.coordination import documents, znodes
from headrace.coordination.errors import CorruptNodeError, NodeHeldError
from headrace.coordination.session import ZooKeeperSession


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
        return "" if node is None else str(documents.decode(znodes.RESTARTING, node.data).get("holder", ""))
    except CorruptNodeError:
        return ""
