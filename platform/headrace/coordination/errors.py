"""What can go wrong between us and ZooKeeper, in words of our own.

No other room sees an exception of the ZooKeeper library. Each error says whose fault it is and whether trying
again can help (`retriable`).
"""


class CoordinationError(Exception):
    """Anything that coordination raises; `retriable` says whether the same call may succeed later."""

    retriable = False


class ZooKeeperUnavailableError(CoordinationError):
    """The environment's fault: no server answered within the bound. The call may or may not have taken
    effect."""

    retriable = True


class SessionClosedError(CoordinationError):
    """The caller's fault: the session was closed by `close()` and serves nobody any more."""


class NoNodeError(CoordinationError):
    """The node does not exist (or, for a create, its parent does not)."""


class NodeExistsError(CoordinationError):
    """The node to be created is there already."""


class BadVersionError(CoordinationError):
    """Somebody else changed the node since it was read: read again, decide again."""

    retriable = True


class NotEmptyError(CoordinationError):
    """The node to be deleted still has children."""


class NodeHeldError(CoordinationError):
    """An ephemeral node is held by another live session, longer than we were ready to wait."""


class CorruptNodeError(CoordinationError):
    """A node's content is not what this version of headrace writes. Names the path and what was wrong."""


class TopicExistsError(CoordinationError):
    """A topic of this name exists already."""


class UnknownTopicError(CoordinationError):
    """No topic of this name."""


class InvalidTopicError(CoordinationError):
    """The caller's fault: a name or a partition layout that no topic can have."""
