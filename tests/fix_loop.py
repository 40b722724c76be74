"""Fixture: `loop`, a broker's event loop that the test turns itself."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from headrace.broker.loop import EventLoop


@pytest.fixture
def loop() -> Iterator[EventLoop]:
    made = EventLoop()
    yield made
    made.close()
