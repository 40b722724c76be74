"""Events expire by the earlier of two clocks: a broker's own, and ZooKeeper's."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fix_zookeeper import ZooKeeperRoom
from headrace.broker.disk_age import DiskAgeing
from headrace.broker.expiry_clock import APART_MAX_MS, ExpiryClock
from headrace.coordination.disk_ages import DiskAges
from headrace.coordination.session import ZooKeeperSession
from headrace.log.directory import LogDirectory
from headrace.process.clock import now_ms

NOW_MS: Final = 1_800_000_000_000
YEAR_MS: Final = 365 * 24 * 3600 * 1000


class Host:
    """A machine whose clock somebody sets, and one that only counts."""

    def __init__(self) -> None:
        self.wall_ms, self.elapsed_ms = NOW_MS, 5_000
        self.clock = ExpiryClock(lambda: self.wall_ms, lambda: self.elapsed_ms)

    def wait(self, duration_ms: int) -> None:
        self.wall_ms += duration_ms
        self.elapsed_ms += duration_ms


@given(
    own_step_ms=st.integers(-YEAR_MS, YEAR_MS),
    zookeeper_off_ms=st.integers(-YEAR_MS, YEAR_MS),
    wait_ms=st.integers(0, YEAR_MS),
)
def test_it_is_never_later_than_either_clock(own_step_ms: int, zookeeper_off_ms: int, wait_ms: int) -> None:
    host = Host()
    assert host.clock.now_ms() is None, "nothing expires yet"
    host.clock.heard(NOW_MS + zookeeper_off_ms)
    host.wall_ms += own_step_ms
    host.wait(wait_ms)
    assert host.clock.now_ms() == NOW_MS + wait_ms + min(own_step_ms, zookeeper_off_ms)
    latest_ms = NOW_MS + wait_ms + max(own_step_ms, zookeeper_off_ms)
    assert host.clock.bounds_ms() == (host.clock.now_ms(), latest_ms)


def test_clocks_that_differ_are_named_once(caplog: pytest.LogCaptureFixture) -> None:
    host = Host()
    caplog.set_level("INFO")
    host.clock.heard(NOW_MS - APART_MAX_MS)
    assert not caplog.messages
    for _ in range(2):
        host.clock.heard(NOW_MS - 3_600_000)
    assert [each.partition(".")[0] for each in caplog.messages] == [
        "the clock of this host is 3600 s ahead of ZooKeeper's"
    ]
    host.clock.heard(NOW_MS)
    assert caplog.messages[1:] == ["the clock of this host agrees with ZooKeeper's again"]
    host.clock.heard(NOW_MS + 3_600_000)
    assert "3600 s behind ZooKeeper's" in caplog.messages[-1]
    assert host.clock.status() == {"ahead_ms": -3_600_000, "is_apart": True}


def test_what_zookeeper_has_not_told_is_not_known() -> None:
    assert Host().clock.status() == {"ahead_ms": None, "is_apart": False}


def test_a_real_zookeeper_tells_its_time(zookeeper: ZooKeeperRoom, tmp_path: Path) -> None:
    clock = ExpiryClock(lambda: now_ms() + YEAR_MS)
    with ZooKeeperSession(zookeeper.hosts, name="clock") as session:
        directory = LogDirectory(tmp_path)
        directory.claim(77)
        DiskAgeing(directory, DiskAges(session), 77, clock).check()
        directory.close()
    told_ms = clock.now_ms()
    assert told_ms is not None and abs(told_ms - now_ms()) < 10_000


def test_a_full_disk_learns_the_time_and_grows_no_older(
    zookeeper: ZooKeeperRoom, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else nothing would expire on it, and it would stay full."""

    def full(_: LogDirectory) -> None:
        raise OSError(28, "No space left on device")

    with zookeeper.session() as session, LogDirectory(tmp_path) as directory:
        directory.claim(77)
        ages = DiskAges(session)
        for _ in range(2):  # before anything was noted, and after it
            known, clock = ages.of(77), ExpiryClock()
            with monkeypatch.context() as patched:
                patched.setattr(LogDirectory, "grow_older", full)
                DiskAgeing(directory, ages, 77, clock).grow()
            assert clock.now_ms() is not None and ages.of(77) == known
            DiskAgeing(directory, ages, 77).grow()
