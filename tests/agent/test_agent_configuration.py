"""Configurations and their units, drift, reports, desired units, the token: without an agent."""

from __future__ import annotations

import configparser
import json
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.agent.access import Role, Tokens
from headrace.agent.airflow_environment import AIRFLOW_PROBE_TIMEOUT_S
from headrace.agent.configuration import Configuration, parse_address
from headrace.agent.desired import DesiredState, DesiredUnit
from headrace.agent.errors import AgentStateError, ConfigurationError
from headrace.agent.host import Host
from headrace.agent.kinds import KINDS, parse_configuration, unit_of
from headrace.agent.report import (
    ChangeOutcome,
    Drift,
    DriftKind,
    UnitReport,
    drift_of,
    outcome_of,
    report_of,
)
from headrace.agent.supervisor import Supervisor
from headrace.agent.tokens import is_authorized, make_token, read_token
from headrace.agent.unit import UnitState
from headrace.fleet.units import configurations_of, units_of
from headrace.site.site import Site

HOME = Path("/srv/headrace")
HOST = Host(HOME, "/usr/bin/python3", "java", Path("/jars"), Path("/af/bin/python"), Path("/dags"))

SMALLEST: dict[str, dict[str, Any]] = {
    "zookeeper": {},
    "broker": {"broker_id": 1, "zookeeper": "127.1.0.2:2181"},
    "balancer": {"zookeeper": "127.1.0.2:2181"},
    "registry": {"zookeeper": "127.1.0.2:2181/chroot"},
    "mirror": {
        "source": "west",
        "source_bootstrap": ["127.2.0.11:9092"],
        "target_bootstrap": ["127.9.0.11:9092", "127.9.0.12:9092"],
        "target_zookeeper": "127.9.0.2:2181",
        "status": "127.9.0.21:8083",
    },
    "auditor": {
        "bootstrap": ["127.1.0.11:9092"],
        "registry_urls": ["http://127.1.0.3:8081"],
        "status": "127.1.0.4:8082",
    },
    "hdfs": {},
    "postgresql": {},
    "airflow": {"component": "scheduler"},
}


def smallest(kind: str, **more: Any) -> dict[str, Any]:
    return {"kind": kind, "datacenter": "east", **SMALLEST[kind], **more}


def test_every_kind_has_an_example_here() -> None:
    assert set(SMALLEST) == set(KINDS)


@pytest.mark.parametrize("kind", SMALLEST)
def test_a_configuration_survives_json_and_makes_the_same_unit(kind: str) -> None:
    parsed = parse_configuration("unit", smallest(kind))
    again = parse_configuration("unit", json.loads(json.dumps(parsed.model_dump(mode="json"))))
    assert again == parsed
    unit = unit_of("unit", parsed, HOST)
    assert unit == unit_of("unit", again, HOST)
    assert (unit.name, unit.kind, unit.datacenter) == ("unit", kind, "east")


def test_the_units_of_a_site_are_those_of_their_configurations() -> None:
    site = Site.one_machine(HOME)
    host = Host.here(HOME)
    sent = {name: json.loads(each.model_dump_json()) for name, each in configurations_of(site).items()}
    received = {name: unit_of(name, parse_configuration(name, data), host) for name, data in sent.items()}
    assert received == {unit.name: unit for unit in units_of(site)}


@pytest.mark.parametrize("kind", SMALLEST)
@pytest.mark.parametrize("field", ["user", "command", "enviroment"])
def test_an_unknown_field_is_named(kind: str, field: str) -> None:
    with pytest.raises(
        ConfigurationError, match=f"unit unit: {field}: 'x': not a field of this kind.*; it has"
    ):
        parse_configuration("unit", smallest(kind, **{field: "x"}))


