"""The files of fixtures, tests/fix_<thing>.py; tests are sorted and handed to processes as run_order says."""

import os
import tempfile
from typing import Any

import pytest
from hypothesis import settings
from xdist.scheduler import LoadScopeScheduling  # type: ignore[import-untyped]  # it has no types

from run_order import SHARED, group_of, next_group, place_of

# A machine that is busy is slow: no test fails for that.
settings.register_profile("unhurried", settings(), deadline=None)
settings.load_profile("unhurried")

pytest_plugins = [
    "fix_agent",
    "fix_airflow",
    "fix_audit",
    "fix_balancer",
    "fix_broker",
    "fix_client",
    "fix_cli",
    "fix_clients",
    "fix_consumers",
    "fix_containers",
    "fix_link",
    "fix_loop",
    "fix_members",
    "fix_replica_manager",
    "fix_replicas",
    "fix_datacenter",
    "fix_days",
    "fix_durations",
    "fix_failures",
    "fix_events",
    "fix_ends",
    "fix_fake_log",
    "fix_faulty_disk",
    "fix_chromium",
    "fix_hdfs",
    "fix_group_services",
    "fix_hosts",
    "fix_java",
    "fix_kafka",
    "fix_kafka_programs",
    "fix_network",
    "fix_network_site",
    "fix_network_terraform",
    "fix_one_broker",
    "fix_ports",
    "fix_postgresql",
    "fix_registry",
    "fix_signals",
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


# A test process begins a test only when it knows the next one.
_LEFT_MAX = 1


class _GroupScheduling(LoadScopeScheduling):  # type: ignore[misc]  # it has no types
    def _split_scope(self, nodeid: str) -> str:
        return group_of(nodeid)

    def _reschedule(self, node: Any) -> None:
        """Gives a process its next group as late as it can: it might be idle elsewhere."""
        if not self.workqueue or self._pending_of(self.assigned_work[node]) <= _LEFT_MAX:
            super()._reschedule(node)

    def _assign_work_unit(self, node: Any) -> None:
        running = (
            group
            for groups in self.assigned_work.values()
            for group, tests in groups.items()
            if not all(tests.values())
        )
        self.workqueue.move_to_end(next_group(list(self.workqueue), running), last=False)
        super()._assign_work_unit(node)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadScopeScheduling:
    return _GroupScheduling(config, log)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        for fixture in SHARED.keys() & set(getattr(item, "fixturenames", ())):
            if group_of(item.nodeid) != SHARED[fixture]:
                raise pytest.UsageError(
                    f"{item.nodeid} uses {fixture}: add its file to {SHARED[fixture].upper()} in "
                    "tests/run_order.py"
                )
    items.sort(key=lambda item: place_of(item.nodeid))


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """Ends what is shared after the last test that needs it: an idle site takes a fifth of a core."""
    assert isinstance(item, pytest.Function)
    for fixture, group in SHARED.items():
        if fixture not in item.fixturenames or _needs(nextitem, fixture, group):
            continue
        for definition in item.session._fixturemanager.getfixturedefs(fixture, item) or ():
            definition.finish(item._request)  # type: ignore[arg-type]  # pytest has no public way


def _needs(item: pytest.Item | None, fixture: str, group: str) -> bool:
    """Whether this test, or one behind it in the same group, may need the fixture."""
    if item is None or group_of(item.nodeid) != group:
        return False
    tests = item.session.items
    return any(fixture in getattr(each, "fixturenames", ()) for each in tests[tests.index(item) :])
