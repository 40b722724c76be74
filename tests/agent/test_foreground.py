"""One unit in place of a process: the options of each kind, refused values, where ZooKeeper's jars are."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from headrace.agent import foreground
from headrace.agent.configuration import (
    AuditorConfiguration,
    BrokerConfiguration,
    HdfsConfiguration,
    ZooKeeperConfiguration,
)
from headrace.agent.errors import ConfigurationError
from headrace.agent.host import Host, zookeeper_jars
from headrace.agent.kinds import KINDS, unit_of
from headrace.site.addresses import Address
from headrace.site.errors import SiteError
from headrace.warehouse.jars import pom


@pytest.fixture(autouse=True)
def no_datacenter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(foreground.DATACENTER_VARIABLE, raising=False)


def test_options_are_the_fields_of_the_configuration() -> None:
    words = "broker --datacenter east --broker-id 7 --zookeeper 127.1.0.2:2181 --listen 0.0.0.0:9092"
    words += " --advertise broker-7:9092 --set num.partitions=3 --set log.dirs=a=b"
    assert foreground.parse(words.split()) == (
        "broker",
        BrokerConfiguration(
            datacenter="east",
            broker_id=7,
            zookeeper="127.1.0.2:2181",
            listen=Address("0.0.0.0", 9092),
            advertise=Address("broker-7", 9092),
            settings={"num.partitions": "3", "log.dirs": "a=b"},
        ),
    )
    words = "auditor --name count --datacenter east --bootstrap 127.1.0.11:9092,127.1.0.12:9092"
    words += " --registry-urls http://127.1.0.3:8081 --status 127.1.0.4:8082 --keep-days 1.5"
    name, configuration = foreground.parse(words.split())
    assert name == "count"
    assert isinstance(configuration, AuditorConfiguration)
    assert configuration.bootstrap == (Address("127.1.0.11", 9092), Address("127.1.0.12", 9092))
    assert (configuration.registry_urls, configuration.keep_days) == (("http://127.1.0.3:8081",), 1.5)
    assert foreground.parse(["hdfs", "--datacenter", "east", "--rpc-port", "1234"])[1] == HdfsConfiguration(
        datacenter="east", rpc_port=1234
    )


def test_the_datacenter_may_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(foreground.DATACENTER_VARIABLE, "west")
    assert foreground.parse(["zookeeper"]) == ("zookeeper", ZooKeeperConfiguration(datacenter="west"))


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_has_its_usage(kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        foreground.parse([kind, "--help"])
    assert ended.value.code == 0
    shown = capsys.readouterr().out
    for name in KINDS[kind].configuration.model_fields:
        if name not in ("kind", "requires", "connections", "settings"):
            assert f"--{name.replace('_', '-')} " in shown


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ("", "KIND"),
        ("spark", "invalid choice: 'spark'"),
        ("zookeeper", "--datacenter"),
        ("broker --datacenter east --broker-id 1", "--zookeeper"),
        ("broker --datacenter east --broker-id 1 --zookeeper z:1 --set x", "NAME=VALUE, not 'x'"),
        ("zookeeper --datacenter east --name ../x", "'../x' is not a unit name"),
    ],
)
def test_wrong_options_are_refused_with_the_usage(
    words: str, reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        foreground.parse(words.split())
    assert ended.value.code == 2
    assert reason in capsys.readouterr().err


def test_wrong_values_are_named() -> None:
    with pytest.raises(ConfigurationError, match=r"broker_id: 'x': .*integer.*listen: 'here': expected HOST"):
        foreground.parse(
            ["broker", "--datacenter", "east", "--broker-id", "x", "--zookeeper", "z:1", "--listen", "here"]
        )


def run(home: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "headrace.agent.foreground", *words]
    environment = {**os.environ, "HEADRACE_HOME": str(home), "JAVA_HOME": "/nowhere"}
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def test_problems_are_one_line_and_health_fails(tmp_path: Path) -> None:
    done = run(tmp_path, "--health")
    assert (done.returncode, done.stderr) == (1, "")
    assert done.stdout == f"neither a unit nor an agent was started in the foreground in {tmp_path}\n"
    done = run(tmp_path, *["zookeeper", "--datacenter", "east", "--listen", "127.0.0.1:1"])
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == (
        "headrace: /nowhere/bin/java, which unit zookeeper needs, cannot be run: No such file or directory\n"
    )
    done = run(tmp_path, "--health")
    assert (done.returncode, done.stdout) == (1, "127.0.0.1:1 connection refused\n")
    (tmp_path / "file").touch()
    done = run(tmp_path / "file", *["zookeeper", "--datacenter", "east"])
    assert done.returncode == 1
    assert re.fullmatch(r"headrace: .*/file/\S* cannot be written \(Not a directory\); .*\n", done.stderr)


def test_without_pyspark_the_fetched_zookeeper_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    of_pyspark = zookeeper_jars(tmp_path)
    assert of_pyspark is not None and of_pyspark.parts[-2:] == ("pyspark", "jars")
    (server,) = of_pyspark.glob("zookeeper-[0-9]*.jar")
    version = server.stem.removeprefix("zookeeper-")
    assert f"<version>{version}</version>" in pom("zookeeper").read_text(), "both are the same version"
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    configuration = ZooKeeperConfiguration(datacenter="east")
    with pytest.raises(SiteError, match=r"needs ZooKeeper's jars.*headrace\.warehouse\.jars zookeeper"):
        unit_of("zookeeper", configuration, Host.here(tmp_path))
    fetched = tmp_path / "jars" / "zookeeper"
    fetched.mkdir(parents=True)
    assert f"{fetched}/*" in unit_of("zookeeper", configuration, Host.here(tmp_path)).command
