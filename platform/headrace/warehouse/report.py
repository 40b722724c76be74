"""What the audit is told of a committed change.

Owns the step from manifest to load report, and its publishing.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

from headrace.audit.records import (
    ANALYSIS_AUDIT_TOPIC,
    AcceptedGap,
    LoadedHour,
    LoadedPartition,
    LoadReport,
)
from headrace.warehouse.manifest import Manifest
from headrace.warehouse.options import WarehouseOptions

SERVICE = "warehouse"


def load_report(manifest: Manifest) -> LoadReport | None:
    """The report of a change that consumed addresses; None of one that only moved rows about."""
    if manifest.kind not in ("load", "replay"):
        return None
    return LoadReport(
        warehouse=manifest.warehouse,
        topic=manifest.topic,
        load_sequence=manifest.sequence,
        committed_ms=manifest.committed_ms,
        partitions=tuple(
            LoadedPartition(
                each.partition,
                each.from_address,
                each.to_address,
                tuple(
                    LoadedHour(hour.hour_ms, hour.rows, hour.distinct_offsets, hour.dead_lettered)
                    for hour in each.hours
                ),
            )
            for each in manifest.ranges
        ),
        accepted_gaps=tuple(
            AcceptedGap(gap.partition, gap.from_address, gap.to_address, gap.reason) for gap in manifest.gaps
        ),
    )


@contextmanager
def publishing(warehouse: WarehouseOptions) -> Iterator[Callable[[Manifest], None] | None]:
    """How to tell the audit of a manifest; None where this warehouse doesn't. Connects when first needed."""
    if not warehouse.audit:
        yield None
        return
    from headrace.audit.publish import AuditPublisher, publish_load

    with ExitStack() as opened:
        publishers: list[AuditPublisher] = []

        def publish(manifest: Manifest) -> None:
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
