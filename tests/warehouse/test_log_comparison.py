"""Which logs are those that are loaded: what loads noted of them, beside what is there. Without Spark."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, ClassVar, cast

import pytest

from headrace.warehouse import topic_logs
from headrace.warehouse.lineage import ALL, Lineage
from headrace.warehouse.loading import _decided_empty
from headrace.warehouse.made_again import (
    Compared,
    Marks,
    Said,
    TopicMadeAgainError,
    compare,
    decide,
    noted_marks,
)
from headrace.warehouse.manifest import HourCount, LoadedRange, Manifest, TableState
from headrace.warehouse.options import WarehouseOptions
from headrace.warehouse.plan import LoadGapError, LoadPlan, plan_load
from headrace.warehouse.planning import _decided, doubtful_partitions
from headrace.warehouse.source.errors import SourceError
from headrace.warehouse.source.options import SourceOptions
from headrace.warehouse.topic_logs import ENDS_ELSEWHERE, UNREADABLE, Log, TopicLogs


def manifest(sequence: int, ranges: dict[int, tuple[int, int]], begun: Any = None, **more: Any) -> Manifest:
    """A load of these partitions, each from an address to another."""
    loaded = tuple(
        LoadedRange(
            number,
            start,
            end,
            (HourCount(7, 1, 1),),
            marks=((start + 10, start + 10), (end, end)),
            begins_at=(begun or {}).get(number),
        )
        for number, (start, end) in ranges.items()
    )
    return Manifest(sequence, "load", "t", f"c{sequence}", 1, "hdfs://h/data", loaded, **more)


MANIFESTS = [
    manifest(0, {0: (0, 100), 1: (0, 50)}, topic_id="first"),
    manifest(1, {0: (100, 200)}, topic_id="first"),
    manifest(2, {0: (100, 180), 1: (50, 60)}, {0: 100}, topic_id="second"),
]


def test_a_log_that_is_begun_has_addresses_of_its_own() -> None:
    state = TableState()
    for each in MANIFESTS:
        state = state.after(each)
    assert (state.ends, state.topic_ids, state.log) == ({0: 180, 1: 60}, {0: "second", 1: "second"}, 2)
    assert TableState.from_json(state.to_json(), "it") == state
    lineage = Lineage(MANIFESTS)
    present = [(each.sequence, loaded.partition) for each, loaded in lineage.present()]
    assert present == [(0, 0), (0, 1), (2, 0), (2, 1)]
    assert [(each.sequence, loaded.partition) for each, loaded in lineage.earlier()] == [(1, 0)]
    assert [lineage.below(0, log) for log in (0, 1, 2)] == [100, 100, ALL]
    assert [lineage.number(0, log) for log in (0, 1, 2, 9)] == [0, 0, 2, 2]
    assert (lineage.topic_id(0), lineage.topic_id(2)) == ("first", "second")
    marks = noted_marks(MANIFESTS)
    assert marks[0] == Marks({100: 100, 180: 180}, {10: 10, 110: 110}, 0, 10)


def test_an_older_headrace_stops_at_a_change_that_names_its_topic() -> None:
    stored = MANIFESTS[2].to_json()
    assert Manifest.from_json(stored, "it") == MANIFESTS[2]
    assert b'"format": 4' in stored
    plain = replace(MANIFESTS[1], topic_id="", ranges=(LoadedRange(0, 100, 200),)).to_json()
    assert b'"format": 1' in plain
    assert not [name for name in (b"begins_at", b"marks", b"log", b"topic_id") if name in plain]


SEEN = {0: Compared("same", 9), 1: Compared("other", 5), 2: Compared("unknown"), 3: Compared("empty")}


def test_only_what_is_not_known_to_be_the_same_log_is_begun() -> None:
    assert decide("t", "", SEEN, Said("new")) == {1: 5, 2: 0}
    assert decide("t", "", {0: SEEN[0]}, Said()) == {}
    assert decide("t", "", {0: SEEN[0], 2: SEEN[2]}, Said("copy")) == {}
    assert decide("t", "", {0: Compared("copying", 4)}, Said(None, {0: "new"})) == {0: 4}


@pytest.mark.parametrize(
    ("seen", "said", "problem"),
    [
        (SEEN, Said(), "t is another. Nothing is loaded: partition 1 has other .*; partition 2 cannot be"),
        (SEEN, Said("copy"), "loaded: partition 1 has other batches"),
        (SEEN, Said(None, {1: "new"}), "loaded: partition 2 cannot be compared"),
        ({0: Compared("copying"), 1: SEEN[1]}, Said("new"), "partition 0 is being copied again"),
        (dict.fromkeys(range(30), SEEN[2]), Said(), "partition 0, 1, 2, 3, 4, 5, 6, 7 and 22 more cannot"),
    ],
)
def test_an_operator_is_asked(seen: dict[int, Compared], said: Said, problem: str) -> None:
    with pytest.raises(TopicMadeAgainError, match=problem) as raised:
        decide("t", "is another", seen, said)
    assert len(str(raised.value)) < 500


class FakeLogs(TopicLogs):
    """Logs of which only some batches are known: partition → address behind the batch → CRC."""

    batches: ClassVar[dict[int, dict[int, int]]] = {}

    def crc_before(self, partition: int, end: int) -> int:
        return self.batches[partition].get(end, UNREADABLE)


def logs_of(batches: dict[int, int], latest: int, earliest: int = 0) -> TopicLogs:
    logs = FakeLogs(WarehouseOptions("", "", "", ""), "t", "id", {0: Log(earliest, latest, ("", 0))})
    FakeLogs.batches = {0: batches}
    return logs


NOTED = Marks({100: 1, 200: 2, 300: 3}, {10: 7}, 0, 10)


@pytest.mark.parametrize(
    ("logs", "expected"),
    [
        (logs_of, Compared("same", 300)),
        (lambda known, _: logs_of({}, 0), Compared("empty")),
        (lambda known, _: logs_of(known, 250), Compared("copying", 200)),
        (lambda known, _: logs_of(known, 50), Compared("copying", 0)),
        (lambda known, _: logs_of({**known, 300: 9}, 500), Compared("other", 200)),
        (lambda known, _: logs_of({**known, 200: ENDS_ELSEWHERE, 300: 9}, 500), Compared("other", 100)),
        (lambda known, _: logs_of(dict.fromkeys(known, 9), 500), Compared("other", 0)),
        (lambda known, _: logs_of({10: 9}, 50), Compared("other", 0)),
        (lambda known, _: logs_of({**known, 300: UNREADABLE}, 500), Compared("unknown", 200)),
        (lambda known, _: logs_of({**known, 200: UNREADABLE}, 500), Compared("same", 300)),
        (lambda known, _: logs_of({**known, 200: UNREADABLE, 300: 9}, 500), Compared("other", 100)),
        (lambda known, _: logs_of({}, 500), Compared("unknown", 0)),
        (lambda known, _: logs_of(known, 500, earliest=400), Compared("unknown", 0)),
        (lambda known, _: logs_of({}, 5), Compared("other", 0)),
        (lambda known, _: logs_of({}, 5, earliest=3), Compared("unknown", 0)),
    ],
)
def test_a_log_is_known_by_the_batches_that_loads_noted(logs: Any, expected: Compared) -> None:
    known = {**NOTED.ends, **NOTED.others}
    assert compare(logs(known, 500), 0, 300, NOTED) == expected


def test_a_broker_that_does_not_answer_makes_no_log_another_one() -> None:
    address = ("127.0.0.1", 1)
    options = WarehouseOptions("", "", "127.0.0.1:1", "")
    logs = TopicLogs(options, "t", "id", {0: Log(0, 500, address)})
    with patched_timeout(), pytest.raises(SourceError):
        compare(logs, 0, 300, NOTED)


@contextmanager
def patched_timeout() -> Iterator[None]:
    """Reads give up at once."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(topic_logs, "SourceOptions", lambda **more: SourceOptions(**more, request_timeout_ms=1))
        yield


