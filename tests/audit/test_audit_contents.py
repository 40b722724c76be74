"""What two tiers say of the same numbers: also where batches were stored twice, and one copy was changed."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.audit.verdicts.contents import CONTENTS_MAX, Held, altered


def test_a_changed_copy_is_named_where_a_second_copy_of_one_batch_was_joined_with_the_next_batch() -> None:
    sent = [Held(23, 29, 6, 100)]
    stored = [Held(23, 24, 1, 7, 749, 824), Held(23, 29, 6, 101, 824, 1030), Held(23, 24, 1, 7, 1161, 1236)]
    assert list(altered(sent, stored)) == [Held(23, 29, 6, None, 824, 1030)]


def test_a_copy_that_has_no_equal_is_named_beside_those_that_have() -> None:
    sent = [Held(0, 5, 5, 1), Held(5, 10, 5, 2)]
    stored = [Held(0, 5, 5, 1, 0, 50), Held(5, 10, 5, 8, 50, 100), Held(5, 10, 5, 8, 100, 150)]
    assert list(altered(sent, stored)) == [Held(5, 10, 5, None, 50, 100)]


def test_a_changed_second_copy_is_a_double_and_no_more() -> None:
    sent = [Held(0, 10, 10, 3)]
    stored = [Held(0, 5, 5, 1, 0, 50), Held(5, 10, 5, 2, 50, 100), Held(0, 5, 5, 9, 100, 150)]
    assert list(altered(sent, stored)) == []


def test_equal_copies_are_no_difference() -> None:
    sent = [Held(0, 5, 5, 1), Held(5, 10, 5, 2)]
    stored = [Held(0, 10, 10, 3, 0, 100), Held(0, 5, 5, 1, 100, 150), Held(0, 10, 10, 3, 150, 250)]
    assert list(altered(sent, stored)) == []


def test_nothing_is_said_beside_a_copy_that_is_not_known() -> None:
    sent = [Held(0, 5, 5, 1)]
    assert list(altered(sent, [Held(0, 5, 5, None, 0, 50)])) == []
    assert list(altered(sent, [Held(0, 5, 5, None, 0, 50), Held(0, 5, 5, 2, 50, 90)])) == []


def test_more_copies_than_are_told_apart_end_the_comparison_and_not_the_auditor() -> None:
    length = 40
    sent = [Held(0, length, length, 0)]
    stored = [
        Held(at, at + 1, 1, content << (8 * at), 70 * at, 70 * at + 70)
        for at in range(length)
        for content in (1, 2)
    ]
    assert list(altered(sent, stored)) == []
    few = [Held(0, length, length, content, 0, 2800) for content in range(1, CONTENTS_MAX)]
    assert list(altered(sent, few)) == [Held(0, length, length, None, 0, 2800)]
    assert list(altered(sent, [*few, Held(0, length, length, 0, 2800, 5600)])) == []


def test_of_two_different_copies_in_the_log_nobody_can_tell_which_the_copy_joined_with_what() -> None:
    source = [Held(0, 4, 4, 10 + 200, 0, 40), Held(0, 4, 4, 11 + 200, 40, 80)]
    copy = [Held(0, 2, 2, 11, 40, 60), Held(0, 2, 2, 10, 0, 20), Held(2, 4, 2, 200, 20, 40)]
    assert list(altered(source, copy)) == []


def test_what_others_wrote_to_make_the_comparison_slow_has_a_bound() -> None:
    count = 3_000
    sent = [Held(at, at + 1, 1, 1) for at in range(count)]
    stored = [Held(at, count, count - at, 5, 70 * at, 70 * at + 70) for at in range(count)]
    assert list(altered(sent, stored)) == []


Copies = list[tuple[int, bool]]
"""A log: which batch is stored, and whether this copy was changed."""


@st.composite
def logs(draw: st.DrawFn) -> tuple[list[int], Copies]:
    """The sizes of a producer's batches, and a log with each of them, in their order, and second copies."""
    sizes = draw(st.lists(st.integers(1, 3), min_size=1, max_size=5))
    copies: Copies = []
    for number in range(len(sizes)):
        copies.append((number, draw(st.booleans())))
        if draw(st.booleans()):
            first = draw(st.integers(0, number))
            copies += [(again, draw(st.booleans())) for again in range(first, number + 1)]
    return sizes, copies


def ranges_of(sizes: Sequence[int], copies: Copies, cuts: set[int]) -> Iterator[tuple[Held, bool]]:
    """Ranges of adjacent batches, cut before the copies of these numbers; and whether one was changed."""
    starts = [0, *itertools.accumulate(sizes)]
    pieces: list[list[int]] = []
    for place, (number, _) in enumerate(copies):
        if pieces and place not in cuts and copies[pieces[-1][-1]][0] == number - 1:
            pieces[-1].append(place)
        else:
            pieces.append([place])
    for piece in pieces:
        numbers = tuple(copies[place][0] for place in piece)
        start, end = starts[numbers[0]], starts[numbers[-1] + 1]
        content = sum((2 if copies[place][1] else 1) * 10 ** (3 * copies[place][0]) for place in piece)
        held = Held(start, end, end - start, content, piece[0] * 10, piece[-1] * 10 + 10)
        yield held, any(copies[place][1] for place in piece)


def chains(ranges: Sequence[Held], start: int) -> Iterator[list[Held]]:
    """All ways from `start` over adjacent ranges."""
    for each in ranges:
        if each.start == start:
            yield [each]
            for rest in chains(ranges, each.end):
                yield [each, *rest]


@given(log=logs(), cuts=st.sets(st.integers(0, 12)), claim_cuts=st.sets(st.integers(0, 5)))
@settings(max_examples=300, deadline=None)
def test_what_is_named_was_changed_and_what_can_be_compared_is_named(
    log: tuple[list[int], Copies], cuts: set[int], claim_cuts: set[int]
) -> None:
    sizes, copies = log
    unchanged = [(number, False) for number in range(len(sizes))]
    sent = [held for held, _ in ranges_of(sizes, unchanged, claim_cuts)]
    stored = list(ranges_of(sizes, copies, cuts))
    ranges = [held for held, _ in stored]
    found = list(altered(sent, ranges))
    edges = {0, *(held.end for held in sent)}
    ways = [
        (chain[0].start, chain[-1].end, any(changed for held, changed in stored if held in chain))
        for start in edges
        for chain in chains(ranges, start)
        if chain[-1].end in edges
    ]
    for each in sent:
        passing = [is_changed for start, end, is_changed in ways if start <= each.start and each.end <= end]
        is_named = any(named.start <= each.start and each.end <= named.end for named in found)
        assert is_named == (bool(passing) and all(passing))
