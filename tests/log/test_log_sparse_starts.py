"""A checkpoint knows sparse starts of batches, so that damage costs a stretch, not all behind it."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest
from crc32c import crc32c
from hypothesis import given, settings
from hypothesis import strategies as st

from fix_log import batch, content, segments
from headrace.broker.cold_reads import ColdReads
from headrace.log import checkpoint, gaps, set_aside, starts
from headrace.log.check import check_partition
from headrace.log.checkpoint import Checkpoint
from headrace.log.config import LogConfig
from headrace.log.errors import LogDamagedError
from headrace.log.partition import PartitionLog
from headrace.log.scrub import Scrub
from headrace.log.segment import COLD_SCAN_MAX_BYTES, ColdSegmentError
from headrace.log.segments import OPEN_SEALED_MAX
from headrace.wire.batch import hop, read_header, readdress
from headrace.wire.records import Record, encode_batch

CONFIG: Final = LogConfig()
PAGE_BYTES: Final = 4096
VALUE_BYTES: Final = 4000
SIZE_BYTES: Final = len(batch(0, VALUE_BYTES))
COUNT: Final = 1600
"""6.5 MB in one segment, which is the active one: it has no index."""


def build(folder: Path, count: int = COUNT, *, clean: bool = True) -> bytes:
    log = PartitionLog(folder, CONFIG)
    for number in range(0, count, 100):
        log.append(b"".join(batch(number + each, VALUE_BYTES) for each in range(100)))
    if clean:
        log.close()
    else:
        log.request_checkpoint()
        log.flush()
        log.abandon()
    (path,) = segments(folder)
    return path.read_bytes()


def zero(path: Path, at: int, size_bytes: int = PAGE_BYTES) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        file.write(bytes(size_bytes))


def saved(folder: Path) -> Checkpoint:
    found = checkpoint.load(folder)
    assert found is not None
    return found


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("restarts", [0, 2])
def test_a_zeroed_page_near_the_front_costs_about_a_mib(tmp_path: Path, clean: bool, restarts: int) -> None:
    folder = tmp_path / "t-0"
    whole = build(folder, clean=clean)
    for _ in range(restarts):  # nobody reads anything, and the starts stay known
        PartitionLog(folder, CONFIG).close()
    (path,) = segments(folder)
    zero(path, 2 * PAGE_BYTES)
    first_bad = 2 * PAGE_BYTES // SIZE_BYTES * SIZE_BYTES
    report = check_partition(folder)
    (finding,) = report.findings
    assert finding.start == first_bad
    assert finding.end - finding.start <= starts.SPARSE_SPAN_BYTES + starts.SPAN_BYTES + 2 * SIZE_BYTES
    set_aside.set_aside(folder)
    (gap,) = gaps.load(folder)
    assert (gap.start, gap.end) == (finding.start, finding.end)
    log = PartitionLog(folder, CONFIG)
    assert content(log) == whole[: gap.start] + whole[gap.end :]
    assert log.end_address == len(whole)
    log.close()
    # The starts survive: the next damage costs no more.
    path = segments(folder)[-1]
    zero(path, path.stat().st_size // 2)
    assert check_partition(folder).findings[0].end < len(whole)


def test_the_scrub_names_the_damaged_stretch_alone(tmp_path: Path) -> None:
    folder = tmp_path / "t-0"
    whole = build(folder)
    (folder / "partition.json").write_text('{"topic_id": "00000000-0000-0000-0000-000000000001"}')
    (path,) = segments(folder)
    zero(path, 2 * PAGE_BYTES)
    scrub = Scrub(tmp_path, 1 << 40, 1, lambda _: False)
    scrub.one_pass()
    (finding,) = scrub.findings
    assert finding.end < len(whole) // 2


def test_readers_go_on_behind_each_damage_at_any_offset(tmp_path: Path) -> None:
    folder = tmp_path / "t-0"
    whole = build(folder)
    (path,) = segments(folder)
    damages = [10 * SIZE_BYTES, 800 * SIZE_BYTES]
    for at in damages:
        zero(path, at, 2 * SIZE_BYTES)
    log = PartitionLog(folder, CONFIG)
    assert position(log, 700 * SIZE_BYTES + 5) == 700 * SIZE_BYTES
    assert position(log, 1500 * SIZE_BYTES + 5) == 1500 * SIZE_BYTES
    assert position(log, 9 * SIZE_BYTES + 5) == 9 * SIZE_BYTES
    for at in damages:
        with pytest.raises((LogDamagedError, ColdSegmentError)):
            position(log, at + 5)
        before = at - 50 * SIZE_BYTES if at > 100 * SIZE_BYTES else 0
        read = b"".join(piece.read() for piece in log.slices(before, 2 << 20))
        assert read == whole[before:at], "what lies before damage is served without it"
    end = log.append(batch(COUNT, VALUE_BYTES)).end_address
    log.flush()
    assert position(log, end - 1) == end - SIZE_BYTES
    log.close()


def position(log: PartitionLog, offset: int) -> int:
    """What a broker answers: a thread learns a cold segment, then the lookup is tried again."""
    try:
        return log.position(offset)
    except ColdSegmentError as cold:
        ColdReads(AtOnce()).learn(log, cold.segment)  # type: ignore[arg-type]
    return log.position(offset)


class AtOnce:
    """Workers that run a job in the caller's thread."""

    def submit(self, job: object, done: object) -> None:
        assert callable(job) and callable(done)
        done(job(), None)


