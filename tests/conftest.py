"""Which fixtures exist: one file a thing, tests/fix_<thing>.py."""

import os
from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling

pytest_plugins = [
    "fix_agent",
    "fix_airflow",
    "fix_audit",
    "fix_balancer",
    "fix_broker",
    "fix_client",
    "fix_clients",
    "fix_containers",
    "fix_datacenter",
    "fix_fake_log",
    "fix_hdfs",
    "fix_java",
    "fix_kafka",
    "fix_network",
    "fix_network_site",
    "fix_network_terraform",
    "fix_ports",
    "fix_registry",
    "fix_site",
    "fix_spark",
    "fix_terraform",
    "fix_warehouse",
    "fix_zookeeper",
    "needs",
]
# JVMs that live for seconds: the optimising compiler would cost them more than it gains.
os.environ.setdefault("JDK_JAVA_OPTIONS", "-XX:TieredStopAtLevel=1")
# They may import one another, before pytest would come to rewrite their assertions.
pytest.register_assert_rewrite(*pytest_plugins)

# `make test` runs three test processes. A file's tests stay together in one of them, and so do all files of
# the running site, in this order (Airflow comes late, and stays), and of the one Spark session with its
# brokers and HDFS (`spark`).
_SITE = (
    "tests/cli/test_cli_commands.py",
    "tests/terraform/test_provider_site.py",
    "tests/kill/test_kill_units.py",
    "tests/kill/test_kill_loads.py",
    "tests/dags/test_airflow_end_to_end.py",
    "tests/demo/test_demo_run.py",
)
_SPARK = (
    "tests/warehouse/test_hdfs_trouble.py",
    "tests/warehouse/test_load.py",
    "tests/warehouse/test_source_peer.py",
    "tests/warehouse/test_source_spark.py",
)
_GROUPS = {**dict.fromkeys(_SITE, "site"), **dict.fromkeys(_SPARK, "spark")}
# In this order they begin, then all others: the long ones early, and two that compute apart where it can be.
_TURNS = (
    ("site",),
    ("tests/network/test_network_datacenters.py",),  # a minute of waiting, while others compute
    ("tests/audit/", "tests/broker/", "tests/client/"),
    ("tests/warehouse/test_job.py",),
    ("tests/clients/",),
    ("spark",),
)


class _Together(LoadScopeScheduling):
    def _split_scope(self, nodeid: str) -> str:
        return _group(nodeid)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadScopeScheduling:
    return _Together(config, log)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    groups = {item.nodeid: _group(item.nodeid) for item in items}
    for item in items:
        if "running_site" in getattr(item, "fixturenames", ()) and groups[item.nodeid] != "site":
            raise pytest.UsageError(f"{item.nodeid} uses a site: name its file in tests/conftest.py")
    items.sort(key=lambda item: (_turn(groups[item.nodeid]), _place(item.nodeid)))


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """The site ends with the last test that needs it: an idle one takes a fifth of a core from all others."""
    if _group(item.nodeid) != "site" or (nextitem is not None and _group(nextitem.nodeid) == "site"):
        return
    for definition in item.session._fixturemanager.getfixturedefs("running_site", item) or ():
        definition.finish(item._request)


def _turn(group: str) -> int:
    turns = (turn for turn, groups in enumerate(_TURNS) if group.startswith(groups))
    return next(turns, len(_TURNS))


def _place(nodeid: str) -> int:
    """Within its group."""
    file = nodeid.partition("::")[0]
    return _SITE.index(file) if file in _SITE else 0


def _group(nodeid: str) -> str:
    file = nodeid.partition("::")[0]
    return _GROUPS.get(file, file)
