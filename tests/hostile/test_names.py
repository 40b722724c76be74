"""Names that strangers chose (topics, groups, clients, hosts, values of settings) reach no log, no terminal,
no HAProxy, no supervisord and no web page as anything but text.
"""

from __future__ import annotations

import asyncio
import io
import logging
import struct
import uuid
from collections.abc import Iterator
from configparser import ConfigParser
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kio.schema.metadata.v4.request import MetadataRequest, MetadataRequestTopic
from kio.schema.types import TopicName
from rich.console import Console

from fix_broker import BrokerCluster, RawClient
from headrace.agent.errors import SupervisorError
from headrace.agent.supervisor import Supervisor
from headrace.agent.unit import Unit
from headrace.balancer.errors import BalancerError
from headrace.balancer.haproxy import HaproxyEngine
from headrace.balancer.haproxy_config import HaproxySettings, config_text
from headrace.balancer.page import page
from headrace.cli import output
from headrace.process.logs import LineFormatter
from headrace.process.page import render
from headrace.process.text import escaped, has_control, is_host, is_wildcard

FORGED = "2026-11-22 12:00:00,000 INFO headrace.broker: all is well"
NAMES = [
    f"x\n{FORGED}",
    f"x\r{FORGED}",
    f"x\u2028{FORGED}",
    f"x\x85{FORGED}",
    "\x1b[2J\x1b]0;title\x07",
    "<script>alert(1)</script>",
    "\u202egpj.exe",
    "../../etc/passwd",
    "a b",
    "é",
    "a" * 250,
    "",
    ".",
    "..",
]


@pytest.fixture
def lines() -> Iterator[io.StringIO]:
    """What the logger "hostile" writes, formatted as every process formats it."""
    written = io.StringIO()
    handler = logging.StreamHandler(written)
    handler.setFormatter(LineFormatter("%(levelname)s %(name)s: %(message)s"))
    logger = logging.getLogger("hostile")
    logger.addHandler(handler)
    logger.propagate = False
    yield written
    logger.removeHandler(handler)


# --- text ---


@given(st.text())
def test_escaped_text_is_one_printable_line(text: str) -> None:
    line = escaped(text)
    assert not has_control(line)
    assert len(line.splitlines()) <= 1
    assert line == text or has_control(text)
    line.encode()


@pytest.mark.parametrize(
    "host", ["a", "127.1.0.11", "broker-1.example.com", "a_b", "::1", "fe80::1", "x" * 253]
)
def test_hosts(host: str) -> None:
    assert is_host(host)


@pytest.mark.parametrize(
    "host",
    [*NAMES[:6], "a b", "a;b", "a,b", "a#b", "a/b", "-x", "x-", "é", "x" * 254, "", "a\n", "a%b", "$a"],
)
def test_no_hosts(host: str) -> None:
    assert not is_host(host)


def test_hosts_that_stand_for_every_address() -> None:
    assert all(map(is_wildcard, ["0.0.0.0", "0", "0.0", "0x0", "::", "[::]", "0::0"]))
    assert not any(map(is_wildcard, ["127.0.0.1", "0.0.0.1", "::1", "a", "broker-0", "", "é", "a:b"]))


# --- logs and terminals ---


@pytest.mark.parametrize("name", NAMES)
def test_each_event_begins_one_line(lines: io.StringIO, name: str) -> None:
    logger = logging.getLogger("hostile")
    logger.warning("topic %s failed: %s", name, {"name": name})
    try:
        raise ValueError(name)
    except ValueError:
        logger.exception("client %s", name)
    logger.warning("here", stack_info=True)
    text = lines.getvalue()
    starts = [line for line in text.splitlines() if not line.startswith("    ")]
    assert [line.split(" ")[0] for line in starts] == ["WARNING", "ERROR", "WARNING"]
    assert not has_control(text.replace("\n", ""))


