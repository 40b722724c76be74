"""Copies of a topic that its mirrors do not fill, though all of its partitions are there.

A topic that was deleted in its source and made again finds the copy of the deleted one, and the two are never
mixed.
Owns for how long mirrors may be of an earlier word. A mirror that does not answer says nothing here.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from typing import Any, Final

import httpx

from headrace.site.context import ContextMirror
from headrace.site.errors import SiteError

SETTLE_S: Final = 6.0
"""Mirrors look for topics every two seconds."""
POLL_S: Final = 0.5
ANSWER_MAX_S: Final = 3.5


class HaltedCopyError(SiteError):
    """A topic whose copy is halted: what services publish to it goes no further until somebody acts."""


def check_copies(topic: str, mirrors: Iterable[ContextMirror], *, is_new: bool) -> None:
    """Raises `HaltedCopyError` if these mirrors do not copy the topic. `is_new`: it was made a moment ago, so
    mirrors may not have seen it."""
    asked = tuple(mirrors)
    deadline = time.monotonic() + SETTLE_S
    while (halted := [each for mirror in asked for each in _halted(mirror, topic)]) or is_new:
        if time.monotonic() >= deadline:
            break
        time.sleep(POLL_S)
    if not halted:
        return
    target = asked[0].target
    more = f" (and {len(halted) - 1} more: `headrace mirror status`)" if len(halted) > 1 else ""
    raise HaltedCopyError(
        f"{target} does not copy {halted[0]}{more}. `headrace topics delete {topic} -d {target}` deletes the "
        "copy; run this command again then"
    )


def _halted(mirror: ContextMirror, topic: str) -> Iterator[str]:
    try:
        status: Any = httpx.get(mirror.status_url, timeout=ANSWER_MAX_S, trust_env=False).json()
        rows = [row for row in status["partitions"] if row["topic"] == topic and row["state"] == "halted"]
    except (httpx.HTTPError, ValueError, KeyError, TypeError):
        return
    for row in rows:
        yield f"{topic}-{row['partition']} of {mirror.source}: {row['reason']}"
