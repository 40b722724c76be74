"""Copies of many topics are located at once: over a slow line each takes a dozen answers in a row."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator

import pytest

from headrace.mirror import locators as mirror_locators
from headrace.mirror.locators import AT_ONCE_MAX, FEW_TOPICS, Locators, Sides
from headrace.mirror.side import MirrorSide

WAIT_MAX_S = 30.0
MANY = {f"t-{number}": number for number in range(3 * AT_ONCE_MAX)}


@pytest.fixture
def own() -> Iterator[Sides]:
    made = Sides(*(MirrorSide("127.0.0.1:1", client_id="test") for _ in range(2)))
    yield made
    made.close()


@pytest.fixture
def locators(own: Sides) -> Iterator[Locators]:
    made = Locators(own)
    yield made
    made.close()


def test_many_are_located_at_once_each_by_connections_of_its_own(locators: Locators, own: Sides) -> None:
    together = threading.Barrier(AT_ONCE_MAX)
    lock, used, at_once = threading.Lock(), set[Sides](), set[Sides]()

    def locate(sides: Sides, topic: str, number: int) -> int:
        with lock:
            assert sides not in at_once
            at_once.add(sides)
            used.add(sides)
        together.wait(WAIT_MAX_S)
        with lock:
            at_once.remove(sides)
        return number

    assert dict(locators.located(MANY, locate)) == MANY
    assert len(used) == AT_ONCE_MAX and own not in used
    assert all(each.source._silent_until_s is own.source._silent_until_s for each in used)
    assert dict(locators.located(MANY, locate)) == MANY
    assert len(used) == AT_ONCE_MAX, "they are kept for the next time"


def test_a_few_are_located_by_the_connections_that_are_there(locators: Locators, own: Sides) -> None:
    few = dict(list(MANY.items())[:FEW_TOPICS])
    this = threading.current_thread()

    def locate(sides: Sides, topic: str, number: int) -> bool:
        return sides is own and threading.current_thread() is this

    assert dict(locators.located(few, locate)) == dict.fromkeys(few, True)


def test_connections_that_nobody_needs_are_closed(
    locators: Locators, own: Sides, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed: list[Sides] = []
    close = Sides.close

    def note(sides: Sides) -> None:
        closed.append(sides)
        close(sides)

    monkeypatch.setattr(Sides, "close", note)
    list(locators.located(MANY, lambda *_: None))
    list(locators.located({}, lambda *_: None))
    assert not closed
    monkeypatch.setattr(mirror_locators, "UNUSED_MAX_S", 0.0)
    list(locators.located({}, lambda *_: None))
    assert len(closed) == AT_ONCE_MAX and own not in closed


def test_a_caller_that_has_enough_waits_for_those_that_have_begun_alone(
    locators: Locators, own: Sides
) -> None:
    begun: list[str] = []

    def locate(sides: Sides, topic: str, number: int) -> int:
        begun.append(topic)
        time.sleep(0.01)
        return number

    with contextlib.closing(locators.located(dict.fromkeys(map(str, range(1_000)), 0), locate)) as done:
        next(done)
    assert len(begun) < 1_000
    assert not [each for each in threading.enumerate() if each.name.startswith("mirror-locating")]


def test_what_a_topic_raises_reaches_the_service(locators: Locators, own: Sides) -> None:
    def locate(sides: Sides, topic: str, number: int) -> int:
        raise RuntimeError(topic)

    with pytest.raises(RuntimeError, match="t-"):
        list(locators.located(MANY, locate))
