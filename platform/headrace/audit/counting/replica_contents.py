"""Replicas as a tier: compares what each broker's replica of a log holds now with what was counted of it.

Counting reads each batch once, from the leader. A batch that changes later under a right checksum, or that
differs on a follower's disk, no reader notices. Here brokers sum up what their files hold between two places
up to which counts are published (`audit.counting.standing`), and the sums are compared. What differs is
published like a damaged batch, as narrow as a sound replica allows; so is the news that all replicas are
right again.

One broker is asked at a time, for as much as it answers at once, so a pass over a large log takes hours, as
the brokers' scrubs do.
"""

from __future__ import annotations

import logging
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from headrace.audit.batches.damage import OTHER_BYTES, Damage
from headrace.audit.counting.narrowing import Expected, differing_places, in_time, whole_answer
from headrace.audit.counting.partition_counter import PartitionCounter
from headrace.audit.counting.said_before import SAY_S, SaidBefore
from headrace.audit.counting.standing import Mark, Marks
from headrace.audit.intervals import overlaps
from headrace.audit.topic.records import CorruptRecord, ReceivedRecord
from headrace.client import Admin
from headrace.client.cluster import NO_LEADER, PartitionInfo, TopicInfo
from headrace.client.errors import ClientError
from headrace.wire.content import NO_BATCHES, added, subtracted
from headrace.wire.log_contents import ContentAnswer, ContentRange, parse_value
from headrace.wire.topic_names import TopicPartition

logger = logging.getLogger(__name__)

ASK_S: Final = 2.0
ASK_TIMEOUT_MS: Final = 3_000  # counting waits meanwhile
RANGES_PER_ASK_MAX: Final = 200
SILENT_ASKS: Final = 15  # that a broker is left alone after it did not answer
PASSES_EVERY_S: Final = 60.0
DIFFERENCES_MAX: Final = 1_000  # that are kept; more are named again when these are gone


class Question(NamedTuple):
    """A range of a partition; `at`, `content`: how far it is answered. `is_second`: it differed before.
    `went_back`: how often the partition's counts had been taken back.
    """

    key: TopicPartition
    expected: Expected
    at: int
    content: int = NO_BATCHES
    is_second: bool = False
    went_back: int = 0

    @property
    def asked(self) -> ContentRange:
        return ContentRange(*self.key, self.at, self.expected.end)


@dataclass(slots=True)
class _Broker:
    questions: deque[Question] = field(default_factory=deque)
    silent_asks: int = 0
    began_s: float = float("-inf")


