"""The judge of `make jepsen`: it sees what is planted, and a short round of it on real processes is clean."""

from __future__ import annotations

import errno
import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

import pytest
from faults import clients, history, summing
from faults.disk import Disk, Orders, ensure_library
from faults.history import Led
from faults.journals import Ack, Event, Failure, LostPlace, Read, parse
from faults.judge import Stored, Tally, Window, judge
from faults.kinds import KINDS
from faults.replicas import Copy, differences, read_copy
from faults.report import Verdict
from faults.schedule import Bounds, schedule

from fix_zookeeper import ZooKeeperRoom
from fuzzing.batches import honest_batch
from headrace.coordination.topics import PartitionState, TopicRegistry
from headrace.wire.batch import readdress

ROOT: Final = Path(__file__).parents[2]
ROUND_WAIT_MAX_S: Final = 240
SEED: Final = "20261123"
WINDOWS: Final = [Window("none", 0.0, 0.0, 10.0), Window("kill", 11.0, 14.0, 15.0)]
LOG: Final = [Stored(9, "p.1", 0), Stored(19, "p.1", 1), Stored(29, "p.1", 2)]
ACKS: Final = [Ack("p.1", 0, 0, 9, 1.0), Ack("p.1", 0, 1, 19, 11.0), Ack("p.1", 0, 2, 29, 14.5)]


def judged(events: Sequence[Event], log: list[Stored] = LOG) -> Tally:
    return judge(WINDOWS, events, {0: log})["kill"]


# --- the verdict ---


def test_what_is_right_is_clean() -> None:
    reads = [Read("r.1", 0, stored.offset, stored.life, stored.number, 12.0) for stored in LOG]
    tally = judged([*ACKS, *reads])
    assert tally.is_clean
    assert (tally.injected, tally.acknowledged, tally.recovery_s) == (1, 2, [1.0])
    assert tally.unavailable_s == [3.5]


def test_a_loss_is_found() -> None:
    assert judged(ACKS, LOG[:2]).lost == 1
    assert judged([*ACKS[:2], ACKS[2]._replace(offset=30)]).lost == 1
    # A repetition whose offset the producer was not told: it is there, or it is not.
    assert judged([*ACKS[:2], ACKS[2]._replace(offset=-1)]).lost == 0
    assert judged([*ACKS[:2], ACKS[2]._replace(offset=-1)], LOG[:2]).lost == 1


def test_doubles_and_wrong_order_are_found() -> None:
    doubled = judged(ACKS, [*LOG, Stored(39, "p.1", 1)])
    assert (doubled.doubled, doubled.lost, doubled.reordered) == (1, 0, 0)
    swapped = [LOG[0], Stored(19, "p.1", 2), Stored(29, "p.1", 1)]
    acks = [ACKS[0], Ack("p.1", 0, 2, 19, 11.0), Ack("p.1", 0, 1, 29, 14.5)]
    assert judged(acks, swapped).reordered == 1
    # Another life of the producer has numbers of its own.
    assert judged(ACKS, [*LOG, Stored(39, "p.2", 0)]).is_clean


def test_reads_that_go_back_are_found() -> None:
    def read(offset: int, number: int, session: str = "r.1") -> Read:
        return Read(session, 0, offset, "p.1", number, 12.0)

    assert judged([*ACKS, read(9, 0), read(19, 1), read(9, 0)]).went_back == 1
    assert judged([*ACKS, read(9, 0), read(12, 7)]).went_back == 1  # nothing is at 12 in the end
    assert judged([*ACKS, read(9, 5)]).went_back == 1  # another record is
    assert judged([*ACKS, read(9, 0), read(29, 2)]).skipped == 1
    assert judged([*ACKS, LostPlace("r.1", 12.0, "out of range")]).lost_places == 1
    assert judged([*ACKS, read(9, 0), read(9, 0, "r.2")]).is_clean


def test_journal_lines_are_read() -> None:
    assert parse("A p.1 0 7 1234 5.5") == Ack("p.1", 0, 7, 1234, 5.5)
    # Of a repetition librdkafka knows no offset.
    line = f"A p.1 0 7 {clients.written_offset(None)} 5.5"
    assert parse(line) == Ack("p.1", 0, 7, -1, 5.5)
    assert clients.written_offset(1234) == 1234
    assert parse("R r.1 0 1234 p.1 7 5.5") == Read("r.1", 0, 1234, "p.1", 7, 5.5)
    assert parse("F p.1 0 7 5.5 it timed out") == Failure("p.1", 0, 7, 5.5, "it timed out")
    assert parse("E r.1 5.5 out of range") == LostPlace("r.1", 5.5, "out of range")


