"""How far a stream is behind, from the progress that Spark reports. Pure.

At headrace an offset is an address, so the difference of offsets is exactly the bytes that are not read yet.
"""

import json
from collections.abc import Mapping
from typing import Any


def lag_bytes(progress: Any) -> dict[str, dict[int, int]]:
    """Returns the bytes that are not read yet, by topic and partition, after a micro-batch of a query.

    `progress` is `query.lastProgress`, one of `query.recentProgress`, or a listener's `event.progress`: an
    object, a mapping, or its JSON. Sources other than `headrace` are left out. At Apache Kafka the numbers
    are records.
    """
    if isinstance(progress, str):
        progress = json.loads(progress)
    lag: dict[str, dict[int, int]] = {}
    for source in _get(progress, "sources") or ():
        ends, latest = _offsets(_get(source, "endOffset")), _offsets(_get(source, "latestOffset"))
        # Before its first micro-batch a query has no offsets; later, a partition without one is new.
        for topic, partitions in latest.items() if ends else ():
            for partition, end in partitions.items():
                read = ends.get(topic, {}).get(partition, 0)
                lag.setdefault(topic, {})[partition] = max(0, end - read)
    return lag


def _get(value: Any, name: str) -> Any:
    return value.get(name) if isinstance(value, Mapping) else getattr(value, name, None)


def _offsets(value: Any) -> dict[str, dict[int, int]]:
    """Offsets as `stream` writes them; nothing for those of another source."""
    try:
        found = json.loads(value) if isinstance(value, str) else value
        return {
            str(topic): {int(partition): int(offset) for partition, offset in partitions.items()}
            for topic, partitions in found.items()
        }
    except (ValueError, AttributeError, TypeError):
        return {}
