"""Which fixtures exist: one file a thing, tests/fix_<thing>.py."""

import os
from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling

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
# Drivers that live for seconds: the optimising compiler would cost them more than it gains.
os.environ.setdefault("HEADRACE_SPARK_JVM_OPTIONS", "-XX:TieredStopAtLevel=1")
# They may import one another, before pytest would come to rewrite their assertions.
pytest.register_assert_rewrite(*pytest_plugins)

# `make test` runs two test processes. A file's tests stay together in one of them, and so do all files of
# the one site (`running_site`), and of the one Spark session with its brokers and HDFS (`spark`).
_SITE = (
    "tests/cli/test_cli_commands.py",
    "tests/dags/test_airflow_end_to_end.py",
    "tests/fleet/test_demo_run.py",
    "tests/kill/test_kill_loads.py",
    "tests/kill/test_kill_units.py",
)
_SPARK = (
    "tests/warehouse/test_hdfs_trouble.py",
    "tests/warehouse/test_job.py",
    "tests/warehouse/test_load.py",
    "tests/warehouse/test_source_peer.py",
    "tests/warehouse/test_source_spark.py",
)
_GROUPS = {**dict.fromkeys(_SITE, "site"), **dict.fromkeys(_SPARK, "spark")}
_GROUP_OF_FIXTURE = {"running_site": "site", "spark": "spark"}
# The site's tests take longest and begin at once. Those with Spark wait until they are nearly through: two
# that compute at the same time gain nothing.
_WHILE_THE_SITE_RUNS = ("tests/audit/", "tests/broker/", "tests/client/", "tests/clients/")


class _Together(LoadScopeScheduling):
    def _split_scope(self, nodeid: str) -> str:
        return _group(nodeid)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadScopeScheduling:
    return _Together(config, log)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    groups = {item.nodeid: _group(item.nodeid) for item in items}
    for item in items:
        for fixture, group in _GROUP_OF_FIXTURE.items():
            if fixture in getattr(item, "fixturenames", ()) and groups[item.nodeid] != group:
                raise pytest.UsageError(f"{item.nodeid} uses {fixture}: name its file in tests/conftest.py")
    items.sort(key=lambda item: _turn(groups[item.nodeid]))


def _turn(group: str) -> int:
    if group == "site":
        return 0
    if group.startswith(_WHILE_THE_SITE_RUNS):
        return 1
    return 2 if group == "spark" else 3


def _group(nodeid: str) -> str:
    file = nodeid.partition("::")[0]
    return _GROUPS.get(file, file)
