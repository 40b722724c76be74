"""Where two replicas of a log differ, batch by batch: brokers are asked for sums of ever smaller ranges."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple

from headrace.client.errors import ClientError, RequestTimedOutError
from headrace.wire.content import NO_BATCHES, added
from headrace.wire.log_contents import ContentAnswer, ContentRange
from headrace.wire.topic_names import TopicPartition

logger = logging.getLogger(__name__)

PROBES_MAX: Final = 60  # that narrow one difference down
NARROW_MAX_S: Final = 2.0  # counting waits meanwhile
PLACES_MAX: Final = 8  # batches of one difference that are named by themselves

Ask = Callable[[int, Sequence[ContentRange]], Mapping[ContentRange, ContentAnswer]]
"""Asks a broker; raises `ClientError`. What it has not answered is missing."""


class Expected(NamedTuple):
    """Addresses [start, end), between two places where counts were cut, and the content that was counted."""

    start: int
    end: int
    content: int


def differing_places(
    ask: Ask, bad: int, sound: int, key: TopicPartition, expected: Expected
) -> list[tuple[int, int]]:
    """Returns where broker `bad` differs from broker `sound` in a range, batch by batch, by bisection.

    The last place may be wider: if there are more than `PLACES_MAX`, or a broker does not answer any more.
    Raises nothing.
    """
    places: list[tuple[int, int]] = []
    start, end = expected.start, expected.end
    try:
        while start < end:
            if len(places) == PLACES_MAX - 1:
                return [*places, (start, end)]
            place = _first_difference(ask, bad, sound, key, start, end)
            if place is None:
                return places
            places.append(place)
            start = place[1]
    except ClientError as error:
        logger.info("%s-%d: a difference could not be narrowed down: %s", *key, error)
        places.append((start, end))
    return places


def _first_difference(
    ask: Ask, bad: int, sound: int, key: TopicPartition, start: int, end: int
) -> tuple[int, int] | None:
    """Returns the first batch that differs, by the sound replica's batches; None if there is none."""
    if not _differ(ask, bad, sound, key, start, end):
        return None
    for _ in range(PROBES_MAX):
        half = whole_answer(ask, sound, key, start, start + max(1, (end - start) // 2))
        if half is None:
            break
        cut = half.end if half.end < end else half.last_start
        if not start < cut < end:
            break  # one batch
        if _differ(ask, bad, sound, key, start, cut):
            end = cut
        else:
            start = cut
    return start, end


def _differ(ask: Ask, bad: int, sound: int, key: TopicPartition, start: int, end: int) -> bool:
    one, other = (whole_answer(ask, number, key, start, end) for number in (bad, sound))
    return one is None or other is None or (one.end, one.content) != (other.end, other.content)


def whole_answer(ask: Ask, number: int, key: TopicPartition, start: int, end: int) -> ContentAnswer | None:
    """Returns what a replica holds from `start` to `end`, asked piece by piece; None if it cannot say."""
    content, at = NO_BATCHES, start
    for _ in range(PROBES_MAX):
        asked = ContentRange(*key, at, end)
        answer = ask(number, [asked]).get(asked)
        if answer is None or answer.problem:
            return None
        content, at = added(content, answer.content) or NO_BATCHES, answer.end
        if at >= end:
            return ContentAnswer(content, at, answer.last_start)
    return None


def in_time(ask: Ask) -> Ask:
    """Returns `ask`, which raises `RequestTimedOutError` after `NARROW_MAX_S`."""
    deadline_s = time.monotonic() + NARROW_MAX_S

    def ask_in_time(number: int, ranges: Sequence[ContentRange]) -> Mapping[ContentRange, ContentAnswer]:
        if time.monotonic() > deadline_s:
            raise RequestTimedOutError(f"not narrowed down within {NARROW_MAX_S:g} s")
        return ask(number, ranges)

    return ask_in_time
