"""Load reports: what the warehouse publishes to the audit about a committed change.

Owns the step from manifest to report, and its publishing.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

from headrace.audit.records import (
    ANALYSIS_AUDIT_TOPIC,
    AcceptedGapRecord,
    LoadedHour,
    LoadedPartition,
    LoadReport,
)
from headrace.warehouse.commitlog import Publish
from headrace.warehouse.manifest import Manifest
from headrace.warehouse.options import WarehouseOptions

if TYPE_CHECKING:
    from headrace.audit.publish import AuditPublisher

SERVICE = "warehouse"


def load_report(manifest: Manifest) -> LoadReport | None:
    """Returns the report of a change that consumed addresses; None if it only moved or deleted rows."""
    if manifest.kind not in ("load", "replay"):
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
                    LoadedHour(hour.hour_ms, hour.rows, hour.distinct_offsets, hour.dead_lettered)
                    for hour in loaded.hours
                ),
            )
            for loaded in manifest.ranges
        ),
        accepted_gaps=tuple(
            AcceptedGapRecord(gap.partition, gap.from_address, gap.to_address, gap.reason)
            for gap in manifest.gaps
        ),
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
            from headrace.audit.publish import AuditPublisher, publish_load

            report = load_report(manifest)
            if report is None:
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
            publish_load(publishers[0], report)

        yield publish
