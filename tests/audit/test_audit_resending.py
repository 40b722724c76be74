"""What is planned and brought from spools: exactly what the evidence lacks, once, wherever a run ends."""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from fix_audit_world import (
    BUCKET_MS,
    DC,
    HOUR_A,
    NOW_MS,
    TOPIC,
    Batch,
    PartitionBytes,
    everything_reported,
    received,
    report_of,
)
from headrace.audit.repair.intents import Intent, ResendError
from headrace.audit.repair.repairing import Judged, judged
from headrace.audit.repair.resending import Resender, ResendPlan
from headrace.audit.store.store import AuditStore
from headrace.audit.topic.resent import ResentRecord
from headrace.client import BatchIdentity
from headrace.events.spool import Spool
from headrace.wire.batch import read_header
from headrace.wire.records import Record, decode_records, encode_batch

BATCHES = [Batch(0, 7, 0, index * 10, 10, HOUR_A + index * BUCKET_MS) for index in range(6)]
LOST, EXTRA = 2, 3
PUBLISHER = "publisher-7"


class Brokers:
    """Stores batches; dies at one of its calls."""

    def __init__(self, dies_at: int = -1) -> None:
        self.batches: list[tuple[str, int, bytes]] = []
        self.said: list[ResentRecord] = []
        self._calls, self._dies_at, self._ids = 0, dies_at, 100

    def _call(self) -> None:
        self._calls += 1
        if self._calls == self._dies_at:
            raise KeyboardInterrupt

    def new_producer_id(self) -> tuple[int, int]:
        self._call()
        self._ids += 1
        return self._ids, 0

    def send(self, topic: str, partition: int, data: bytes) -> None:
        self._call()
        self.batches.append((topic, partition, data))
        self._call()

    def publish(self, record: object) -> None:
        self._call()
        assert isinstance(record, ResentRecord)
        self.said.append(record)

    def flush(self) -> None:
        self._call()

    def stored(self) -> dict[tuple[int, int], bytes]:
        """What a log holds: each batch once. The same numbers with other bytes would be a fault."""
        found: dict[tuple[int, int], bytes] = {}
        for _, _, data in self.batches:
            header = read_header(data)
            key = (header.producer_id, header.base_sequence)
            assert found.setdefault(key, data) == data
        return found


def hour(
    resent: list[ResentRecord] | None = None,
    publisher: str = PUBLISHER,
    lost: Collection[int] = (LOST,),
    brought: Collection[bytes] = (),
) -> Judged:
    """An hour of which these batches never arrived, and three events never got a number."""
    log = PartitionBytes()
    for index, batch in enumerate(BATCHES):
        if index not in lost:
            log.append(batch.encode())
    for data in brought:
        log.append(data)
    store = AuditStore("sqlite://")
    store.fold(everything_reported([], {0: log}))
    store.fold([received(report_of(publisher, BATCHES, extra=EXTRA))])
    store.fold([received(each) for each in resent or ()])
    (found,) = judged(store, TOPIC, [HOUR_A], now_ms=NOW_MS)
    store.close()
    return found


def fill(folder: Path, *, unnumbered: int = EXTRA, lost: bool = True) -> None:
    about: dict[str, str | int] = {
        "publisher": PUBLISHER,
        "service": "frontend",
        "datacenter": DC,
        "bucket_ms": BUCKET_MS,
    }
    folder.mkdir(parents=True)
    spool = Spool(folder / f"{PUBLISHER}.spool", about, 1 << 20)
    for index, batch in enumerate(BATCHES):
        time_ms, values = batch.bucket_ms, [f"{index}.{number}".encode() for number in range(10)]
        for value in values:
            spool.hand_over(TOPIC, time_ms, b"k", value)
        if index != LOST or lost:
            data = encode_batch(
                [Record(0, time_ms, b"k", value) for value in values],
                producer_id=7,
                producer_epoch=0,
                base_sequence=batch.first,
            )
            identity = BatchIdentity(TOPIC, 0, 7, 0, batch.first, 10, time_ms, time_ms)
            spool.batch_encoded(identity, bytearray(data))
    for number in range(unnumbered):
        spool.hand_over(TOPIC, HOUR_A + number, b"k", b"unnumbered %d" % number)


