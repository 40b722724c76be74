"""The peers' settings, Java sets and client commands: what they are made of, without starting any of them."""

from __future__ import annotations

import hashlib
import re
import socket
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest
from clients.peers import Run, amqp_consume, amqp_produce, jms_consume, jms_produce, stream_produce
from peers.activemq import ActiveMq
from peers.headrace_broker import HeadraceBroker
from peers.jars import SOURCES, bench_set
from peers.kafka import ApacheKafka, Node, server_properties
from peers.peer import KafkaPeer, Peer, PeerMissingError
from peers.rabbitmq import (
    RabbitMq,
    ensure_rabbitmq,
    environment,
    installed_version,
    rabbitmq_conf,
)
from peers.topics import partition_folders
from peers.waiting import check_port_free, wait_until
from side_by_side.process import PinnedProcess, ProcessFailedError

from headrace.warehouse.jars import JarsError, JarSet, ensure_set, pom

ADDRESS = "127.106.9.9"
HOME = Path("/does/not/exist/headrace-bench")


def settings_of(text: str) -> dict[str, str]:
    pairs = [re.split(r" ?= ?", line, maxsplit=1) for line in text.splitlines()]
    assert len({name for name, _ in pairs}) == len(pairs), "a setting is given twice"
    return dict(pairs)


# --- what the brokers are told ---


def test_kafka_flushes_each_message_only_with_fsync() -> None:
    plain = settings_of(server_properties(Node(ADDRESS), HOME, fsync=False))
    fsync = settings_of(server_properties(Node(ADDRESS), HOME, fsync=True))
    assert fsync == {**plain, "log.flush.interval.messages": "1"}
    assert not [name for name in plain if name.startswith("log.flush")]


def test_kafka_listens_on_its_own_address_only() -> None:
    settings = settings_of(server_properties(Node(ADDRESS), HOME, fsync=False))
    hosts = re.findall(r"//([^:,]+):", settings["listeners"] + "," + settings["advertised.listeners"])
    assert len(hosts) == 3 and set(hosts) == {ADDRESS}
    assert settings["log.dirs"] == str(HOME)


def test_a_single_kafka_node_needs_one_replica_of_its_own_topics() -> None:
    settings = settings_of(server_properties(Node(ADDRESS), HOME, fsync=False))
    factors = {name: value for name, value in settings.items() if "replication.factor" in name}
    assert len(factors) == 3 and set(factors.values()) == {"1"}


def test_nodes_of_one_kafka_cluster_know_one_another_and_share_no_port() -> None:
    nodes = [
        settings_of(server_properties(Node(ADDRESS, number, 3), HOME, fsync=False)) for number in (1, 2, 3)
    ]
    assert len({node["controller.quorum.voters"] for node in nodes}) == 1
    voters = dict(voter.split("@") for voter in nodes[0]["controller.quorum.voters"].split(","))
    ports = [found for node in nodes for found in re.findall(r":(\d+)", node["listeners"])]
    assert len(set(ports)) == 6
    for node in nodes:
        assert f"CONTROLLER://{voters[node['node.id']]}" in node["listeners"]


def test_rabbitmq_listens_on_its_own_address_only() -> None:
    settings = settings_of(rabbitmq_conf(ADDRESS))
    listeners = [value for name, value in settings.items() if "listeners" in name]
    assert len(listeners) == 2
    assert all(listener.startswith(f"{ADDRESS}:") for listener in listeners)
    assert "inet_dist_use_interface {127,106,9,9}" in environment(HOME, ADDRESS)["ERL_AFLAGS"]


def test_no_erlang_of_rabbitmq_starts_the_port_mapper() -> None:
    assert "-start_epmd false" in environment(HOME, ADDRESS)["ERL_AFLAGS"]


def test_rabbitmq_keeps_all_its_files_below_its_home() -> None:
    paths = {name: value for name, value in environment(HOME, ADDRESS).items() if "/" in value}
    assert {"HOME", "RABBITMQ_MNESIA_BASE", "RABBITMQ_LOG_BASE", "RABBITMQ_CONFIG_FILE"} <= paths.keys()
    assert all(Path(path).is_relative_to(HOME) for path in paths.values())


# --- the installation of RabbitMQ ---


def test_without_root_a_missing_rabbitmq_is_named_with_its_package(tmp_path: Path) -> None:
    with pytest.raises(PeerMissingError, match=r"install rabbitmq-server .*its rows are skipped"):
        ensure_rabbitmq(tmp_path / "rabbitmq-server", is_root=False)


