"""`headrace log check` names all damage and changes nothing; `set-aside` lets the partition serve again."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from fix_log import SMALL, batch, build, content, files, segments
from headrace.cli.main import app
from headrace.log import gaps, set_aside
from headrace.log.check import check_partition
from headrace.log.claims import Claims
from headrace.log.config import LogConfig
from headrace.log.directory import LogDirectory, PartitionName
from headrace.log.errors import LogBusyError, LogDamagedError
from headrace.log.partition import PartitionLog
from headrace.wire.batch import hop


def log_folder(root: Path, count: int = 20) -> Path:
    with LogDirectory(root) as directory:
        directory.claim(1)
    build(root / "t-0", [100] * count, clean=True)
    (root / "t-0" / "partition.json").write_text('{"topic_id": "00000000-0000-0000-0000-000000000001"}')
    return root / "t-0"


def command(*words: object) -> tuple[int, str]:
    ended = CliRunner().invoke(app, ["log", *map(str, words)])
    assert ended.exception is None or isinstance(ended.exception, SystemExit), ended.exception
    return ended.exit_code, ended.output


def flip(path: Path, at: int) -> None:
    raw = bytearray(path.read_bytes())
    raw[at] ^= 1
    path.write_bytes(raw)


def test_a_whole_log_has_no_findings(tmp_path: Path) -> None:
    folder = log_folder(tmp_path)
    before = files(folder)
    code, printed = command("check", tmp_path)
    assert code == 0
    assert "20 good batches with 20 records: nothing is damaged" in printed
    assert files(folder) == before
    code, printed = command("check", folder, "--json")
    assert code == 0 and json.loads(printed)[0]["batches"] == 20
    assert command("set-aside", tmp_path)[1].strip() == "t-0: nothing changed"
    assert files(folder) == before


def test_each_damage_is_one_line(tmp_path: Path) -> None:
    folder = log_folder(tmp_path)
    logs = segments(folder)
    flip(logs[1], 100)  # in the first batch's records
    logs[3].unlink()
    os.truncate(logs[-1], logs[-1].stat().st_size - 1)
    (folder / "00000000000000000007.cut").write_bytes(b"x" * 9)
    code, printed = command("check", tmp_path, "--partition", "t-0")
    lines = [line for line in printed.splitlines() if line.startswith("DAMAGED")]
    size = len(batch(0, 100))
    first = int(logs[1].stem)
    assert code == 1
    assert f"DAMAGED t-0: {logs[1].name}: addresses [{first}, {first + size}): batch at offset" in lines[0]
    assert any(f"{logs[3].name}" in line and "the file is missing" in line for line in lines)
    assert any("but everything below 3400 was durable" in line for line in lines)
    assert "00000000000000000007.cut: 9 bytes, cut off by a start" in printed
    assert "1 partition is damaged" in printed


def test_a_torn_tail_is_no_damage(tmp_path: Path) -> None:
    folder = tmp_path / "t-0"
    build(folder, [100] * 5, unflushed=1)
    os.truncate(segments(folder)[-1], segments(folder)[-1].stat().st_size - 1)
    report = check_partition(folder)
    assert not report.findings
    assert "are no whole batch" in report.notes[0]


def test_set_aside_refuses_a_log_that_a_running_broker_has_open(tmp_path: Path) -> None:
    folder = log_folder(tmp_path)
    flip(segments(folder)[1], 100)
    name, topic_id = PartitionName("t", 0), UUID(int=1)
    with LogDirectory(tmp_path) as directory:
        log = directory.open(name, topic_id, SMALL)
        before = files(folder)
        ended = CliRunner().invoke(app, ["log", "set-aside", str(tmp_path)])
        assert ended.exit_code != 0 and "stop the broker first" in str(ended.exception)
        code, printed = command("set-aside", tmp_path, "--dry-run")
        assert code == 0 and "would be moved aside" in printed
        assert command("check", tmp_path)[0] == 1
        assert files(folder) == before
        # Once the log is offline, the command works beside the broker, which then opens it again.
        log.abandon()
        directory.release(name)
        code, printed = command("set-aside", tmp_path)
        assert code == 0 and "gap [" in printed
        directory.open(name, topic_id, SMALL).close()


def test_only_what_is_offline_is_touched_beside_a_running_broker(tmp_path: Path) -> None:
    folder = log_folder(tmp_path)
    shutil.copytree(folder, tmp_path / "t-1")
    for each in ("t-0", "t-1"):
        flip(segments(tmp_path / each)[1], 100)
    with LogDirectory(tmp_path) as directory:
        log = directory.open(PartitionName("t", 1), UUID(int=1), SMALL)
        before = files(tmp_path / "t-1")
        code, printed = command("set-aside", tmp_path)
        assert code == 0
        assert "1 partition is open in the running broker" in printed and "t-0: gap [" in printed
        assert files(tmp_path / "t-1") == before
        log.abandon()


def test_a_log_that_is_being_mended_is_not_opened(tmp_path: Path) -> None:
    log_folder(tmp_path)
    claims = Claims(tmp_path)
    with LogDirectory(tmp_path) as directory:
        assert claims.take("t-0")
        with pytest.raises(LogBusyError, match="set-aside"):
            directory.open(PartitionName("t", 0), UUID(int=1), SMALL)
        claims.release("t-0")
        directory.open(PartitionName("t", 0), UUID(int=1), SMALL).abandon()
        assert not claims.take("t-0")
        assert claims.take("t-1"), "claims are for one partition each"
        # Opened twice, as when a topic is made again while its log is being opened.
        directory.open(PartitionName("t", 0), UUID(int=1), SMALL).abandon()
        directory.release(PartitionName("t", 0))
        assert not claims.take("t-0")
        directory.release(PartitionName("t", 0))
        assert claims.take("t-0")
    claims.close()


def test_several_bad_batches_in_a_row_cost_no_good_one_behind_them(tmp_path: Path) -> None:
    """In the last segment, which has no index: only the headers of the bad ones say where they end."""
    with LogDirectory(tmp_path) as directory:
        directory.claim(1)
    folder = tmp_path / "t-0"
    build(folder, [100] * 6, clean=True, config=LogConfig())
    (folder / "partition.json").write_text('{"topic_id": "00000000-0000-0000-0000-000000000001"}')
    size_bytes = len(batch(0, 100))
    for number in (2, 3):
        flip(segments(folder)[0], number * size_bytes + 100)
    whole = segments(folder)[0].read_bytes()
    code, printed = command("set-aside", tmp_path)
    assert code == 0 and f"gap [{2 * size_bytes}, {4 * size_bytes})" in printed
    assert [path.read_bytes() for path in segments(folder)] == [
        whole[: 2 * size_bytes],
        whole[4 * size_bytes :],
    ]


def test_a_folder_that_does_not_say_whose_it_is_is_damaged_and_not_set_aside(tmp_path: Path) -> None:
    """The topic's id is in no batch: what `set-aside` made of the log its broker would not open either."""
    folder = log_folder(tmp_path)
    (folder / "partition.json").write_text("{")
    kept = files(folder)
    code, printed = command("check", tmp_path)
    assert code == 1 and "partition.json" in printed and "1 partition is damaged" in printed
    with pytest.raises(set_aside.SetAsideError, match="does not say whose log this is"):
        set_aside.set_aside(folder)
    assert files(folder) == kept


