"""The lock of a home: one command at a time starts, stops or restores what is in it."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from headrace.site.errors import SiteError

LOCK: Final = "fleet.lock"


@contextmanager
def locked(home: Path) -> Iterator[None]:
    """Keeps other commands away from a home, which exists. Raises `SiteError` if one is at work there."""
    # Nobody else may open it: who can read it, can lock it.
    descriptor = os.open(home / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        if os.fstat(descriptor).st_uid == os.geteuid():
            os.fchmod(descriptor, 0o600)
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(descriptor)
        raise SiteError(
            f"another `headrace up`, `down`, `restart` or `restore` is running in {home}; wait until it has "
            "ended"
        ) from error
    try:
        yield
    finally:
        os.close(descriptor)
