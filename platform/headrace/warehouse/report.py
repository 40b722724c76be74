"""Load reports: what the warehouse publishes to the audit about a committed change.

Owns the step from manifest to report, and its publishing.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

from headrace.audit.topic.doubled import RUNS_PER_RECORD_MAX, DoubledRecord, DoubledRun
from headrace.audit.topic.load_report import (
    NOT_BEGUN,
    AcceptedGapRecord,
    LoadedHour,
    LoadedPartition,
    LoadReport,
)
from headrace.audit.topic.records import ANALYSIS_AUDIT_TOPIC, AuditRecord
from headrace.audit.topic.said_of_tables import PROBLEMS_PER_RECORD_MAX, VerifiedRecord
from headrace.warehouse.commitlog import Publish
from headrace.warehouse.doubles import Doubles, records_of
from headrace.warehouse.manifest import Manifest
from headrace.warehouse.options import WarehouseOptions
from headrace.wire.content import from_hex

if TYPE_CHECKING:
    from headrace.audit.topic.publish import AuditPublisher
    from headrace.warehouse.verify import VerifyResult

SERVICE = "warehouse"
TEXT_MAX_CHARS = 600
"""Of a problem: as many as a record may have are far below what brokers take as one message."""


def verified_record(result: "VerifyResult", warehouse: WarehouseOptions) -> VerifiedRecord:
    """Returns the record of a verification for the audit: the first problems, and how many there are."""
    found = result.placed
    return VerifiedRecord(
        warehouse=warehouse.name,
        topic=result.topic,
        checked=result.checked,
        files=result.files,
        rows=result.rows,
        problem_count=len(found),
        problems=tuple(
            each._replace(text=each.text[:TEXT_MAX_CHARS]) for each in found[:PROBLEMS_PER_RECORD_MAX]
        ),
    )


def tell_verified(results: "Iterable[VerifyResult]", warehouse: WarehouseOptions) -> None:
    """Publishes what verifications found. Raises `AuditPublishError`.

    Leaves out topics without a table: of a wrong name no report should say that its files are sound.
    """
    found = [each for each in results if each.changes or not each.is_sound]
    _tell([verified_record(result, warehouse) for result in found], warehouse)
    tell_doubles((each for result in found for each in result.doubles), warehouse)


def tell_doubles(found: Iterable[Doubles], warehouse: WarehouseOptions) -> None:
    """Publishes what tables have more than once. Raises `AuditPublishError`."""
    _tell([record for each in found for record in records_of(each, warehouse.name)], warehouse)


def _tell(records: Sequence[AuditRecord], warehouse: WarehouseOptions) -> None:
    if not records or not warehouse.audit:
        return
    # Imported here because the import is slow, and most commands publish nothing.
    from headrace.audit.topic.publish import AuditPublisher

    with AuditPublisher(
        bootstrap=warehouse.bootstrap,
        registry_url=warehouse.registry_url,
        datacenter=warehouse.datacenter,
        service=SERVICE,
        topic=ANALYSIS_AUDIT_TOPIC,
    ) as publisher:
        for record in records:
            publisher.publish(record)
        publisher.flush()


def load_report(manifest: Manifest) -> LoadReport | None:
    """Returns the report of a change that consumed addresses; None if it only moved or deleted rows."""
    if manifest.kind not in ("load", "replay", "refill"):
        return None
    return LoadReport(
        warehouse=manifest.warehouse,
        topic=manifest.topic,
        load_sequence=manifest.sequence,
        committed_ms=manifest.committed_ms,
        partitions=tuple(
            LoadedPartition(
                loaded.partition,
                loaded.from_address,
                loaded.to_address,
                tuple(
                    LoadedHour(
                        hour.hour_ms,
                        hour.rows,
                        hour.distinct_offsets,
                        hour.dead_lettered,
                        from_hex(hour.content),
                    )
                    for hour in loaded.hours
                ),
                # A refill from the copy reads addresses that a load consumed, and names none.
                manifest.kind == "refill" and loaded.from_address < loaded.to_address,
                NOT_BEGUN if loaded.begins_at is None else loaded.begins_at,
            )
            for loaded in manifest.ranges
        ),
        accepted_gaps=tuple(
            AcceptedGapRecord(gap.partition, gap.from_address, gap.to_address, gap.reason)
            for gap in manifest.gaps
        ),
        topic_id=manifest.topic_id,
    )


def dedupe_record(manifest: Manifest) -> DoubledRecord | None:
    """Returns the record of a dedupe for the audit: how many rows it removed, and which."""
    if manifest.kind != "dedupe" or not manifest.note:
        return None
    removed = sum(each.to_address - each.from_address for each in manifest.ranges)
    runs = [
        DoubledRun(each.partition, each.from_address, each.to_address - 1, True) for each in manifest.ranges
    ]
    return DoubledRecord(
        manifest.warehouse, manifest.topic, int(manifest.note), removed, tuple(runs[:RUNS_PER_RECORD_MAX])
    )


@contextmanager
def publishing(warehouse: WarehouseOptions) -> Iterator[Publish | None]:
    """Yields a function that publishes a manifest's report; None if this warehouse reports nothing."""
    if not warehouse.audit:
        yield None
        return
    with ExitStack() as opened:
        publishers: list[AuditPublisher] = []

        def publish(manifest: Manifest) -> None:
            # Imported here because the import is slow, and most commands publish nothing.
            from headrace.audit.topic.publish import AuditPublisher, publish_load

            report = load_report(manifest)
            removal = dedupe_record(manifest)
            if report is None and removal is None:
                return
            if not publishers:
                publisher = AuditPublisher(
                    bootstrap=warehouse.bootstrap,
                    registry_url=warehouse.registry_url,
                    datacenter=warehouse.datacenter,
                    service=SERVICE,
                    topic=ANALYSIS_AUDIT_TOPIC,
                )
                publishers.append(opened.enter_context(publisher))
            if report is not None:
                publish_load(publishers[0], report)
            if removal is not None:
                publishers[0].publish(removal)
                publishers[0].flush()

        yield publish
