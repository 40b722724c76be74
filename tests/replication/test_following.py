"""What a follower does with its leader's answers: whatever both went through, it ends with the same bytes."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.broker.errors import Refused
from headrace.broker.handlers import leader_epochs
from headrace.broker.partition import Partition
from headrace.broker.replicas.cuts import cut_log
from headrace.broker.settings.config import BrokerConfig
from headrace.log import gaps, set_aside
from headrace.log.check import check_partition
from headrace.log.config import LogConfig
from headrace.log.epochs import EpochStart, LeaderEpochs
from headrace.log.partition import PartitionLog
from headrace.replication.following import Append, AskAgain, OwnLog, PassGap, Restart, Truncate, next_step
from headrace.replication.pull import DamagedBatchError
from headrace.wire.errors import ErrorCode
from headrace.wire.fetch import FetchPartitionResult
from headrace.wire.records import Record, encode_batch

STEPS_MAX = 40
CONFIG = BrokerConfig().topic_config({})
MIRROR = BrokerConfig().topic_config({"headrace.mirror": "true"})


def batch(text: str, size_bytes: int) -> bytearray:
    return bytearray(encode_batch([Record(0, 1_000, None, text.encode().ljust(size_bytes, b"."))]))


def content(log: PartitionLog) -> bytes:
    return b"".join(each.read() for each in log.slices(log.start_address, 1 << 30, log.end_address))


def answer(log: PartitionLog, epoch: int, follower: PartitionLog, size_bytes: int) -> FetchPartitionResult:
    """What the leader of an epoch answers to the follower's next fetch."""
    partition = Partition("t", 0, UUID(int=1), CONFIG, log, epoch)
    at = follower.end_address
    try:
        parting = leader_epochs.diverging(partition, follower.epochs.latest, at, for_follower=True)
        if parting is not None:
            return FetchPartitionResult(0, 0, 0, b"", 0, log.start_address, diverging_epoch=parting)
        if not log.start_address <= at <= log.end_address:
            raise Refused(ErrorCode.OFFSET_OUT_OF_RANGE, "")
    except Refused as refused:
        return FetchPartitionResult(0, refused.code, 0, b"", 0, log.start_address)
    records = b"".join(each.read() for each in log.slices(at, size_bytes, log.end_address))
    return FetchPartitionResult(0, 0, log.end_address, records, 0, log.start_address)


def follow_once(leader: PartitionLog, epoch: int, follower: PartitionLog, size_bytes: int = 1 << 20) -> bool:
    """Returns whether the follower had to do anything."""
    own = OwnLog(follower.start_address, follower.end_address, follower.epochs)
    step = next_step(own, answer(leader, epoch, follower, size_bytes))
    assert not isinstance(step, AskAgain), step
    if isinstance(step, Truncate | Restart | PassGap):
        cut_log(follower, step)
        return True
    assert step.problem is None
    if step.batches:
        follower.append_verbatim(step.batches)
    return bool(step.batches)


def follow(leader: PartitionLog, epoch: int, follower: PartitionLog) -> None:
    for _ in range(STEPS_MAX):
        if not follow_once(leader, epoch, follower):
            return
    raise AssertionError("it does not come to an end")


# Each round: who leads, the sizes that it appends, how many fetches each of the others makes of it.
ROUNDS = st.lists(
    st.tuples(
        st.integers(0, 2),
        st.lists(st.sampled_from([10, 10, 10, 77]), max_size=4),
        st.integers(0, 3),
        st.integers(0, 3),
    ),
    min_size=1,
    max_size=8,
)


@settings(max_examples=120, deadline=None)
@given(rounds=ROUNDS, segment_bytes=st.sampled_from([1024, 1 << 20]))
def test_logs_of_any_history_become_the_leaders(
    rounds: list[tuple[int, list[int], int, int]], segment_bytes: int
) -> None:
    """Elections are unclean here: any replica may lead next, whatever it lacks."""
    with tempfile.TemporaryDirectory() as folder:
        logs = [
            PartitionLog(Path(folder) / f"t-{n}", LogConfig(segment_bytes=segment_bytes)) for n in range(3)
        ]
        for epoch, (leads, sizes, *fetches) in enumerate(rounds):
            leader = logs[leads]
            leader.leader_epoch = epoch
            for number, size in enumerate(sizes):
                leader.append(batch(f"{epoch} {number}", size))
            others = [log for log in logs if log is not leader]
            for follower, count in zip(others, fetches, strict=True):
                for _ in range(count):
                    follow_once(leader, epoch, follower, size_bytes=100)
        for follower in others:
            follow(leader, epoch, follower)
            assert content(follower) == content(leader)
            assert follower.epochs.starts() == leader.epochs.starts()
        for log in logs:
            log.close()


@pytest.fixture
def two(tmp_path: Path) -> tuple[PartitionLog, PartitionLog]:
    return PartitionLog(tmp_path / "old-0"), PartitionLog(tmp_path / "new-0")


