"""Content against content: where tiers have the same events by number, and not the same bytes. Pure.

`audit.verdicts.contents` compares what two tiers say; here is what they say at each hop, and the sentences.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from headrace.audit import phrases
from headrace.audit.batches.damage import NO_PRODUCER
from headrace.audit.evidence import Claim, CountedSpan, Evidence, LoadedContent
from headrace.audit.findings import LOAD_HOP, MIRROR_HOP, PRODUCER_HOP, Finding, Status
from headrace.audit.topic.records import ANALYSIS_TIER
from headrace.audit.verdicts.contents import Held, altered
from headrace.wire.content import added, total


class Line(NamedTuple):
    """What numbers lie on: the sequences of a producer, or addresses in the order of one bucket's batches."""

    partition: int
    producer_id: int
    producer_epoch: int
    bucket_start_ms: int = 0


# --- one function for each hop ---


def judge_sent(evidence: Evidence) -> Iterator[Finding]:
    """Yields the events whose bytes in the datacenter's log are not those that their publisher sent."""
    sent: defaultdict[Line, list[Held]] = defaultdict(list)
    for claim in evidence.claims:
        if not claim.withdrawn:
            line = Line(claim.partition, claim.producer_id, claim.producer_epoch)
            sent[line].append(_claimed(claim))
    logged = _lines(evidence.datacenter_spans)
    predicate = f"are in {evidence.datacenter}'s log with other bytes than their publisher sent"
    for line in sorted(sent.keys() & logged.keys()):
        for difference in altered(sent[line], logged[line]):
            yield _finding(PRODUCER_HOP, line, difference, predicate, evidence)


def judge_copied(evidence: Evidence) -> Iterator[Finding]:
    """Yields the events whose bytes in the copy are not those that the datacenter's log held."""
    source, copy = _lines(evidence.datacenter_spans), _lines(evidence.analysis_spans)
    predicate = f"are in the copy with other bytes than {evidence.datacenter}'s log had when it was counted"
    named: set[int] = set()
    for line in sorted(source.keys() & copy.keys()):
        for difference in altered(source[line], copy[line]):
            yield _finding(MIRROR_HOP, line, difference, predicate, evidence)
            if line.producer_id == NO_PRODUCER:
                named.add(line.partition)
    for partition in sorted({each.partition for each in evidence.datacenter_spans} - named):
        yield from _as_many_others(partition, evidence)


def _as_many_others(partition: int, evidence: Evidence) -> Iterator[Finding]:
    """Yields that as many events without a producer id are in the copy, and not the same ones: their numbers
    would tell what is missing, and what is there too often.
    """
    here, there = (
        [each.span for each in spans if (each.partition, each.span.producer_id) == (partition, NO_PRODUCER)]
        for spans in (evidence.datacenter_spans, evidence.analysis_spans)
    )
    counts = [sum(span.record_count for span in spans) for spans in (here, there)]
    contents = [total(span.content for span in spans) for spans in (here, there)]
    if not counts[0] or counts[0] != counts[1] or None in contents or contents[0] == contents[1]:
        return
    low = min(span.first_address for span in (*here, *there))
    high = max(span.end_address for span in (*here, *there))
    yield Finding(
        Status.UNKNOWN,
        MIRROR_HOP,
        f"of {phrases.events(counts[0], evidence)}, partition {partition}, from producers without an id, "
        f"some are not in the copy, which has as many others ({phrases.addresses(low, high)})",
        partition=partition,
        after_address=low,
        before_address=high,
        about=phrases.of_topic("as many others", evidence),
    )


def judge_loaded(evidence: Evidence) -> Iterator[Finding]:
    """Yields the events that loads read with other bytes than the copy held when it was counted.

    Partitions with corrupt batches in the hour are left out: a load may dead-letter these in several ways.
    """
    corrupt = {each.partition for each in evidence.corrupt if each.tier == ANALYSIS_TIER}
    for partition in sorted(evidence.loads.keys() - corrupt):
        spans = sorted(
            (counted.span for counted in evidence.analysis_spans if counted.partition == partition),
            key=lambda span: (span.first_address, span.end_address),
        )
        for load in _undivided(evidence.loads[partition], [(s.first_address, s.end_address) for s in spans]):
            inside = [s for s in spans if load.start <= s.first_address and s.end_address <= load.end]
            if not inside:
                continue
            content, count = total(span.content for span in inside), sum(s.record_count for s in inside)
            if (
                load.content is None
                or content is None
                or (load.record_count, load.content) == (count, content)
            ):
                continue
            if load.record_count == count:
                line = Line(partition, NO_PRODUCER, -1)
                place = (inside[0].first_address, max(span.end_address for span in inside))
                difference = Held(*place, count, None, *place)
                predicate = "were read by a load with other bytes than the copy had when it was counted"
                yield _finding(LOAD_HOP, line, difference, predicate, evidence)


def _undivided(loads: Iterable[LoadedContent], spans: Iterable[tuple[int, int]]) -> Iterator[LoadedContent]:
    """Yields loads, adjacent ones together where a span lies on both sides of the edge between them.

    One whose edge divides a span that no adjacent load continues is left out, and so are replays and refills,
    which report rows of batches that an earlier load read.
    """
    extents = list(spans)
    held: LoadedContent | None = None
    reads = [each for each in loads if each.start < each.end]
    for load in sorted(reads, key=lambda each: (each.start, each.end)):
        if held is not None and load.start == held.end:
            content = added(held.content, load.content)
            held = LoadedContent(held.start, load.end, held.record_count + load.record_count, content)
        else:
            held = load
        edges = (held.start, held.end)
        if not any(low < edge < high for low, high in extents for edge in edges):
            yield held
            held = None


# --- parts ---


def _claimed(claim: Claim) -> Held:
    end = claim.last_sequence + 1
    return Held(claim.first_sequence, end, end - claim.first_sequence, claim.content)


def _lines(spans: Iterable[CountedSpan]) -> dict[Line, list[Held]]:
    lines: defaultdict[Line, list[Held]] = defaultdict(list)
    for partition, span, _ in spans:
        place = (span.first_address, span.end_address)
        if span.producer_id == NO_PRODUCER:
            line, numbers = Line(partition, NO_PRODUCER, -1, span.bucket_start_ms), place
        else:
            line = Line(partition, span.producer_id, span.producer_epoch)
            numbers = (span.first_sequence, span.last_sequence + 1)
        lines[line].append(Held(*numbers, span.record_count, span.content, *place))
    return lines


def _finding(hop: str, line: Line, difference: Held, predicate: str, evidence: Evidence) -> Finding:
    has_id = line.producer_id != NO_PRODUCER
    publisher = evidence.publisher_of(line.producer_id) if has_id else None
    sequences = (difference.start, difference.end - 1) if has_id else None
    identity = (
        f"{phrases.sequences(*sequences, line.partition)} of {phrases.producer(evidence, line.producer_id)}"
        if sequences
        else f"partition {line.partition}"
    )
    events = phrases.events(difference.record_count, evidence)
    where = phrases.addresses(difference.low, difference.high)
    return Finding(
        Status.ALTERED,
        hop,
        f"{events}, {identity}, {predicate} ({where})",
        record_count=difference.record_count,
        partition=line.partition,
        producer_id=line.producer_id if has_id else None,
        producer_epoch=line.producer_epoch if has_id else None,
        service=publisher.service if publisher else None,
        server=publisher.server if publisher else None,
        sequences=sequences,
        after_address=difference.low,
        before_address=difference.high,
    )
