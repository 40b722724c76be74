"""Whatever becomes of a log's files, no durable batch vanishes: the log serves it, or refuses to open and
leaves every byte where it is; and no address is given away twice.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from fix_log import SMALL, Built, batch, build, content, files, recovery_point, segments
from headrace.log import checkpoint
from headrace.log.errors import LogDamagedError
from headrace.log.partition import PartitionLog

PAGE_BYTES = 64  # of the test's "disk": small, so that a log has many

SIZES = st.lists(st.integers(0, 200), min_size=8, max_size=24)


def flip(path: Path, where: float) -> None:
    raw = bytearray(path.read_bytes())
    if raw:
        bit = int(where * len(raw) * 8)
        raw[bit // 8] ^= 1 << bit % 8
        path.write_bytes(raw)


def truncate(path: Path, where: float) -> None:
    os.truncate(path, int(where * path.stat().st_size))


def remove(path: Path, where: float) -> None:
    path.unlink()


def zero_page(path: Path, where: float) -> None:
    raw = bytearray(path.read_bytes())
    at = int(where * len(raw)) // PAGE_BYTES * PAGE_BYTES
    raw[at : at + PAGE_BYTES] = bytes(len(raw[at : at + PAGE_BYTES]))
    path.write_bytes(raw)


def zero(path: Path, where: float) -> None:
    path.write_bytes(bytes(path.stat().st_size))


def grow(path: Path, where: float) -> None:
    """What preallocation leaves after a power cut."""
    with path.open("ab") as file:
        file.write(bytes(1 + int(where * 500)))


def swap(path: Path, where: float) -> None:
    """Another file of the folder gets its name, and the other way round."""
    others = sorted(each for each in path.parent.iterdir() if each != path)
    other = others[int(where * len(others))]
    kept = path.read_bytes()
    path.write_bytes(other.read_bytes())
    other.write_bytes(kept)


DAMAGES = (flip, truncate, remove, zero_page, zero, grow, swap)


def check(folder: Path, built: Built, *, damaged_bytes_are_served: bool, begins_at: int = 0) -> bool:
    """Opens the damaged log; returns whether it serves. `damaged_bytes_are_served`: they may be, as they are,
    for clients compare checksums.
    """
    before = files(folder)
    try:
        log = PartitionLog(folder, SMALL)
    except LogDamagedError as error:
        after = files(folder)
        assert {name: after.get(name) for name in before} == before, "a refusal changes nothing"
        assert "headrace log check" in str(error) and "set-aside" in str(error) and str(folder) in str(error)
        return False
    try:
        assert log.end_address >= built.durable, "addresses of durable batches would be given away again"
        assert log.start_address == begins_at
        lying = b"".join(path.read_bytes() for path in segments(folder))
        assert begins_at + len(lying) == log.end_address
        if not damaged_bytes_are_served:
            assert lying[: built.durable] == built.data[: built.durable]
        # What was cut off lies beside it.
        after = files(folder)
        cut = [raw for name, raw in after.items() if ".cut" in name]
        for name in [path.name for path in folder.iterdir()] + list(before):
            if name.endswith(".log") and name in before:
                left = after.get(name, b"")
                assert before[name].startswith(left)
                assert before[name] == left or before[name][len(left) :] in cut
        # It goes on behind, and what it appends is durable.
        end = log.append(batch(200, 5)).end_address
        log.flush()
        assert end == begins_at + len(lying) + len(batch(200, 5))
    finally:
        log.abandon()
    again = PartitionLog(folder, SMALL)
    assert again.end_address == end
    again.abandon()
    return True


@settings(max_examples=250, deadline=None)
@given(
    sizes=SIZES,
    checkpoint_after=st.integers(0, 8),
    unflushed=st.integers(0, 4),
    clean=st.booleans(),
    damage=st.sampled_from(DAMAGES),
    which=st.floats(0, 1, exclude_max=True),
    where=st.floats(0, 1, exclude_max=True),
)
@example(
    # A sealed segment and its index have each other's bytes.
    sizes=[0] * 7 + [57],
    checkpoint_after=0,
    unflushed=0,
    clean=False,
    damage=swap,
    which=0.0,
    where=0.0,
)
@example(
    # The first segment is gone, and nothing was known to be durable: a log may begin anywhere.
    sizes=[0] * 7 + [57],
    checkpoint_after=0,
    unflushed=1,
    clean=False,
    damage=remove,
    which=0.0,
    where=0.0,
)
def test_one_damage_anywhere(
    tmp_path_factory: pytest.TempPathFactory,
    sizes: list[int],
    checkpoint_after: int,
    unflushed: int,
    clean: bool,
    damage: object,
    which: float,
    where: float,
) -> None:
    root = tmp_path_factory.mktemp("log")
    folder = root / "t-0"
    built = build(folder, sizes, checkpoint_after=checkpoint_after, unflushed=unflushed, clean=clean)
    names = sorted(path for path in folder.iterdir())
    assert callable(damage)
    victim = names[int(which * len(names))]
    known = recovery_point(folder)
    is_first = victim == segments(folder)[0]
    damage(victim, where)
    # Durable, and known to be so when the log is opened: what the last checkpoint and the indexes say.
    certain = Built(built.data, built.starts, min(built.durable, known))
    start = segments(folder)[0] if damage is remove and is_first and segments(folder) else None
    begins_at = int(start.stem) if start is not None and not certain.durable else 0
    check(folder, certain, damaged_bytes_are_served=True, begins_at=begins_at)
    shutil.rmtree(root)


@settings(max_examples=150, deadline=None)
@given(
    sizes=SIZES,
    clean=st.booleans(),
    which=st.floats(0, 1, exclude_max=True),
    where=st.floats(0, 1, exclude_max=True),
    copy_too=st.booleans(),
)
@example(sizes=[50] * 20, clean=True, which=0.1, where=0.5, copy_too=True)
def test_a_lost_checkpoint_and_one_flipped_bit_keep_every_byte(
    tmp_path_factory: pytest.TempPathFactory,
    sizes: list[int],
    clean: bool,
    which: float,
    where: float,
    copy_too: bool,
) -> None:
    root = tmp_path_factory.mktemp("log")
    folder = root / "t-0"
    built = build(folder, sizes, checkpoint_after=4, clean=clean)
    (folder / checkpoint.FILE_NAME).unlink()
    if copy_too:
        (folder / "checkpoint.previous").unlink(missing_ok=True)
    logs = segments(folder)
    flip(logs[int(which * len(logs))], where)
    before = files(folder)
    check(folder, built, damaged_bytes_are_served=True)
    after = files(folder)
    for name in before:
        if name.endswith(".log"):
            assert after[name].startswith(before[name]), f"{name} lost bytes"
    assert not [name for name in after if ".cut" in name]
    shutil.rmtree(root)


@settings(max_examples=100, deadline=None)
@given(
    sizes=SIZES,
    unflushed=st.integers(1, 6),
    cut=st.floats(0, 1, exclude_max=True),
    checkpoint_after=st.integers(0, 8),
)
def test_after_a_crash_alone_the_log_opens_with_all_that_was_durable(
    tmp_path_factory: pytest.TempPathFactory,
    sizes: list[int],
    unflushed: int,
    cut: float,
    checkpoint_after: int,
) -> None:
    """A power cut loses any of the bytes that were not flushed: that is no damage."""
    root = tmp_path_factory.mktemp("log")
    folder = root / "t-0"
    built = build(folder, sizes, checkpoint_after=checkpoint_after, unflushed=unflushed)
    lost_from = built.durable + int(cut * (len(built.data) - built.durable))
    for path in segments(folder):
        base, size = int(path.stem), path.stat().st_size
        if base + size > lost_from:
            os.truncate(path, max(0, lost_from - base))
    assert check(folder, built, damaged_bytes_are_served=False)
    shutil.rmtree(root)


@pytest.mark.parametrize("where", ["first", "middle", "last"])
def test_a_missing_segment(tmp_path: Path, where: str) -> None:
    folder = tmp_path / "t-0"
    built = build(folder, [100] * 20, clean=True)
    logs = segments(folder)
    assert len(logs) > 4
    victim = {"first": logs[0], "middle": logs[2], "last": logs[-1]}[where]
    victim.unlink()
    assert not check(folder, built, damaged_bytes_are_served=False)
    with pytest.raises(LogDamagedError, match="address"):
        PartitionLog(folder, SMALL)


def test_all_segments_missing(tmp_path: Path) -> None:
    folder = tmp_path / "t-0"
    build(folder, [100] * 3, clean=True)
    for path in (*segments(folder), *folder.glob("*.index")):
        path.unlink()
    with pytest.raises(LogDamagedError, match="none of its segments"):
        PartitionLog(folder, SMALL)
    assert not segments(folder), "no new log begins at address 0"


def test_the_last_segment_and_the_checkpoint_missing(tmp_path: Path) -> None:
    folder = tmp_path / "t-0"
    build(folder, [100] * 20, clean=True)
    segments(folder)[-1].unlink()
    (folder / "checkpoint").unlink()
    (folder / "checkpoint.previous").unlink()
    with pytest.raises(LogDamagedError, match="the log's last segment, which followed here, is missing"):
        PartitionLog(folder, SMALL)


def test_a_checkpoint_that_is_too_high(tmp_path: Path) -> None:
    folder = tmp_path / "t-0"
    built = build(folder, [100] * 20, clean=True)
    (folder / "checkpoint").write_bytes(checkpoint.encode(checkpoint.Checkpoint(1 << 60)))
    assert not check(folder, built, damaged_bytes_are_served=False)


def test_two_logs_files_mixed(tmp_path: Path) -> None:
    first = build(tmp_path / "t-0", [100] * 20, clean=True)
    build(tmp_path / "t-1", [90, 120] * 10, clean=True, producer=8)
    taken = segments(tmp_path / "t-1")[-1]
    shutil.copy(taken, segments(tmp_path / "t-0")[-1])
    # Its batches fit, so only the audit can tell; but it is not cut, and no address is given away twice.
    assert check(tmp_path / "t-0", first, damaged_bytes_are_served=True)
    taken = segments(tmp_path / "t-1")[1]
    shutil.copy(taken, tmp_path / "t-0")
    assert not check(tmp_path / "t-0", first, damaged_bytes_are_served=False)


def test_foreign_files_are_named_and_left_alone(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = tmp_path / "t-0"
    built = build(folder, [100] * 20, clean=True)
    foreign = ["notes.txt", "0.log", "my.tmp", "line\nbreak.log", f"{'٣' * 20}.log"]
    for name in foreign:
        (folder / name).write_bytes(b"keep me")
    assert check(folder, built, damaged_bytes_are_served=False)
    assert all((folder / name).read_bytes() == b"keep me" for name in foreign)
    assert "files that do not belong here are left alone: '0.log', 'line\\nbreak.log'" in caplog.text


KILLED = """
    import os, signal, sys
    from pathlib import Path
    sys.path.insert(0, {tests!r})
    from fix_log import SMALL, batch
    from headrace.log.partition import PartitionLog

    left = [{calls}]

    def dying(name):
        real = getattr(os, name)
        def call(*arguments, **named):
            left[0] -= 1
            if not left[0]:
                os.kill(os.getpid(), signal.SIGKILL)
            return real(*arguments, **named)
        return call

    calls = "pwritev write open fsync fdatasync rename replace link unlink ftruncate"
    for name in calls.split():
        setattr(os, name, dying(name))
    log = PartitionLog(Path({folder!r}), SMALL)
    for number in range(14):
        log.append(batch(number, 100))
        if number % 5 == 4:
            log.request_checkpoint()
        log.flush()
        print(log.flushed_address, flush=True)
    log.close()
    print("closed", flush=True)
"""


@pytest.mark.slow
def test_sigkill_at_every_step_that_writes(tmp_path: Path) -> None:
    """SIGKILL before each call that writes, in turn: what was reported durable before is there afterwards."""
    calls, step = 1, 3
    while True:
        folder = tmp_path / f"t-{calls}"
        program = textwrap.dedent(KILLED).format(
            tests=str(Path(__file__).parents[1]), calls=calls, folder=str(folder)
        )
        ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
        lines = ended.stdout.split()
        if lines[-1:] == ["closed"]:
            break
        assert ended.returncode == -9, ended.stderr
        durable = int(lines[-1]) if lines else 0
        log = PartitionLog(folder, SMALL)
        assert log.end_address >= durable
        expected = b"".join(batch(number, 100) for number in range(14))
        assert len(content(log)) == log.end_address <= len(expected)
        log.close()
        assert not [path for path in folder.iterdir() if path.name.endswith(".tmp")]
        shutil.rmtree(folder)
        calls += step
    assert calls > 60, "the program made fewer calls than it must"
