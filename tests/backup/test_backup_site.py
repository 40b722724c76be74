"""A small site is backed up while it works, and its home is made again from the backup.

One site for the whole file: two datacenters, a mirror, HDFS, the audit, and the PostgreSQL that Airflow would
have. Tests run in their order.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import httpx
import pytest

from fix_postgresql import ENVIRONMENT, UNIT, ask
from fix_site import FIRST_EVENT_MS, RunningSite, Service
from headrace.agent.airflow_environment import airflow_python
from headrace.agent.configuration import PostgresqlConfiguration
from headrace.agent.errors import AddressTakenError
from headrace.agent.local import find_agent
from headrace.backup import crash, manifest
from headrace.backup.trees import LEADER_EPOCHS_SKIPPED
from headrace.coordination.consumers import ConsumerRegistry
from headrace.coordination.producer_ids import allocate_block
from headrace.coordination.session import ZooKeeperSession
from headrace.coordination.topics import TopicRegistry, TopicState
from headrace.fleet import operate
from headrace.fleet.airflow_database import data_dir
from headrace.fleet.units import units_of
from headrace.log.check import check_partition
from headrace.postgresql.installation import problem
from headrace.postgresql.place import socket_folder
from headrace.site.site import Datacenter, MirrorRoute, Site
from headrace.warehouse.hdfs.client import HdfsClient
from headrace.warehouse.layout import TopicPaths

pytestmark = pytest.mark.kill

TOPIC: Final = "page-view"
EVENTS: Final = 300
GROUP: Final = "readers"
BLOCKS: Final = (220, 230)
"""Of addresses, which no other test takes (fix_site, fix_days): a site of theirs may be about to start."""
DAY_MS: Final = 86_400_000
POSTGRESQL_WAIT_MAX_S: Final = 90.0
HAS_POSTGRESQL: Final = airflow_python().exists() and problem(ENVIRONMENT) is None
BACKUP_STEPS: Final = [step for step in crash.STEPS if step.startswith("backup")]
RESTORE_STEPS: Final = [step for step in crash.STEPS if step.startswith("restore")]


def small_site(home: Path, block: int) -> Site:
    return Site(
        home=home,
        datacenters=(
            Datacenter(name="east", network=f"127.{block + 1}.0", broker_count=1),
            Datacenter(name="analysis", network=f"127.{block + 9}.0", broker_count=1),
        ),
        mirrors=(MirrorRoute(source="east", target="analysis"),),
        warehouse="analysis",
        airflow=False,
    )


def site_file(block: int) -> str:
    return (
        f"block: {block}\nairflow: false\ndatacenters:\n"
        f"  east: {{network: 127.{block + 1}.0, broker_count: 1}}\n"
        f"  analysis: {{network: 127.{block + 9}.0, broker_count: 1}}\n"
        "mirrors: [{source: east, target: analysis}]\n"
    )


class World:
    """The site in one home after another, and its backups."""

    def __init__(self, folder: Path, block: int, jars: Path) -> None:
        self.folder = folder
        self.block = block
        self.jars = jars
        self.shelf = folder / "backups"
        self.before: dict[str, Any] = {}
        self.use(folder / "home")
        self.home.mkdir()
        (self.home / "jars").symlink_to(jars)
        (self.home / "site.yaml").write_text(site_file(block))

    def use(self, home: Path) -> None:
        self.home = home
        self.site = small_site(home, self.block)
        self.running = RunningSite(self.site)

    def command(
        self, *words: str, home: Path | None = None, **environment: str
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "headrace.cli", *words],
            env={**os.environ, "HEADRACE_HOME": str(home or self.home), **environment},
            capture_output=True,
            text=True,
            timeout=280,
        )

    def json(self, *words: str, home: Path | None = None) -> Any:
        done = self.command(*words, "--json", home=home)
        assert done.returncode == 0, done.stderr + done.stdout
        return json.loads(done.stdout)

    def publish(self, label: str, day: int) -> set[str]:
        service = self.service(label, day, EVENTS)
        service.start()
        service.finish(at_once=False)
        assert not service.failed
        return service.acknowledged

    def service(self, label: str, day: int, count: int | None = None) -> Service:
        """Publishes events of the first hour of a day of its own."""
        from_ms = FIRST_EVENT_MS + day * DAY_MS
        east = self.site.datacenter("east")
        return Service(east, TOPIC, label=label, count_max=count, from_ms=from_ms, step_ms=1000)

    def proven(self) -> list[dict[str, Any]]:
        """The verdicts of the first day, once nothing is pending."""
        report = self.running.settled_report(TOPIC, FIRST_EVENT_MS, FIRST_EVENT_MS + DAY_MS)
        verdicts: list[dict[str, Any]] = report.to_json()["verdicts"]
        return verdicts

    def zookeeper(self, datacenter: str) -> ZooKeeperSession:
        return ZooKeeperSession(str(self.site.datacenter(datacenter).zookeeper)).start()

    def state(self) -> dict[str, Any]:
        """What must be the same in the restored site."""
        found: dict[str, Any] = {}
        for datacenter in ("east", "analysis"):
            with self.zookeeper(datacenter) as session:
                topics: dict[str, TopicState] = TopicRegistry(session).list()
                found[f"{datacenter} topics"] = topics
                found[f"{datacenter} offsets"] = ConsumerRegistry(session, GROUP).all_offsets()
            url = self.site.datacenter(datacenter).registry_url
            subjects = httpx.get(f"{url}/subjects", trust_env=False).json()
            found[f"{datacenter} schemas"] = {
                subject: httpx.get(f"{url}/subjects/{subject}/versions/latest", trust_env=False).json()["id"]
                for subject in subjects
            }
        return found

    def start_postgresql(self) -> None:
        """Runs the unit of Airflow's database, as `headrace up` would with Airflow."""
        configuration = PostgresqlConfiguration(datacenter="analysis", data_dir=data_dir(self.site))
        agent = find_agent(self.home)
        assert agent is not None
        with agent:
            agent.put(UNIT, configuration.model_dump(mode="json"))
            assert agent.unit(UNIT, wait_s=POSTGRESQL_WAIT_MAX_S).is_ready

    def ask(self, statement: str) -> list[tuple[object, ...]]:
        return ask(socket_folder(self.home, UNIT), statement)

    def commit_log(self) -> dict[str, bytes]:
        """The manifests of the topic's loads in HDFS, by path."""
        with HdfsClient(self.site.webhdfs_url) as hdfs:
            return {path: hdfs.read(path) for path, _ in hdfs.walk(TopicPaths("/data", TOPIC).log)}

    def mirror_states(self) -> list[dict[str, Any]]:
        url = f"http://{self.site.mirror_status(self.site.mirrors[0])}/status"
        rows: list[dict[str, Any]] = httpx.get(url, trust_env=False, timeout=20).json()["partitions"]
        return rows

    def end(self) -> None:
        operate.down(self.site)


