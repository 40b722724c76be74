"""`make bench-restart`: its producers send and measure, and its verdict is that of the worst row."""

from __future__ import annotations

import queue
import threading
import time
from dataclasses import replace
from typing import Any, cast

import pytest
from rolling_restart import PRODUCERS, SETTLE_S, TOPIC, Row, exit_code, produce

from fix_broker import RawClient, StartCluster

GOOD = Row("librdkafka", "broker by broker", 9.0, 4_000, 8.0, 400.0, 600.0, 0, "")


@pytest.mark.parametrize("name", PRODUCERS)
def test_a_producer_measures_each_record_that_is_acknowledged(
    broker_cluster: StartCluster, name: str
) -> None:
    bootstrap = broker_cluster(1).bootstrap
    with RawClient(bootstrap) as client:
        client.create_topic(TOPIC)
    ended = threading.Event()
    found: queue.Queue[Any] = queue.Queue()
    sender = threading.Thread(target=produce, args=(name, bootstrap, 100, cast(Any, ended), found))
    sender.start()
    time.sleep(SETTLE_S + 1.0)
    ended.set()
    sent = found.get(timeout=60)
    sender.join()
    assert sent.errors == []
    assert 0 < len(sent.waits_ms) <= 100 * (SETTLE_S + 1.0) and min(sent.waits_ms) > 0


@pytest.mark.parametrize(
    ("changed", "code"), [({}, 0), ({"p99_ms": 1_000.0}, 1), ({"errors": 1}, 1), ({"records": 0}, 1)]
)
def test_the_verdict_is_that_of_the_worst_row(changed: dict[str, Any], code: int) -> None:
    assert exit_code([GOOD, replace(GOOD, **changed)]) == code
