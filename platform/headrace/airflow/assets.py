"""The assets of a topic: what was loaded, and what is sealed.

Owns their names and URIs. Each topic has two: `<topic> loaded` changes with every load and wakes the topic's
seal DAG; `<topic>` changes only when hours are sealed, one event an hour with the hour as partition key, so
that whatever is scheduled on it sees sealed hours and nothing else.
"""

from __future__ import annotations

from airflow.sdk import Asset

GROUP = "headrace"


def loaded_asset(topic: str, output: str = "/data") -> Asset:
    """The topic's manifest log: updated by its load DAG."""
    return Asset(name=f"{topic} loaded", uri=f"headrace://warehouse{output}/{topic}/_log", group=GROUP)


def sealed_asset(topic: str, output: str = "/data") -> Asset:
    """The topic's sealed hours, partitioned by hour (`2015-05-17T10:00:00`): updated by its seal DAG."""
    return Asset(name=topic, uri=f"headrace://warehouse{output}/{topic}/hourly", group=GROUP)