@pytest.fixture(scope="module")
def world(java_jars: dict[str, Path]) -> Iterator[World]:
    folder = Path(tempfile.mkdtemp(prefix="headrace-backup-"))
    made = None
    for block in BLOCKS:
        try:
            operate.check_addresses(units_of(small_site(folder / "home", block)))
        except AddressTakenError:
            continue
        made = World(folder, block, java_jars["hdfs"].parent)
        break
    assert made is not None, "all blocks are taken"
    try:
        operate.up(made.site)
        yield made
    finally:
        made.end()
        shutil.rmtree(folder, ignore_errors=True)


def test_a_site_that_works_is_backed_up(world: World) -> None:
    first = world.publish("first", 0)
    world.running.wait_mirrored([TOPIC])
    code, output = world.running.load([TOPIC])
    assert code == 0, output
    with world.zookeeper("analysis") as session:
        ConsumerRegistry(session, GROUP).commit(TOPIC, 0, 0)
    proven = world.proven()
    world.before = {**world.state(), "rows": world.running.rows(TOPIC), "proven": proven, "first": first}
    assert world.before["rows"].keys() == first
    assert proven and {verdict["status"] for verdict in proven} == {"complete"}, proven
    world.before["log"] = world.commit_log()
    assert world.before["log"]
    if HAS_POSTGRESQL:
        world.start_postgresql()
        world.ask("CREATE TABLE dag_run AS SELECT n, 'run ' || n AS name FROM generate_series(1, 100) AS n")

    service = world.service("meanwhile", 1)
    service.start()
    taken = world.json("backup", "create", str(world.shelf))
    service.finish()
    assert not service.failed, "a backup disturbs nobody"
    assert taken["problems"] == [] and taken["copied_bytes"] > 0
    assert (UNIT in {piece["name"] for piece in taken["pieces"]}) == HAS_POSTGRESQL

    verified = world.json("backup", "verify", taken["backup"])
    assert verified["damaged"] == [] and verified["extra"] == []
    for piece in taken["pieces"]:
        for partition in piece.get("partitions", {}):
            assert not check_partition(Path(taken["backup"]) / piece["name"] / partition).findings