@pytest.fixture
def fake_apt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An `apt-get` that makes RabbitMQ's program, and notes whether services may start meanwhile."""
    folder = tmp_path / "path"
    folder.mkdir()
    apt = folder / "apt-get"
    apt.write_text(
        "#!/bin/sh\n"
        f"{tmp_path}/policy-rc.d; echo $1 $? >>{tmp_path}/seen\n"
        f'if [ "$1" = install ]; then : >{tmp_path}/rabbitmq-server; fi\n'
    )
    apt.chmod(0o755)
    monkeypatch.setenv("PATH", str(folder))
    return tmp_path


def test_a_missing_rabbitmq_is_installed_while_no_service_may_start(fake_apt: Path) -> None:
    ensure_rabbitmq(fake_apt / "rabbitmq-server", is_root=True, policy=fake_apt / "policy-rc.d")
    assert (fake_apt / "seen").read_text().splitlines() == ["update 101", "install 101"]
    assert not (fake_apt / "policy-rc.d").exists()


def test_the_machines_own_policy_for_services_stays(fake_apt: Path) -> None:
    policy = fake_apt / "policy-rc.d"
    policy.write_text("#!/bin/sh\nexit 7\n")
    policy.chmod(0o755)
    ensure_rabbitmq(fake_apt / "rabbitmq-server", is_root=True, policy=policy)
    assert (fake_apt / "seen").read_text().splitlines() == ["update 7", "install 7"]
    assert "exit 7" in policy.read_text()


def test_a_failed_installation_shows_the_reason_and_leaves_no_policy(fake_apt: Path) -> None:
    (fake_apt / "path" / "apt-get").write_text("#!/bin/sh\necho E: no network >&2\nexit 100\n")
    with pytest.raises(PeerMissingError, match=r"apt-get update -qq failed \(E: no network\)"):
        ensure_rabbitmq(fake_apt / "rabbitmq-server", is_root=True, policy=fake_apt / "policy-rc.d")
    assert not (fake_apt / "policy-rc.d").exists()


def test_an_installed_rabbitmq_is_left_as_it_is(tmp_path: Path) -> None:
    program = tmp_path / "bin" / "rabbitmq-server"
    program.parent.mkdir()
    program.touch()
    (tmp_path / "lib" / "rabbitmq_server-3.10.8").mkdir(parents=True)
    ensure_rabbitmq(program, is_root=False)
    assert installed_version(program) == "3.10.8"


def test_the_version_of_a_missing_rabbitmq_is_unknown(tmp_path: Path) -> None:
    assert installed_version(tmp_path / "bin" / "rabbitmq-server") == "unknown"


# --- peers that are not started ---


def peers(home: Path) -> list[Peer]:
    return [
        ApacheKafka(home / "kafka", ADDRESS, [0]),
        HeadraceBroker(home / "headrace", ADDRESS, [0]),
        ActiveMq(home / "activemq", ADDRESS, [0]),
        RabbitMq(home / "rabbitmq", ADDRESS, [0]),
    ]


def test_a_peer_can_be_stopped_twice_without_a_start(tmp_path: Path) -> None:
    for peer in peers(tmp_path / "home"):
        peer.stop()
        peer.stop()
        with pytest.raises(ProcessFailedError, match="is not started"):
            peer.pids()
    assert not list(tmp_path.iterdir())


def test_each_peer_has_a_name_of_its_own(tmp_path: Path) -> None:
    named = [peer.name for peer in peers(tmp_path)]
    named += [
        ApacheKafka(tmp_path, ADDRESS, [0], fsync=True).name,
        HeadraceBroker(tmp_path, ADDRESS, [0, 1], 3).name,
    ]
    assert len(set(named)) == len(named)


def test_several_brokers_have_ports_of_their_own(tmp_path: Path) -> None:
    peer: KafkaPeer = HeadraceBroker(tmp_path, ADDRESS, [0, 1], 3)
    addresses = peer.bootstrap.split(",")
    assert len(set(addresses)) == 3
    assert all(address.startswith(f"{ADDRESS}:") for address in addresses)


# --- waiting ---


def test_a_taken_port_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with pytest.raises(ProcessFailedError, match=f"127.0.0.1:{port} is taken"):
            check_port_free("127.0.0.1", port)
    check_port_free("127.0.0.1", port)


def test_waiting_ends_with_the_process_and_shows_its_log(tmp_path: Path) -> None:
    process = PinnedProcess(["sh", "-c", "echo no disk; exit 3"], cores=[0], log=tmp_path / "log")
    try:
        with pytest.raises(ProcessFailedError, match=r"ended with 3.*no disk"):
            wait_until(lambda: False, "it serves", process, wait_max_s=30)
    finally:
        process.kill()


def test_waiting_has_an_end() -> None:
    with pytest.raises(ProcessFailedError, match="it serves: not within 0 s"):
        wait_until(lambda: False, "it serves", wait_max_s=0)


# --- topics ---


