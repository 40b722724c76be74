"""A journal notes which report arrived, so that its publisher's heir names it: a lost one is missed."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fix_audit_world import HOUR_A
from fix_reports import FakeProducer, FakeRegistry
from fix_zookeeper import die_with_parent
from headrace.audit.topic.avro_times import to_ms
from headrace.client import BatchIdentity
from headrace.events import journal as journal_module
from headrace.events.arrived import NUMBER_MAX, SECONDS_MAX, Arrived, packed, unpacked
from headrace.events.handovers import HandoverCounts
from headrace.events.header import Origin
from headrace.events.journal import Journal
from headrace.events.journal_replay import DeadJournal, JournalError, replay
from headrace.events.reporter import Reporter, ReportError, Standing
from headrace.events.schemas import read_schema
from headrace.events.succession import adopt
from headrace.registry.serializers import AvroSerializer
from headrace.wire.primitives import NO_UUID

BUCKET_MS = 600_000
STARTED_MS = HOUR_A
WHO: dict[str, str | int] = {
    "publisher": "5f6d1c1e-7f52-4b8b-9d0e-0a7e5f6f3b11", "datacenter": "east", "service": "checkout",
    "server": "co1", "bootstrap": "b:9092", "audit_topic": "_audit", "bucket_ms": BUCKET_MS,
}  # fmt: skip
CLUSTER, OTHER_TOPIC = UUID(int=1), UUID(int=2)


class Site:
    """One state directory and one audit topic; publishers that live, die, and are succeeded."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.producer = FakeProducer()
        self.now_ms = STARTED_MS
        self.journal = Journal(folder / "first.journal", WHO, STARTED_MS)
        self.first = self.reporter(self.journal)

    def reporter(self, journal: Journal | None) -> Reporter:
        publisher = str(WHO["publisher"]) if journal else "0d4a1c1e-7f52-4b8b-9d0e-0a7e5f6f3b12"
        return Reporter(
            self.producer,  # type: ignore[arg-type]
            AvroSerializer(FakeRegistry(), read_schema("audit-producer.avsc")),  # type: ignore[arg-type]
            Origin("east", "co1", "checkout"),
            topic="_audit",
            bucket_ms=BUCKET_MS,
            interval_s=3600,
            idle_final_s=100,
            wall_ms=lambda: self.now_ms,
            standing=Standing(publisher, STARTED_MS, 0, HandoverCounts(BUCKET_MS)),
            journal=journal,
        )

    def report(self, *, at_ms: int) -> None:
        self.now_ms = STARTED_MS + at_ms
        self.first.hand_over("t", self.now_ms)
        self.first.report()

    def die(self) -> None:
        journal_module._close(self.journal._file, self.journal._map)

    def succeed(self, *, at_ms: int, audit_topic: UUID = CLUSTER) -> dict[str, Any]:
        """Starts an heir; returns the report of the dead publisher that it sends."""
        self.now_ms = STARTED_MS + at_ms
        heir = self.reporter(None)
        assert (
            adopt(self.folder, WHO, audit_topic, lambda dead: heir.report_dead(Standing.of_dead(dead))) == 1
        )
        record: dict[str, Any] = self.producer.records[-1]
        assert (record["publisher"], record["state"]) == (WHO["publisher"], "CLOSED")
        return record


def said(record: dict[str, Any]) -> tuple[int, int, int | None]:
    made = record["arrived_made"]
    return record["report_number"], record["arrived_number"], None if made is None else to_ms(made)


def test_an_heir_names_the_last_report_of_the_dead_that_arrived_and_when_it_was_made(tmp_path: Path) -> None:
    site = Site(tmp_path)
    site.report(at_ms=10)
    site.report(at_ms=10_400)
    site.producer.broken = lambda _: True
    with pytest.raises(ReportError):
        site.report(at_ms=20_000)
    site.producer.broken = lambda _: False
    site.die()
    assert said(site.producer.records[-1]) == (2, 1, STARTED_MS + 10)
    number, arrived, made_ms = said(site.succeed(at_ms=9_000_000))
    assert (number, arrived, made_ms) == (4, 2, STARTED_MS + 11_000), "a second later at most"


def test_a_publisher_that_could_not_report_its_end_is_succeeded_in_its_own_process(tmp_path: Path) -> None:
    """A service that runs for months makes a publisher anew after an outage of the brokers."""
    site = Site(tmp_path)
    site.report(at_ms=10)
    site.first.hand_over("t", site.now_ms)
    site.producer.broken = lambda _: True
    with pytest.raises(ReportError):
        site.first.close()
    site.first.batch_closed(BatchIdentity("t", 0, 1, 0, 0, 1, site.now_ms, site.now_ms))  # late: no error
    site.producer.broken = lambda _: False
    record = site.succeed(at_ms=20_000)
    assert said(record) == (3, 1, STARTED_MS + 1_000)
    assert sum(tally["handed_over_count"] for tally in record["tallies"]) == 2
    assert not list(tmp_path.iterdir())