@pytest.mark.parametrize(
    ("kind", "field", "value", "words"),
    [
        ("zookeeper", "listen", "127.1.0.2", "'127.1.0.2': expected HOST:PORT"),
        ("zookeeper", "listen", "127.1.0.2:65536", "with a port from 1 to 65535"),
        ("zookeeper", "data_dir", "data", "expected an absolute path"),
        ("zookeeper", "data_dir", "/data\nclientPort=1", "none of them a control character"),
        ("zookeeper", "heap_mib_max", 1, "greater than or equal to 32"),
        ("broker", "broker_id", -1, "greater than or equal to 0"),
        ("broker", "zookeeper", "nonsense", "zookeeper: 'nonsense'"),
        ("broker", "settings", {"a\nb": "c"}, "settings.a\nb"),
        ("broker", "settings", {"a": "c\n[program:x]"}, "settings.a"),
        ("broker", "settings", {"a": "c\u2028[program:x]"}, "settings.a: 'c\\u2028[program:x]'"),
        ("broker", "rack", "r\nb", "rack: 'r\\nb'"),
        ("zookeeper", "data_dir", "/data\x85x", "none of them a control character"),
        ("broker", "front_listen", "127.1.0.11:9093", "front_listen and front_advertise go together"),
        ("registry", "datacenter", "East", "datacenter: 'East'"),
        ("mirror", "topics", "(", "not a regular expression"),
        ("mirror", "source_bootstrap", [], "source_bootstrap"),
        ("auditor", "store", "--help", "store: '--help'"),
        ("auditor", "registry_urls", ["ftp://x"], "registry_urls.0: 'ftp://x'"),
        ("hdfs", "http_port", 0, "http_port: 0"),
        ("airflow", "connections", {"a": {}}, "set up by the api-server alone"),
        ("airflow", "component", "webserver", "component: 'webserver'"),
        ("airflow", "postgresql", "../x", "postgresql: '../x'"),
        ("postgresql", "data_dir", "pg", "expected an absolute path"),
        ("airflow", "requires", ["Not A Name"], "requires.0: 'Not A Name'"),
    ],
)
def test_a_wrong_value_is_named_with_its_field(kind: str, field: str, value: object, words: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        parse_configuration("unit", smallest(kind, **{field: value}))
    assert words in str(caught.value)
    assert "unit unit: " in str(caught.value)


def test_airflow_has_one_database_whose_socket_needs_no_password() -> None:
    both = smallest("airflow", database_url="postgresql://x/y", postgresql="pg")
    with pytest.raises(ConfigurationError, match="two databases: give one of them"):
        parse_configuration("unit", both)
    server = unit_of("pg", parse_configuration("pg", smallest("postgresql")), HOST)
    client = unit_of("unit", parse_configuration("unit", smallest("airflow", postgresql="pg")), HOST)
    assert (server.stop_signal, server.listens) == ("INT", ())
    folder = server.command[server.command.index("--socket-folder") + 1]
    assert client.command[-2:] == ("--database-url", f"postgresql+psycopg2://airflow@/airflow?host={folder}")
    assert HOST.secret("unit") not in client.files


@pytest.mark.parametrize("data", [None, [], "zookeeper", {}, {"kind": "shell"}, {"kind": ["zookeeper"]}])
def test_an_unknown_kind_is_refused_with_the_known_ones(data: object) -> None:
    with pytest.raises(
        ConfigurationError, match="not a kind of unit; the kinds are airflow, auditor, balancer"
    ):
        parse_configuration("unit", data)


@given(st.text())
def test_an_address_is_parsed_as_written_or_refused(text: str) -> None:
    try:
        address = parse_address(text)
    except ValueError:
        return
    assert parse_address(str(address)) == address
    assert text.isprintable()
    assert " " not in text


@given(value=st.text(max_size=40), position=st.integers(0, 40))
def test_no_control_character_reaches_a_command(value: str, position: int) -> None:
    for control in ("\n", "\0", "\x7f", "\x85", "\u2028", "\u2029", "\u202e"):
        text = value[:position] + control + value[position:]
        with pytest.raises(ConfigurationError):
            parse_configuration("unit", smallest("broker", settings={"name": text}))


PRINTABLE = st.text(st.characters(exclude_categories=("C", "Zl", "Zp")), max_size=30)


@given(
    st.lists(PRINTABLE | st.sampled_from([" ;", " #", "it's #1", "100%", "%(here)s", '"', "\\", "a ; b # c"]))
)
def test_supervisord_parses_every_command_correctly(words: list[str]) -> None:
    unit = unit_of("unit", parse_configuration("unit", smallest("hdfs")), HOST)
    unit = replace(unit, command=("python", *words))
    # As supervisord parses its file, including comments within lines.
    parser = configparser.RawConfigParser(inline_comment_prefixes=(";", "#"), strict=False)
    parser.read_string(Supervisor(HOME)._configuration([unit]))
    expanded = parser.get("program:unit", "command") % {"here": "elsewhere"}
    assert tuple(shlex.split(expanded)) == unit.command


@pytest.mark.parametrize(
    ("kind", "change"),
    [
        ("zookeeper", {"listen": "127.1.0.2:2182"}),
        ("zookeeper", {"heap_mib_max": 64}),
        ("broker", {"settings": {"num.partitions": "2"}}),
        ("broker", {"rack": "r1"}),
        ("airflow", {"database_url": "postgresql://x"}),
    ],
)
def test_a_unit_whose_process_changes_has_another_definition(kind: str, change: dict[str, Any]) -> None:
    before = unit_of("unit", parse_configuration("unit", smallest(kind)), HOST)
    after = unit_of("unit", parse_configuration("unit", smallest(kind, **change)), HOST)
    assert before.definition != after.definition
    newer = replace(HOST, versions={kind: "next"})
    assert before.definition != unit_of("unit", parse_configuration("unit", smallest(kind)), newer).definition


@pytest.mark.parametrize(
    ("kind", "field", "value"),
    [
        ("broker", "settings", {"num.partitions": "2", "flush.ms": "9"}),
        ("hdfs", "settings", {"dfs.replication": "1", "dfs.blocksize": "1048576"}),
        (
            "airflow",
            "connections",
            {"b": {"host": "h", "conn_type": "spark"}, "a": {"conn_type": "headrace"}},
        ),
    ],
)
def test_the_order_of_settings_does_not_change_the_unit(kind: str, field: str, value: dict[str, Any]) -> None:
    reordered = {
        name: dict(reversed(inner.items())) if isinstance(inner, dict) else inner
        for name, inner in reversed(value.items())
    }
    more = {"component": "api-server"} if kind == "airflow" else {}
    before, after = (
        unit_of("unit", parse_configuration("unit", smallest(kind, **more, **{field: each})), HOST)
        for each in (value, reordered)
    )
    assert before.definition == after.definition


STATES = st.sampled_from(["RUNNING", "STARTING", "BACKOFF", "STOPPING", "STOPPED", "EXITED", "FATAL"])
UNIT = unit_of("unit", parse_configuration("unit", smallest("zookeeper")), HOST)
TEXTS = st.sampled_from([*UNIT.files.values(), "other", None])


@given(state=st.none() | STATES, is_changed=st.booleans(), texts=st.tuples(TEXTS, TEXTS))
def test_there_is_drift_exactly_when_something_differs(
    state: str | None, is_changed: bool, texts: tuple[str | None, str | None]
) -> None:
    seen = UnitState("unit", state, 1, 1, "") if state else None
    on_disk = dict(zip(UNIT.files, texts, strict=True))
    drift = drift_of(UNIT, seen, is_changed=is_changed, on_disk=on_disk)
    kinds = [each.what for each in drift]
    assert (DriftKind.PROCESS in kinds) == (state in (None, "STOPPED", "EXITED", "FATAL"))
    assert (DriftKind.DEFINITION in kinds) == is_changed
    assert kinds.count(DriftKind.FILE) == sum(on_disk[path] != text for path, text in UNIT.files.items())


@given(is_known=st.booleans(), is_same=st.booleans(), has_drifted=st.booleans())
def test_a_put_changes_nothing_only_when_nothing_differs(
    is_known: bool, is_same: bool, has_drifted: bool
) -> None:
    drift = (Drift(DriftKind.PROCESS, "it is STOPPED"),) if has_drifted else ()
    outcome = outcome_of(is_known, is_same, drift)
    assert (outcome is ChangeOutcome.CREATED) == (not is_known)
    assert (outcome is ChangeOutcome.UNCHANGED) == (is_known and is_same and not has_drifted)


@given(state=STATES, problem=st.none() | st.text(), drifted=st.booleans())
def test_a_report_survives_json(state: str, problem: str | None, drifted: bool) -> None:
    drift = (Drift(DriftKind.FILE, "/a was changed by somebody else"),) if drifted else ()
    report = report_of(UNIT, UnitState("unit", state, 5, 7, "note"), problem, drift)
    assert UnitReport.from_json(json.loads(json.dumps(report.to_json()))) == report
    assert report.is_ready == (problem is None and state in ("RUNNING", "STARTING"))


def desired(directory: Path) -> DesiredState:
    return DesiredState(directory, parse_configuration)


def broker(**more: Any) -> Configuration:
    return parse_configuration("unit", smallest("broker", **more))


def test_desired_units_survive_a_restart(tmp_path: Path) -> None:
    state = desired(tmp_path / "units")
    assert state.load() == {}
    state.write("one", DesiredUnit(broker(), is_applied=False))
    state.write("two", DesiredUnit(broker(broker_id=2), is_applied=True))
    assert desired(tmp_path / "units").load() == {
        "one": DesiredUnit(broker(), is_applied=False),
        "two": DesiredUnit(broker(broker_id=2), is_applied=True),
    }
    state.remove("one")
    state.remove("one")
    assert set(desired(tmp_path / "units").load()) == {"two"}
    assert (tmp_path / "units" / "two.json").stat().st_mode & 0o077 == 0


@settings(max_examples=15)
@given(data=st.data())
def test_a_write_that_a_crash_interrupted_is_ignored(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    directory = tmp_path_factory.mktemp("state") / "units"
    state = desired(directory)
    state.load()
    state.write("one", DesiredUnit(broker(broker_id=2), is_applied=True))
    whole = (directory / "one.json").read_bytes()
    state.write("one", DesiredUnit(broker(), is_applied=True))
    cut = data.draw(st.integers(0, len(whole)))
    (directory / "one.json.new").write_bytes(whole[:cut])
    assert desired(directory).load() == {"one": DesiredUnit(broker(), is_applied=True)}
    assert [path.name for path in directory.iterdir()] == ["one.json"]


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"format": 2}', '{"format": 1, "configuration": {}}'])
def test_a_file_that_cannot_be_read_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "one.json").write_text(text)
    with pytest.raises(
        AgentStateError, match=r"cannot read .*/one.json: .* delete it and put the unit again"
    ):
        desired(tmp_path).load()


