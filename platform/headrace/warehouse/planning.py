"""Plans a load: asks the brokers for a topic's logs, and compares them with what is committed.

Owns the questions; the decisions are in `plan`, and in `made_again` for a log that is not the one before.
"""

from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Final, NamedTuple

from headrace.warehouse.change import TopicTable
from headrace.warehouse.made_again import (
    Compared,
    Marks,
    Said,
    TopicMadeAgainError,
    compare,
    decide,
    noted_marks,
)
from headrace.warehouse.manifest import TableState
from headrace.warehouse.plan import LoadPlan, PlannedRange, plan_load
from headrace.warehouse.source.errors import SourceError
from headrace.warehouse.source.metadata import MetadataClient
from headrace.warehouse.source.options import LATEST
from headrace.warehouse.topic_logs import ENDS_ELSEWHERE, UNREADABLE, Log, TopicLogs
from headrace.wire.errors import ErrorCode, ProtocolError

BROKER_TIMEOUT_S: Final = 60.0
NOTHING: Final = Said()
BatchMarks = tuple[tuple[int, int], ...]
"""See `LoadedRange.marks`."""


def plan_topic(
    table: TopicTable,
    state: TableState,
    *,
    until_ms: int | None = None,
    accept_gap: bool = False,
    said: Said = NOTHING,
) -> LoadPlan:
    """Plans a load on top of `state`. Writes nothing."""
    warehouse, topic = table.warehouse, table.topic
    with MetadataClient(warehouse.servers, BROKER_TIMEOUT_S) as metadata:
        readable = metadata.readable(topic)
        topic_id = metadata.topic_id(topic, readable.leaders)
        partitions = [(topic, number) for number in sorted(readable.leaders)]
        latest = metadata.offsets(dict.fromkeys(partitions, LATEST))
        until = metadata.offsets(dict.fromkeys(partitions, until_ms)) if until_ms is not None else {}
    found = {
        number: Log(readable.starts[number], latest[topic, number], leader)
        for number, leader in readable.leaders.items()
    }
    unread = {number: reason_of(problem) for number, problem in sorted(readable.problems.items())}
    logs = TopicLogs(warehouse, topic, topic_id, found, frozenset(unread))
    decided = _decided(table, state, logs, said)
    ends = {
        partition: _batch_address(logs, partition, address)
        for (_, partition), address in until.items()
        if address >= 0
    }
    known = {partition: log for partition, log in found.items() if partition not in decided.later}
    plan = plan_load(
        topic,
        {**state.ends, **decided.begun},
        {partition: log.earliest for partition, log in known.items()},
        {partition: log.latest for partition, log in known.items()},
        until=ends,
        accept_gap=accept_gap,
    )
    for each in plan.ranges:
        logs.check_begins_batch(each.partition, each.from_address)
    return replace(plan, topic_id=topic_id, begun=decided.begun, confirmed=decided.confirmed, unread=unread)


def reason_of(problem: Exception) -> str:
    """Returns why a partition cannot be read."""
    is_leaderless = isinstance(problem, ProtocolError) and problem.code is ErrorCode.LEADER_NOT_AVAILABLE
    return "no leader" if is_leaderless else str(problem)


class _Decided(NamedTuple):
    """Where other logs begin than those that are loaded; the partitions whose logs are the same; and those
    that are decided later, because they hold nothing yet.
    """

    begun: dict[int, int]
    confirmed: tuple[int, ...]
    later: frozenset[int]


def _decided(table: TopicTable, state: TableState, logs: TopicLogs, said: Said) -> _Decided:
    doubtful = doubtful_partitions(state, logs, said)
    if not doubtful:
        return _Decided({}, (), frozenset())
    marks = noted_marks(table.log.manifests())
    found: dict[int, Compared] = {}
    for partition, went_back in doubtful.items():
        compared = compare(logs, partition, state.ends[partition], marks.get(partition, Marks()))
        found[partition] = replace(compared, kind="other") if went_back else compared
    before = {state.topic_ids[each] for each in doubtful if each in state.topic_ids} - {logs.topic_id}
    what = "has other logs than were loaded"
    if before:
        ids = ", ".join(sorted(before))
        what = f"was deleted and made again: id {ids} is loaded, {logs.topic_id} is there"
    begun = decide(table.topic, what, found, said)
    for partition in begun:
        log = logs.logs.get(partition)
        if log is not None and not _is_of_other_topic(state, logs, partition):
            # What retention has deleted of the same topic was loaded: it is no gap.
            begun[partition] = max(begun[partition], min(log.earliest, state.ends[partition]))
    later = frozenset(partition for partition, each in found.items() if each.kind == "empty") - begun.keys()
    return _Decided(begun, tuple(sorted(found.keys() - begun.keys() - later)), later)


