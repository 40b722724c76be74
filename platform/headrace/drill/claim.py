"""The claim on the canary's table: one drill at a time on the whole site, from whatever host.

It is an ephemeral node in the ZooKeeper of the analysis cluster, so that of a killed drill ends by itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final

from headrace.coordination import znodes
from headrace.coordination.errors import CoordinationError, NodeHeldError
from headrace.coordination.session import DEFAULT_SESSION_TIMEOUT_S, ZooKeeperSession
from headrace.coordination.standing import HeldNode
from headrace.drill.errors import DrillError, TableClaimedError

CLAIM_WAIT_MAX_S: Final = 1.5 * DEFAULT_SESSION_TIMEOUT_S
"""A killed drill holds its claim until its session times out."""
CONNECT_MAX_S: Final = 15.0


@contextmanager
def claimed(zookeeper: str, run: str, *, wait_s: float = CLAIM_WAIT_MAX_S) -> Iterator[None]:
    """Holds the claim for the drill `run`.

    Raises `TableClaimedError` if another drill still holds it after `wait_s`, and `DrillError`.
    """
    session = ZooKeeperSession(zookeeper, name="drill")
    try:
        held = _acquired(session, run, wait_s)
        try:
            yield
        finally:
            _release(held)
    finally:
        session.close()


def _acquired(session: ZooKeeperSession, run: str, wait_s: float) -> HeldNode:
    try:
        session.start(connect_timeout_s=CONNECT_MAX_S)
        try:
            return session.hold_ephemeral(znodes.DRILL, run.encode(), wait_s=wait_s)
        except NodeHeldError as error:
            node = session.get_or_none(znodes.DRILL)
            other = "another one" if node is None else node.data.decode(errors="replace")
            raise TableClaimedError(f"drill {other} works on its table") from error
    except CoordinationError as error:
        raise DrillError(f"the canary's table cannot be claimed: {error}") from error


def _release(held: HeldNode) -> None:
    with suppress(CoordinationError):  # the session ends now, and the node with it
        held.release()