def test_a_topics_folders_are_found_after_they_were_renamed(tmp_path: Path) -> None:
    for name in ("t-0", "t-1", "t-1-0", "u-0"):
        (tmp_path / name).mkdir()
    folders = partition_folders([tmp_path], "t")
    assert len(folders) == 2
    (tmp_path / "t-0").rename(tmp_path / "t-0.5f1c-delete")
    (tmp_path / "t-1").rmdir()
    assert len(folders & partition_folders([tmp_path])) == 1
    (tmp_path / "t-0.5f1c-delete").rmdir()
    assert not folders & partition_folders([tmp_path])


def test_a_data_folder_that_is_not_there_holds_no_topics(tmp_path: Path) -> None:
    assert partition_folders([tmp_path / "missing"], "t") == set()


# --- the Java sets ---


@pytest.mark.parametrize("name", SOURCES)
def test_every_set_has_a_pom_with_fixed_versions_and_its_sources(name: str) -> None:
    wanted = bench_set(name)
    versions = [
        element.text or ""
        for element in ElementTree.parse(wanted.pom).iter()
        if element.tag.endswith("version")
    ]
    assert len(versions) > 2
    assert not [version for version in versions if not re.fullmatch(r"[0-9.]+", version)]
    assert not [path for path in wanted.sources if not path.is_file()]


def test_the_java_programs_are_all_in_a_set() -> None:
    bench = Path(__file__).parents[2] / "bench"
    compiled = {path for sources in SOURCES.values() for path in sources}
    assert compiled >= {*(bench / "peers" / "java").glob("*.java")}


def test_the_digest_covers_the_pom_and_the_sources(tmp_path: Path) -> None:
    pom_file, source = tmp_path / "x.xml", tmp_path / "X.java"
    pom_file.write_text("<project/>")
    source.write_text("class X {}")
    alone, both = JarSet("x", pom_file), JarSet("x", pom_file, (source,))
    assert alone.digest == hashlib.sha256(b"<project/>").hexdigest()
    assert both.digest == hashlib.sha256(b"<project/>class X {}").hexdigest()


def test_a_complete_set_is_used_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without any program on the path nothing could be fetched."""
    monkeypatch.setenv("PATH", "")
    wanted = JarSet("x", pom("zookeeper"))
    folder = tmp_path / "jars" / "x"
    folder.mkdir(parents=True)
    (folder / ".complete").write_text(wanted.digest)
    assert ensure_set(wanted, home=tmp_path) == folder
    (folder / ".complete").write_text("of another pom")
    with pytest.raises(JarsError, match="'mvn' is missing"):
        ensure_set(wanted, home=tmp_path, progress=lambda line: None)


# --- client commands ---


@pytest.fixture
def with_jars(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("clients.peers.bench_jars", lambda name: HOME / name)
    monkeypatch.setattr("clients.peers.java", lambda: "java")


def options_of(command: list[str]) -> dict[str, str]:
    words = command[next(number for number, word in enumerate(command) if word.startswith("--")) :]
    return dict(zip(words[::2], words[1::2], strict=True))


@pytest.mark.usefixtures("with_jars")
def test_each_client_is_told_its_run_and_its_broker(tmp_path: Path) -> None:
    rabbit, active = RabbitMq(tmp_path, ADDRESS, [0]), ActiveMq(tmp_path, ADDRESS, [0])
    run = Run(10, 2.5, value_bytes=100, records=7)
    common = {"--seconds": "10", "--warmup": "2.5", "--value-bytes": "100", "--records": "7"}
    amqp = {**common, "--url": rabbit.amqp_url, "--queue": "q"}
    assert options_of(amqp_produce(rabbit, "q", run, outstanding=5).command) == {**amqp, "--outstanding": "5"}
    assert options_of(amqp_consume(rabbit, "q", run, prefetch=9).command) == {**amqp, "--prefetch": "9"}
    stream = options_of(stream_produce(rabbit, "s", run, batch=3).command)
    assert (stream["--stream"], stream["--host"], stream["--batch"]) == ("s", ADDRESS, "3")
    jms = options_of(jms_produce(active, "q", run, acks="transaction", batch=50).command)
    assert (jms["--url"], jms["--acks"], jms["--batch"]) == (active.url, "transaction", "50")


def test_a_run_without_an_end_is_refused() -> None:
    assert Run(0, 0, records=5).options()["records"] == 5
    with pytest.raises(ValueError, match="needs an end: give seconds or records"):
        Run(0, 0)


@pytest.mark.usefixtures("with_jars")
@pytest.mark.parametrize("prefetch", [0, 301])
def test_a_prefetch_at_which_activemq_stops_is_refused(tmp_path: Path, prefetch: int) -> None:
    with pytest.raises(ValueError, match=f"prefetch {prefetch}: give 1 to 300"):
        jms_consume(ActiveMq(tmp_path, ADDRESS, [0]), "q", Run(1, 1), prefetch=prefetch)