def test_a_forged_batch_behind_a_false_start_needs_the_checkpoints_checksum_too(tmp_path: Path) -> None:
    """A flipped bit in the checkpoint changes nothing: it is the one before that counts then."""
    folder = tmp_path / "t-0"
    build(folder)
    honest = saved(folder).starts
    path = folder / checkpoint.FILE_NAME
    forged = path.read_bytes().replace(str(honest[0]).encode(), str(honest[0] + 8).encode())
    path.write_bytes(forged)
    assert checkpoint.load(folder) is None
    assert set(checkpoint.starts_in(folder)) <= set(honest)


@pytest.mark.parametrize(
    "false_starts",
    [
        [7, 1_500_001],
        [SIZE_BYTES - 1, 300 * SIZE_BYTES + 61],
        [-5],
        [1 << 62],
        [1 << 200],
        [2_000_000, 1_000_000],
        [1_000_000, 1_000_000],
        ["1000000"],
        [True],
        [1e6],
        [None],
        [[1]],
        {"1": 2},
        "many",
        list(range(1, checkpoint.STARTS_MAX + 2)),
    ],
)
def test_starts_that_lie_lead_nowhere(tmp_path: Path, false_starts: object) -> None:
    """With a right checksum: whoever wrote this, only whole batches at these addresses are believed."""
    folder = tmp_path / "t-0"
    whole = build(folder, 400)
    point = saved(folder).recovery_point
    values = checkpoint.encode(Checkpoint(point, starts=(1,)))[9:]
    body = values.replace(b"[1]", repr(false_starts).replace("'", '"').replace("True", "true").encode())
    body = body.replace(b"None", b"null")
    for name in (checkpoint.FILE_NAME, "checkpoint.previous"):
        (folder / name).write_bytes(b"%08x\n" % crc32c(body) + body)
    assert saved(folder).recovery_point == point, "all else of it is believed"
    (path,) = segments(folder)
    zero(path, 2 * PAGE_BYTES)
    log = PartitionLog(folder, CONFIG)
    for offset in (5 * SIZE_BYTES, 390 * SIZE_BYTES):
        assert position(log, offset) == offset, "a whole batch has that address"
    log.close()
    report = check_partition(folder)
    assert [each.start for each in report.findings] == [2 * SIZE_BYTES]
    assert report.findings[0].end == len(whole)
    set_aside.set_aside(folder)
    assert not check_partition(folder).findings