def test_copies_end_before_their_sources_and_groups_before_logs(world: World) -> None:
    made = manifest.load(newest(world))
    east, analysis = made.piece("east-broker-1"), made.piece("analysis-broker-1")
    assert east is not None and analysis is not None
    copied = {name for name in analysis.facts["partitions"] if name.startswith(f"{TOPIC}-")}
    assert copied
    for name in copied:
        assert analysis.facts["partitions"][name]["end"] <= east.facts["partitions"][name]["end"]
        assert east.facts["partitions"][name]["end_told_by"] == "broker"


def newest(world: World) -> Path:
    return max(path for path in world.shelf.iterdir() if path.name.endswith("Z"))


def test_a_second_backup_takes_over_what_is_unchanged(world: World) -> None:
    taken = world.json("backup", "create", str(world.shelf), "--keep", "1")
    assert taken["taken_over_bytes"] > 0
    assert len(taken["removed"]) == 1
    assert [row["backup"] for row in world.json("backup", "list", str(world.shelf))] == [taken["backup"]]


@pytest.mark.parametrize("step", BACKUP_STEPS)
def test_a_killed_backup_is_recognised_as_half_and_a_repeat_completes_it(world: World, step: str) -> None:
    shelf = world.folder / f"killed-{step}"
    words = ("backup", "create", str(shelf), "--hdfs", "none")
    assert world.command(*words, HEADRACE_CRASH_AT=step).returncode == -signal.SIGKILL
    (half,) = (path for path in shelf.iterdir() if path.is_dir())
    verified = world.command("backup", "verify", str(half))
    assert verified.returncode == 1 and "half a backup" in verified.stderr
    assert [row["problem"] for row in world.json("backup", "list", str(shelf))] == ["half"]
    taken = world.json(*words)
    assert (taken["taken_over_bytes"] > 0) == (step != "backup-began")
    assert sorted(path.name for path in shelf.iterdir() if path.is_dir()) == [Path(taken["backup"]).name]
    assert world.json("backup", "verify", taken["backup"])["damaged"] == []


