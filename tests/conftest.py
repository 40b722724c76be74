"""The files of fixtures, tests/fix_<thing>.py, and the order and grouping of tests in several processes."""

import os
import tempfile
from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling  # type: ignore[import-untyped]  # it has no types

pytest_plugins = [
    "fix_agent",
    "fix_airflow",
    "fix_audit",
    "fix_balancer",
    "fix_broker",
    "fix_client",
    "fix_cli",
    "fix_clients",
    "fix_containers",
    "fix_replica_manager",
    "fix_replicas",
    "fix_datacenter",
    "fix_days",
    "fix_ends",
    "fix_fake_log",
    "fix_faulty_disk",
    "fix_chromium",
    "fix_hdfs",
    "fix_java",
    "fix_kafka",
    "fix_network",
    "fix_network_site",
    "fix_network_terraform",
    "fix_ports",
    "fix_postgresql",
    "fix_registry",
    "fix_site",
    "fix_small_disk",
    "fix_spark",
    "fix_terraform",
    "fix_turns",
    "fix_transport",
    "fix_warehouse",
    "fix_zookeeper",
    "needs",
]
# The tests' JVMs live for seconds: the optimising compiler would cost them more than it gains.
os.environ.setdefault("JDK_JAVA_OPTIONS", "-XX:TieredStopAtLevel=1")
# Publishers' journals of one run, apart from the user's own; removed with the run.
_STATE = tempfile.TemporaryDirectory(prefix="headrace-state-")
os.environ["HEADRACE_STATE_DIR"] = _STATE.name
# Before they import one another: pytest rewrites the assertions only of modules that it imports first.
pytest.register_assert_rewrite(*pytest_plugins)

# `make test` runs three test processes. All tests of a file run in one of them, as do all files that share
# a costly session fixture: the days with the demo's site; the running site, which has no Airflow; HDFS with
# Spark and its brokers. The files of such a group run in this order.
_DAYS = (
    "tests/days/test_newcomer.py",
    "tests/days/test_reader.py",
    "tests/days/test_data_engineer.py",
    "tests/dags/test_first_topic.py",
    "tests/dags/test_airflow_end_to_end.py",
    "tests/days/test_operator.py",
    "tests/days/test_platform_engineer.py",
)
_SITE = (
    "tests/cli/test_cli_commands.py",
    "tests/cli/test_audit_drill.py",
    "tests/cli/test_topics_new.py",
    "tests/terraform/test_provider_site.py",
    "tests/kill/test_kill_units.py",
    "tests/kill/test_kill_loads.py",
)
_SPARK = (
    "tests/warehouse/test_job.py",
    "tests/hostile/test_readers_load.py",
    "tests/hostile/test_readers_schemas.py",
    "tests/hostile/test_readers_values.py",
    "tests/tables/test_pages_run.py",
    "tests/tables/test_tables.py",
    "tests/warehouse/test_hive_paths.py",
    "tests/warehouse/test_load.py",
    "tests/warehouse/test_load_by_datacenter.py",
    "tests/warehouse/test_load_decoders.py",
    "tests/warehouse/test_refill.py",
    "tests/warehouse/test_source_peer.py",
    "tests/warehouse/test_source_spark.py",
    "tests/warehouse/test_hdfs_problems.py",
    # These need HDFS alone.
    "tests/backup/test_backup_hdfs.py",
    "tests/warehouse/test_commitlog.py",
    "tests/warehouse/test_from_source.py",
    "tests/warehouse/test_hdfs.py",
    "tests/warehouse/test_hdfs_page.py",
    "tests/warehouse/test_move.py",
    "tests/warehouse/test_sealed_rows.py",
    "tests/warehouse/test_versions.py",
)
_SHARING = (_DAYS, _SITE, _SPARK)
_GROUPS = {**dict.fromkeys(_DAYS, "days"), **dict.fromkeys(_SITE, "site"), **dict.fromkeys(_SPARK, "spark")}
# What a session has one of, with the group whose files may use it.
_SHARED = {"demo_site": "days", "running_site": "site", "spark": "spark", "hdfs": "spark"}
# The order in which groups and files start; all others follow. The long ones are early, so that no process is
# alone with one in the end.
_ORDER = (
    ("days",),
    ("site",),
    ("spark",),
    ("tests/network/test_network_datacenters.py",),  # waits for a minute, and needs no CPU then
    ("tests/dags/test_airflow_environment.py",),
    ("tests/clients/",),
    ("tests/audit/", "tests/broker/", "tests/client/"),
)


class _GroupScheduling(LoadScopeScheduling):  # type: ignore[misc]  # it has no types
    def _split_scope(self, nodeid: str) -> str:
        return _group(nodeid)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadScopeScheduling:
    return _GroupScheduling(config, log)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    groups = {item.nodeid: _group(item.nodeid) for item in items}
    for item in items:
        for fixture in _SHARED.keys() & set(getattr(item, "fixturenames", ())):
            if groups[item.nodeid] != _SHARED[fixture]:
                raise pytest.UsageError(
                    f"{item.nodeid} uses {fixture}: add its file to _{_SHARED[fixture].upper()} in "
                    "tests/conftest.py"
                )
    items.sort(key=lambda item: (_position(groups[item.nodeid]), _position_in_group(item.nodeid)))


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """Ends what is shared after the last test that needs it: an idle site takes a fifth of a core."""
    assert isinstance(item, pytest.Function)
    for fixture, group in _SHARED.items():
        if fixture not in item.fixturenames or _needs(nextitem, fixture, group):
            continue
        for definition in item.session._fixturemanager.getfixturedefs(fixture, item) or ():
            definition.finish(item._request)  # type: ignore[arg-type]  # pytest has no public way


def _needs(item: pytest.Item | None, fixture: str, group: str) -> bool:
    """Whether this test, or one behind it in the same group, may need the fixture."""
    if item is None or _group(item.nodeid) != group:
        return False
    tests = item.session.items
    return any(fixture in getattr(each, "fixturenames", ()) for each in tests[tests.index(item) :])


def _position(group: str) -> int:
    positions = (position for position, groups in enumerate(_ORDER) if group.startswith(groups))
    return next(positions, len(_ORDER))


def _position_in_group(nodeid: str) -> int:
    file = nodeid.partition("::")[0]
    return next((files.index(file) for files in _SHARING if file in files), 0)


def _group(nodeid: str) -> str:
    file = nodeid.partition("::")[0]
    return _GROUPS.get(file, file)