def test_runs_are_added_up(tmp_path: Path) -> None:
    def run(seed: int, lost: int, *unavailable_s: float) -> str:
        tally = Tally(
            len(unavailable_s), 10, lost, unavailable_s=[*unavailable_s], recovery_s=[*unavailable_s]
        )
        none = Tally(1, 1000, unavailable_s=[99.0], recovery_s=[99.0])
        faults = [{"kind": "kill", "load": 2.0 * seed} for _ in unavailable_s]
        verdict = Verdict(seed, "", {"kill": tally, "none": none}, faults=faults, minutes=3.0)
        path = tmp_path / f"{seed}.json"
        path.write_text(json.dumps(verdict.document()))
        return str(path)

    paths = [run(1, 0, 0.5, 2.0), run(2, 0, 7.0)]
    runs = [json.loads(Path(path).read_text()) for path in paths]
    kill, everything = summing.summed(runs)
    assert kill == ["kill", "3", "20", "0", "0", "0", "0", "2.0", "7.0", "2.0", "7.0"]
    assert everything[1:] == kill[1:], "the time before the first fault does not count"
    assert "3 faults in 2 runs (seeds 1, 2), 6 minutes" in summing.described(runs)[0]
    assert summing.main(paths) == 0
    assert summing.main([*paths, run(3, 1, 1.0)]) == 1, "a loss in any run"
    assert summing.main([str(tmp_path)]) == 2


def test_a_seed_repeats_its_schedule() -> None:
    bounds = Bounds(40.0, 10.0, 6.0)
    plan = list(schedule(7, 3 * len(KINDS), list(KINDS), 3, bounds))
    assert plan == list(schedule(7, 3 * len(KINDS), list(KINDS), 3, bounds))
    assert plan != list(schedule(8, 3 * len(KINDS), list(KINDS), 3, bounds))
    assert sorted(fault.kind for fault in plan[: len(KINDS)]) == sorted(KINDS)
    assert all(5 <= fault.duration_s <= 40 for fault in plan if fault.kind == "pause")


# --- replicas and leaders ---


def batch(address: int, epoch: int) -> bytes:
    made = bytearray(honest_batch(b"one record", 1_700_000_000_000))
    readdress(made, 0, address, epoch)
    return bytes(made)


def test_replicas_are_compared(tmp_path: Path) -> None:
    first = batch(0, 1)
    size = len(first)
    content = first + batch(size, 2)
    same, short = Copy(1, 0, content), Copy(2, 0, first)
    assert differences([same, same._replace(broker=2)], len(content)) == []
    assert differences([same, short], size) == []  # what is above the high watermark may differ
    assert "ends at" in differences([same, short], len(content))[0]
    other = Copy(3, 0, first + batch(size, 1))
    # The last byte of the epoch.
    assert f"differ from byte {size + 15}" in differences([same, other], len(content))[0]
    fallen = Copy(3, 0, content + batch(len(content), 1))
    assert "has epoch 1, after 2" in differences([fallen], len(content))[0]

    (tmp_path / f"{0:020}.log").write_bytes(first)
    (tmp_path / f"{size:020}.log").write_bytes(content[size:])
    assert read_copy(1, tmp_path) == Copy(1, 0, content)
    (tmp_path / f"{0:020}.log").write_bytes(first[:-1])
    with pytest.raises(ValueError, match="follows address"):
        read_copy(1, tmp_path)


def test_two_leaders_of_an_epoch_are_found() -> None:
    good = [Led(1, 1, 0, (1, 2)), Led(2, -1, 1, (2,)), Led(3, 2, 2, (2,)), Led(4, 2, 2, (1, 2))]
    assert history.problems({0: good}) == []
    assert "both led in epoch 0" in history.problems({0: [good[0], Led(2, 2, 0, (1, 2))]})[0]
    assert "was followed by 0" in history.problems({0: [Led(1, 1, 1, (1,)), Led(2, 1, 0, (1,))]})[0]
    out_of_sync = {0: [Led(1, 1, 0, (1,)), Led(2, 2, 1, (2,))]}
    assert "neither in sync nor eligible" in history.problems(out_of_sync)[0]


