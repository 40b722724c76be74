"""A broker is SIGKILLed over and over while idempotent producers write: each record is there once, in order.

All producers write at the same time, so that one broker's crashes serve them all.
"""

import gc
import logging
import threading
import time
import warnings
from collections.abc import Iterator

import pytest

from fix_clients import CLIENT_NAMES, RealClient, RealClients, read_all
from fix_datacenter import Datacenter
from fix_samples import check_rows, make_samples

pytestmark = pytest.mark.real_client

COUNT = 60_000
WRITERS = (*CLIENT_NAMES, "headrace")
KILLS = 3
BETWEEN_KILLS_S = 0.3
WRITERS_WAIT_MAX_S = 120.0

SAMPLES = make_samples(COUNT, seed=7)


class Writer(threading.Thread):
    """Produces in a thread of its own."""

    def __init__(self, client: RealClient, bootstrap: str) -> None:
        super().__init__(name=client.name, daemon=True)
        self.client = client
        self.topic = f"crash-{client.name}"
        self.error: BaseException | None = None
        self._servers = bootstrap

    def run(self) -> None:
        try:
            self.client.produce(self._servers, self.topic, SAMPLES, codec="none")
        except BaseException as error:
            self.error = error


@pytest.fixture(autouse=True)
def forgiven_sockets(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """kafka-python leaves refused connections' sockets to the garbage collector; its logs hold some."""
    caplog.set_level(logging.CRITICAL, "kafka")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        yield
        gc.collect()


def test_every_record_once_over_broker_crashes(own_datacenter: Datacenter, real_clients: RealClients) -> None:
    broker = own_datacenter.brokers[0]
    writers = [Writer(real_clients[name], own_datacenter.bootstrap) for name in WRITERS]
    for writer in writers:
        own_datacenter.create_topic(writer.topic, 1)
    for writer in writers:
        writer.start()
    interrupted = set()
    for _ in range(KILLS):
        time.sleep(BETWEEN_KILLS_S)
        interrupted |= {writer.name for writer in writers if writer.is_alive()}
        broker.kill()
        broker.start()
    deadline = time.monotonic() + WRITERS_WAIT_MAX_S
    for writer in writers:
        writer.join(max(0.0, deadline - time.monotonic()))
        assert not writer.is_alive(), f"{writer.name} did not end"
        assert writer.error is None, f"{writer.name}: {writer.error}"
    assert interrupted == set(WRITERS), "some producer was done before the first crash"
    for writer in writers:
        rows = read_all(writer.client, own_datacenter.bootstrap, writer.topic, COUNT)
        check_rows(rows, SAMPLES, times=writer.client.sets_times)
