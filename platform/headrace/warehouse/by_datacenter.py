"""Which datacenter the records of a partition were published in: the registry there knows their schemas.

Asked only where two registries have different schemas for one id; everywhere else any registry will do.
"""

from collections.abc import Iterable
from typing import Final

from headrace.coordination.mirrors import MirrorMap
from headrace.coordination.session import ZooKeeperSession
from headrace.registry.client import SchemaConflictError
from headrace.warehouse.options import WarehouseOptions
from headrace.warehouse.plan import PlannedRange
from headrace.warehouse.schemas import SchemasError

CONNECT_TIMEOUT_S: Final = 30.0


def ranges_by_datacenter(
    warehouse: WarehouseOptions, topic: str, ranges: Iterable[PlannedRange], conflict: SchemaConflictError
) -> dict[str, list[PlannedRange]]:
    """Returns the ranges by the datacenter of their partition's source; partitions that no mirror writes are
    the warehouse's own. Raises `SchemasError` if the sources are not known."""
    if warehouse.zookeeper is None:
        raise SchemasError(
            f"{conflict.message}. The load can do so if it is told the analysis cluster's ZooKeeper "
            "(--zookeeper), which knows each partition's source"
        ) from conflict
    session = ZooKeeperSession(warehouse.zookeeper, name="warehouse")
    with session.start(connect_timeout_s=CONNECT_TIMEOUT_S):
        sources = MirrorMap(session).sources(topic)
    groups: dict[str, list[PlannedRange]] = {}
    for planned in ranges:
        mirrored = planned.partition < len(sources)
        name = sources[planned.partition].datacenter if mirrored else warehouse.datacenter
        groups.setdefault(name, []).append(planned)
    return groups