def test_one_bad_batch_becomes_a_gap(tmp_path: Path) -> None:
    folder = log_folder(tmp_path)
    whole = b"".join(path.read_bytes() for path in segments(folder))
    logs = segments(folder)
    flip(logs[1], 270)  # in its second batch
    (folder / "checkpoint").unlink()
    with pytest.raises(LogDamagedError):
        PartitionLog(folder, SMALL)
    damaged = logs[1].read_bytes()
    code, printed = command("set-aside", tmp_path)
    size, base = len(batch(0, 100)), int(logs[1].stem)
    assert code == 0 and f"gap [{base + size}, {base + 2 * size})" in printed
    assert (folder / logs[1].with_suffix(".aside").name).read_bytes() == damaged
    assert command("check", tmp_path)[0] == 0
    log = PartitionLog(folder, SMALL)
    assert content(log) == whole[: base + size] + whole[base + 2 * size :]
    for offset in range(base + size, base + 2 * size):
        assert log.position(offset) == base + 2 * size
        assert log.slices(offset, 1)[0].read()[:8] == whole[base + 2 * size :][:8]
    entry = log.producers.get(9)
    assert entry is not None and entry.batches[-1].last_sequence == 19
    log.append(batch(20, 100))
    log.flush()
    log.close()
    PartitionLog(folder, SMALL).close()


