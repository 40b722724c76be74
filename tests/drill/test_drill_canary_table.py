"""The canary's table from drill to drill: what is old goes, and a table that cannot go on is replaced."""

from __future__ import annotations

import sys
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from fix_audit_world import received
from fix_canary import WAREHOUSE, CanaryHdfs, CanaryWorld
from headrace.audit.store.store import AuditStore
from headrace.audit.times import HOUR_MS
from headrace.audit.topic.drills import CANARY_TOPIC
from headrace.audit.topic.said_of_tables import ALL, VerifiedRecord
from headrace.drill import canary_table
from headrace.drill.canary_table import CHANGES_MAX, KEEP_MS, PROBLEMS_MAX, CanaryTable
from headrace.drill.errors import DrillError
from headrace.drill.load_process import LoadFailedError, last_error, load_command, run_load
from headrace.process.clock import now_ms
from headrace.warehouse import api
from headrace.warehouse.hdfs.errors import HdfsUnreachableError
from headrace.warehouse.layout import TopicPaths

NOW_HOUR_MS = now_ms() - now_ms() % HOUR_MS
OLD_HOUR_MS = NOW_HOUR_MS - KEEP_MS - 2 * HOUR_MS
SITE = replace(WAREHOUSE, root="/data")


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> CanaryWorld:
    made = CanaryWorld()
    for module in (canary_table, api):
        monkeypatch.setattr(module, "hdfs_of", lambda _warehouse: made.hdfs)
    return made


@pytest.fixture
def store_url(tmp_path: Path) -> str:
    url = f"sqlite:///{tmp_path}/audit.db"
    AuditStore(url).close()
    return url


@pytest.fixture
def table(world: CanaryWorld, store_url: str) -> CanaryTable:
    return CanaryTable(SITE, store_url)


def root_of(number: int) -> str:
    return f"/data/_drills/{number}"


def test_a_site_without_drills_gets_its_first_table(table: CanaryTable) -> None:
    table.prepare()
    assert table.options.root == root_of(1)
    assert TopicPaths(table.options.root, CANARY_TOPIC).base == "/data/_drills/1/headrace-drill"


def test_old_hours_and_what_was_copied_into_them_are_removed_and_newer_damage_stays(
    world: CanaryWorld, table: CanaryTable
) -> None:
    world.load({"old": OLD_HOUR_MS, "new": NOW_HOUR_MS})
    world.load({"gone": OLD_HOUR_MS, "harmed": NOW_HOUR_MS})
    state = world.table.log.state()
    world.hdfs.delete(state.hours()[OLD_HOUR_MS][1].path)
    world.hdfs.delete(state.hours()[NOW_HOUR_MS][1].path)
    copies = [
        f"{world.table.paths.hour_dir(hour_ms)}/copy-x.parquet" for hour_ms in (OLD_HOUR_MS, NOW_HOUR_MS)
    ]
    for copy in copies:
        world.hdfs.write(copy, b"x")
    table.prepare()
    assert table.options.root == root_of(1)
    assert list(world.table.log.state().hours()) == [NOW_HOUR_MS]
    assert [copy in world.hdfs.files for copy in copies] == [False, True]
    assert not world.hdfs.entries(world.table.paths.hour_dir(OLD_HOUR_MS))
    # The next drill finds nothing to remove, and its load continues where the last one ended.
    sequence = world.table.log.state().sequence
    table.prepare()
    assert world.table.log.state().sequence == sequence and world.table.log.state().ends == {0: world.end}
    assert len(world.verify().placed) == 2


def test_a_table_with_an_edited_manifest_is_replaced(world: CanaryWorld, table: CanaryTable) -> None:
    world.load({"a": NOW_HOUR_MS})
    world.load({"b": NOW_HOUR_MS})
    world.hdfs.files[world.table.paths.manifest(0)] += b" "
    table.prepare()
    assert table.options.root == root_of(2)


