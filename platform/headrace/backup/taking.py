"""Takes a backup of a home, beside its running units or of a stopped one.

Owns the order (docs/decisions/0021-backups.md): what refers to logs is copied before them, copies of logs
before the logs that they were copied from, and what logs refer to after them.
"""

from __future__ import annotations

import platform
import socket
import sqlite3
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from headrace.agent.configuration import (
    AirflowConfiguration,
    AuditorConfiguration,
    BrokerConfiguration,
    HdfsConfiguration,
    PostgresqlConfiguration,
    ZooKeeperConfiguration,
)
from headrace.agent.home import AgentHome
from headrace.agent.host import own_version
from headrace.audit.store.store import sqlite_file
from headrace.backup import crash, databases, hdfs_tree, logs, postgresql_dump, trees
from headrace.backup.errors import BackupError, RefusedError
from headrace.backup.manifest import HOME, Manifest, Piece
from headrace.backup.pace import Pace, check_room
from headrace.backup.shelf import Shelf
from headrace.backup.units import HomeUnit, data_below, datacenters_in_order, of_kind, shown, units_in
from headrace.backup.writer import Writer
from headrace.coordination.tree import TreeNode
from headrace.process.clock import now_ms
from headrace.site.context_store import ContextStore
from headrace.site.site import SITE_FILE_NAME, Site

AIRFLOW: Final = "airflow"
AIRFLOW_FILES: Final = ("secrets.json", "passwords.json", "connections.json")
SQLITE: Final = "sqlite:///"
_SCRATCH: Final = "zookeeper.tmp"

Observe = Callable[[str], None]


@dataclass(frozen=True)
class Options:
    """`hdfs`: "all", "log" (commit logs and seals alone), or "none". `is_checking`: read all sources, and
    compare them with the last backup, instead of trusting sizes and times. `keep`: how many backups stay.
    """

    hdfs: str = "all"
    bytes_per_second: int | None = None
    is_checking: bool = False
    keep: int | None = None


@dataclass
class Taken:
    """A backup that was taken: its folder, its manifest, and what it cost."""

    folder: Path
    manifest: Manifest
    copied_bytes: int
    taken_over_bytes: int
    removed: list[str]


@dataclass
class _Job:
    """One backup while it is taken."""

    site: Site
    units: list[HomeUnit]
    options: Options
    writer: Writer
    observe: Observe
    pieces: list[Piece] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def add(self, unit: HomeUnit, data: str, facts: dict[str, Any]) -> None:
        configuration = unit.configuration
        self.pieces.append(Piece(unit.name, configuration.kind, configuration.datacenter, data, facts))


def take(site: Site, shelf_folder: Path, options: Options, observe: Observe = lambda line: None) -> Taken:
    """Takes a backup into `shelf_folder`. Raises `BackupError`, `SiteError`, `OSError`."""
    shelf = Shelf(shelf_folder)
    _check_elsewhere(site, shelf_folder)
    with shelf.locked():
        began_ms = now_ms()
        units = units_in(site)
        if not any(each.unit.data_dir is not None and each.data_problem() is None for each in units):
            raise RefusedError(f"{site.home} holds no data of any unit: there is nothing to back up")
        earlier = shelf.earlier()
        folder = shelf.begin(began_ms)
        crash.reached("backup-began")
        pace = Pace(options.bytes_per_second)
        with Writer(folder, earlier, pace, is_checking=options.is_checking) as writer:
            job = _Job(site, units, options, writer, observe)
            try:
                check_room(shelf_folder, _needed_bytes(job), f"the backup of {site.home}")
            except BackupError:
                _remove_empty(folder)
                raise
            _copy_all(job)
            crash.reached("backup-copied")
            writer.finish()
            made = Manifest(
                began_ms,
                now_ms(),
                str(site.home.absolute()),
                socket.gethostname(),
                _versions(units),
                {each.name: shown(each.configuration) for each in units},
                tuple(job.pieces),
                tuple(sorted(writer.files.values())),
                tuple(job.problems),
                tuple(job.notes),
            )
            crash.reached("backup-finished")
            whole = shelf.end(folder, made)
        shelf.remove_halves()
        # A backup with problems takes the place of no other: that may have what it lacks.
        may_remove = options.keep is not None and not made.problems
        removed = shelf.keep(options.keep, whole) if may_remove and options.keep is not None else []
        return Taken(whole, made, writer.copied_bytes, writer.taken_over_bytes, removed)


