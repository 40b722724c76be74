"""The errors of coordination.

No other room handles exceptions of the ZooKeeper library. Each error states whether the caller or the
environment caused it, and whether a retry can help (`retriable`).
"""


class CoordinationError(Exception):
    """The base class; `retriable`: the same call may succeed later."""

    retriable = False


class ZooKeeperUnavailableError(CoordinationError):
    """Caused by the environment: no server answered in time. The call may or may not have taken effect."""

    retriable = True


class SessionClosedError(CoordinationError):
    """Caused by the caller: `close()` was called on the session."""


class NoNodeError(CoordinationError):
    """The node does not exist (or, for a create, its parent does not)."""


class NodeExistsError(CoordinationError):
    """The node to be created exists already."""


class BadVersionError(CoordinationError):
    """The node changed since it was read. Read it again before you retry."""

    retriable = True


class NotEmptyError(CoordinationError):
    """The node to be deleted still has children."""


class NodeHeldError(CoordinationError):
    """Another live session still holds the ephemeral node after the caller's wait."""


class TooLargeError(CoordinationError):
    """Caused by the caller: more than ZooKeeper takes at once, or than we store in one node. Nothing was
    written."""


class CorruptNodeError(CoordinationError):
    """A node's content is not what this version of headrace writes. Names the path and the problem."""


class GuardError(CoordinationError):
    """A node that the caller must still hold is gone or has changed: nothing more was written."""


class OlderZooKeeperError(CoordinationError):
    """ZooKeeper no longer knows what it had confirmed: an earlier state of its data was put in place."""


class TopicExistsError(CoordinationError):
    """A topic of this name exists already."""


class TopicNotRegisteredError(CoordinationError):
    """ZooKeeper holds no topic of this name, or no such partition of it."""


class InvalidTopicError(CoordinationError):
    """Caused by the caller: an invalid topic name, or an invalid list of partitions or replicas."""
