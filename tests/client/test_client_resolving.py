"""Names of brokers' hosts: a name server that does not answer holds up nothing else."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from fix_client import FakeCluster, StartCluster
from headrace.client import resolving
from headrace.client.admin import Admin
from headrace.client.admin_requests import LATE_CALL_S, LATE_MAX_S
from headrace.client.cluster import BrokerAddress
from headrace.client.network import Network
from headrace.client.resolving import Resolver, Target, look_up

WAIT_MAX_S = 20.0
NAMED = BrokerAddress("broker-1.test", 9092)
TARGET: Target = (socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", 9092))


@pytest.fixture
def no_answer(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Every lookup of a name waits until the test has ended."""
    ended = threading.Event()

    def wait(address: BrokerAddress) -> list[Target]:
        ended.wait(WAIT_MAX_S)
        raise OSError("too late")

    monkeypatch.setattr(resolving, "look_up", wait)
    yield
    ended.set()


def found(resolver: Resolver, woken: threading.Event) -> list[Target] | None:
    assert resolver.targets(NAMED) is None
    assert woken.wait(WAIT_MAX_S)
    return resolver.targets(NAMED)


def test_a_name_is_looked_up_beside_its_caller_and_again_the_next_time() -> None:
    woken, asked = threading.Event(), []

    def find(address: BrokerAddress) -> list[Target]:
        asked.append(address)
        return [TARGET]

    resolver = Resolver(woken.set, find)
    for count in (1, 2):
        woken.clear()
        assert found(resolver, woken) == [TARGET]
        assert asked == [NAMED] * count


def test_a_name_without_an_address_is_an_error_each_time_that_it_is_asked_for() -> None:
    woken = threading.Event()

    def find(address: BrokerAddress) -> list[Target]:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    with pytest.raises(OSError, match="not known"):
        found(Resolver(woken.set, find), woken)
    with pytest.raises(OSError, match="no host has this name"):
        look_up(BrokerAddress("a" * 64 + ".test", 1))


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_an_ip_address_asks_nobody(host: str) -> None:
    def find(address: BrokerAddress) -> list[Target]:
        raise AssertionError(f"{address} was looked up")

    targets = Resolver(lambda: None, find).targets(BrokerAddress(host, 9092))
    assert targets is not None and targets[0][4][:2] == (host, 9092)


@pytest.mark.usefixtures("no_answer")
def test_a_survey_names_the_broker_whose_name_nobody_tells(fake_cluster: StartCluster) -> None:
    cluster = fake_cluster(brokers=1, partitions=2)
    with Admin(f"{NAMED},{cluster.bootstrap}", timeout_ms=1_500) as admin:
        survey = admin.survey()
    assert sorted(survey.ranges_of("t")) == [0, 1]
    assert [str(each) for each in survey.silent] == [
        f"a broker at {NAMED} does not answer (no name server tells its address)"
    ]


def test_a_connection_begins_as_soon_as_its_name_is_known(
    fake_cluster: Callable[..., FakeCluster], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lookup wakes a poll that waits for longer than the test may take."""
    broker = fake_cluster(brokers=1).brokers[0]
    goes_on = threading.Event()

    def find(address: BrokerAddress) -> list[Target]:
        goes_on.wait(WAIT_MAX_S)
        return look_up(BrokerAddress("127.0.0.1", broker.port))

    monkeypatch.setattr(resolving, "look_up", find)
    network = Network(str(NAMED), client_id="test", request_timeout_ms=250_000)
    try:
        assert not network.ready(-1)
        threading.Timer(0.2, goes_on.set).start()
        deadline_s = time.monotonic() + WAIT_MAX_S
        while not network.ready(-1):
            assert time.monotonic() < deadline_s
            network.poll(250.0)
    finally:
        goes_on.set()
        network.close()


# --- one time for all calls ---


def test_late_calls_have_a_bound_together(fake_cluster: StartCluster) -> None:
    ends_s = 103.5
    times_s = iter([100.0, 100.0, 101.0, 103.2, ends_s, ends_s + LATE_MAX_S / 2, ends_s + LATE_MAX_S, 200.0])
    bootstrap = fake_cluster(brokers=1).bootstrap
    with Admin(bootstrap, timeout_ms=3_000, total_ms=3_500, clock=lambda: next(times_s)) as admin:
        left_s = [admin._requests.left_s() for _ in range(7)]
    late_s = LATE_MAX_S / 2
    assert left_s == pytest.approx([3.0, 2.5, LATE_CALL_S, LATE_CALL_S, late_s, 0.0, 0.0])