def test_it_names_none_if_none_arrived(tmp_path: Path) -> None:
    site = Site(tmp_path)
    site.journal.belongs_to(CLUSTER)
    site.producer.broken = lambda _: True
    with pytest.raises(ReportError):
        site.report(at_ms=1)
    site.producer.broken = lambda _: False
    site.die()
    assert said(site.succeed(at_ms=2)) == (2, 0, None)


def test_a_journal_that_is_made_smaller_or_that_overflows_keeps_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal_module, "COMPACT_ABOVE_BYTES", 0)
    site = Site(tmp_path)
    inode = site.journal.path.stat().st_ino
    site.report(at_ms=1_000)
    assert site.journal.path.stat().st_ino != inode
    expected = Arrived(1, STARTED_MS + 1_000)
    assert replay(site.journal.path, site.journal.path.read_bytes()).arrived == expected
    monkeypatch.setattr(journal_module, "SIZE_MAX_BYTES", 0)
    for number in range(3_000):
        site.journal.hand_over("tu"[number % 2], 0, 0, 1)
    dead = replay(site.journal.path, site.journal.path.read_bytes())
    assert (dead.arrived, dead.is_whole) == (expected, False)
    site.journal.delete()


def test_killed_after_its_last_report_the_publisher_is_closed_again_and_that_report_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = Site(tmp_path)
    site.report(at_ms=1_000)
    monkeypatch.setattr(Journal, "delete", lambda self: journal_module._close(self._file, self._map))
    site.first.close()
    assert said(site.succeed(at_ms=3_000))[:2] == (3, 2)


def test_an_heir_that_is_killed_before_it_removes_the_journal_is_succeeded_too(tmp_path: Path) -> None:
    site = Site(tmp_path)
    site.report(at_ms=1_000)
    site.die()
    data = site.journal.path.read_bytes()
    first = site.succeed(at_ms=5_000)
    (tmp_path / "first.journal").write_bytes(data)
    assert said(site.succeed(at_ms=6_000)) == said(first) == (2, 1, STARTED_MS + 1_000)


def test_the_heir_of_one_that_reported_to_a_topic_that_was_made_again_reports_there(tmp_path: Path) -> None:
    """The journal named the deleted topic: the heir took the publisher for one of another cluster."""
    site = Site(tmp_path)
    site.report(at_ms=1_000)
    site.producer.audit_topic_id = OTHER_TOPIC
    site.report(at_ms=2_000)
    site.producer.audit_topic_id = NO_UUID  # it is not known for a moment
    site.report(at_ms=3_000)
    site.die()
    assert replay(site.journal.path, site.journal.path.read_bytes()).audit_topic_id == OTHER_TOPIC
    assert said(site.succeed(at_ms=4_000, audit_topic=OTHER_TOPIC))[:2] == (4, 3)


# --- the number in the file ---


@given(
    number=st.integers(1, NUMBER_MAX), after_ms=st.integers(-10_000, SECONDS_MAX), overflowed=st.booleans()
)
def test_the_word_tells_number_and_time(number: int, after_ms: int, overflowed: bool) -> None:
    word = packed(Arrived(number, STARTED_MS + after_ms), STARTED_MS, overflowed=overflowed)
    assert 0 <= word < 2**63
    assert bool(word & 1) is overflowed, "all that an earlier version looks at"
    arrived, has_overflowed = unpacked(word, STARTED_MS)
    assert arrived is not None and (arrived.report_number, has_overflowed) == (number, overflowed)
    assert 0 <= arrived.made_ms - max(STARTED_MS, STARTED_MS + after_ms) < 1_000


@pytest.mark.parametrize("after_ms, number", [(SECONDS_MAX * 1_000 + 1, 1), (0, NUMBER_MAX + 1), (0, 0)])
def test_what_the_word_cannot_tell_it_leaves_out(after_ms: int, number: int) -> None:
    assert packed(Arrived(number, after_ms), 0, overflowed=True) == 1


@pytest.mark.parametrize(("flags", "report_number"), [(-1, 5), (1 << 32, 5), (6 << 1, 5)])
def test_a_word_that_no_version_writes_is_refused_by_name(
    tmp_path: Path, flags: int, report_number: int
) -> None:
    journal = Journal(tmp_path / "a.journal", WHO, STARTED_MS)
    journal.begin_report(report_number)
    data = bytearray(journal.path.read_bytes())
    journal.delete()
    data[32:40] = flags.to_bytes(8, sys.byteorder, signed=True)
    with pytest.raises(JournalError, match=r"a\.journal is not a publisher's journal"):
        replay(journal.path, bytes(data))


