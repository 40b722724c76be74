"""pull_once: a copy is byte-identical, neither skips nor repeats, and divergence is detected."""

from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.log.config import LogConfig
from headrace.log.epochs import UNKNOWN_EPOCH, EpochEnd
from headrace.log.partition import PartitionLog
from headrace.replication.pull import (
    DivergedError,
    Fetched,
    LastBatch,
    MissingRangeError,
    SourceAheadError,
    SourceBehindError,
    check_epoch,
    check_tail,
    pull_once,
)
from headrace.wire.batch import HEADER_SIZE_BYTES, BatchHeader, hop, hop_sound, read_header, readdress, verify
from headrace.wire.errors import CorruptBatchError
from headrace.wire.primitives import Buffer
from headrace.wire.records import Record, encode_batch


def last(address: int, crc: int) -> LastBatch:
    """A copy's last batch."""
    return LastBatch(address, address + 100, crc, 0)


def batch(value: bytes, count: int = 1) -> bytearray:
    return bytearray(encode_batch([Record(0, 1_000 + i, None, value) for i in range(count)]))


@dataclass
class Bytes:
    """A log in memory, as source and as sink; `fetch_bytes` cuts fetches short."""

    start_address: int = 0
    content: bytearray = field(default_factory=bytearray)
    fetch_bytes: int = 10_000

    @property
    def end_address(self) -> int:
        return self.start_address + len(self.content)

    def fetch(self, address: int) -> Fetched:
        at = address - self.start_address
        if not 0 <= at < len(self.content):
            return Fetched(b"", self.start_address, self.end_address)
        size = max(self.fetch_bytes, read_header(self.content, at).size_bytes)
        return Fetched(bytes(self.content[at : at + size]), self.start_address, self.end_address)

    def append(self, batches: Buffer) -> None:
        first = read_header(batches).address
        if not self.content:
            self.start_address = first
        assert first == self.end_address
        self.content += batches


def log_bytes(path: Path, sizes: list[int], start: int = 0) -> Bytes:
    log = PartitionLog(path / "t-0", LogConfig())
    if start:
        log.rebase(start)
    for size in sizes:
        log.append(batch(bytes(size)))
    log.flush()
    content = bytearray(b"".join(each.read() for each in log.slices(log.start_address, 1 << 30)))
    log.close()
    return Bytes(log.start_address, content)


@settings(max_examples=30, deadline=None)
@given(
    sizes=st.lists(st.integers(0, 400), max_size=12),
    fetch_bytes=st.integers(0, 1500),
    start=st.integers(0, 5000),
)
def test_a_copy_is_identical_for_any_fetch_size(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[int], fetch_bytes: int, start: int
) -> None:
    source = log_bytes(tmp_path_factory.mktemp("source"), sizes, start)
    source.fetch_bytes = fetch_bytes
    copy = Bytes()
    for _ in range(len(sizes) + 1):
        pulled = pull_once(source, copy)
        assert pulled.lag_bytes == source.end_address - max(copy.end_address, source.start_address)
    assert copy.content == source.content
    assert not sizes or copy.start_address == source.start_address
    assert pulled == (0, 0)


def test_a_follower_log_takes_the_bytes_verbatim(tmp_path: Path) -> None:
    source = log_bytes(tmp_path, [5, 50, 500], start=777)
    follower = PartitionLog(tmp_path / "copy-0", LogConfig(segment_bytes=1024))

    class LogSink:
        @property
        def end_address(self) -> int:
            return follower.end_address

        def append(self, batches: Buffer) -> None:
            follower.append_verbatim(batches)

    while pull_once(source, LogSink()).lag_bytes:
        pass
    follower.flush()
    assert follower.start_address == 777
    assert b"".join(each.read() for each in follower.slices(777, 1 << 30)) == source.content
    follower.close()


def test_a_source_that_lost_bytes_is_detected(tmp_path: Path) -> None:
    source = log_bytes(tmp_path, [5, 50])
    copy = Bytes(0, bytearray(source.content))
    del source.content[read_header(source.content).size_bytes :]
    with pytest.raises(SourceBehindError, match=f"the copy at {copy.end_address}"):
        pull_once(source, copy)


def test_a_gap_from_retention_is_detected(tmp_path: Path) -> None:
    source = log_bytes(tmp_path, [5, 50])
    first = read_header(source.content).size_bytes
    copy = Bytes(0, source.content[:first])
    behind = Bytes(first + 100, bytearray(batch(b"later")))
    with pytest.raises(SourceAheadError):
        pull_once(behind, copy)


def one_by_one(content: memoryview, address: int) -> tuple[list[BatchHeader], int]:
    """What `hop_sound` returns, by the functions that say what is wrong."""
    headers: list[BatchHeader] = []
    at = 0
    while at + HEADER_SIZE_BYTES <= len(content):
        try:
            header = read_header(content, at)
            verify(content, at, header)
        except CorruptBatchError:
            break
        if not header.is_stored_at(address + at):
            break
        headers.append(header)
        at += header.size_bytes
    return headers, at


changes = st.lists(st.tuples(st.integers(0, 400), st.integers(0, 255)), max_size=3)