def test_equal_lengths_do_not_hide_another_lineage(two: tuple[PartitionLog, PartitionLog]) -> None:
    """The old leader wrote X and Z; the new one wrote Y, as long as X, and got Z again."""
    old, new = two
    old.leader_epoch, new.leader_epoch = 1, 2
    for log, first in ((old, "x"), (new, "y")):
        log.append(batch(first, 100))
        log.append(batch("z", 100))
    assert old.end_address == new.end_address and content(old) != content(new)
    new.append(batch("w", 100))
    follow(new, 2, old)
    assert content(old) == content(new)
    for log in two:
        log.close()


SMALL = LogConfig(segment_bytes=1_024)
BATCH_BYTES = len(batch("", 100))


def with_gaps(folder: Path) -> PartitionLog:
    """A leader's log of two epochs, of which two batches and the last one were set aside."""
    log = PartitionLog(folder, SMALL)
    for number in range(30):
        log.leader_epoch = 1 if number < 15 else 3
        log.append(batch(str(number), 100))
    log.close()
    second, last = (sorted(folder.glob("*.log"))[at] for at in (1, -1))
    raw = bytearray(second.read_bytes())
    for bad in (1, 2):
        raw[bad * BATCH_BYTES + 80] ^= 1
    second.write_bytes(raw)
    os.truncate(last, last.stat().st_size - 7)
    assert len(set_aside.set_aside(folder)[0].gaps) == 2
    return PartitionLog(folder, SMALL)


def files(log: PartitionLog) -> bytes:
    return b"".join(path.read_bytes() for path in sorted(log.directory.glob("*.log")))


def is_whole(folder: Path) -> bool:
    """Whether the next start opens it."""
    return not check_partition(folder).findings


def test_a_copy_passes_the_gaps_of_its_leader(tmp_path: Path) -> None:
    """Else no new replica of such a log would ever be in sync: it would ask for what nobody has."""
    leader = with_gaps(tmp_path / "leader-0")
    copy = PartitionLog(tmp_path / "copy-0", SMALL)
    follow(leader, 3, copy)
    assert copy.end_address == copy.flushed_address == leader.end_address and files(copy) == files(leader)
    assert copy.epochs.starts() == leader.epochs.starts()
    leader.leader_epoch = 3
    leader.append(batch("behind", 100))
    follow(leader, 3, copy)
    copy.close()
    again = PartitionLog(tmp_path / "copy-0", SMALL)
    assert again.end_address == leader.end_address and files(again) == files(leader)
    assert is_whole(again.directory) and again.epochs.starts() == leader.epochs.starts()
    found = [(gap.start, gap.end) for gap in gaps.load(again.directory)]
    assert found == [(gap.start, gap.end) for gap in gaps.load(leader.directory)]
    again.abandon()
    leader.abandon()


def test_a_copy_that_has_more_than_its_leader_keeps_it(tmp_path: Path) -> None:
    whole = PartitionLog(tmp_path / "whole-0", SMALL)
    leader = with_gaps(tmp_path / "leader-0")
    gap, tail = gaps.load(leader.directory)
    for number in range(30):
        whole.leader_epoch = 1 if number < 15 else 3
        whole.append(batch(str(number), 100))
    whole.flush()
    kept = whole.end_address
    follow(leader, 3, whole)
    assert whole.end_address == leader.end_address == tail.end == kept
    assert gap.end - gap.start == 2 * BATCH_BYTES
    whole.truncate(gap.start + BATCH_BYTES)
    follow(leader, 3, whole)
    assert whole.end_address == leader.end_address
    assert len(files(whole)) == len(files(leader)) + BATCH_BYTES
    whole.close()
    assert is_whole(whole.directory)
    leader.abandon()


@pytest.mark.parametrize("fails", ["flush", "go_on_at", "sync"])
def test_a_copy_that_could_not_pass_a_gap_does_so_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails: str
) -> None:
    leader = with_gaps(tmp_path / "leader-0")
    copy = PartitionLog(tmp_path / "copy-0", SMALL)

    def failing(*_: object) -> None:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patched:
        if fails == "sync":
            patched.setattr("headrace.log.passing.sync_directory", failing)
        else:
            patched.setattr(PartitionLog, fails, failing)
        with pytest.raises(OSError, match="Input/output"):
            follow(leader, 3, copy)
    copy.abandon()
    again = PartitionLog(tmp_path / "copy-0", SMALL)
    follow(leader, 3, again)
    again.close()
    assert files(again) == files(leader) and is_whole(again.directory)
    leader.abandon()


def test_consumers_hear_nothing_of_gaps(tmp_path: Path) -> None:
    leader = with_gaps(tmp_path / "leader-0")
    partition = Partition("t", 0, UUID(int=1), CONFIG, leader, 3)
    for gap in gaps.load(leader.directory):
        epoch = leader.epochs.at(gap.start - 1)
        assert leader_epochs.diverging(partition, epoch, gap.start, for_follower=True) is not None
        assert leader_epochs.diverging(partition, epoch, gap.start) is None
    leader.abandon()


