"""The counts of a publisher against a model that keeps every event by itself: any mix of batches, losses,
renumbering, lost reports.
"""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from headrace.client import BatchIdentity
from headrace.events import handovers
from headrace.events.handovers import HandoverCounts, PartTally, SequenceRange, ranges_of, subtract
from headrace.wire.batch import SEQUENCE_SPAN

BUCKET_MS = 600_000
TOPICS = st.sampled_from(["t", "u"])
TIMES = st.integers(0, 3 * BUCKET_MS - 1)


def identity(
    topic: str, time_ms: int, first: int, count: int, *, partition: int = 0, epoch: int = 0
) -> BatchIdentity:
    return BatchIdentity(topic, partition, 7, epoch, first, count, time_ms, time_ms)


class Books(RuleBasedStateMachine):
    """An auditor that folds what arrives must end with exactly what happened."""

    @initialize(ranges_per_part_max=st.integers(1, 4))
    def begin(self, ranges_per_part_max: int) -> None:
        self.patch = pytest.MonkeyPatch()
        self.patch.setattr(handovers, "RANGES_PER_PART_MAX", ranges_per_part_max)
        self.handovers = HandoverCounts(BUCKET_MS)
        self.now_s = 0.0
        self.waiting: dict[tuple[str, int], int] = {}
        self.counts: dict[tuple[str, int], int] = {}
        self.sequences: dict[tuple[str, int], set[tuple[int, int, int]]] = {}
        self.next_sequence: dict[tuple[str, int], tuple[int, int]] = {}
        self.in_flight: list[BatchIdentity] = []
        self.folded: dict[int, PartTally] = {}

    def teardown(self) -> None:
        self.patch.undo()

    @rule(topic=TOPICS, time_ms=TIMES, count=st.integers(1, 5))
    def hand_over(self, topic: str, time_ms: int, count: int) -> None:
        key = (topic, time_ms - time_ms % BUCKET_MS)
        for _ in range(count):
            self.handovers.hand_over(topic, time_ms, self.now_s)
        self.counts[key] = self.counts.get(key, 0) + count
        self.waiting[key] = self.waiting.get(key, 0) + count

    @rule(topic=TOPICS, time_ms=TIMES)
    def refused_at_once(self, topic: str, time_ms: int) -> None:
        self.handovers.hand_over(topic, time_ms, self.now_s)
        self.handovers.take_back(topic, time_ms, self.now_s)

    @rule(data=st.data(), partition=st.integers(0, 1))
    def close_a_batch(self, data: st.DataObject, partition: int) -> None:
        ready = sorted(key for key, count in self.waiting.items() if count)
        if not ready:
            return
        topic, bucket = data.draw(st.sampled_from(ready))
        count = data.draw(st.integers(1, self.waiting[topic, bucket]))
        epoch, first = self.next_sequence.get((topic, partition), (0, SEQUENCE_SPAN - 6))
        closed = identity(topic, bucket, first, count, partition=partition, epoch=epoch)
        self.next_sequence[topic, partition] = (epoch, (first + count) % SEQUENCE_SPAN)
        self.waiting[topic, bucket] -= count
        self.handovers.batch_closed(closed, self.now_s)
        self._sequences(topic, bucket).update(self._each(closed))
        self.in_flight.append(closed)

    @rule(data=st.data())
    def renumber(self, data: st.DataObject) -> None:
        if not self.in_flight:
            return
        old = self.in_flight.pop(data.draw(st.integers(0, len(self.in_flight) - 1)))
        epoch = self.next_sequence[old.topic, old.partition][0] + 1
        new = old._replace(producer_epoch=epoch, base_sequence=0)
        self.next_sequence[old.topic, old.partition] = (epoch, old.record_count)
        self.handovers.batch_renumbered(old, new, self.now_s)
        sequences = self._sequences(old.topic, old.base_timestamp_ms)
        sequences -= set(self._each(old))
        sequences.update(self._each(new))
        self.in_flight.append(new)

    @rule()
    def everything_settles_and_time_passes(self) -> None:
        self.in_flight.clear()
        self.now_s += 100

    @rule(arrives=st.booleans())
    def report(self, arrives: bool) -> None:
        # A part may become final only when no batch of it can be in flight.
        if not self.in_flight and not any(self.waiting.values()):
            self.handovers.finish_idle(self.now_s - 50)
        tallies = self.handovers.changed()
        if arrives:
            for tally in tallies:
                self.folded[tally.part] = tally
            self.handovers.acknowledge(tallies)

    @invariant()
    def what_was_folded_and_what_changed_since_is_everything(self) -> None:
        reported = {**self.folded, **{tally.part: tally for tally in self.handovers.changed()}}
        counts: dict[tuple[str, int], int] = {}
        sequences: dict[tuple[str, int], set[tuple[int, int, int]]] = {}
        for tally in reported.values():
            key = (tally.topic, tally.bucket_start_ms)
            counts[key] = counts.get(key, 0) + tally.handed_over_count
            held = [(r.partition, r.producer_epoch, s) for r in tally.ranges for s in range(r[3], r[4] + 1)]
            assert len(held) <= tally.handed_over_count, "more numbers than events"
            assert not sequences.setdefault(key, set()) & set(held), "a number in two parts"
            sequences[key].update(held)
            assert len(tally.ranges) <= handovers.RANGES_PER_PART_MAX + 3, (
                "bounded, but for what renumbering cut in two"
            )
            if tally.final:
                assert len(held) == tally.handed_over_count, "a final part has no event without a number here"
        assert {key: n for key, n in counts.items() if n} == {key: n for key, n in self.counts.items() if n}
        assert {key: s for key, s in sequences.items() if s} == {
            key: s for key, s in self.sequences.items() if s
        }

    def _sequences(self, topic: str, bucket: int) -> set[tuple[int, int, int]]:
        return self.sequences.setdefault((topic, bucket), set())

    @staticmethod
    def _each(batch: BatchIdentity) -> list[tuple[int, int, int]]:
        first = batch.base_sequence
        return [
            (batch.partition, batch.producer_epoch, (first + i) % SEQUENCE_SPAN)
            for i in range(batch.record_count)
        ]