@pytest.fixture
def resender(tmp_path: Path) -> Iterator[Resender]:
    yield Resender(tmp_path)


def plan_of(resender: Resender, found: Judged) -> ResendPlan:
    return resender.plan(found.evidence, found.verdict.findings, 1)


def values(brokers: Brokers) -> list[bytes]:
    return sorted(
        record.value or b"" for data in brokers.stored().values() for record in decode_records(data)
    )


WANTED = sorted(
    [f"{LOST}.{number}".encode() for number in range(10)] + [b"unnumbered %d" % n for n in range(EXTRA)]
)


def test_exactly_what_is_lost_is_brought(tmp_path: Path, resender: Resender) -> None:
    fill(tmp_path / "publishers")
    planned = plan_of(resender, hour())
    assert (planned.record_count, planned.problems) == (13, ())
    brokers = Brokers()
    with resender.intents.locked():
        assert resender.bring(planned, brokers, brokers, "a@b") == 13
    assert values(brokers) == WANTED
    after = hour(brokers.said)
    assert [finding.producer_id for finding in after.verdict.findings] == [101, 102]  # not in the log yet
    assert sum(finding.record_count or 0 for finding in after.verdict.findings) == 13
    # Said, and not counted yet: the same bytes again, and nothing new.
    again = plan_of(resender, after)
    assert (again.record_count, again.fresh) == (13, ())


@pytest.mark.parametrize("dies_at", range(1, 10))
def test_a_run_that_is_killed_anywhere_is_completed_by_the_next(
    tmp_path: Path, resender: Resender, dies_at: int
) -> None:
    fill(tmp_path / "publishers")
    brokers = Brokers(dies_at)
    found = hour()
    with resender.intents.locked():
        try:
            resender.bring(plan_of(resender, found), brokers, brokers, "a@b")
        except KeyboardInterrupt:
            # What was said before may have been folded, or not.
            for seen in (hour(list(brokers.said)), found):
                resender.bring(plan_of(resender, seen), brokers, brokers, "a@b")
    assert values(brokers) == WANTED


@pytest.mark.parametrize("dies_at", range(1, 14))
def test_of_a_finding_of_several_batches_a_killed_run_leaves_none_behind(
    tmp_path: Path, resender: Resender, dies_at: int
) -> None:
    """A run that was killed had numbered only some of them."""
    fill(tmp_path / "publishers")
    brokers, found = Brokers(dies_at), hour(lost=(LOST, LOST + 1))
    with resender.intents.locked():
        with suppress(KeyboardInterrupt):
            resender.bring(plan_of(resender, found), brokers, brokers, "a@b")
        resender.bring(plan_of(resender, found), brokers, brokers, "a@b")
    assert values(brokers) == sorted([*WANTED, *(f"{LOST + 1}.{number}".encode() for number in range(10))])


@pytest.mark.parametrize("dies_at", range(4, 10))
def test_what_the_log_has_of_a_killed_run_is_not_sent_again(
    tmp_path: Path, resender: Resender, dies_at: int
) -> None:
    """The next run may come after the brokers have forgotten the producer ids: they would store it twice."""
    fill(tmp_path / "publishers")
    killed, brokers = Brokers(dies_at), Brokers()
    with resender.intents.locked():
        with suppress(KeyboardInterrupt):
            resender.bring(plan_of(resender, hour()), killed, killed, "a@b")
        assert killed.batches, "it was killed before it sent anything"
        seen = hour(list(killed.said), brought=[data for _, _, data in killed.batches])
        resender.bring(plan_of(resender, seen), brokers, brokers, "a@b")
    sent = [
        record for each in (killed, brokers) for _, _, data in each.batches for record in decode_records(data)
    ]
    assert sorted(record.value or b"" for record in sent) == WANTED
    said = {each.producer_id for each in (*killed.said, *brokers.said)}
    assert said == {
        read_header(data).producer_id for each in (killed, brokers) for _, _, data in each.batches
    }


