"""What a broker may be started with: an address that clients can connect to."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from fix_broker import BrokerProcess
from fix_ports import free_port
from fix_zookeeper import ZooKeeperRoom
from headrace.broker.options import BrokerOptions
from headrace.broker.settings.setting import ConfigError
from headrace.coordination.fronts import Front, FrontRegistry


def options(**given: Any) -> BrokerOptions:
    values = {"listen": ("127.0.0.1", 9092), **given}
    return BrokerOptions(1, "east", zookeeper="127.0.0.1:2181", data_dir=Path("/none"), **values)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"listen": ("0.0.0.0", 9092)}, "--listen 0.0.0.0:9092 .* give --advertise HOST:PORT"),
        ({"listen": ("::", 9092)}, "--listen :::9092"),
        ({"advertise": ("0.0.0.0", 9092)}, "--advertise 0.0.0.0:9092"),
        ({"front_listen": ("0.0.0.0", 9093)}, "--front-listen .* give --front-advertise HOST:PORT"),
        (
            {"front_listen": ("127.0.0.1", 9093), "front_advertise": ("0", 1)},
            "--front-advertise 0:1 .* give --front-advertise",
        ),
    ],
)
def test_an_address_that_nobody_can_connect_to_is_not_shown_to_clients(
    given: dict[str, Any], words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        options(**given)


def test_all_addresses_are_listened_on_and_one_is_shown() -> None:
    """As in a container; a balancer reaches the front where clients reach the broker."""
    seen = ("broker-1", 9092)
    made = options(
        listen=("0.0.0.0", 9092), advertise=seen, front_listen=("0.0.0.0", 0), front_advertise=("lb", 9092)
    )
    assert made.front_address(("0.0.0.0", 34567)) == ("broker-1", 34567)
    assert made.front_address(("127.0.0.9", 34567)) == ("127.0.0.9", 34567)


def test_a_front_on_all_addresses_is_reached_where_clients_are(
    zookeeper: ZooKeeperRoom, tmp_path: Path
) -> None:
    """Before, its address in ZooKeeper was 0.0.0.0: a balancer on another host looked for it on its own."""
    broker, port = BrokerProcess(1, tmp_path, zookeeper.hosts, "test", {}), free_port()
    broker.extra_arguments = ["--front-listen", f"0.0.0.0:{port}", "--front-advertise", "127.0.0.1:9092"]
    try:
        broker.start()
        with zookeeper.session() as session:
            assert FrontRegistry(session).live() == [Front(1, "127.0.0.1", port)]
    finally:
        broker.kill()


def test_a_page_whose_address_is_taken_is_named(zookeeper: ZooKeeperRoom, tmp_path: Path) -> None:
    """Before, only `Address already in use` was said, of three addresses that a broker has."""
    common = ["--listen", f"127.0.0.1:{free_port()}", "--zookeeper", zookeeper.hosts]
    with socket.create_server(("127.0.0.1", 0)) as taken:
        status = f"127.0.0.1:{taken.getsockname()[1]}"
        for module, options in (
            ("headrace.broker", ["--broker-id", "1", "--datacenter", "east", "--data-dir", str(tmp_path)]),
            ("headrace.balancer", ["--directory", str(tmp_path), "--engine", "embedded"]),
        ):
            command = [sys.executable, "-m", module, *common, *options, "--status", status]
            done = subprocess.run(command, capture_output=True, text=True, timeout=60)
            assert done.returncode == 1
            problem = f"cannot serve its status on {status}: Address already in use"
            assert done.stderr.endswith(f": {problem}; is another process there?\n")


def test_a_name_to_listen_on_that_no_host_has_is_named(tmp_path: Path) -> None:
    """Before: `Unknown error -2; is another process there?`"""
    command = [sys.executable, "-m", "headrace.broker", "--broker-id", "1", "--datacenter", "east"]
    command += ["--listen", "nobody.invalid:9092", "--zookeeper", "127.0.0.1:1", "--data-dir", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert done.stderr == (
        "broker 1: cannot listen on nobody.invalid:9092: this machine has no such address, or no name server "
        "knows the name\n"
    )


def test_the_command_says_what_to_give() -> None:
    command = [sys.executable, "-m", "headrace.broker", "--broker-id", "1", "--datacenter", "east"]
    command += ["--listen", "0.0.0.0:9092", "--zookeeper", "127.0.0.1:1", "--data-dir", "/none"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert done.stderr == (
        "broker 1: --listen 0.0.0.0:9092 means every address of this machine; clients can't connect to that: "
        "give --advertise HOST:PORT, the address that they are to see\n"
    )