def test_a_table_that_has_grown_too_long_or_has_too_many_problems_is_replaced(
    world: CanaryWorld, table: CanaryTable, store_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.load({"a": NOW_HOUR_MS})
    monkeypatch.setattr(canary_table, "CHANGES_MAX", 0)
    table.prepare()
    assert table.options.root == root_of(2)
    monkeypatch.setattr(canary_table, "CHANGES_MAX", CHANGES_MAX)
    table.prepare()
    assert table.options.root == root_of(1)
    store = AuditStore(store_url)
    for name in ("hdfs://namenode:8020/data/_drills/9", WAREHOUSE.name):
        record = VerifiedRecord(name, CANARY_TOPIC, ALL, 1, 1, PROBLEMS_MAX + 1, ())
        store.fold([received(record, datacenter="analysis")])
        table.prepare()
        assert table.options.root == root_of(2 if name == WAREHOUSE.name else 1)
    store.close()


def test_an_unreachable_hdfs_replaces_no_table(
    world: CanaryWorld, table: CanaryTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unreachable(_self: CanaryHdfs, path: str) -> list[object]:
        if path == "/data/_drills":
            return []
        raise HdfsUnreachableError("no response")

    monkeypatch.setattr(CanaryHdfs, "entries", unreachable)
    with pytest.raises(HdfsUnreachableError):
        table.prepare()
    assert table.options.root == root_of(1)


def test_a_load_that_is_refused_goes_to_a_new_table_and_the_old_one_is_deleted(
    world: CanaryWorld, table: CanaryTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So after the canary topic was made again, or deleted events before they were loaded."""
    world.load({"a": NOW_HOUR_MS})
    roots: list[str] = []

    def load(command: list[str], _stopping: threading.Event) -> None:
        roots.append(command[command.index("--root") + 1])
        world.hdfs.write(f"{roots[-1]}/headrace-drill/_log/x", b"")
        if roots[-1] == root_of(1):
            raise LoadFailedError("the load ended with 1: partition 0 ends at address 0")

    monkeypatch.setattr(canary_table, "run_load", load)
    table.prepare()
    table.load(threading.Event())
    assert roots == [root_of(1), root_of(2)]
    assert [each.name for each in world.hdfs.entries("/data/_drills")] == ["2"]
    table.prepare()
    assert table.options.root == root_of(2)


def test_a_load_that_is_interrupted_replaces_no_table(
    world: CanaryWorld, table: CanaryTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(_command: list[str], _stopping: threading.Event) -> None:
        raise DrillError("the load was interrupted")

    monkeypatch.setattr(canary_table, "run_load", interrupted)
    with pytest.raises(DrillError, match="interrupted"):
        table.load(threading.Event())
    assert table.options.root == root_of(1)


def test_the_file_with_a_services_events_is_found_among_harmed_ones(
    world: CanaryWorld, table: CanaryTable
) -> None:
    for service in ("a", "mine", "c", "d"):
        world.load({service: NOW_HOUR_MS})
    first, mine, cut, gone = world.table.log.state().hours()[NOW_HOUR_MS]
    world.hdfs.files[cut.path] = b"PAR1"
    world.hdfs.delete(gone.path)
    assert table.file_of("mine", NOW_HOUR_MS) == mine and table.file_of("a", NOW_HOUR_MS) == first
    with pytest.raises(DrillError, match="has the events of d, which are loaded"):
        table.file_of("d", NOW_HOUR_MS)


# --- the load's process ---


def test_the_load_is_the_one_of_the_dags() -> None:
    command = load_command(replace(WAREHOUSE, zookeeper="z:1"), CANARY_TOPIC)
    assert command[:5] == [sys.executable, "-m", "headrace.warehouse.job", "load", CANARY_TOPIC]
    assert command[command.index("--root") + 1] == WAREHOUSE.root
    assert command[-2:] == ["--zookeeper", "z:1"]


def test_a_failed_load_names_the_jobs_last_error() -> None:
    code = "import sys; print('noise'); print('headrace warehouse: a gap'); print('more'); sys.exit(1)"
    with pytest.raises(LoadFailedError, match=r"^the load ended with 1: a gap$"):
        run_load([sys.executable, "-c", code], threading.Event())
    assert last_error(["a", "", "b ", " "]) == "b"
    assert last_error([]) == "it printed nothing"
    run_load([sys.executable, "-c", "pass"], threading.Event())


def test_a_load_ends_with_its_drill_and_in_time() -> None:
    sleeping = [sys.executable, "-c", "import time; time.sleep(60)"]
    stopping = threading.Event()
    stopping.set()
    with pytest.raises(DrillError, match="interrupted"):
        run_load(sleeping, stopping)
    with pytest.raises(DrillError, match=r"did not end within 0\.1 s"):
        run_load(sleeping, threading.Event(), timeout_s=0.1)