def test_a_log_that_begins_late_needs_a_gap_accepted() -> None:
    """What retention deleted of a new log, before an operator answered, was never loaded."""
    with pytest.raises(LoadGapError, match="addresses 0 to 1500"):
        plan_load("t", {0: 0}, {0: 1500}, {0: 2000})


def test_nameless_partitions_are_all_doubted_once_one_went_back() -> None:
    logs = logs_of({}, 500)
    state = TableState(3, {0: 800, 1: 100, 2: 0})
    assert doubtful_partitions(state, logs, Said()) == {}
    assert doubtful_partitions(state, logs, Said("new")) == {0: True, 1: True}
    assert doubtful_partitions(TableState(3, {0: 500}), logs, Said("new")) == {}
    named = TableState(3, {0: 500, 1: 100}, topic_ids={0: "id", 1: "other"})
    assert doubtful_partitions(named, logs, Said()) == {1: False}


class KnownTable:
    """A table whose manifests are given."""

    topic = "t"

    def __init__(self, *manifests: Manifest) -> None:
        self.log = self
        self._manifests = list(manifests)

    def manifests(self) -> list[Manifest]:
        return self._manifests


def decided(logs: TopicLogs, said: Said, *manifests: Manifest, ids: dict[int, str] | None = None) -> Any:
    state = TableState()
    for each in manifests:
        state = state.after(each)
    state = replace(state, topic_ids=state.topic_ids if ids is None else ids)
    return _decided(cast(Any, KnownTable(*manifests)), state, logs, said)


