"""Marks tests `heavy` that need more than Python: a JVM, Airflow, Terraform, containers, namespaces.

A JVM runs ZooKeeper, Kafka, Spark and HDFS. `make check` leaves heavy tests out. What a test needs is read
from its fixtures, including those that they use themselves, and from its other markers.
"""

from __future__ import annotations

from typing import Final

import pytest

HEAVY_FIXTURES: Final = frozenset(
    {
        "zookeeper_server",
        "private_zookeeper",
        "java_jars",
        "kafka_jars",
        "airflow_site",
        "demo_site",
        "hcl_site",
        "terraform",
        "namespaces_work",
    }
)
HEAVY_MARKERS: Final = frozenset(
    {"spark", "hdfs", "kill", "container", "network", "real_client", "slow", "zookeeper"}
)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        fixtures = set(getattr(item, "fixturenames", ()))
        markers = {marker.name for marker in item.iter_markers()}
        if fixtures & HEAVY_FIXTURES or markers & HEAVY_MARKERS:
            item.add_marker("heavy")