def test_no_gap_in_the_middle_of_a_log_is_forgotten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond 1,000 the first ones were: the log was damaged there, also after each further set-aside."""
    monkeypatch.setattr(gaps, "GAPS_MAX", 2)
    folder = log_folder(tmp_path)
    for path in segments(folder)[1:5]:
        flip(path, 100)
    assert command("set-aside", tmp_path)[0] == 0
    assert command("check", tmp_path)[0] == 0
    log = PartitionLog(folder, SMALL)
    assert len(gaps.load(folder)) == 4 and len(content(log)) == 16 * len(batch(0, 100))
    log.close()
    for path in segments(folder)[:3]:
        path.unlink()  # by retention
    gaps.save(folder, gaps.load(folder))
    begins = int(segments(folder)[0].stem)
    assert [gap.end <= begins for gap in gaps.load(folder)] == [True, True, False], "the last two before it"
    PartitionLog(folder, SMALL).close()


def test_a_lost_last_segment_needs_an_end_only_without_a_checkpoint(tmp_path: Path) -> None:
    folder = log_folder(tmp_path)
    lost = segments(folder)[-1]
    lost.unlink()
    kept = tmp_path / "copy"
    shutil.copytree(folder, kept)
    assert command("set-aside", tmp_path, "--partition", "t-0")[0] == 0
    log = PartitionLog(folder, SMALL)
    assert log.end_address == 3400, "no address is given away twice"
    assert log.position(int(lost.stem)) == 3400
    assert gaps.load(folder)[0][:2] == (int(lost.stem), 3400)
    log.close()
    for name in ("checkpoint", "checkpoint.previous"):
        (kept / name).unlink()
    with pytest.raises(set_aside.SetAsideError, match="--resume-at ADDRESS"):
        set_aside.set_aside(kept)
    with pytest.raises(set_aside.SetAsideError, match="given away twice"):
        set_aside.set_aside(kept, resume_at=5)
    set_aside.set_aside(kept, resume_at=10_000)
    log = PartitionLog(kept, SMALL)
    assert log.end_address == 10_000
    log.close()


@settings(max_examples=80, deadline=None)
@given(
    sizes=st.lists(st.integers(0, 200), min_size=8, max_size=20),
    damages=st.lists(
        st.tuples(st.sampled_from(["flip", "cut", "remove", "zero"]), st.floats(0, 1, exclude_max=True)),
        min_size=1,
        max_size=3,
    ),
    at=st.floats(0, 1, exclude_max=True),
    interrupted=st.booleans(),
)
def test_set_aside_always_leaves_a_log_that_serves_all_that_is_whole(
    tmp_path_factory: pytest.TempPathFactory,
    sizes: list[int],
    damages: list[tuple[str, float]],
    at: float,
    interrupted: bool,
) -> None:
    root = tmp_path_factory.mktemp("log")
    folder = root / "t-0"
    built = build(folder, sizes, clean=True)
    for damage, which in damages:
        logs = segments(folder)
        if not logs:
            break
        victim = logs[int(which * len(logs))]
        size = victim.stat().st_size
        if damage == "flip" and size:
            flip(victim, int(at * size))
        elif damage == "cut":
            os.truncate(victim, int(at * size))
        elif damage == "remove":
            victim.unlink()
        elif damage == "zero":
            victim.write_bytes(bytes(size))
    before = files(folder)
    damaged = bool(check_partition(folder).findings)
    if interrupted and damaged:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(gaps, "save", lambda *_: (_ for _ in ()).throw(OSError(5, "interrupted")))
            with pytest.raises(OSError, match="interrupted"):
                set_aside.set_aside(folder)
        with pytest.raises(LogDamagedError, match="a `set-aside` was interrupted: repeat it"):
            PartitionLog(folder, SMALL)
    set_aside.set_aside(folder)
    report = check_partition(folder)
    assert not report.findings
    log = PartitionLog(folder, SMALL)
    assert log.end_address == built.durable
    # Every good batch that its segment or its index leads to is served, at its own address.
    served = {header.address: header.crc for _, header in hop(content(log))}
    written = {header.address: header.crc for _, header in hop(built.data)}
    assert served.items() <= written.items()
    for gap in gaps.load(folder):
        assert not [address for address in served if gap.start <= address < gap.end]
    after = files(folder)
    for name, raw in before.items():
        if name.endswith(".log"):
            assert raw in [after[each] for each in after if each.startswith(name[:20]) or not raw]
    log.close()
    shutil.rmtree(root)
