"""Topics that had one name one after the other: whose log each claim belongs to. Pure.

A topic that is deleted and made again under its name begins at address 0 again. Its logs are kept apart by
the topic's id, and each is judged by itself. A publisher's report says which numbers it gave to its events,
not which of the topics took them; the logs say that. What none of them has belongs to the earlier one if a
later number of the same producer is there, and to the present one if an earlier number is there, or if its
publisher started later than the topic. Of the rest nobody can know: the earlier log may have had it,
uncounted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from headrace.audit import phrases
from headrace.audit.evidence import Claim, Evidence
from headrace.audit.findings import PRODUCER_HOP, Finding, Policy, Status
from headrace.audit.intervals import Interval, stretches, subtract, union

Line = tuple[int, int, int]
"""A partition, producer id and epoch."""
Numbered = Mapping[tuple[int, int], tuple[int, int]]
"""(Partition, producer id) → (epoch, sequence)."""


class LogNumbers(NamedTuple):
    """What one topic's logs hold: the sequences of the hour, and of any hour the first and the latest."""

    held: Mapping[Line, Sequence[Interval]]
    first: Numbered
    latest: Numbered


class Shares(NamedTuple):
    """Claims by topic, in the order of the topics; `between`: those of which nobody can know."""

    of_topics: list[list[Claim]]
    between: list[Claim]


def shared_out(
    claims: Iterable[Claim],
    logs: Sequence[LogNumbers],
    is_later: Callable[[Claim], bool],
) -> Shares:
    """Shares out claims among topics of one name. `logs`: the oldest first, the present one last.

    `is_later(claim)`: whether its publisher started after the present topic was made. A withdrawn claim is
    every topic's.
    """
    shares = Shares([[] for _ in logs], [])
    for claim in claims:
        if claim.withdrawn:
            for share in shares.of_topics:
                share.append(claim)
            continue
        line = (claim.partition, claim.producer_id, claim.producer_epoch)
        whole = [(claim.first_sequence, claim.last_sequence + 1)]
        rest = whole
        for share, log in zip(shares.of_topics, logs, strict=True):
            held = union(log.held.get(line, ()))
            share += (_cut(claim, start, end) for start, end in _both(whole, held))
            rest = subtract(rest, held)
        for start, end in rest:
            home = _home(claim, end, logs, is_later)
            (shares.between if home is None else shares.of_topics[home]).append(_cut(claim, start, end))
    return shares


def judge_between(evidence: Evidence, policy: Policy, now_ms: int) -> Iterator[Finding]:
    """Yields the events that may have been in the log of an earlier topic of the same name."""
    for claim in evidence.between:
        publisher = evidence.publisher_of(claim.producer_id)
        count = claim.last_sequence - claim.first_sequence + 1
        numbers = phrases.sequences(claim.first_sequence, claim.last_sequence, claim.partition)
        yield Finding(
            Status.PENDING if now_ms - claim.reported_ms < policy.delay_ms else Status.UNKNOWN,
            PRODUCER_HOP,
            f"{phrases.events(count, evidence)}, handed over by "
            f"{phrases.producer(evidence, claim.producer_id)}, {numbers}, have not been seen in "
            f"{evidence.datacenter}'s log: the topic was deleted and made again under its name (seen at "
            f"{phrases.instant(evidence.made_again_ms or 0)}), and nobody knows whether the log of the "
            "earlier one had them",
            record_count=count,
            partition=claim.partition,
            producer_id=claim.producer_id,
            producer_epoch=claim.producer_epoch,
            service=publisher.service if publisher else None,
            server=publisher.server if publisher else None,
            sequences=(claim.first_sequence, claim.last_sequence),
        )


def of_earlier_topic(finding: Finding, evidence: Evidence) -> Finding:
    """Returns a finding about the logs of a topic that was deleted, with words that say so."""
    return replace(finding, text=f"{finding.text} (of the deleted topic with id {evidence.topic_id})")


def _home(
    claim: Claim, end: int, logs: Sequence[LogNumbers], is_later: Callable[[Claim], bool]
) -> int | None:
    """Returns the index of the topic to which a claimed sequence belongs that none has; None: not known."""
    key = (claim.partition, claim.producer_id)
    last = (claim.producer_epoch, end - 1)
    for index, log in enumerate(logs[:-1]):
        if log.latest.get(key, (-1, -1)) > last:
            return index
    first = logs[-1].first.get(key)
    is_behind = first is not None and first < last
    return len(logs) - 1 if is_behind or is_later(claim) else None


def _both(left: Iterable[Interval], right: Iterable[Interval]) -> Iterator[Interval]:
    for start, end, in_left, in_right in stretches(left, right):
        if in_left and in_right:
            yield start, end


def _cut(claim: Claim, start: int, end: int) -> Claim:
    """Returns the part of a claim with the sequences from `start` to `end` - 1."""
    if (start, end) == (claim.first_sequence, claim.last_sequence + 1):
        return claim
    return claim._replace(first_sequence=start, last_sequence=end - 1, content=None)