class ReplicaContents:
    """Asks the brokers of a cluster, one at each call of `news`. One thread uses it."""

    def __init__(self, bootstrap: str, client_id: str, pass_s: float = PASSES_EVERY_S) -> None:
        self._admin = Admin(bootstrap, client_id=client_id, timeout_ms=ASK_TIMEOUT_MS)
        self._pass_s = pass_s
        self._brokers: dict[int, _Broker] = {}
        self._turn = 0
        self._differences: dict[tuple[TopicPartition, Expected], dict[int, list[Damage]]] = {}
        self._went_back: dict[TopicPartition, int] = {}
        self._said: dict[TopicPartition, dict[tuple[int, int], str]] = defaultdict(dict)
        self._before = SaidBefore()
        self._say_at_s = 0.0

    def close(self) -> None:
        self._admin.close()

    def learn(self, received: ReceivedRecord) -> None:
        """Notes which ranges an earlier auditor named; ignores other records."""
        record = received.record
        if isinstance(record, CorruptRecord):
            said = self._said.get((record.topic, record.log_partition), {})
            if not record.cause or (record.from_address, record.to_address) not in said:
                self._before.learn(record)

    def news(
        self,
        counters: Mapping[TopicPartition, PartitionCounter],
        marks: Marks,
        topics: Mapping[str, TopicInfo],
        now_s: float,
    ) -> list[CorruptRecord]:
        """Asks the next broker; returns records about replicas that differ, or differ no more."""
        replicas = {key: info for key in counters if (info := _partition(topics, key)) is not None}
        records = self._forget_gone(counters, marks)
        records += self._forget_moved(counters, replicas)
        records += self._say_again(counters, now_s)
        ids = sorted({number for info in replicas.values() for number in info.replicas})
        if not ids or records:
            return records
        self._turn += 1
        number = ids[self._turn % len(ids)]
        broker = self._brokers.setdefault(number, _Broker())
        if broker.silent_asks:
            broker.silent_asks -= 1
            return []
        if not broker.questions and now_s - broker.began_s >= self._pass_s:
            broker.began_s = now_s
            broker.questions.extend(self._pass(number, replicas, marks))
        try:
            changed = self._ask_some(number, broker, replicas)
        except ClientError as error:
            logger.info("broker %d does not say what its replicas hold: %s", number, error)
            broker.silent_asks = SILENT_ASKS
            return []
        return [record for key in changed for record in self._news_of(counters[key])]

    def _forget_gone(
        self, counters: Mapping[TopicPartition, PartitionCounter], marks: Marks
    ) -> list[CorruptRecord]:
        """Forgets partitions that are not counted any more; of those that went back, what differed from the
        counts that were taken back, and returns the records that say so.
        """
        records: list[CorruptRecord] = []
        for key in {key for key, _ in self._differences}:
            if key in counters and marks.went_back[key] == self._went_back.get(key, 0):
                continue
            for known in [each for each in self._differences if each[0] == key]:
                del self._differences[known]
            if key in counters:
                records += self._news_of(counters[key])
            self._said.pop(key, None)
        self._went_back = dict(marks.went_back)
        for broker in self._brokers.values():
            broker.questions = deque(each for each in broker.questions if self._holds(each, counters, marks))
        return records

    def _forget_moved(
        self,
        counters: Mapping[TopicPartition, PartitionCounter],
        replicas: Mapping[TopicPartition, PartitionInfo],
    ) -> list[CorruptRecord]:
        """Forgets what brokers hold that have no replica of the partition any more; returns the records."""
        changed: dict[TopicPartition, None] = {}
        for (key, expected), by_broker in list(self._differences.items()):
            holders = set(replicas[key].replicas if key in replicas else by_broker.keys())
            for number in by_broker.keys() - holders:
                del by_broker[number]
                changed[key] = None
            if not by_broker:
                del self._differences[key, expected]
        return [record for key in changed for record in self._news_of(counters[key])]

    def _say_again(
        self, counters: Mapping[TopicPartition, PartitionCounter], now_s: float
    ) -> list[CorruptRecord]:
        """Returns every `SAY_S` what still differs."""
        if now_s < self._say_at_s:
            return []
        self._say_at_s = now_s + SAY_S
        return [
            record
            for key, counter in counters.items()
            for place, cause in (*self._said[key].items(), *self._before.of(counter))
            for record in counter.partition.corrupt(Damage(*place, cause, in_tally=True))
        ]

    @staticmethod
    def _holds(question: Question, counters: Mapping[TopicPartition, PartitionCounter], marks: Marks) -> bool:
        """Whether what a question expects is still counted."""
        return question.key in counters and question.went_back == marks.went_back[question.key]

    def _pass(
        self, number: int, replicas: Mapping[TopicPartition, PartitionInfo], marks: Marks
    ) -> Iterator[Question]:
        """Yields all that a broker's replicas should hold; first what differed."""
        known: defaultdict[TopicPartition, list[tuple[int, int]]] = defaultdict(list)
        for (key, expected), by_broker in self._differences.items():
            if number in by_broker:
                known[key].append((expected.start, expected.end))
                yield Question(key, expected, expected.start, is_second=True, went_back=marks.went_back[key])
        for key, info in sorted(replicas.items()):
            if number in info.replicas:
                for each in expected_of(marks.of(key)):
                    if not overlaps(known[key], each.start, each.end):
                        yield Question(key, each, each.start, went_back=marks.went_back[key])

    def _ask_some(
        self, number: int, broker: _Broker, replicas: Mapping[TopicPartition, PartitionInfo]
    ) -> dict[TopicPartition, None]:
        """Asks for the next ranges; returns the partitions of which something is new."""
        questions: list[Question] = []
        while broker.questions and len(questions) < RANGES_PER_ASK_MAX:
            question = broker.questions.popleft()
            if question.key in replicas:
                questions.append(question)
        if not questions:
            return {}
        answers = self._ask(number, [each.asked for each in questions])
        changed: dict[TopicPartition, None] = {}
        again: list[Question] = []
        for question in questions:
            answer = answers.get(question.asked)
            if answer is None:
                if answers:  # else it is no headrace, or an older one
                    again.append(question)
            elif self._learn(number, question, answer, replicas[question.key], again):
                changed[question.key] = None
        broker.questions.extendleft(reversed(again))
        return changed

    def _learn(
        self,
        number: int,
        question: Question,
        answer: ContentAnswer,
        info: PartitionInfo,
        again: list[Question],
    ) -> bool:
        """Compares what a replica holds; returns whether something is new. Adds to `again` what is to be
        asked next: the rest, or what differs, which is asked twice.
        """
        key, expected = question.key, question.expected
        if answer.problem:
            is_difference = answer.contradicts and number in info.isr
            return is_difference and self._differs(number, question, answer, info, again)
        content = added(question.content, answer.content) or NO_BATCHES
        if answer.end < expected.end:
            again.append(question._replace(at=answer.end, content=content))
            return False
        if (answer.end, content) != (expected.end, expected.content):
            return self._differs(number, question, answer, info, again)
        known = self._differences.get((key, expected), {})
        is_mended = known.pop(number, None) is not None
        if is_mended and not known:
            del self._differences[key, expected]
        right = self._before.confirmed(key, number, (expected.start, expected.end), info.replicas)
        self._said[key].update(dict.fromkeys(right, "named by an earlier auditor"))
        return is_mended or bool(right)

    def _differs(
        self,
        number: int,
        question: Question,
        answer: ContentAnswer,
        info: PartitionInfo,
        again: list[Question],
    ) -> bool:
        key, expected = question.key, question.expected
        if not question.is_second:
            again.append(question._replace(at=expected.start, content=NO_BATCHES, is_second=True))
            return False
        known = self._differences.get((key, expected), {})
        if number in known or len(self._differences) >= DIFFERENCES_MAX:
            return False
        roles = {number: "its leader", NO_LEADER: "which nobody leads"}
        cause = f"{OTHER_BYTES} broker {number}, {roles.get(info.leader, 'a follower')}"
        places = [(expected.start, expected.end)]
        sound = self._sound_one(key, expected, [each for each in info.isr if each != number])
        if answer.problem:
            cause += f": {answer.problem}"
            places = [(answer.end, expected.end)]
        elif sound is not None:
            places = differing_places(in_time(self._ask), number, sound, key, expected) or places
        for start, end in places:
            logger.error("%s-%d: addresses %d to %d: %s", *key, start, end, cause)
        damages = [Damage(start, end, cause, in_tally=True) for start, end in places]
        self._differences.setdefault((key, expected), {})[number] = damages
        return True

    def _sound_one(self, key: TopicPartition, expected: Expected, others: Iterable[int]) -> int | None:
        """Returns a broker whose replica holds what was counted; None if nobody says so."""
        for number in others:
            try:
                found = whole_answer(self._ask, number, key, expected.start, expected.end)
            except ClientError:
                continue
            if found is not None and (found.end, found.content) == expected[1:]:
                return number
        return None

    def _news_of(self, counter: PartitionCounter) -> Iterator[CorruptRecord]:
        """Yields what is new about a partition's ranges. A range that several replicas differ in has all."""
        partition = counter.partition
        key = (partition.topic, partition.log_partition)
        causes: defaultdict[tuple[int, int], list[str]] = defaultdict(list)
        for (of_key, _), by_broker in self._differences.items():
            for damage in (each for damages in by_broker.values() for each in damages if of_key == key):
                causes[damage.start, damage.end].append(damage.cause)
        now = {place: "; ".join(sorted(each)) for place, each in causes.items()}
        said = self._said[key]
        for place in sorted(now.keys() | said.keys()):
            cause = now.get(place, "")
            self._before.forget(key, place)
            if cause != said.get(place, ""):
                yield from partition.corrupt(Damage(*place, cause, in_tally=True))
        self._said[key] = now

    def _ask(self, number: int, ranges: Sequence[ContentRange]) -> dict[ContentRange, ContentAnswer]:
        names = {each.name: each for each in ranges}
        found = self._admin.describe_broker_configs(number, list(names))
        parsed = ((names.get(name), parse_value(entry.value)) for name, entry in found.items())
        return {asked: answer for asked, answer in parsed if asked is not None and answer is not None}


def expected_of(marks: Sequence[Mark]) -> list[Expected]:
    """Returns what the log should hold between the places up to which it is counted; the newest first."""
    found: list[Expected] = []
    before: Mark | None = None
    for mark in marks:
        content = mark.content
        if content is None:
            continue
        start, counted = content.start, content.content
        if before is not None and before.content is not None and before.content.start == start:
            start, counted = before.counted_to, subtracted(counted, before.content.content) or NO_BATCHES
        before = mark
        if start < mark.counted_to:
            found.append(Expected(start, mark.counted_to, counted))
    return found[::-1]


def _partition(topics: Mapping[str, TopicInfo], key: TopicPartition) -> PartitionInfo | None:
    topic = topics.get(key[0])
    return None if topic is None else topic.partitions.get(key[1])