LOADS = (
    manifest(0, {0: (0, 890)}, topic_id="id"),
    manifest(1, {0: (890, 1_000)}, topic_id="id"),
)


@pytest.mark.parametrize("ids", [{0: "id"}, {}])
def test_a_log_that_went_back_begins_no_earlier_than_its_brokers_still_have(ids: dict[int, str]) -> None:
    """What retention has deleted was loaded: it is no gap, and earlier loads stay."""
    logs = logs_of({}, latest=980, earliest=900)
    assert decided(logs, Said("new"), *LOADS, ids=ids).begun == {0: 900}
    assert decided(logs_of({}, latest=950, earliest=950), Said("new"), *LOADS, ids=ids).begun == {0: 950}
    of_other = decided(logs_of({}, latest=980, earliest=900), Said("new"), *LOADS, ids={0: "before"})
    assert of_other.begun == {0: 0}, "of another topic it was never loaded"


def test_a_log_that_is_known_to_be_the_same_is_confirmed() -> None:
    logs = logs_of({1_000: 1_000, 890: 890}, latest=1_000)
    found = decided(logs, Said(), *LOADS, ids={0: "before"})
    assert (found.begun, found.confirmed, found.later) == ({}, (0,), frozenset())
    (kept,) = _decided_empty(LoadPlan("t", (), confirmed=(0,)), {0: 1_000})
    assert kept == LoadedRange(0, 1_000, 1_000)
    state = TableState()
    for each in (*LOADS, Manifest(2, "load", "t", "c", 1, "w", (kept,), topic_id="later")):
        state = state.after(each)
    assert (state.ends, state.topic_ids) == ({0: 1_000}, {0: "later"})


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], Said()),
        (["new"], Said("new")),
        (["new:0,2", "copy:1"], Said(None, {0: "new", 2: "new", 1: "copy"})),
        (["copy", "new:7"], Said("copy", {7: "new"})),
    ],
)
def test_each_partition_may_have_an_answer_of_its_own(words: list[str], said: Said) -> None:
    assert Said.parsed(words) == said
    seen = {0: Compared("other"), 1: Compared("unknown"), 2: Compared("other", 5)}
    if said.partitions and said.what is None:
        assert decide("t", "", seen, said) == {0: 0, 2: 5}


@pytest.mark.parametrize("word", ["", "old", "new:", "new:a", "new:-1", "copy:1,", "new 0"])
def test_other_answers_are_refused(word: str) -> None:
    with pytest.raises(ValueError, match="is not new, copy"):
        Said.parsed([word])


def test_a_replay_and_a_refill_of_before_a_begun_log_count_by_where_their_rows_are() -> None:
    replayed = LoadedRange(0, 40, 40, (HourCount(7, 5, 5, -5),))
    rest = LoadedRange(0, 150, 150, (HourCount(7, 5, 5),))
    changes = [
        *MANIFESTS[:2],
        Manifest(2, "replay", "t", "c", 1, "w", (replayed,)),
        Manifest(3, "refill", "t", "c", 1, "w", (rest,)),
        replace(MANIFESTS[2], sequence=4),
    ]
    present = Lineage(changes).present()
    assert [(each.sequence, each.kind) for each, loaded in present if loaded.partition == 0] == [
        (0, "load"),
        (2, "replay"),
        (4, "load"),
    ]
    assert Lineage(changes).hours_of_earlier() == {7}