@settings(deadline=None)
@given(
    counts=st.lists(st.integers(1, 4), min_size=1, max_size=4),
    address=st.sampled_from([0, 1, 1 << 40, -1, -500]),
    changed=changes,
    cut_bytes=st.integers(0, 80),
    shift_bytes=st.sampled_from([0, 0, 0, 1, -1]),
)
def test_a_sound_batch_is_what_each_check_by_itself_lets_pass(
    counts: list[int], address: int, changed: list[tuple[int, int]], cut_bytes: int, shift_bytes: int
) -> None:
    content = bytearray()
    for count in counts:
        stored = batch(b"x", count)
        readdress(stored, 0, address + len(content), leader_epoch=3)
        content += stored
    for at, byte in changed:
        content[at % len(content)] = byte
    view = memoryview(content)[: len(content) - cut_bytes]
    found = hop_sound(view, address + shift_bytes)
    assert found == one_by_one(view, address + shift_bytes)
    if not changed and not cut_bytes and not shift_bytes and address >= 0:
        assert found == ([header for _, header in hop(content)], len(content))


def test_bytes_without_addresses_or_with_a_wrong_checksum_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DivergedError, match="byte addresses"):
        pull_once(Bytes(0, batch(b"as a producer sent it")), Bytes())
    source = log_bytes(tmp_path, [20])
    source.content[-1] ^= 1
    with pytest.raises(DivergedError, match="CRC"):
        pull_once(source, Bytes())


def test_the_tail_check_compares_the_last_batch(tmp_path: Path) -> None:
    source = log_bytes(tmp_path, [5, 50])
    first = read_header(source.content)
    check_tail(source, last(0, first.crc))
    with pytest.raises(DivergedError, match="another log"):
        check_tail(source, last(0, first.crc ^ 1))
    with pytest.raises(SourceBehindError):
        check_tail(source, last(source.end_address, 1))
    check_tail(Bytes(5000, source.content), last(0, 1))


def test_an_equal_last_batch_hides_another_leader_s_bytes(tmp_path: Path) -> None:
    """The old leader wrote X and Z, the new one Y and, sent again, the same Z; X and Y are equally long."""
    logs = {}
    for name, epoch, first in (("old", 1, b"x" * 100), ("new", 2, b"y" * 100)):
        log = logs[name] = PartitionLog(tmp_path / f"{name}-0", LogConfig())
        log.leader_epoch = epoch
        log.append(batch(first))
        log.append(batch(b"z" * 100))
        log.flush()
    copy, source = logs["old"], logs["new"]
    content = (source.directory / f"{0:020d}.log").read_bytes()
    half = len(content) // 2
    tail = LastBatch(half, len(content), read_header(content, half).crc, copy.epochs.latest)
    check_tail(Bytes(0, bytearray(content)), tail)
    with pytest.raises(DivergedError, match="nothing of leader epoch 1"):
        check_epoch(source.epochs.end_of(1, source.end_address)._replace(epoch=0), tail)
    with pytest.raises(DivergedError, match="leader epoch 1 ends at 0"):
        check_epoch(source.epochs.end_of(1, source.end_address), tail)


@pytest.mark.parametrize(
    ("answered", "problem"),
    [
        (EpochEnd(3, 500), None),
        (EpochEnd(3, 900), None),
        (EpochEnd(3, 499), "in the source leader epoch 3 ends at 499"),
        (EpochEnd(2, 400), "nothing of leader epoch 3; its epoch 2 ends at 400"),
        (UNKNOWN_EPOCH, "nothing of leader epoch 3, nor of a later one"),
    ],
)
def test_what_a_source_answers_for_the_copy_s_epoch(answered: EpochEnd, problem: str | None) -> None:
    tail = LastBatch(400, 500, 1, 3)
    if problem is None:
        check_epoch(answered, tail)
        return
    with pytest.raises(DivergedError, match=problem):
        check_epoch(answered, tail)


class WithGap(Bytes):
    """A source that has set the addresses [from, to) aside: a fetch there is answered from behind them."""

    def __init__(self, whole: Bytes, start: int, end: int) -> None:
        super().__init__(whole.start_address, whole.content)
        self.gap = start, end

    def fetch(self, address: int) -> Fetched:
        start, end = self.gap
        fetched = super().fetch(end if start <= address < end else address)
        if address < start:
            return fetched._replace(batches=fetched.batches[: start - address])
        return fetched


def test_what_was_set_aside_in_the_source_is_named(tmp_path: Path) -> None:
    whole = log_bytes(tmp_path, [5, 50, 500, 20])
    cuts = [header.address for _, header in hop(whole.content)]
    source, copy = WithGap(whole, cuts[1], cuts[3]), Bytes()
    assert pull_once(source, copy).appended_bytes == cuts[1]
    with pytest.raises(MissingRangeError, match=f"no longer holds addresses {cuts[1]} to {cuts[3]}") as found:
        pull_once(source, copy)
    assert (found.value.address, found.value.end_address) == (cuts[1], cuts[3])
    assert copy.content == whole.content[: cuts[1]]


def test_the_tail_check_passes_where_the_source_has_set_the_copys_last_batch_aside(tmp_path: Path) -> None:
    whole = log_bytes(tmp_path, [5, 50, 500, 20])
    cuts = [header.address for _, header in hop(whole.content)]
    check_tail(WithGap(whole, cuts[1], cuts[3]), last(cuts[2], 1))
    check_tail(WithGap(whole, cuts[1], whole.end_address), last(cuts[2], 1))
    # A batch that only says that it lies further on is no proof of that.
    whole.content[cuts[1] + 6] ^= 1
    with pytest.raises(DivergedError, match="another log"):
        check_tail(whole, last(cuts[1], 1))