def _check_elsewhere(site: Site, folder: Path) -> None:
    home, shelf = site.home.resolve(), folder.resolve()
    if shelf == home or (shelf.is_relative_to(home / "data")) or home.is_relative_to(shelf):
        raise RefusedError(
            f"{folder} holds the home {site.home}, or lies in its data: give another folder, "
            "best on another disk"
        )


def _remove_empty(folder: Path) -> None:
    for path in folder.iterdir():
        path.unlink()
    folder.rmdir()


def _versions(units: Sequence[HomeUnit]) -> dict[str, str]:
    found = {each.configuration.kind: each.unit.version for each in units}
    return {**found, "headrace": own_version(), "python": platform.python_version()}


def _needed_bytes(job: _Job) -> int:
    """Returns about how many bytes will be written, as far as earlier backups do not have them."""
    total = sum(logs.size_to_copy(each, job.writer) for each in of_kind(job.units, BrokerConfiguration))
    for path in (_store_of(each) for each in job.units):
        total += path.stat().st_size if path is not None and path.exists() else 0
    for each in of_kind(job.units, PostgresqlConfiguration):
        total += postgresql_dump.size_of(each)
    if job.options.hdfs == "all":
        for each in of_kind(job.units, HdfsConfiguration):
            known = sum(
                entry.size_bytes
                for earlier in job.writer.earlier[:1]
                for path, entry in earlier.files.items()
                if path.startswith(f"{each.name}/")
            )
            total += max(0, hdfs_tree.size_of(each) - known)
    return total


def _store_of(unit: HomeUnit) -> Path | None:
    configuration = unit.configuration
    if isinstance(configuration, AuditorConfiguration) and configuration.store:
        return sqlite_file(configuration.store)
    return None


def _copy_all(job: _Job) -> None:
    for unit in of_kind(job.units, PostgresqlConfiguration):
        _copy_postgresql(job, unit)
    _copy_airflow(job)
    for unit in of_kind(job.units, AuditorConfiguration):
        _copy_store(job, unit)
    for unit in of_kind(job.units, HdfsConfiguration):
        _copy_hdfs(job, unit)
    for datacenter in datacenters_in_order(job.units):
        _copy_datacenter(job, datacenter)
    _copy_home(job)


def _copy_postgresql(job: _Job, unit: HomeUnit) -> None:
    if not postgresql_dump.has_data(unit):
        return
    facts, problem = postgresql_dump.copy(unit, job.writer)
    if problem is not None:
        job.problems.append(problem)
        return
    job.add(unit, data_below(job.site.home, unit.unit), facts)
    job.observe(f"{unit.name}  {postgresql_dump.DUMP}")


def _copy_airflow(job: _Job) -> None:
    units = of_kind(job.units, AirflowConfiguration)
    if not units:
        return
    configuration = units[0].configuration
    assert isinstance(configuration, AirflowConfiguration)
    home = configuration.home or job.site.home / AIRFLOW
    url = configuration.database_url or f"{SQLITE}{home / 'airflow.db'}"
    for name in AIRFLOW_FILES:
        if (home / name).exists():
            job.writer.put(f"{AIRFLOW}/{name}", (home / name).read_bytes())
    if configuration.postgresql is None and not url.startswith(SQLITE):
        job.notes.append(
            "airflow: its database is on a server of another home and is not in this backup: take it with "
            "its own tool (pg_dump), before this one"
        )
    elif configuration.postgresql is None and (path := Path(url.removeprefix(SQLITE))).exists():
        _copy_database(job, f"{AIRFLOW}/airflow.db", path)
    job.pieces.append(Piece(AIRFLOW, "airflow", configuration.datacenter, AIRFLOW, {}))
    job.observe("airflow")


def _copy_database(job: _Job, path: str, source: Path) -> None:
    try:
        problem = databases.copy(path, source, job.writer)
    except sqlite3.Error as error:
        problem = f"{source} cannot be read: {error}"
    if problem is not None:
        job.problems.append(problem)


