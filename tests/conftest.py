"""Which fixtures exist: one file a thing, tests/fix_<thing>.py."""

import pytest

pytest_plugins = [
    "fix_airflow",
    "fix_audit",
    "fix_broker",
    "fix_client",
    "fix_clients",
    "fix_datacenter",
    "fix_fake_log",
    "fix_hdfs",
    "fix_java",
    "fix_kafka",
    "fix_ports",
    "fix_registry",
    "fix_site",
    "fix_spark",
    "fix_warehouse",
    "fix_zookeeper",
]
# They may import one another, before pytest would come to rewrite their assertions.
pytest.register_assert_rewrite(*pytest_plugins)

# `make test` runs two test processes. Tests of the one site, and those of one Spark session with its brokers
# and HDFS, stay together in one of them, as do the tests of any other file; the long ones begin first.
_GROUP_OF_FIXTURE = {"running_site": "site", "world": "spark", "spark": "spark"}
_LONG = ("site", "spark", "tests/dags/test_airflow_environment.py")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        item.add_marker(pytest.mark.xdist_group(_group(item)))
    items.sort(key=lambda item: _LONG.index(_group(item)) if _group(item) in _LONG else len(_LONG))


def _group(item: pytest.Item) -> str:
    groups = (_GROUP_OF_FIXTURE.get(name) for name in getattr(item, "fixturenames", ()))
    return next((group for group in groups if group), item.nodeid.partition("::")[0])