def test_corruption_of_each_kind_of_file_is_found_and_restored_by_nobody(world: World) -> None:
    backup = newest(world)
    made = manifest.load(backup)
    for piece in made.pieces:
        entry = max(made.files_of(piece.name), key=lambda entry: entry.size_bytes)
        path = backup / entry.path
        content = path.read_bytes()
        path.write_bytes(content[: len(content) // 2] + b"\xff\x00" + content[len(content) // 2 + 2 :])
        verified = world.command("backup", "verify", str(backup))
        assert verified.returncode == 1 and f"DAMAGED {entry.path}: its SHA-256" in verified.stdout
        if piece is made.pieces[0]:
            target = world.folder / "never"
            restored = world.command("restore", str(backup), "--into", str(target))
            assert restored.returncode == 1 and entry.path in restored.stderr and not target.exists()
        path.write_bytes(content)
    assert world.json("backup", "verify", str(backup))["damaged"] == []


def test_a_home_with_data_is_not_overwritten(world: World) -> None:
    done = world.command("restore", str(newest(world)))
    assert done.returncode == 1 and "A restore overwrites nothing" in done.stderr


def test_a_stopped_site_is_backed_up_too(world: World) -> None:
    world.before.update(world.state(), rows=world.running.rows(TOPIC))
    world.running.wait_mirrored([TOPIC])
    world.end()
    taken = world.json("backup", "create", str(world.shelf))
    assert taken["problems"] == []
    assert {piece["name"] for piece in taken["pieces"]} >= {
        "east-zookeeper",
        "east-broker-1",
        "analysis-hdfs",
    }


@pytest.mark.parametrize("step", RESTORE_STEPS)
def test_a_killed_restore_is_recognised_as_half_and_a_repeat_completes_it(world: World, step: str) -> None:
    backup = str(max(path for path in (world.folder / "killed-backup-began").iterdir() if path.is_dir()))
    home = world.folder / f"half-{step}"
    words = ("restore", backup, "--into", str(home))
    assert world.command(*words, HEADRACE_CRASH_AT=step).returncode == -signal.SIGKILL
    refused = world.command("up", home=home)
    assert refused.returncode == 1 and "half restored" in refused.stderr
    done = world.command(*words)
    assert done.returncode == 0, done.stderr
    assert not (home / "restoring").exists()
    assert (home / "site.yaml").read_text() == site_file(world.block)
    shutil.rmtree(home)


def test_a_restored_site_serves_what_the_backup_held_and_goes_on(world: World) -> None:
    stopped_site = newest(world)
    backup = max(path for path in world.shelf.iterdir() if path.name.endswith("Z") and path != stopped_site)
    home = world.folder / "restored"
    home.mkdir()
    (home / "jars").symlink_to(world.jars)
    done = world.command("restore", str(backup), home=home)
    assert done.returncode == 0, done.stderr
    world.use(home)
    units = {unit.name for unit in units_of(world.site)}
    try:
        started = world.json("up", "--wait", "--timeout", "4m")
        assert (started["home"], set(started["ready"])) == (str(home), units)
        check_restored(world)
        assert set(world.json("up", "--yes")["ready"]) == units
        assert world.json("restart", "east-registry") == {"restarted": ["east-registry"]}
        stopped = world.json("down")
        assert stopped["was_running"] and set(stopped["stopped"]) >= units
        assert world.json("down") == {"home": str(home), "was_running": False, "stopped": []}
    finally:
        world.end()


def in_later_epochs(topic: TopicState) -> TopicState:
    """The topic as it is restored: its leaders' next epochs are none that the lost site may have begun."""
    partitions = {
        index: replace(state, leader_epoch=state.leader_epoch + LEADER_EPOCHS_SKIPPED)
        for index, state in topic.partitions.items()
    }
    return replace(topic, partitions=partitions)


def check_restored(world: World) -> None:
    before = world.before
    now = world.state()
    for key in ("east topics", "analysis topics"):
        assert now[key] == {name: in_later_epochs(topic) for name, topic in before[key].items()}, key
    for key in ("east schemas", "analysis schemas", "analysis offsets"):
        assert now[key] == before[key], key
    assert world.running.rows(TOPIC) == before["rows"]
    assert world.commit_log().items() >= before["log"].items()
    if HAS_POSTGRESQL:
        world.start_postgresql()
        assert world.ask("SELECT count(*), min(name), max(n) FROM dag_run") == [(100, "run 1", 100)]
    for datacenter in ("east", "analysis"):
        with world.zookeeper(datacenter) as session:
            assert allocate_block(session)[0] >= 1_000_000_000, "no producer's id is given to another one"

    later = world.publish("later", 2)
    world.running.wait_mirrored([TOPIC])
    assert not [row for row in world.mirror_states() if row["state"] == "halted"]
    code, output = world.running.load([TOPIC])
    assert code == 0, output
    rows = world.running.rows(TOPIC)
    assert set(rows.values()) == {1}, "exactly once"
    assert rows.keys() >= before["first"] | later
    assert world.proven() == before["proven"], "the audit says what it said before"