def _copy_store(job: _Job, unit: HomeUnit) -> None:
    configuration = unit.configuration
    assert isinstance(configuration, AuditorConfiguration)
    path = _store_of(unit)
    if path is None:
        if configuration.store:
            job.notes.append(
                f"{unit.name}: the audit store is in another database: take it with its own tool"
            )
        return
    if not path.exists():
        return
    _copy_database(job, f"{unit.name}/{path.name}", path)
    home = job.site.home.absolute()
    data = str(path.parent.relative_to(home)) if path.is_relative_to(home) else f"data/{unit.name}"
    job.add(unit, f"{data}/{path.name}", {})
    job.observe(f"{unit.name}  {path.name}")


def _copy_hdfs(job: _Job, unit: HomeUnit) -> None:
    if job.options.hdfs == "none":
        job.notes.append(f"{unit.name}: left out, as --hdfs none says")
        return
    if _is_missing(job, unit):
        return
    facts, problems = hdfs_tree.copy(
        unit, job.writer, with_data=job.options.hdfs == "all", observe=job.observe
    )
    job.problems += problems
    job.add(unit, data_below(job.site.home, unit.unit), facts)


def _copy_datacenter(job: _Job, datacenter: str) -> None:
    """ZooKeeper, the logs, ZooKeeper again: no group is ahead of a log, and no log of the schemas."""
    mine = [each for each in job.units if each.configuration.datacenter == datacenter]
    keepers = of_kind(mine, ZooKeeperConfiguration)
    if not keepers:
        job.notes.append(
            f"{datacenter}: its ZooKeeper is not of this home: back up the host that has it, first"
        )
    keepers = [each for each in keepers if not _is_missing(job, each)]
    if not keepers:
        _copy_logs(job, mine, None)
        return
    keeper = keepers[0]
    chroots = sorted({_chroot_of(each) for each in of_kind(mine, BrokerConfiguration)})
    with trees.session_of(keeper, job.writer.folder / _SCRATCH, job.site.home) as session:
        first = trees.read_tree(session, chroots=chroots)
        _copy_logs(job, mine, first)
        tree = trees.joined(first, trees.read_tree(session, chroots=chroots))
    job.writer.put(f"{keeper.name}/{trees.TREE}", trees.encode(tree))
    job.add(keeper, data_below(job.site.home, keeper.unit), {"nodes": len(tree)})
    job.observe(f"{keeper.name}  {len(tree):,} nodes")


def _chroot_of(broker: HomeUnit) -> str:
    assert isinstance(broker.configuration, BrokerConfiguration)
    return trees.chroot_in(broker.configuration.zookeeper)


def _copy_logs(job: _Job, units: Sequence[HomeUnit], tree: Sequence[TreeNode] | None) -> None:
    brokers = [each for each in of_kind(units, BrokerConfiguration) if not _is_missing(job, each)]
    ends = logs.flushed_ends(brokers)
    for broker in brokers:
        topics = None if tree is None else trees.topics_of(tree, _chroot_of(broker))
        copied = logs.copy_broker(broker, ends, topics, job.writer, job.observe)
        job.problems += copied.problems
        job.notes += copied.notes
        job.add(broker, data_below(job.site.home, broker.unit), {"partitions": copied.partitions})


def _is_missing(job: _Job, unit: HomeUnit) -> bool:
    """Whether a unit's data is not there, as when its disk is not mounted or dead; that is a problem."""
    problem = unit.data_problem()
    if problem is None:
        return False
    job.problems.append(f"{unit.name}: {problem}")
    return True


def _copy_home(job: _Job) -> None:
    home = job.site.home.absolute()
    agent = AgentHome(home)
    paths = [home / SITE_FILE_NAME, agent.token, agent.read_token, agent.permitted]
    paths += sorted([*ContextStore(home).folder.glob("*"), *agent.loads.glob("*.json")])
    for path in paths:
        if path.is_file() and not path.is_symlink():
            job.writer.put(f"{HOME}/{path.relative_to(home)}", path.read_bytes())
    job.pieces.append(Piece(HOME, HOME, "", HOME, {}))
