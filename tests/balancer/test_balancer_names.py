"""Brokers that listen on all addresses of their machine: the balancer reaches them at the names that they
advertise, as in containers.
"""

import asyncio
import shutil
import time
from pathlib import Path

import pytest

from fix_balancer import ENGINES, BalancerProcess, wait_until
from fix_broker import BrokerProcess
from fix_ports import free_port
from fix_zookeeper import ZooKeeperRoom
from headrace.balancer import names
from headrace.balancer.backends import Backend, Phase
from headrace.balancer.names import FrontNames
from headrace.coordination.fronts import Front, FrontRegistry


def broker_at_a_name(number: int, room: ZooKeeperRoom, directory: Path, balancer: str) -> BrokerProcess:
    broker = BrokerProcess(number, directory, room.hosts, "test", {})
    broker.host = "localhost"
    broker.extra_arguments = ["--advertise", broker.address, "--front-listen", f"0.0.0.0:{free_port()}"]
    broker.extra_arguments += ["--front-advertise", balancer]
    return broker


@pytest.mark.parametrize("engine", ENGINES)
def test_brokers_come_and_go_by_their_names(engine: str, zookeeper: ZooKeeperRoom, tmp_path: Path) -> None:
    """Before, HAProxy refused the first one's name each second, and nothing was changed any more."""
    if engine == "haproxy" and shutil.which("haproxy", path="/usr/sbin:/usr/bin:/usr/local/sbin") is None:
        pytest.skip("haproxy is not installed")
    balancer = BalancerProcess(engine, zookeeper.hosts, tmp_path)
    first, second = (broker_at_a_name(each, zookeeper, tmp_path, balancer.address) for each in (1, 2))
    try:
        first.start()
        balancer.wait_serving(1)
        with zookeeper.session() as session:
            FrontRegistry(session).announce(Front(3, "nobody.invalid", 9093))
            wait_until(lambda: 3 in balancer.backends(), "the front that nobody can find is seen")
            second.start()
            balancer.wait_serving(1, 2)
            assert balancer.status()["problem"] is None
            wait_until(
                lambda: balancer.backends()[3].get("check", "") not in ("", "not checked yet"),
                "it has a cause",
            )
            assert not balancer.backends()[3]["is_up"]
            second.stop()
            wait_until(lambda: 2 not in balancer.backends(), "it is drained")
        assert "still sends connections" not in second.output(), "the balancer has let it go"
        assert "HAProxy answered" not in balancer.output(), "no command failed"
    finally:
        for broker in (first, second):
            broker.kill()
        balancer.stop()


@pytest.mark.parametrize("engine", ENGINES)
def test_a_name_that_no_host_can_have_ends_no_check(
    engine: str, zookeeper: ZooKeeperRoom, tmp_path: Path
) -> None:
    """Before, that broker was never looked at again, and no broker whose front was withdrawn since."""
    if engine == "haproxy" and shutil.which("haproxy", path="/usr/sbin:/usr/bin:/usr/local/sbin") is None:
        pytest.skip("haproxy is not installed")
    balancer = BalancerProcess(engine, zookeeper.hosts, tmp_path)
    try:
        with zookeeper.session() as session:
            fronts = FrontRegistry(session)
            held = [fronts.announce(Front(1, "no..body", 9093)), fronts.announce(Front(2, "127.0.0.1", 9))]
            wait_until(lambda: {1, 2} <= balancer.backends().keys(), "the fronts are seen")
            wait_until(lambda: "label empty" in balancer.backends()[1].get("check", ""), "the cause is shown")
            for each in held:
                each.release()
                time.sleep(1.5)
            wait_until(lambda: set(balancer.withdrawn().values()) == {"not running"}, "both are looked at")
    finally:
        balancer.stop()


def backends(*hosts: str) -> list[Backend]:
    return [Backend(number, (host, 9093), Phase.READY) for number, host in enumerate(hosts, 1)]


def test_a_name_keeps_its_address_until_it_means_another_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(names, "LOOK_UP_INTERVAL_S", 0.0)
    answer: list[str] = []

    def find(host: str) -> list[str]:
        if not answer:
            raise OSError("gone")
        return list(answer)

    async def addresses(kept: FrontNames) -> list[str]:
        for _ in range(5):
            found = await kept.resolved(backends("b", "10.0.0.9"))
            await asyncio.sleep(0.05)  # the thread of a lookup ends
        return [each.address[0] for each in found]

    async def looked() -> None:
        kept = FrontNames(find)
        assert await addresses(kept) == ["10.0.0.9"]
        for answer[:], expected in (
            (["10.0.0.1", "10.0.0.2"], "10.0.0.1"),
            (["10.0.0.2", "10.0.0.1"], "10.0.0.1"),
            ([], "10.0.0.1"),
            (["10.0.0.3"], "10.0.0.3"),
        ):
            assert await addresses(kept) == [expected, "10.0.0.9"]

    asyncio.run(looked())


def hang(host: str) -> list[str]:
    time.sleep(30)
    return []


def test_a_name_server_that_hangs_holds_up_nobody_whose_address_is_known() -> None:
    async def waited_s() -> tuple[float, float]:
        kept = FrontNames(hang)
        began_s = time.monotonic()
        assert len(await kept.resolved(backends("b", "c", "127.0.0.1"))) == 1
        first_s = time.monotonic() - began_s
        assert "b: no name server has answered" in kept.problem_of("b")
        await kept.resolved(backends("127.0.0.1"))
        return first_s, time.monotonic() - began_s - first_s

    unknown_s, known_s = asyncio.run(waited_s())
    assert unknown_s < names.LOOK_UP_WAIT_MAX_S + 1 and known_s < 0.5