def test_a_stolen_token_is_replaced_whatever_the_other_file_holds(tmp_path: Path) -> None:
    """While the other one was no token, such as one that the next start makes, both of before counted."""
    operate, read = tmp_path / "token", tmp_path / "token-read"
    tokens = Tokens(operate, read)
    stolen = operate.read_text().strip()
    read.unlink()
    fresh = tmp_path / "token.new"
    fresh.touch(0o600)
    fresh.write_text("n" * 40)
    fresh.replace(operate)
    assert tokens.role(b"Bearer " + b"n" * 40) is Role.OPERATE
    assert tokens.role(b"Bearer " + stolen.encode()) is None


def test_the_token_is_created_once_and_only_its_owner_can_read_it(tmp_path: Path) -> None:
    path = tmp_path / "agent" / "token"
    token = make_token(path)
    assert len(token) >= 32
    assert path.stat().st_mode & 0o777 == 0o600
    assert make_token(path) == read_token(path) == token
    path.chmod(0o640)
    with pytest.raises(AgentStateError, match=r"mode 0640.*chmod 600"):
        read_token(path)
    path.chmod(0o600)
    path.write_text("short")
    with pytest.raises(AgentStateError, match="holds no token"):
        make_token(path)


@given(st.binary(max_size=80))
def test_only_the_token_is_authorized(header: bytes) -> None:
    token = "x" * 43
    assert is_authorized(header, token) == (
        header.lower().startswith(b"bearer ") and header[7:].strip() == token.encode()
    )
    assert is_authorized(b"Bearer " + token.encode(), token)
    assert not is_authorized(b"Basic " + token.encode(), token)
    assert not is_authorized(None, token)


def test_a_page_of_airflow_may_take_longer_than_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its server answers late while loads run beside it: seen at a load of twelve."""
    asked: dict[str, float] = {}

    def answer(url: str, *, timeout: float, **options: object) -> httpx.Response:
        asked[url] = timeout
        return httpx.Response(503)

    monkeypatch.setattr(httpx, "get", answer)
    for kind, more in (("airflow", {"component": "api-server"}), ("airflow", {"component": "scheduler"})):
        configuration = parse_configuration("unit", smallest(kind, **more))
        assert unit_of("unit", configuration, HOST).probe.check()
    assert set(asked.values()) == {AIRFLOW_PROBE_TIMEOUT_S}