def test_a_payload_that_forges_a_batch_is_not_found(tmp_path: Path) -> None:
    """The starts of a checkpoint are addresses of batches; no address between them is tried."""
    folder = tmp_path / "t-0"
    log = PartitionLog(folder, CONFIG)
    inner = bytearray(batch(1, 100))
    forged = []
    for _ in range(400):
        value = bytes(VALUE_BYTES // 2) + inner + bytes(VALUE_BYTES // 2)
        at = log.end_address + encode_batch([Record(0, 1, None, value)]).index(inner)
        readdress(inner, 0, at, 0)
        assert read_header(inner).is_stored_at(at)
        forged.append(at)
        value = bytes(VALUE_BYTES // 2) + inner + bytes(VALUE_BYTES // 2)
        log.append(encode_batch([Record(0, 1, None, value)]))
    log.close()
    (path,) = segments(folder)
    second = [at for at, _ in hop(path.read_bytes())][1]
    zero(path, second, 100)
    (finding,) = check_partition(folder).findings
    assert finding.end in saved(folder).starts and finding.end not in forged


@settings(max_examples=60, deadline=None)
@given(
    count=st.integers(20, 60),
    damages=st.lists(
        st.tuples(st.floats(0, 1, exclude_max=True), st.integers(1, 700)), min_size=1, max_size=3
    ),
    crash=st.booleans(),
    lost=st.sampled_from(["", "checkpoint", "checkpoint.previous"]),
)
def test_no_batch_is_lost_that_a_start_leads_to(
    tmp_path_factory: pytest.TempPathFactory,
    count: int,
    damages: list[tuple[float, int]],
    crash: bool,
    lost: str,
) -> None:
    """Whatever is zeroed, at most a span behind it goes with it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(starts, "SPARSE_SPAN_BYTES", 500)
        patch.setattr(starts, "SPAN_BYTES", 100)
        folder = tmp_path_factory.mktemp("log") / "t-0"
        log = PartitionLog(folder, CONFIG)
        for number in range(count):
            log.append(batch(number, 100))
            log.flush()
        log.request_checkpoint()
        log.flush()
        if crash:
            log.abandon()
        else:
            log.close()
            PartitionLog(folder, CONFIG).close()
        (path,) = segments(folder)
        whole = path.read_bytes()
        for where, size_bytes in damages:
            zero(path, int(where * len(whole)), min(size_bytes, len(whole) - int(where * len(whole))))
        damaged = path.read_bytes()
        if lost and not crash:
            (folder / lost).unlink(missing_ok=True)
        set_aside.set_aside(folder)
        log = PartitionLog(folder, CONFIG)
        served = {header.address for _, header in hop(content(log))}
        log.close()
    size_bytes = len(batch(0, 100))
    hurt = [at for at, _ in hop(whole) if damaged[at : at + size_bytes] != whole[at : at + size_bytes]]
    for at, _ in hop(whole):
        reach = (500 // size_bytes + 2) * size_bytes
        if not any(bad <= at < bad + size_bytes + reach for bad in hurt):
            assert at in served, (at, hurt)
    assert not served & set(hurt)


def test_every_flipped_bit_and_every_truncation_of_a_checkpoint_is_noticed(tmp_path: Path) -> None:
    folder = tmp_path / "t-0"
    build(folder, 600)
    path = folder / checkpoint.FILE_NAME
    whole = path.read_bytes()
    assert len(saved(folder).starts) >= 2
    for bit in range(len(whole) * 8):
        raw = bytearray(whole)
        raw[bit // 8] ^= 1 << bit % 8
        found = checkpoint.decode(bytes(raw))
        # The case of a hexadecimal digit of the checksum changes nothing.
        assert found is None or (bit < 64 and found == saved(folder)), bit
    for size_bytes in range(len(whole)):
        assert checkpoint.decode(whole[:size_bytes]) is None
    # And with each eighth of them on disk, a log with damage is as good as its copy says.
    (log_path,) = segments(folder)
    zero(log_path, 2 * PAGE_BYTES)
    copy = checkpoint.load_previous(folder)
    assert copy is not None
    for size_bytes in range(0, len(whole), max(1, len(whole) // 8)):
        path.write_bytes(whole[:size_bytes])
        report = check_partition(folder)
        assert any(each.file == checkpoint.FILE_NAME for each in report.findings)
        with pytest.raises(LogDamagedError):
            PartitionLog(folder, CONFIG)


def test_cold_scans_stay_off_the_callers_thread(tmp_path: Path) -> None:
    folder = tmp_path / "t-0"
    build(folder)
    log = PartitionLog(folder, CONFIG)
    with pytest.raises(ColdSegmentError):
        log.position(4 * COLD_SCAN_MAX_BYTES)
    log.close()


def test_a_long_log_holds_the_starts_of_its_last_segments_alone(tmp_path: Path) -> None:
    """All of them took 560 MB of memory for each TiB that was written since the start."""
    log = PartitionLog(tmp_path / "t-0", LogConfig(segment_bytes=1_024))
    addresses = []
    for number in range(60):
        addresses.append(log.end_address)
        log.append(bytearray(encode_batch([Record(0, 1_000 + number, None, bytes(900))])))
        log.flush()
        for job in iter(log.begin_index, None):
            job.run()
    held = [each for each in log._segments if each.starts.covered_address > each.base_address]
    assert len(log._segments) == 60 and len(held) <= OPEN_SEALED_MAX + 2
    assert [each.max_timestamp_if_known_ms for each in log._segments] == list(range(1_000, 1_060))
    for address in addresses:
        assert log.position(address + 10) == address
    assert len(content(log)) == log.end_address
    log.truncate(addresses[5])
    assert [each.base_address for each in log._segments] == addresses[:5]
    log.close()
