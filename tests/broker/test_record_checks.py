"""Which batches the event loop opens itself, which go to a thread, and how much a batch may unpack to."""

import gc
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from headrace.broker.errors import Refused
from headrace.broker.loop import EventLoop
from headrace.broker.produce import checks as checks_module
from headrace.broker.produce import opening_threads
from headrace.broker.produce.checks import INLINE_BATCH_MAX_BYTES, INLINE_WAKEUP_MAX_BYTES, RecordChecks
from headrace.broker.produce.opening import Opened, unpacked_limit_bytes
from headrace.broker.produce.opening_threads import Found, Unopened
from headrace.broker.settings.config import BrokerConfig
from headrace.wire.batch import read_header
from headrace.wire.checking import scan_records
from headrace.wire.compression import Codec
from headrace.wire.errors import ErrorCode
from headrace.wire.records import DECODE_LIMIT_BYTES, Record, encode_batch

NOW_MS = 1_700_000_000_000
CLIENT = "192.0.2.1:50000"
CONFIG = BrokerConfig().topic_config({})


@pytest.fixture
def checks(loop: EventLoop) -> Iterator[RecordChecks]:
    made = RecordChecks(loop)
    yield made
    made.stop()


def unopened(count: int, value_bytes: int, codec: Codec = Codec.NONE, place: int = 0) -> Unopened:
    records = [Record(i, NOW_MS, None, bytes(value_bytes)) for i in range(count)]
    batch = memoryview(bytearray(encode_batch(records, codec=codec)))
    return Unopened(place, batch, read_header(batch), CONFIG)


def is_valid(checks: RecordChecks, each: Unopened) -> bool:
    return checks.is_valid(each.batch, 0, each.header.size_bytes, each.header, CONFIG, NOW_MS)


def wait_for(loop: EventLoop, condition: Callable[[], Any]) -> None:
    while not condition():
        loop.turn(1.0)


def test_usual_batches_are_opened_at_once(checks: RecordChecks) -> None:
    for each in (unopened(1, 10), unopened(5_000, 190), unopened(5_000, 190, Codec.LZ4)):
        assert is_valid(checks, each)
        found, left = checks.open_now([each], NOW_MS)
        assert (found, left) == ({0: Opened(None, NOW_MS)}, [])


def test_what_unpacks_to_much_goes_to_a_thread(loop: EventLoop, checks: RecordChecks) -> None:
    large = unopened(1_000, INLINE_BATCH_MAX_BYTES // 500, Codec.ZSTD, place=3)
    assert not is_valid(checks, large)
    found, left = checks.open_now([unopened(1, 10), large], NOW_MS)
    assert (list(found), left) == ([0], [large])
    done: list[Found] = []
    assert checks.open_later(CLIENT, left, NOW_MS, done.append)
    assert checks.unfinished == 1
    wait_for(loop, lambda: done)
    assert (done, checks.unfinished) == ([{3: Opened(None, NOW_MS)}], 0)


def test_one_wakeup_opens_only_so_much(loop: EventLoop, checks: RecordChecks) -> None:
    each = unopened(1_000, 1_000, Codec.ZSTD)
    opened_count = sum(is_valid(checks, each) for _ in range(20))
    assert 0 < opened_count <= INLINE_WAKEUP_MAX_BYTES // 1_000_000 + 1
    loop.turn(0)
    assert is_valid(checks, each), "the next wakeup has its own time"


def test_too_many_bytes_do_not_wait_for_the_threads(
    loop: EventLoop, checks: RecordChecks, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(opening_threads, "UNFINISHED_MAX_BYTES", 1_000)
    done: list[Found] = []
    assert checks.open_later(CLIENT, [unopened(1, 5_000)], NOW_MS, done.append), "one always may"
    assert not checks.open_later(CLIENT, [unopened(1, 5_000)], NOW_MS, done.append)
    wait_for(loop, lambda: done)
    assert checks.open_later(CLIENT, [unopened(1, 5_000)], NOW_MS, done.append)
    wait_for(loop, lambda: len(done) == 2)


def test_a_request_keeps_only_so_much_uncompressed(
    loop: EventLoop, checks: RecordChecks, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(opening_threads, "UNCOMPRESSED_MAX_BYTES", 100)
    tiny = [unopened(200, 0, place=place) for place in range(2)]
    squeezed = [each._replace(header=each.header._replace(record_count=200)) for each in tiny]
    many = [each._replace(header=each.header._replace(batch_length=100)) for each in squeezed]
    config = BrokerConfig().topic_config({"message.validation": "headers"})
    done: list[Found] = []
    checks.open_later(CLIENT, [each._replace(config=config) for each in many], NOW_MS, done.append)
    wait_for(loop, lambda: done)
    assert all(isinstance(each, Refused) for each in done[0].values())


def test_without_luajit_long_batches_go_to_a_thread(loop: EventLoop, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (checks_module, opening_threads):
        monkeypatch.setattr(module, "make_scanner", lambda: (scan_records, False))
    checks = RecordChecks(loop)
    assert is_valid(checks, unopened(50, 100))
    assert not is_valid(checks, unopened(5_000, 100))
    done: list[Found] = []
    checks.open_later(CLIENT, [unopened(5_000, 100)], NOW_MS, done.append)
    wait_for(loop, lambda: done)
    assert done == [{0: Opened(None, NOW_MS)}]
    checks.stop()


def test_an_invalid_batch_is_refused_wherever_it_is_opened(loop: EventLoop, checks: RecordChecks) -> None:
    good = unopened(3, 10)
    broken = good._replace(header=good.header._replace(record_count=2))
    assert not is_valid(checks, broken)
    found, left = checks.open_now([broken], NOW_MS)
    assert not left
    done: list[Found] = []
    checks.open_later(CLIENT, [broken], NOW_MS, done.append)
    wait_for(loop, lambda: done)
    for each in (found[0], done[0][0]):
        assert isinstance(each, Refused)
        assert (each.code, each.record_index) == (ErrorCode.INVALID_RECORD, 1)


def test_a_batch_may_unpack_to_more_if_it_does_not_look_like_a_bomb() -> None:
    limit = CONFIG.max_message_bytes
    assert unpacked_limit_bytes(limit, 100) == 4 * limit
    assert unpacked_limit_bytes(limit, 1_000_000) == 32 * limit
    assert unpacked_limit_bytes(limit, 40_000) == 256 * 40_000
    assert unpacked_limit_bytes(100 * limit, 90 * limit) == DECODE_LIMIT_BYTES


def test_a_refused_batch_leaves_nothing_to_the_garbage_collector(loop: EventLoop) -> None:
    """Else thousands of refused requests, and what was unpacked of them, stay in memory until it comes by."""
    bomb = unopened(1, 64 << 20, Codec.ZSTD)
    gc.collect()
    gc.disable()
    try:
        request = opening_threads._Request(CLIENT, [bomb], NOW_MS, lambda _: None)
        opening_threads.OpeningThreads(loop.post)._take_turn(request)
        assert isinstance(request.found[bomb.place], Refused)
        del request
        assert not [each for each in gc.get_objects() if isinstance(each, Refused)]
    finally:
        gc.enable()
