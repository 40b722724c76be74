"""How a broker tells an older copy of its disk from the disk that it had, above a simulated ZooKeeper."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from headrace.broker.disk_age import INTERVAL_MS, DiskAgeing, is_older
from headrace.broker.expiry_clock import ExpiryClock
from headrace.coordination import znodes
from headrace.coordination.disk_ages import DiskAge, DiskAges
from headrace.coordination.errors import CoordinationError, OlderZooKeeperError
from headrace.log.directory import LogDirectory
from simulation.sim_clock import WALL_MS, Clock, Life
from simulation.sim_session import SimSession
from simulation.sim_zookeeper import ZooKeeper

BROKER = 3


@pytest.fixture
def session() -> SimSession:
    clock = Clock(1)
    return SimSession(ZooKeeper(clock), clock, Life("a broker"), "a broker")


def started(folder: Path, session: SimSession) -> tuple[str, int]:
    """The directory's id and age, once a broker has started there and ended."""
    with LogDirectory(folder) as directory:
        directory.claim(BROKER)
        DiskAgeing(directory, DiskAges(session), BROKER, ExpiryClock(lambda: WALL_MS)).check()
        return directory.directory_id, directory.age


def test_a_disk_that_stays_grows_older(tmp_path: Path, session: SimSession) -> None:
    first_id, _ = started(tmp_path, session)
    assert [started(tmp_path, session) for _ in range(2)] == [(first_id, 2), (first_id, 3)]
    assert DiskAges(session).of(BROKER) == DiskAge(first_id, 3)


def test_an_older_copy_becomes_another_directory(
    tmp_path: Path, session: SimSession, caplog: pytest.LogCaptureFixture
) -> None:
    folder, copied = tmp_path / "data", tmp_path / "copy"
    first_id, _ = started(folder, session)
    shutil.copytree(folder, copied)
    started(folder, session)
    shutil.rmtree(folder)
    copied.rename(folder)
    second_id, age = started(folder, session)
    assert second_id != first_id and age == 1
    assert "is an older copy of broker 3's disk: its age is 1, and ZooKeeper knows of 2" in caplog.text
    caplog.clear()
    assert started(folder, session) == (second_id, 2), "from now on it is this one"
    assert not caplog.text


def test_a_copy_of_what_is_there_now_is_the_same_disk(tmp_path: Path, session: SimSession) -> None:
    """A stopped broker's data may be moved."""
    first_id, _ = started(tmp_path / "data", session)
    shutil.copytree(tmp_path / "data", tmp_path / "moved")
    assert started(tmp_path / "moved", session) == (first_id, 2)


def test_another_disk_is_not_an_older_one(tmp_path: Path, session: SimSession) -> None:
    for _ in range(3):
        started(tmp_path / "data", session)
    assert started(tmp_path / "empty", session)[1] == 1
    assert not is_older(DiskAge("one", 1), DiskAge("another", 9))


def test_no_broker_starts_above_an_older_zookeeper(tmp_path: Path, session: SimSession) -> None:
    """Its in-sync sets are those of before. It is known by an age that it had confirmed, and lost."""
    first_id, _ = started(tmp_path, session)
    started(tmp_path, session)
    started(tmp_path, session)
    DiskAges(session).note(BROKER, DiskAge(first_id, 1))
    for _ in range(2):
        with pytest.raises(OlderZooKeeperError, match="had confirmed age 2 of this disk") as error:
            started(tmp_path, session)
    assert "and now knows of 1" in str(error.value)
    assert f"delete {znodes.disk(BROKER)} in ZooKeeper" in str(error.value)
    assert DiskAges(session).of(BROKER) == DiskAge(first_id, 1), "no broker that tries again wipes the trace"
    session.delete(znodes.disk(BROKER))
    assert started(tmp_path, session) == (first_id, 4)


def test_a_broker_that_runs_does_not_wipe_the_trace_of_an_older_zookeeper(
    tmp_path: Path, session: SimSession, caplog: pytest.LogCaptureFixture
) -> None:
    with LogDirectory(tmp_path) as directory:
        directory.claim(BROKER)
        ageing = DiskAgeing(directory, DiskAges(session), BROKER, ExpiryClock(lambda: WALL_MS))
        ageing.check()
        ageing.grow()
        older = DiskAge(directory.directory_id, 1)
        DiskAges(session).note(BROKER, older)
        ageing.grow()
        assert "ZooKeeper's data is older than" in caplog.text
        assert DiskAges(session).of(BROKER) == older


