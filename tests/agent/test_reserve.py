"""A full disk does not lock the operator out: the agent's reserve, and errors that name path and room."""

from __future__ import annotations

import errno
import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from fix_mounts import small_file_system
from headrace.agent import folders
from headrace.agent.actions import ActionLog
from headrace.agent.errors import DiskFullError
from headrace.agent.folders import write_durably, write_files
from headrace.agent.home import AgentHome, is_locked, lock
from headrace.agent.reserve import REFILL_FACTOR, StateReserve, keep, refill, write_with_reserve
from headrace.process.disk import DiskSpace, space_of

SIZE_BYTES = 64 << 10
DISK_BYTES = 1 << 20


@pytest.fixture(autouse=True)
def no_reserve_afterwards() -> Iterator[None]:
    yield
    keep(None)


def room(free_bytes: int) -> Callable[[Path], DiskSpace]:
    return lambda path: DiskSpace(path, free_bytes, 10 * free_bytes)


def full_until(is_free: Callable[[], bool]) -> Callable[[], str]:
    def write() -> str:
        if not is_free():
            raise OSError(errno.ENOSPC, "No space left on device")
        return "written"

    return write


def test_a_reserve_is_made_used_once_and_made_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "reserve"
    keep(StateReserve(path, SIZE_BYTES))
    assert path.stat().st_size == SIZE_BYTES
    assert path.stat().st_mode & 0o777 == 0o600
    assert write_with_reserve(tmp_path / "x", full_until(lambda: not path.exists())) == "written"
    assert str(tmp_path / "x") in caplog.text and "bytes are free" in caplog.text
    # It is gone now: the next write on a full disk fails, and says where.
    with pytest.raises(DiskFullError, match=f"{tmp_path}/y: No space left.* bytes are free on the disk"):
        write_with_reserve(tmp_path / "y", full_until(lambda: False))
    refill()
    assert path.stat().st_size == SIZE_BYTES


def test_a_reserve_is_not_what_fills_the_disk(tmp_path: Path) -> None:
    small = StateReserve(tmp_path / "reserve", SIZE_BYTES, space=room(REFILL_FACTOR * SIZE_BYTES - 1))
    assert not small.fill()
    assert not small.path.exists()
    assert StateReserve(tmp_path / "reserve", SIZE_BYTES, space=room(REFILL_FACTOR * SIZE_BYTES)).fill()


def test_other_errors_do_not_use_the_reserve(tmp_path: Path) -> None:
    kept = StateReserve(tmp_path / "reserve", SIZE_BYTES)
    keep(kept)

    def denied() -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    with pytest.raises(PermissionError):
        write_with_reserve(tmp_path / "x", denied)
    assert kept.is_full


def test_a_write_that_finds_no_room_leaves_the_old_text_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "state.json"
    write_durably(path, "old")

    def no_room(descriptor: int) -> None:
        raise OSError(errno.EDQUOT, "Disk quota exceeded")

    monkeypatch.setattr("headrace.agent.folders.os.fsync", no_room)
    with pytest.raises(DiskFullError, match=f"{path}: Disk quota exceeded"):
        write_durably(path, "new")
    assert path.read_text() == "old"
    assert [each.name for each in tmp_path.iterdir()] == ["state.json"]


def test_files_that_hold_their_text_already_need_no_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "unit.cfg"
    write_files({path: "text"})
    path.chmod(0o644)

    def no_room(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(folders, "write_durably", no_room)
    write_files({path: "text"})
    assert path.stat().st_mode & 0o777 == 0o600
    with pytest.raises(OSError):
        write_files({path: "other text"})
    assert path.read_text() == "text"


# --- a real small disk ---


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "disk"
    with small_file_system(folder, DISK_BYTES):
        yield folder


def fill_up(folder: Path) -> None:
    with (folder / "filler").open("ab", buffering=0) as file:
        try:
            while True:
                file.write(bytes(4096))
        except OSError as error:
            assert error.errno == errno.ENOSPC


def test_on_a_full_disk_state_is_written_by_the_reserve_and_later_it_is_made_again(small_disk: Path) -> None:
    keep(StateReserve(small_disk / "agent" / "reserve", SIZE_BYTES))
    (small_disk / "agent").mkdir()
    refill()
    fill_up(small_disk)
    assert space_of(small_disk).free_bytes == 0
    state = small_disk / "agent" / "units" / "one.json"
    write_durably(state, "x" * 10_000)
    assert state.read_text() == "x" * 10_000
    assert not (small_disk / "agent" / "reserve").exists()
    actions = ActionLog(small_disk / "actions.log")
    actions.write(what="restart")
    fill_up(small_disk)
    with pytest.raises(DiskFullError, match=r"0 of .* bytes are free"):
        for _ in range(100):
            actions.write(what="restart" * 100)
    lines = (small_disk / "actions.log").read_text().splitlines()
    assert all(json.loads(line)["time"] for line in lines), "no half line is left"
    refill()
    assert not (small_disk / "agent" / "reserve").exists()
    (small_disk / "filler").unlink()
    refill()
    assert (small_disk / "agent" / "reserve").stat().st_size == SIZE_BYTES


def test_an_agent_starts_on_a_full_disk(small_disk: Path) -> None:
    paths = AgentHome(small_disk)
    paths.make()
    paths.lock.touch()
    fill_up(small_disk)
    with lock(paths):
        assert is_locked(paths)
    assert not is_locked(paths)


def test_units_that_share_a_file_may_be_put_at_the_same_time(tmp_path: Path) -> None:
    path = tmp_path / "airflow.cfg"

    def write(number: int) -> None:
        for turn in range(50):
            write_durably(path, f"{number} {turn}", is_durable=False)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(write, range(4)))
    assert [each.name for each in tmp_path.iterdir()] == ["airflow.cfg"]
    assert path.read_text().endswith(" 49")