def _is_of_other_topic(state: TableState, logs: TopicLogs, partition: int) -> bool:
    before = state.topic_ids.get(partition, "")
    return bool(before and logs.topic_id) and before != logs.topic_id


def doubtful_partitions(state: TableState, logs: TopicLogs, said: Said) -> dict[int, bool]:
    """Returns the partitions whose logs may not be those that are loaded, each with whether it went back: it
    ends before the last loaded address, or has no batch that begins there. Raises `SourceError`.

    Ids tell topics apart. Where one is not known, and within one topic, a log is doubted if an operator says
    that it is another one, and it, or another partition without an id, went back.
    """
    doubtful: dict[int, bool] = {}
    nameless: dict[int, bool] = {}
    for partition, end in state.ends.items():
        if end == 0 or partition in logs.unread:
            continue
        is_named = bool(state.topic_ids.get(partition) and logs.topic_id)
        if _is_of_other_topic(state, logs, partition):
            doubtful[partition] = False
        elif said.any_new:
            went_back = partition not in logs.logs or not logs.begins_batch(partition, end)
            if not is_named:
                nameless[partition] = went_back
            elif went_back:
                doubtful[partition] = True
    return {**doubtful, **(nameless if any(nameless.values()) else {})}


def read_marks(table: TopicTable, plan: LoadPlan, state: TableState) -> dict[int, BatchMarks]:
    """Returns what is noted of each range, to know its log again (`LoadedRange.marks`). Raises
    `TopicMadeAgainError` if the topic that was read is not the one that was planned.
    """
    with MetadataClient(table.warehouse.servers, BROKER_TIMEOUT_S) as metadata:
        read = [(table.topic, each.partition) for each in plan.ranges]
        leaders = metadata.leaders_of(read) if read else {}
        found = {
            each.partition: Log(each.from_address, each.to_address, leaders[table.topic, each.partition])
            for each in plan.ranges
            if (table.topic, each.partition) in leaders
        }
        logs = TopicLogs(table.warehouse, table.topic, plan.topic_id, found)
        marks: dict[int, BatchMarks] = {}
        for each in (each for each in plan.ranges if each.partition in found):
            is_first = each.partition in plan.begun or each.partition not in state.ends
            marks[each.partition] = tuple(_marks(logs, each, is_first=is_first))
        # After all that was read of it: an id never comes back.
        if metadata.topic_id(table.topic, [each.partition for each in plan.ranges]) != plan.topic_id:
            raise TopicMadeAgainError(
                f"{table.topic} was deleted and made again while it was loaded; nothing was committed, "
                "repeat the load"
            )
    return marks


def _marks(logs: TopicLogs, planned: PlannedRange, *, is_first: bool) -> Iterator[tuple[int, int]]:
    """Yields the marks of a range; none where a batch cannot be read."""
    start, end = planned.from_address, planned.to_address
    with suppress(SourceError):
        if is_first:
            header, problem = logs.first_batch(planned.partition, start, end) or (None, "")
            if header is not None and not problem:
                yield header.next_offset, header.crc
        crc = logs.crc_before(planned.partition, end)
        if crc not in (UNREADABLE, ENDS_ELSEWHERE):
            yield end, crc


def check_is_loaded(
    metadata: MetadataClient, topic: str, state: TableState, partitions: Iterable[int]
) -> None:
    """Raises `TopicMadeAgainError` unless the topic is the one of which these partitions are loaded."""
    topic_id = metadata.topic_id(topic)
    others = {state.topic_ids.get(each, "") for each in partitions} - {"", topic_id}
    if topic_id and others:
        raise TopicMadeAgainError(
            f"{topic} was deleted and made again: id {', '.join(sorted(others))} is loaded, {topic_id} is "
            "there. What the table lacks of it cannot be read again; load the topic first"
        )


def _batch_address(logs: TopicLogs, partition: int, address: int) -> int:
    """Returns the address of the batch that holds `address`: loads begin and end between batches."""
    latest = logs.logs[partition].latest
    if address >= latest:
        return latest
    found = logs.first_batch(partition, address, address + 1)
    return address if found is None else found[0].address
