"""A partition whose log is offline for a while: real clients wait, and lose and repeat nothing."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from fix_broker import RawClient
from fix_clients import CLIENT_NAMES, RealClients, read_all
from fix_faulty_disk import FaultyBroker
from fix_samples import Read, check_rows, make_samples
from headrace.wire.errors import ErrorCode
from headrace.wire.records import Record, encode_batch

pytestmark = pytest.mark.real_client

COUNT = 200
WAIT_MAX_S = 150.0
STAYS_OFFLINE_S = 3.0


class Running(threading.Thread):
    """A call of a client on a thread of its own."""

    def __init__(self, call: Callable[[], Any]) -> None:
        super().__init__(daemon=True)
        self._call = call
        self._outcome: Any = None
        self.start()

    def run(self) -> None:
        try:
            self._outcome = self._call()
        except BaseException as error:
            self._outcome = error

    def result(self) -> Any:
        self.join(WAIT_MAX_S)
        assert not self.is_alive(), "the client still waits"
        if isinstance(self._outcome, BaseException):
            raise self._outcome
        return self._outcome


@pytest.mark.parametrize("name", CLIENT_NAMES)
def test_clients_wait_for_a_log_that_is_offline(
    name: str, faulty_broker: FaultyBroker, real_clients: RealClients
) -> None:
    client, bootstrap = real_clients[name], faulty_broker.process.address
    samples = make_samples(COUNT)
    faulty_broker.fail("fdatasync EIO bad-0")
    producing = Running(lambda: client.produce(bootstrap, "bad", samples, codec="none"))
    faulty_broker.log_line("bad-0 is offline")
    time.sleep(STAYS_OFFLINE_S)
    assert producing.is_alive()
    faulty_broker.fail()
    producing.result()
    rows = read_all(client, bootstrap, "bad", COUNT)
    check_rows(rows, samples, times=client.sets_times)

    lost = encode_batch([Record(0, 1_000, None, b"never acknowledged")])
    faulty_broker.fail("fdatasync EIO bad-0")
    with RawClient(bootstrap) as raw:
        assert raw.produce("bad", 0, lost).error_code == ErrorCode.KAFKA_STORAGE_ERROR
    reading = Running(lambda: client.read(bootstrap, Read("bad", COUNT)))
    time.sleep(STAYS_OFFLINE_S)
    faulty_broker.fail()
    assert reading.result() == rows
