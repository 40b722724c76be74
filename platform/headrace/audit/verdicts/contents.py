"""What two tiers say of the same numbers, compared by content (`wire.content`). Pure.

Tiers cut the same log at different places, and a content is a sum. So what they say is compared from each
place where both cut to the next such place, and only if both count as many events there: everything else is
a finding of another kind. Where one of the two does not know the content, nothing is said: a producer of
another make, a report of an earlier version.

Sequence numbers may be stored twice, and a tally may join a second copy of one batch with the first copy of
the next. So each *chain* of them is compared: each way from one such place to the other over adjacent ranges
of one tier. They are altered if no chain holds them as the tier before does. That tier must have them once:
of two copies with different bytes nobody could tell which was joined with what.
"""

from __future__ import annotations

import itertools
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Sequence
from heapq import heappop, heappush
from typing import Final, NamedTuple

from headrace.wire.content import NO_BATCHES, added

CONTENTS_MAX: Final = 64
"""How many contents of chains between two places are told apart. Where there are more, nothing is said."""
STEPS_PER_RANGE_MAX: Final = 32
"""How many ranges are looked at for each range there is. Where that is not enough, nothing is said: a client
may write as many copies as it likes, and each of these is a finding of its own."""


class Held(NamedTuple):
    """What a tier says of the numbers from `start` to `end` - 1, which lie at addresses [low, high)."""

    start: int
    end: int
    record_count: int
    content: int | None
    low: int = -1
    high: int = -1

    def with_next(self, other: Held) -> Held:
        """Returns both together; `other` comes later. Of sequences with a gap the content is not known."""
        is_adjacent = other.start == self.end or self.is_at_addresses
        return Held(
            self.start,
            other.end,
            self.record_count + other.record_count,
            added(self.content, other.content) if is_adjacent else None,
            min(self.low, other.low),
            max(self.high, other.high),
        )

    @property
    def is_at_addresses(self) -> bool:
        """Whether the numbers are addresses, between which there may be batches of other buckets."""
        return (self.start, self.end) == (self.low, self.high)


def altered(left: Iterable[Held], right: Iterable[Held]) -> Iterator[Held]:
    """Yields what both have, as many of it, with different contents: as `right` says it, without content.

    Adjacent differences are one. All numbers are sequences of one producer, or all are addresses.
    """
    mine, theirs = _in_order(left), _in_order(right)
    in_chains = not any(each.is_at_addresses for each in (*mine, *theirs)) and not _overlap(mine)
    different = _Chains(list(mine), theirs).different() if in_chains else _different_stretches(mine, theirs)
    found: Held | None = None
    for each in different:
        if found is not None and found.end == each.start:
            found = found.with_next(each)
            continue
        if found is not None:
            yield found._replace(content=None)
        found = each
    if found is not None:
        yield found._replace(content=None)


def _in_order(held: Iterable[Held]) -> deque[Held]:
    return deque(sorted(held, key=lambda each: (each.start, each.end, each.low)))


def _overlap(held: Iterable[Held]) -> bool:
    """Whether two of them, which are in order, share numbers."""
    return any(following.start < each.end for each, following in itertools.pairwise(held))


def _different_stretches(left: deque[Held], right: deque[Held]) -> Iterator[Held]:
    """Yields what `right` has between two places where both cut, and `left` has with another content."""
    while left and right:
        if left[0].start != right[0].start:
            (left if left[0].start < right[0].start else right).popleft()
            continue
        mine, theirs = left.popleft(), right.popleft()
        while mine.end != theirs.end:
            shorter = left if mine.end < theirs.end else right
            if not shorter:
                return
            following = shorter.popleft()
            if shorter is left:
                mine = mine.with_next(following)
            else:
                theirs = theirs.with_next(following)
        is_known = mine.content is not None and theirs.content is not None
        if is_known and mine.record_count == theirs.record_count and mine.content != theirs.content:
            yield theirs


class _Chains:
    """All chains of one tier over sequence numbers that the tier before it, `left`, has once each."""

    def __init__(self, left: Sequence[Held], right: Iterable[Held]) -> None:
        self._left = left
        self._number_of = {each.start: number for number, each in enumerate(left)}
        self._right: defaultdict[int, list[Held]] = defaultdict(list)
        for each in right:
            self._right[each.start].append(each)
        self._steps_left = STEPS_PER_RANGE_MAX * (len(left) + sum(map(len, self._right.values())))

    def different(self) -> Iterator[Held]:
        """Yields what `right` has in no chain as `left` has it, and in some chain with other contents."""
        held: set[int] = set()  # the numbers of ranges of `left`
        changed: dict[int, Held] = {}
        for start in sorted(self._number_of.keys() & self._right.keys()):
            for whole, count, chains in self._chains_from(start):
                numbers = range(self._number_of[start], self._number_of[start] + count)
                contents = {each.content for each in chains}
                is_known = None not in contents and whole.content is not None and len(chains) < CONTENTS_MAX
                if whole.content in contents or not is_known:
                    held.update(numbers)
                else:
                    changed.update((number, chains[0]) for number in numbers if number not in changed)
        if self._steps_left <= 0:
            return  # a chain that was not looked at may hold them
        for number in sorted(changed.keys() - held):
            start, end, record_count, *_ = self._left[number]
            yield Held(start, end, record_count, None, *changed[number][-2:])

    def _chains_from(self, start: int) -> Iterator[tuple[Held, int, list[Held]]]:
        """Yields what `left` has from `start` to another of its cuts, in how many ranges, and all chains from
        `start` to there that pass none of its cuts before.
        """
        number = self._number_of[start]
        whole, count = self._left[number], 1
        chains = defaultdict(list, {start: [Held(start, start, 0, NO_BATCHES)]})
        places = [start]
        while places and self._steps_left > 0:
            at = heappop(places)
            while whole.end < at and number + count < len(self._left):
                following = self._left[number + count]
                if following.start != whole.end:
                    return  # `left` has a gap there
                whole, count = whole.with_next(following), count + 1
                self._steps_left -= 1
            if whole.end < at:
                return
            if whole.end == at:
                yield whole, count, chains.pop(at)
            else:
                for end in self._extend(chains.pop(at), chains):
                    heappush(places, end)

    def _extend(self, chains: list[Held], reached: dict[int, list[Held]]) -> Iterator[int]:
        """Adds each chain with each range that follows it to `reached`; yields where the first one ends."""
        for chain in chains:
            for following in self._right.get(chain.end, ()):
                self._steps_left -= 1
                longer = chain.with_next(following) if chain.record_count else following
                found = reached[longer.end]
                if not found:
                    yield longer.end
                if len(found) < CONTENTS_MAX and all(each.content != longer.content for each in found):
                    found.append(longer)
