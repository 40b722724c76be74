"""The assets of a topic: its loaded data, and its sealed hours.

Owns their names and URIs. Each topic has two: `<topic> loaded` is updated by every load and triggers the
topic's seal DAG; `<topic>` is updated only for sealed hours, one event per hour, with the hour as partition
key, so that DAGs scheduled on it see only sealed hours.
"""

from __future__ import annotations

from airflow.sdk import Asset

GROUP = "headrace"
# Airflow refuses these names of assets, and an error in one DAG takes the DAGs of all topics along.
RESERVED_NAMES = ("self", "context")


def loaded_asset(topic: str, output: str = "/data") -> Asset:
    """Returns the asset of the topic's manifest log, which its load DAG updates."""
    return Asset(name=f"{topic} loaded", uri=f"headrace://warehouse{output}/{topic}/_log", group=GROUP)


def sealed_asset(topic: str, output: str = "/data") -> Asset:
    """Returns the asset of sealed hours, which the seal DAG updates. A partition: `2015-05-17T10:00:00`."""
    name = f"{topic} sealed" if topic in RESERVED_NAMES else topic
    return Asset(name=name, uri=f"headrace://warehouse{output}/{topic}/hourly", group=GROUP)
