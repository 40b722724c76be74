"""Copies of a topic that its mirrors do not fill, though all of its partitions are there.

A topic that was deleted in its source and made again finds the copy of the deleted one, and the two are never
mixed. Owns for how long mirrors may be of an earlier word. A mirror that does not answer says nothing here.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any, Final

import httpx

from headrace.agent.probes import get
from headrace.site.context import ContextMirror
from headrace.site.errors import SiteError

SETTLE_MAX_S: Final = 30.0
"""Mirrors look for topics every two seconds, and notice that one was made again when they fetch."""
POLL_S: Final = 0.5
ANSWER_MAX_S: Final = 3.5

Row = Mapping[str, Any]


class HaltedCopyError(SiteError):
    """A topic whose copy is halted: what services publish to it goes no further until somebody acts."""


def check_copies(topic: str, mirrors: Sequence[tuple[ContextMirror, str]], target_id: str) -> None:
    """Waits until these mirrors copy the topic that has this id in their source, into the one that has
    `target_id` at their target. Why a mirror halted in one that was deleted there says nothing.

    Raises `HaltedCopyError` if one does not copy a partition of it.
    """
    deadline = time.monotonic() + SETTLE_MAX_S
    halted: list[str] = []
    target, waits = "", True
    while waits and not halted:
        waits = False
        for mirror, topic_id in mirrors:
            rows = _rows(mirror, topic)
            waits = waits or rows == []
            for row in rows or ():
                if row.get("target_topic_id", target_id) != target_id:
                    waits = True
                elif row["state"] == "halted":
                    target = mirror.target
                    halted.append(f"{topic}-{row['partition']} of {mirror.source}: {row['reason']}")
                elif row.get("source_topic_id", topic_id) != topic_id:
                    waits = True
        if time.monotonic() >= deadline:
            break
        if waits and not halted:
            time.sleep(POLL_S)
    if halted:
        more = f" (and {len(halted) - 1} more: `headrace mirror status`)" if len(halted) > 1 else ""
        raise HaltedCopyError(
            f"{target} does not copy {halted[0]}{more}. `headrace topics delete {topic} -d {target}` deletes "
            "the copy; run this command again then"
        )


def _rows(mirror: ContextMirror, topic: str) -> list[Row] | None:
    """Returns what the mirror says of the topic's partitions; None if it does not answer."""
    try:
        status: Any = get(mirror.status_url, timeout_s=ANSWER_MAX_S).json()
        return [row for row in status["partitions"] if row["topic"] == topic and "state" in row]
    except (httpx.HTTPError, ValueError, KeyError, TypeError):
        return None