def test_zookeepers_own_log_says_who_led(private_zookeeper: ZooKeeperRoom) -> None:
    with private_zookeeper.session() as session:
        registry = TopicRegistry(session)
        registry.create("led", uuid4(), {0: (1, 2), 1: (2, 1)})
        changed = PartitionState(2, 1, (1, 2), (2,))
        before = registry.get("led").partitions[0]
        registry.set_partition_state("led", 0, changed, expected=before)
    folder = private_zookeeper.server.directory / "data"
    states = history.leaders(history.writes(folder), "led")
    led = {index: [(each.leader, each.leader_epoch) for each in found] for index, found in states.items()}
    assert led == {0: [(1, 0), (2, 1)], 1: [(2, 0)]}
    assert states[0][1].able == (2,)


# --- the disk ---

WRITER: Final = """
import os, sys, time
fd = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT)
os.pwritev(fd, [b"durable."], 0)
os.fdatasync(fd)
os.pwritev(fd, [b"not durable"], 8)
print("written", flush=True)
for line in sys.stdin:
    try:
        if line == "sync\\n":
            os.fdatasync(fd)
        elif line == "write\\n":
            os.pwritev(fd, [b"x"], 0)
        print("clock" if line == "clock\\n" and time.time() > 4e9 else "done", flush=True)
    except OSError as error:
        print(error.errno, flush=True)
"""


def test_the_disk_obeys_and_loses_what_was_not_durable(tmp_path: Path) -> None:
    data = tmp_path / "data"
    (data / "t-0").mkdir(parents=True)
    path = data / "t-0" / f"{0:020}.log"
    disk_library = ensure_library(tmp_path / "library")
    disk = Disk(disk_library, data, tmp_path / "faults", Orders())
    process = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, **disk.environment},
    )
    assert process.stdin is not None and process.stdout is not None

    def ask(question: str) -> str:
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write(question + "\n")
        process.stdin.flush()
        return process.stdout.readline().strip()

    with process:
        assert process.stdout.readline() == "written\n"
        disk.order(fsync_errno=errno.EIO)
        assert ask("sync") == str(errno.EIO)
        disk.order(write_errno=errno.ENOSPC)
        assert ask("write") == str(errno.ENOSPC)
        disk.order(ahead_ns=100 * 365 * 86_400 * 10**9)
        assert ask("clock") == "clock"
        disk.order()
        assert ask("clock") == ask("write") == "done"
        process.send_signal(signal.SIGKILL)
    written = path.read_bytes()
    whole, torn = set[int](), set[int]()
    for seed in range(20):
        path.write_bytes(written)
        disk = Disk(disk_library, data, tmp_path / "faults", Orders())
        lost_bytes = disk.cut_unsynced(random.Random(seed))
        assert len(path.read_bytes()) + lost_bytes == len(written)
        (whole if path.read_bytes() == written[:8] else torn).add(path.stat().st_size)
        assert disk.cut_unsynced(random.Random(seed)) == 0, "what has survived a power cut is durable"
    assert whole == {8} and torn and min(torn) >= 8 and max(torn) < len(written)


# --- the round ---


def run_faults(folder: Path, *arguments: str) -> tuple[int, str, dict[str, Any]]:
    """Runs `make jepsen`'s program without hosts of their own, so that it works everywhere."""
    report = folder / "faults.json"
    command = [
        sys.executable,
        "-m",
        "faults",
        "--seed",
        SEED,
        "--json",
        str(report),
        "--loopback",
        *("--pause-max", "2", "--down-max", "1.5", "--session-ms", "2000"),
        *arguments,
    ]
    path = os.pathsep.join([str(ROOT / "tests"), str(ROOT / "bench")])
    environment = {**os.environ, "PYTHONPATH": path, "HEADRACE_HOME": str(folder)}
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=ROUND_WAIT_MAX_S, check=False
    )
    assert report.exists(), done.stdout + done.stderr
    return done.returncode, done.stdout + done.stderr, json.loads(report.read_text())


@pytest.mark.zookeeper
def test_a_short_round_of_faults(tmp_path: Path) -> None:
    code, printed, figures = run_faults(
        tmp_path,
        *("--faults", "4", "--replicas", "1"),
        *("--kinds", "power-cut", "restart", "pause", "fsync-slow"),
    )
    assert code == 0, printed
    assert f"seed {SEED}" in printed
    assert figures["clean"] and not figures["findings"]
    assert len(figures["faults"]) == 4
    assert all(kind["acknowledged"] > 0 for kind in figures["kinds"].values())
