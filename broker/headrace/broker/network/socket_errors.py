"""Errors of clients' sockets that are no problem of this broker: the client or its network is gone."""

from __future__ import annotations

import errno
from typing import Final

ENDED_BY_CLIENT: Final = frozenset(
    {
        errno.ECONNRESET,
        errno.EPIPE,
        errno.ETIMEDOUT,
        errno.ENOTCONN,
        errno.EHOSTUNREACH,
        errno.ENETUNREACH,
        errno.ECONNABORTED,
    }
)
# The client went before it was accepted: accept(2) passes on errors of the new connection's network.
GONE_BEFORE_ACCEPTED: Final = frozenset(
    {
        errno.ECONNABORTED,
        errno.ECONNRESET,
        errno.EPROTO,
        errno.EPERM,
        errno.ENETDOWN,
        errno.ENETUNREACH,
        errno.EHOSTDOWN,
        errno.EHOSTUNREACH,
        errno.ENOPROTOOPT,
    }
)


def problem_of(error: OSError) -> str:
    """Returns what to log of an error of an open connection; "" if the client or its network ended it."""
    return "" if error.errno in ENDED_BY_CLIENT else str(error)