def test_a_copy_of_a_mirror_goes_by_its_sources_epochs(two: tuple[PartitionLog, PartitionLog]) -> None:
    """The epochs in the bytes are the source's: one that this leader has nothing of is not its own."""
    ahead, leader = two
    ahead.leader_epoch = 4
    ahead.append(batch("both have it", 50))
    leader.append_verbatim(content(ahead))
    ahead.leader_epoch = 7
    ahead.append(batch("the old leader alone had it", 50))
    partition = Partition("t", 0, UUID(int=1), MIRROR, leader, 2)
    parting = leader_epochs.diverging(partition, 7, ahead.end_address, for_follower=True)
    assert parting == (4, leader.end_address)
    own = OwnLog(0, ahead.end_address, ahead.epochs)
    step = next_step(own, FetchPartitionResult(0, 0, 0, b"", diverging_epoch=parting))
    assert step == Truncate(leader.end_address)
    with pytest.raises(Refused):
        leader_epochs.diverging(partition, 7, ahead.end_address)
    for log in two:
        log.close()


def own_log(end_address: int = 100, epochs: LeaderEpochs | None = None) -> OwnLog:
    return OwnLog(0, end_address, epochs or LeaderEpochs([EpochStart(3, 0), EpochStart(5, 60)]))


def test_a_damaged_batch_is_not_appended_and_those_before_it_are(tmp_path: Path) -> None:
    log = PartitionLog(tmp_path / "t-0")
    for text in "abc":
        log.append(batch(text, 50))
    raw = bytearray(content(log))
    size = len(raw) // 3
    raw[size + 70] ^= 1
    step = next_step(OwnLog(0, 0, LeaderEpochs()), FetchPartitionResult(0, 0, 7, bytes(raw)))
    assert isinstance(step, Append) and bytes(step.batches) == bytes(raw[:size])
    assert isinstance(step.problem, DamagedBatchError) and step.problem.address == size
    log.close()


def test_a_log_that_begins_behind_the_follower_is_begun_anew() -> None:
    out_of_range = FetchPartitionResult(0, ErrorCode.OFFSET_OUT_OF_RANGE, 0, b"", 0, 500)
    assert next_step(own_log(), out_of_range) == Restart(500)
    before = next_step(own_log(), out_of_range._replace(log_start_offset=50))
    assert isinstance(before, AskAgain) and not before.is_expected
    empty = OwnLog(100, 100, LeaderEpochs())
    assert next_step(empty, out_of_range._replace(log_start_offset=50)) == Restart(50)


@pytest.mark.parametrize("grows", [0, 3, 200])
def test_a_leader_that_ends_before_the_followers_start_is_followed(tmp_path: Path, grows: int) -> None:
    """It was down for longer than the retention, and an unclean election made it the leader."""
    config = LogConfig(segment_bytes=1_000)
    old, leader, follower = (PartitionLog(tmp_path / name, config) for name in ("old", "leader", "follower"))
    old.leader_epoch = 3
    for number in range(3):
        old.append(batch(f"x{number}", 20))
    old.flush()
    follow(old, 3, leader)
    leader.flush()
    old.leader_epoch = 5
    for number in range(60):
        old.append(batch(f"y{number}", 20))
    old.request_checkpoint()
    old.flush()
    assert old.delete_expired_segments(10**14)
    for number in range(3 if grows else 0):
        old.append(batch(f"z{number}", 20))
    old.flush()
    follow(old, 5, follower)
    follower.flush()
    leader.leader_epoch = 9
    for number in range(grows):
        leader.append(batch(f"w{number}", 33))
    leader.flush()
    follow(leader, 9, follower)
    follower.flush()
    assert content(follower) == content(leader)
    assert follower.start_address == leader.start_address == 0
    for log in (old, leader, follower):
        log.close()


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (ErrorCode.FENCED_LEADER_EPOCH, True),
        (ErrorCode.NOT_LEADER_OR_FOLLOWER, True),
        (ErrorCode.KAFKA_STORAGE_ERROR, False),
        (ErrorCode.CORRUPT_MESSAGE, False),
    ],
)
def test_errors_are_asked_again(code: ErrorCode, expected: bool) -> None:
    step = next_step(own_log(), FetchPartitionResult(0, code, -1))
    assert isinstance(step, AskAgain) and step.is_expected is expected and code.name in step.problem


@pytest.mark.parametrize(
    ("diverging", "address"),
    [((5, 80), 80), ((4, 80), 60), ((3, 40), 40), ((2, 90), 0), ((-1, -1), 0)],
)
def test_where_logs_part(diverging: tuple[int, int], address: int) -> None:
    step = next_step(own_log(), FetchPartitionResult(0, 0, 0, b"", diverging_epoch=diverging))
    assert step == Truncate(address)


def test_an_answer_that_parts_nothing_is_not_believed() -> None:
    step = next_step(own_log(), FetchPartitionResult(0, 0, 0, b"", diverging_epoch=(5, 100)))
    assert isinstance(step, AskAgain) and not step.is_expected
