"""Whether the addresses that loads consumed are those of their rows, and those that they reported. Pure but
for the reading of the audit's store.

A manifest whose range was moved leaves records out, or takes them twice, and its rows still add up.
"""

from collections import Counter
from collections.abc import Iterable, Mapping

from sqlalchemy import select

from headrace.audit.intervals import Interval, covers, union
from headrace.audit.store import load_tables
from headrace.audit.store.store import AuditStore
from headrace.audit.times import named_time
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
    table = load_tables.load_ranges
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


def forgotten_rows(topic: str, manifests: Iterable[Manifest], store_url: str, before_ms: int) -> Counter[int]:
    """Returns the rows by hour (ms) that changes loaded which were committed before `before_ms`, and of which
    the store tells no more: it has forgotten the hour since it heard of them, or begins with a later change.

    Raises the store's own errors.
    """
    rows, ranges = load_tables.load_rows, load_tables.load_ranges
    store = AuditStore(store_url, must_exist=True)
    try:
        with store.reading() as connection:
            told = select(rows.c.warehouse, rows.c.load_sequence, rows.c.log_partition, rows.c.hour_ms)
            heard = select(ranges.c.warehouse, ranges.c.load_sequence, ranges.c.log_partition)
            kept = {tuple(row) for row in connection.execute(told.where(rows.c.topic == topic))}
            known = {tuple(row) for row in connection.execute(heard.where(ranges.c.topic == topic))}
    finally:
        store.close()
    first: dict[str, int] = {}
    for warehouse, sequence, _ in known:
        first[warehouse] = min(sequence, first.get(warehouse, sequence))
    found: Counter[int] = Counter()
    for manifest in (each for each in manifests if each.committed_ms < before_ms):
        for loaded in manifest.ranges:
            place = (manifest.warehouse, manifest.sequence, loaded.partition)
            if place not in known and manifest.sequence >= first.get(manifest.warehouse, -1):
                continue  # its report never arrived
            for hour in loaded.hours:
                if (*place, named_time(hour.hour_ms)) not in kept:
                    found[hour.hour_ms] += hour.rows
    return found
