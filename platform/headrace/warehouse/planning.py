"""Plans a load: asks the brokers for a topic's logs, and compares them with what is committed.

Owns the questions; the decisions are in `plan`, and in `made_again` for a topic that was made again.
"""

from dataclasses import replace
from typing import Final

from headrace.warehouse.change import TopicTable
from headrace.warehouse.made_again import (
    Log,
    TopicLogs,
    TopicMadeAgainError,
    begun_partitions,
    likeness,
)
from headrace.warehouse.manifest import TableState
from headrace.warehouse.plan import LoadPlan, MadeAgain, plan_load
from headrace.warehouse.source.metadata import MetadataClient
from headrace.warehouse.source.options import EARLIEST, LATEST

BROKER_TIMEOUT_S: Final = 60.0


def plan_topic(
    table: TopicTable,
    state: TableState,
    *,
    until_ms: int | None = None,
    accept_gap: bool = False,
    made_again: MadeAgain | None = None,
) -> LoadPlan:
    """Plans a load on top of `state`. Writes nothing."""
    warehouse, topic = table.warehouse, table.topic
    with MetadataClient(warehouse.servers, BROKER_TIMEOUT_S) as metadata:
        topic_id = metadata.topic_id(topic)
        leaders = metadata.leaders([topic])
        partitions = sorted(leaders)
        earliest = metadata.offsets(dict.fromkeys(partitions, EARLIEST))
        latest = metadata.offsets(dict.fromkeys(partitions, LATEST))
        until = metadata.offsets(dict.fromkeys(partitions, until_ms)) if until_ms is not None else {}
    found = {each[1]: Log(earliest[each], latest[each], leaders[each]) for each in partitions}
    logs = TopicLogs(warehouse, topic, topic_id, found)
    begun = _begun(table, state, logs, made_again)
    ends = {
        partition: _batch_address(logs, partition, address)
        for (_, partition), address in until.items()
        if address >= 0
    }
    plan = plan_load(
        topic,
        {partition: end for partition, end in state.ends.items() if partition not in begun},
        {partition: log.earliest for partition, log in found.items()},
        {partition: log.latest for partition, log in found.items()},
        until=ends,
        accept_gap=accept_gap,
    )
    for each in plan.ranges:
        # Where the log itself begins now, it may begin within a batch.
        if each.from_address > found[each.partition].earliest:
            logs.check_begins_batch(each.partition, each.from_address, each.to_address)
    return replace(plan, topic_id=topic_id, begun=begun)


def _begun(
    table: TopicTable, state: TableState, logs: TopicLogs, made_again: MadeAgain | None
) -> tuple[int, ...]:
    """Returns which partitions of a topic that was made again are loaded from their beginning."""
    loaded = {partition: end for partition, end in state.ends.items() if end > 0}
    if not logs.topic_id or logs.topic_id == state.topic_id:
        return ()
    if state.topic_id:
        alike = likeness(logs, loaded, table.log.manifests())
        return begun_partitions(table.topic, (state.topic_id, logs.topic_id), alike, made_again)
    # An older headrace noted no id: only a log that cannot be loaded on is known to be another one.
    return tuple(logs.not_loadable(loaded)) if made_again == "new" else ()


def last_crcs(table: TopicTable, plan: LoadPlan) -> dict[int, int | None]:
    """Returns the CRC of each range's last batch. Raises `TopicMadeAgainError` if the topic that was read is
    not the one that was planned.
    """
    with MetadataClient(table.warehouse.servers, BROKER_TIMEOUT_S) as metadata:
        leaders = metadata.leaders([table.topic])
        logs = TopicLogs(
            table.warehouse,
            table.topic,
            metadata.topic_id(table.topic),
            {
                each.partition: Log(-1, each.to_address, leaders[table.topic, each.partition])
                for each in plan.ranges
                if (table.topic, each.partition) in leaders
            },
        )
        crcs = {each.partition: logs.last_crc(each.partition, each.to_address) for each in plan.ranges}
        # After all that was read of it: an id never comes back.
        if metadata.topic_id(table.topic) != plan.topic_id:
            raise TopicMadeAgainError(
                f"{table.topic} was deleted and made again while it was loaded; nothing was committed, "
                "repeat the load"
            )
    return crcs


def _batch_address(logs: TopicLogs, partition: int, address: int) -> int:
    """Returns the address of the batch that holds `address`: loads begin and end between batches."""
    latest = logs.logs[partition].latest
    if address >= latest:
        return latest
    found = logs.first_batch(partition, address, address + 1)
    return address if found is None else found[0].address
