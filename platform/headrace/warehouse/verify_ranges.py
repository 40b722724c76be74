"""Whether the addresses that loads consumed are those of their rows, and those that they reported. Pure but
for the reading of the audit's store.

A manifest whose range was moved leaves records out, or takes them twice, and its rows still add up.
"""

from collections.abc import Iterable, Mapping

from sqlalchemy import select

from headrace.audit.intervals import Interval, covers, union
from headrace.audit.store import tables
from headrace.audit.store.store import AuditStore
from headrace.warehouse.counting import FileCount, GroupCount
from headrace.warehouse.lineage import Lineage
from headrace.warehouse.manifest import Manifest


def outside_of_ranges(
    manifests: Iterable[Manifest], counts: Iterable[FileCount], logs: Mapping[str, int], lineage: Lineage
) -> list[str]:
    """Returns the files that hold rows of addresses that no load consumed. `logs`: see `DataFile.log`, by
    path.
    """
    consumed: dict[tuple[int, int], list[Interval]] = {}
    for manifest in manifests:
        for loaded in manifest.ranges if manifest.kind in ("load", "refill") else ():
            place = (loaded.partition, lineage.number(loaded.partition, manifest.sequence))
            consumed.setdefault(place, []).append((loaded.from_address, loaded.to_address))
    merged = {place: union(ranges) for place, ranges in consumed.items()}
    return [
        f"{group.path} holds rows of partition {group.partition}, offsets {group.first_offset} to "
        f"{group.last_offset}, which no load consumed"
        for count in counts
        for group in count.groups
        if not all(
            covers(merged.get(_place(group, logs, lineage), []), offset, offset + 1)
            for offset in (group.first_offset, group.last_offset)
        )
    ]


def _place(group: GroupCount, logs: Mapping[str, int], lineage: Lineage) -> tuple[int, int]:
    return group.partition, lineage.number(group.partition, logs.get(group.path, 0))


def otherwise_reported(topic: str, manifests: Iterable[Manifest], store_url: str) -> list[str]:
    """Returns the changes that told the audit of other addresses than their manifests have now.

    One that the store does not know is left out: the store may be younger. Raises the store's own errors.
    """
    table = tables.load_ranges
    store = AuditStore(store_url, must_exist=True)
    try:
        with store.reading() as connection:
            said = {
                (row.warehouse, row.load_sequence, row.log_partition): (row.from_address, row.to_address)
                for row in connection.execute(select(table).where(table.c.topic == topic))
            }
    finally:
        store.close()
    problems = []
    for manifest in manifests:
        for loaded in manifest.ranges:
            place = (loaded.from_address, loaded.to_address)
            reported = said.get((manifest.warehouse, manifest.sequence, loaded.partition), place)
            if reported != place:
                problems.append(
                    f"change {manifest.sequence}: its manifest has addresses {place[0]} to {place[1]} of "
                    f"partition {loaded.partition}, and the audit was told {reported[0]} to {reported[1]}"
                )
    return problems