def test_among_very_many_spools_the_one_that_has_the_events_is_found(
    tmp_path: Path, resender: Resender
) -> None:
    """Of a program that runs once in ten minutes a week's spools are there: the first 1,000 names were read,
    and the others' events were said to be in no spool.
    """
    fill(tmp_path / "publishers")
    for number in range(1_000):
        other = tmp_path / "publishers" / f"a-{number:04}.spool"
        other.mkdir()
        (other / "about.json").write_text(json.dumps({"publisher": other.stem, "datacenter": DC}))
    planned = plan_of(resender, hour())
    assert planned.record_count == 10 + EXTRA and planned.problems == ()


def test_what_no_spool_has_is_said(tmp_path: Path, resender: Resender) -> None:
    fill(tmp_path / "publishers", unnumbered=1, lost=False)
    # The lost batch's events are in no batch, so they look as if they had no number: too many to tell.
    planned = plan_of(resender, hour())
    assert planned.record_count == 0
    numbered, unnumbered = planned.problems
    assert "10 of the events of this finding are in no spool" in numbered
    assert "has 11 such events: which are lost is not known" in unnumbered
    fill(tmp_path / "other" / "publishers", unnumbered=1)
    planned = plan_of(Resender(tmp_path / "other"), hour())
    assert planned.record_count == 11 and "2 of them are in no spool" in planned.problems[0]
    assert plan_of(Resender(tmp_path / "none"), hour()).record_count == 0


def test_two_repairs_at_once_and_a_damaged_intent_bring_nothing(tmp_path: Path, resender: Resender) -> None:
    fill(tmp_path / "publishers")
    with (
        resender.intents.locked(),
        pytest.raises(ResendError, match="another repair"),
        Resender(tmp_path).intents.locked(),
    ):
        pass
    (tmp_path / "repairs" / "1-x.json").write_text("{")
    with pytest.raises(ResendError, match="restore it"):
        plan_of(resender, hour())


@pytest.mark.parametrize(
    "lie",
    [
        {"resent": {"bucket_start_ms": "x"}},
        {"resent": {"last_sequence": None}},
        {"resent": {"partition": True}},
        {"resent": {"topic": 7}},
        {"values": [7]},
        {"service": None},
        {"is_said": "no"},
        {"batch": "\u0000"},
    ],
)
def test_an_intent_of_other_types_is_named(tmp_path: Path, resender: Resender, lie: dict[str, Any]) -> None:
    resent = ResentRecord("east", "t", 0, "p-1", 0, 7, 0, 0, 1, 5, 0, 9, "me")
    (tmp_path / "repairs").mkdir()
    resender.intents.write(Intent(resent, "checkout", ("0" * 64,), b"batch"))
    assert resender.intents.all()
    (path,) = (tmp_path / "repairs").glob("*.json")
    raw = json.loads(path.read_text())
    raw["resent"].update(lie.get("resent", {}))
    path.write_text(json.dumps(raw | {name: value for name, value in lie.items() if name != "resent"}))
    with pytest.raises(ResendError, match=r"cannot be read: .* restore it, or remove it"):
        resender.intents.all()


def test_a_pipe_in_place_of_an_intent_holds_up_nothing(tmp_path: Path, resender: Resender) -> None:
    (tmp_path / "repairs").mkdir()
    os.mkfifo(tmp_path / "repairs" / "1-x.json")
    with pytest.raises(ResendError, match=r"1-x\.json cannot be read"):
        resender.intents.all()