# --- SIGKILL ---

WRITING = """
import json, sys
from pathlib import Path
from headrace.events import journal as module
from headrace.events.arrived import Arrived
from headrace.events.handovers import HandoverCounts
module.COMPACT_ABOVE_BYTES = 0
path, who, started_ms = Path(sys.argv[1]), json.loads(sys.argv[2]), int(sys.argv[3])
journal, counts = module.Journal(path, who, started_ms), HandoverCounts(600_000)
print("writes", flush=True)
for number in range(1, 10**9):
    journal.begin_report(number)
    journal.hand_over("t", started_ms, started_ms, 1)
    counts.hand_over("t", started_ms, 0.0, 1)
    journal.report_arrived(Arrived(number, started_ms + 1_000 * number))
    if number % 3 == 0:
        journal.compact(counts)
"""


@pytest.mark.parametrize("wait_s", [0.0, 0.003, 0.01, 0.02, 0.05, 0.1])
def test_a_kill_at_any_moment_leaves_the_last_one_or_the_one_before(tmp_path: Path, wait_s: float) -> None:
    words = [sys.executable, "-c", WRITING, str(tmp_path / "a.journal"), json.dumps(WHO), str(STARTED_MS)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, preexec_fn=die_with_parent) as process:
        assert process.stdout is not None and process.stdout.readline() == b"writes\n"
        time.sleep(wait_s)
        process.send_signal(signal.SIGKILL)
    dead = replay(tmp_path / "a.journal", (tmp_path / "a.journal").read_bytes())
    number = 0 if dead.arrived is None else dead.arrived.report_number
    assert dead.report_number - 1 <= number <= dead.report_number
    assert dead.arrived is None or dead.arrived.made_ms == STARTED_MS + 1_000 * number


def test_a_journal_whose_counts_no_report_holds_keeps_the_others_of_no_heir(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It rotted. Each report of it failed, every ten seconds, and what lay behind it was never reported."""
    for name, partition in (("a", 2**40), ("b", 1)):
        dead = Journal(tmp_path / f"{name}.journal", {**WHO, "publisher": name * 36}, STARTED_MS)
        dead.belongs_to(CLUSTER)
        dead.hand_over("t", STARTED_MS, STARTED_MS, 3)
        dead.batch_closed(BatchIdentity("t", partition, 7, 0, 0, 3, STARTED_MS, STARTED_MS))
        journal_module._close(dead._file, dead._map)
    site = Site(tmp_path)
    heir = site.reporter(None)
    assert adopt(tmp_path, WHO, CLUSTER, lambda dead: heir.report_dead(Standing.of_dead(dead))) == 1
    assert site.producer.records[-1]["publisher"] == "b" * 36
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.refused", "first.journal"]
    assert "a.journal: report 1 to _audit did not arrive: field" in caplog.text
    site.die()


def dead_journal(folder: Path, name: str) -> Path:
    dead = Journal(folder / f"{name}.journal", {**WHO, "publisher": name * 36}, STARTED_MS)
    dead.belongs_to(CLUSTER)
    dead.hand_over("t", STARTED_MS, STARTED_MS, 3)
    journal_module._close(dead._file, dead._map)
    return dead.path


def test_a_journal_that_a_service_of_an_earlier_version_renamed_is_adopted(tmp_path: Path) -> None:
    """Services of two versions share the directory. A start of the earlier one renames whatever it cannot
    read, also the journal of another service: what that had been handed was unknown for good.
    """
    path = dead_journal(tmp_path, "a")
    path.rename(path.with_suffix(".refused"))
    (tmp_path / "junk.refused").write_bytes(b"junk")
    adopted: list[DeadJournal] = []
    assert adopt(tmp_path, {**WHO, "service": "search"}, CLUSTER, adopted.append) == 0
    assert adopt(tmp_path, WHO, CLUSTER, adopted.append) == 1
    assert [tally.handed_over_count for tally in adopted[0].counts.changed()] == [3]
    assert [each.name for each in tmp_path.iterdir()] == ["junk.refused"]
    assert adopt(tmp_path, WHO, CLUSTER, adopted.append) == 0


def test_a_journal_of_a_later_version_is_left_to_its_own(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = dead_journal(tmp_path, "a")
    data = path.read_bytes()
    path.write_bytes(b"HRCOUNT3" + data[8:])
    assert adopt(tmp_path, WHO, CLUSTER, lambda dead: None) == 0
    assert path.read_bytes() == b"HRCOUNT3" + data[8:]
    assert f"{path} is not a publisher's journal of this version: a later version of headrace wrote it" in (
        caplog.text
    )
