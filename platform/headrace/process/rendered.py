"""A page as HTML that costs its process little, however many ask for it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Final

from headrace.process.clock import now_ms
from headrace.process.neighbours import neighbours
from headrace.process.page import REFRESH_QUERY, Page, render

KEPT_S: Final = 1.0
"""For how long a page is given again."""


class RenderedPage:
    """A page as HTML, made at most once in `KEPT_S`. Any thread may call."""

    def __init__(self, make: Callable[[], Page]) -> None:
        self._make = make
        self._lock = threading.Lock()
        self._html: dict[bool, bytes] = {}
        self._until_s = 0.0

    def html(self, query: str) -> bytes:
        """Returns the page for a request with this query."""
        refreshes = query == REFRESH_QUERY
        with self._lock:
            if time.monotonic() >= self._until_s:
                self._html.clear()
            if refreshes not in self._html:
                made = self._make()
                self._html[refreshes] = render(made, now_ms(), neighbours=neighbours(), refreshes=refreshes)
                self._until_s = time.monotonic() + KEPT_S
            return self._html[refreshes]