@pytest.mark.parametrize("name", ["\x1b[31mred", "[bold red]markup[/]", "a\nb", "[/]"])
def test_a_table_shows_names_as_they_are(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    written = io.StringIO()
    monkeypatch.setattr(output, "out", Console(file=written, width=200, force_terminal=False))
    output.print_table(["group"], [[output.plain(name)]], empty="none")
    output.out.print(f"[bold]{output.plain(name)}[/]")
    assert written.getvalue().count(escaped(name)) == 2
    assert not has_control(written.getvalue().replace("\n", ""))


# --- HAProxy, supervisord, web pages ---


@pytest.mark.parametrize(
    "command", ["show info\nshutdown sessions", "show info; disable server x", "a\rb", "\x00"]
)
def test_haproxy_is_sent_single_commands_alone(tmp_path: Path, command: str) -> None:
    settings = HaproxySettings(("127.0.0.1", 1), tmp_path / "socket", 10)
    engine = HaproxyEngine(tmp_path / "haproxy", settings, tmp_path)
    with pytest.raises(BalancerError, match="not one command"):
        asyncio.run(engine._send(command))


def test_haproxys_file_holds_odd_directories_as_words() -> None:
    text = config_text(HaproxySettings(("127.0.0.1", 1), Path("/a b/#c/$d"), 10), [])
    assert "    stats socket /a\\ b/\\#c/\\$d mode 600 level admin expose-fd listeners\n" in text
    with pytest.raises(BalancerError, match="use another one"):
        config_text(HaproxySettings(("127.0.0.1", 1), Path("/a\n    stats socket /b level admin"), 10), [])


def unit(home: Path, value: str) -> Unit:
    return Unit(
        name="broker-1",
        kind="broker",
        command=("/bin/echo", value),
        environment={"VALUE": value},
        log_path=home / "log",
        datacenter="east",
        listens=(),
        probe=cast(Any, None),
        requires=(),
        configuration=cast(Any, None),
        version="1",
    )


@pytest.mark.parametrize(
    "value", ["x\n[program:evil]\ncommand=id", "x\r[program:evil]", "x\x85y", "x\u2028y"]
)
def test_supervisord_gets_no_second_program(tmp_path: Path, value: str) -> None:
    with pytest.raises(SupervisorError, match="control characters"):
        Supervisor(tmp_path).write_configuration([unit(tmp_path, value)])


@pytest.mark.parametrize(
    "value", ["100%", "%(ENV_HOME)s", "a ; b # c", "it's", 'say "x"', "a=b", "[program:evil]"]
)
def test_supervisord_gets_values_as_they_are(tmp_path: Path, value: str) -> None:
    supervisor = Supervisor(tmp_path)
    supervisor.write_configuration([unit(tmp_path, value)])
    parser = ConfigParser(interpolation=None, inline_comment_prefixes=None)
    parser.read(supervisor.configuration_path)
    assert [each for each in parser.sections() if each.startswith("program:")] == ["program:broker-1"]
    assert value.replace("%", "%%") in parser["program:broker-1"]["environment"]


def test_the_balancers_page_escapes() -> None:
    evil = "<script>alert(1)</script>"
    backend = dict.fromkeys(("broker_id", "address", "phase", "check"), evil) | {"is_up": False}
    html = render(
        page({"listen": evil, "why": evil, "problem": evil, "backends": [backend], "withdrawn": []}), 0
    ).decode()
    assert "<script" not in html
    assert html.count("&lt;script&gt;") == 8


# --- topics ---


@pytest.fixture
def client(one_broker: BrokerCluster) -> Iterator[RawClient]:
    with RawClient(one_broker.bootstrap) as made:
        yield made


def metadata(client: RawClient, *names: str) -> dict[str, str]:
    """Asks as anybody may; an unknown topic is made."""
    response = client.call(
        MetadataRequest(
            topics=tuple(MetadataRequestTopic(name=TopicName(name)) for name in names),
            allow_auto_topic_creation=True,
        )
    )
    return {each.name: each.error_code.name for each in response.topics}


def test_no_odd_topic_is_made(client: RawClient, one_broker: BrokerCluster) -> None:
    before = one_broker[1].output().count("\n")
    assert set(metadata(client, *NAMES).values()) == {"invalid_topic_exception"}
    data_dir = one_broker[1].data_dir
    assert all(not has_control(path.name) and "<" not in path.name for path in data_dir.iterdir())
    assert FORGED not in one_broker[1].output().splitlines()[before:]


def test_a_topic_that_collides_with_another_is_not_made(client: RawClient) -> None:
    name = f"a.{uuid.uuid4().hex[:8]}"
    client.create_topic(name)
    other = name.replace(".", "_")
    with pytest.raises(AssertionError, match=r"invalid_topic_exception.*collides with topic 'a\."):
        client.create_topic(other)
    assert metadata(client, other) == {other: "unknown_topic_or_partition"}
    assert metadata(client, name) == {name: "none"}


def test_a_client_s_name_forges_no_line(client: RawClient, one_broker: BrokerCluster) -> None:
    """Produce with acks=0 for an unknown partition, and an unknown API: both are logged."""
    for name in NAMES[:5]:
        text = name.encode()
        with RawClient(one_broker.bootstrap) as other:
            frame = struct.pack(">hhih", 99, 0, 1, len(text)) + text
            other.send(struct.pack(">i", len(frame)) + frame)
            with pytest.raises(EOFError):
                other.receive()
    assert not has_control(one_broker[1].output().replace("\n", ""))
    assert FORGED not in one_broker[1].output().splitlines()