def test_a_server_that_lags_is_no_older_zookeeper(tmp_path: Path) -> None:
    clock = Clock(1)
    zookeeper = ZooKeeper(clock)
    lags, writes = (SimSession(zookeeper, clock, Life(name), name) for name in ("lags", "writes"))
    started(tmp_path, writes)
    lags.fall_behind(may_write=True)
    started(tmp_path, writes)
    first_id, age = started(tmp_path, writes)
    assert DiskAges(lags).of(BROKER) == DiskAge(first_id, 1)
    assert started(tmp_path, lags) == (first_id, age + 1)


def test_an_age_that_was_not_confirmed_proves_nothing(tmp_path: Path, session: SimSession) -> None:
    """A broker counts its disk's age up, and dies before ZooKeeper hears of it."""
    first_id, _ = started(tmp_path, session)
    with LogDirectory(tmp_path) as directory:
        directory.claim(BROKER)
        for _ in range(3):
            directory.grow_older()
    assert started(tmp_path, session) == (first_id, 5)


def test_a_zookeeper_that_knows_nothing_alarms_nobody(tmp_path: Path, session: SimSession) -> None:
    """It was lost, and begins anew; or it was restored, without ages."""
    for age in (1, 2, 3):
        first_id, _ = started(tmp_path, session)
        session.delete(znodes.disk(BROKER))
        assert started(tmp_path, session) == (first_id, 2 * age)


@pytest.mark.parametrize(
    "damaged",
    [
        b"{",
        b"[]",
        b'{"version": 1}',
        b'{"version": 1, "directory_id": "%s", "age": Infinity}',
        b'{"version": 1, "directory_id": "%s", "age": true}',
        b'{"version": 1, "directory_id": 5, "age": 9}',
    ],
)
def test_a_node_that_holds_no_age_alarms_nobody(
    tmp_path: Path, session: SimSession, caplog: pytest.LogCaptureFixture, damaged: bytes
) -> None:
    first_id, _ = started(tmp_path, session)
    session.set(znodes.disk(BROKER), damaged.replace(b"%s", first_id.encode()))
    assert started(tmp_path, session)[0] == first_id
    assert "/headrace/disks/3: not the age of a disk" in caplog.text


def test_an_age_that_cannot_be_written_is_not_noted(
    tmp_path: Path, session: SimSession, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Else the same disk would pass for an older one after a restart."""
    with LogDirectory(tmp_path) as directory:
        directory.claim(BROKER)
        ageing = DiskAgeing(directory, DiskAges(session), BROKER, ExpiryClock(lambda: WALL_MS))
        ageing.check()

        def fails() -> None:
            raise OSError("the disk is full")

        monkeypatch.setattr(directory, "grow_older", fails)
        ageing.grow()
        assert DiskAges(session).of(BROKER) == DiskAge(directory.directory_id, 1)
    assert "the age of the disk is not counted up" in caplog.text


def test_a_silent_zookeeper_is_said_once_the_broker_runs(
    tmp_path: Path, session: SimSession, caplog: pytest.LogCaptureFixture
) -> None:
    with LogDirectory(tmp_path) as directory:
        directory.claim(BROKER)
        ageing = DiskAgeing(directory, DiskAges(session), BROKER, ExpiryClock(lambda: WALL_MS))
        ageing.check()
        session.disconnect()
        ageing.grow()
        with pytest.raises(CoordinationError):
            ageing.check()
    assert "the age of the disk was not noted in ZooKeeper" in caplog.text


class Jobs:
    """Jobs that are done when the test says so."""

    def __init__(self) -> None:
        self.waiting: list[tuple[Callable[[], object], Callable[..., None]]] = []

    def submit(self, job: Callable[[], object], done: Callable[..., None]) -> None:
        self.waiting.append((job, done))


def test_one_job_at_a_time_counts_up(tmp_path: Path, session: SimSession) -> None:
    due: list[Callable[[], None]] = []
    jobs = Jobs()
    with LogDirectory(tmp_path) as directory:
        directory.claim(BROKER)
        ageing = DiskAgeing(directory, DiskAges(session), BROKER, ExpiryClock(lambda: WALL_MS))

        def every(period_ms: float, call: Callable[[], None]) -> None:
            assert period_ms == INTERVAL_MS
            due.append(call)

        ageing.begin(every, jobs)
        due[0]()
        due[0]()
        assert len(jobs.waiting) == 1, "ZooKeeper may be silent for longer than a period"
        job, done = jobs.waiting.pop()
        job()
        done(None, None)
        due[0]()
        assert len(jobs.waiting) == 1 and directory.age == 1