Books.TestCase.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
TestBooks = Books.TestCase


def test_adjacent_batches_of_a_bucket_are_one_range() -> None:
    counts = HandoverCounts(BUCKET_MS)
    for i in range(4):
        for _ in range(10):
            counts.hand_over("t", 5, 0.0)
        counts.batch_closed(identity("t", 5, 10 * i, 10), 0.0)
    (tally,) = counts.changed()
    assert tally.ranges == (SequenceRange(0, 7, 0, 0, 39),)
    assert (tally.handed_over_count, tally.bucket_start_ms, tally.final) == (40, 0, False)


def test_a_dropped_batch_stays_counted_and_the_rest_continues_under_the_next_epoch() -> None:
    counts = HandoverCounts(BUCKET_MS)
    for _ in range(17):
        counts.hand_over("t", 5, 0.0)
    dropped, after = identity("t", 5, 0, 7), identity("t", 5, 7, 10)
    counts.batch_closed(dropped, 0.0)
    counts.batch_closed(after, 0.0)
    counts.batch_renumbered(after, after._replace(producer_epoch=1, base_sequence=0), 0.0)
    (tally,) = counts.changed()
    assert tally.ranges == (SequenceRange(0, 7, 0, 0, 6), SequenceRange(0, 7, 1, 0, 9))
    assert tally.handed_over_count == 17


def test_events_without_sequence_numbers_are_counted() -> None:
    counts = HandoverCounts(BUCKET_MS)
    counts.hand_over("t", BUCKET_MS + 1, 0.0)
    (tally,) = counts.changed(closing=True)
    assert (tally.handed_over_count, tally.ranges, tally.bucket_start_ms, tally.final) == (
        1,
        (),
        BUCKET_MS,
        True,
    )


def test_idle_parts_are_reported_as_final_once_and_forgotten() -> None:
    counts = HandoverCounts(BUCKET_MS)
    counts.hand_over("t", 5, now_s=10.0)
    counts.acknowledge(counts.changed())
    assert counts.changed() == []
    counts.finish_idle(idle_since_s=10.0)
    assert counts.changed() == [], "not idle: it changed at that moment"
    counts.finish_idle(idle_since_s=10.1)
    (tally,) = counts.changed()
    assert tally.final
    counts.acknowledge([tally])
    assert len(counts) == 0
    counts.hand_over("t", 5, now_s=20.0)
    (late,) = counts.changed()
    assert (late.part, late.handed_over_count) == (tally.part + 1, 1), "a latecomer opens a part of its own"


def test_a_change_while_a_report_is_in_flight_is_reported_again() -> None:
    counts = HandoverCounts(BUCKET_MS)
    counts.hand_over("t", 5, 0.0)
    sent = counts.changed()
    counts.hand_over("t", 5, 0.0)
    counts.acknowledge(sent)
    assert [tally.handed_over_count for tally in counts.changed()] == [2]


@pytest.mark.parametrize("bucket_ms", [0, -5, 7, 3_600_001])
def test_buckets_divide_an_hour(bucket_ms: int) -> None:
    with pytest.raises(ValueError, match="does not divide an hour"):
        HandoverCounts(bucket_ms)


@given(st.integers(0, SEQUENCE_SPAN - 1), st.integers(1, 50))
def test_ranges_wrap(first: int, count: int) -> None:
    ranges = ranges_of(identity("t", 0, first, count))
    assert sum(each.event_count for each in ranges) == count
    assert all(0 <= each.first_sequence <= each.last_sequence < SEQUENCE_SPAN for each in ranges)
    assert (len(ranges) == 2) == (first + count > SEQUENCE_SPAN)


@given(*[st.integers(0, 12)] * 4)
def test_subtraction_of_ranges(a: int, b: int, c: int, d: int) -> None:
    whole, removed = (
        SequenceRange(0, 1, 0, min(a, b), max(a, b)),
        SequenceRange(0, 1, 0, min(c, d), max(c, d)),
    )
    left = [s for each in subtract(whole, removed) for s in range(each[3], each[4] + 1)]
    assert left == [s for s in range(whole[3], whole[4] + 1) if not removed[3] <= s <= removed[4]]
    assert subtract(whole, removed._replace(producer_epoch=1)) == [whole]
