"""Every command against a running site: its output for people, its JSON, and its errors."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from fix_cli import Headrace
from fix_pages import PageReader
from fix_site import MIRROR_WAIT_MAX_S, RunningSite, wait_for
from headrace.cli.errors import ExitCode
from headrace.client import Producer
from headrace.registry.client import SchemaRegistryClient
from headrace.registry.serializers import AvroSerializer

pytestmark = [pytest.mark.slow, pytest.mark.hdfs]

SCHEMA = {"type": "record", "name": "Thing", "fields": [{"name": "name", "type": "string"}]}


@pytest.fixture
def topic(headrace: Headrace) -> str:
    name = f"cli-{uuid.uuid4().hex[:8]}"
    assert headrace("topics", "create", name, "-p", 2, "-c", "retention.ms=-1").exit_code == 0
    return name


def test_status_knows_every_unit(headrace: Headrace, running_site: RunningSite) -> None:
    rows = headrace("status", "--json").json
    assert {row["unit"] for row in rows} == set(running_site.units)
    assert all(row["ready"] and row["pid"] for row in rows)
    shown = headrace("status").out
    assert "east-broker-1" in shown
    assert f"Pages: http://{running_site.site.agent_address}/" in shown


def test_the_page_of_each_unit_links_those_of_all_others(running_site: RunningSite) -> None:
    units = [unit for unit in running_site.units.values() if unit.kind != "airflow"]
    urls = {unit.name: unit.page_url for unit in units if unit.page_url is not None}
    browser = {"Accept": "text/html"}
    for name, url in urls.items():
        page = httpx.get(url, headers=browser, trust_env=False, timeout=60, follow_redirects=True)
        assert page.status_code == 200, name
        if name == "analysis-hdfs":
            assert f"<h1>{running_site.site.hdfs_url}</h1>" in page.text
        else:
            read = PageReader(page.text)
            assert set(urls.values()) - {url} <= set(read.links), name
            assert read.texts.count(name.partition("-")[2]) >= 1, name


def test_a_restart_waits_for_health(headrace: Headrace, running_site: RunningSite) -> None:
    before = running_site.pid("west-registry")
    result = headrace("restart", "west-registry")
    assert (result.exit_code, "restarted 1 unit," in result.out) == (0, True), result.err
    assert running_site.pid("west-registry") != before
    assert running_site.units["west-registry"].probe.check() is None
    result = headrace("restart", "west-registries")
    assert result.exit_code == ExitCode.NEGATIVE
    wrong = "unit west-registries is not a unit of this host; did you mean 'west-registry'?; it has analysis-"
    assert wrong in result.err


def test_an_agent_that_would_send_its_token_unencrypted_is_refused(headrace: Headrace) -> None:
    result = headrace("agent", "--listen", "0.0.0.0:8084")
    assert result.exit_code == ExitCode.NEGATIVE
    assert "give --tls-certificate and --tls-key" in result.err
    assert headrace("agent", "--listen", "8084").exit_code == ExitCode.USAGE


def test_logs_print_a_units_last_lines(headrace: Headrace) -> None:
    result = headrace("logs", "east-broker-1", "-n", 2)
    assert result.exit_code == 0
    assert 1 <= len(result.out.splitlines()) <= 2


def test_a_topic_from_its_creation_to_its_deletion(headrace: Headrace, topic: str) -> None:
    assert any(
        row["topic"] == topic and row["partitions"] == 2 for row in headrace("topics", "list", "--json").json
    )
    described = headrace("topics", "describe", topic, "--json").json
    assert described["config"] == {"retention.ms": "-1"}
    assert [part["partition"] for part in described["partitions"]] == [0, 1]
    assert headrace("topics", "alter", topic, "-c", "retention.ms=", "-p", 3).exit_code == 0
    described = headrace("topics", "describe", topic, "--json").json
    assert (described["config"], len(described["partitions"])) == ({}, 3)
    assert headrace("topics", "delete", topic, "--yes").exit_code == 0
    assert f"there is no topic '{topic}'" in headrace("topics", "describe", topic).err


def test_a_setting_that_no_topic_has_is_answered_by_the_nearest(headrace: Headrace, topic: str) -> None:
    asked = (
        "there is no topic setting 'retention.mss'; did you mean 'retention.ms'? `headrace topics describe"
    )
    for words in (("alter", topic), ("create", f"{topic}-other")):
        refused = headrace("topics", *words, "-c", "retention.mss=1")
        assert (refused.exit_code, asked in refused.err) == (ExitCode.NEGATIVE, True), refused.err
    # A wrong value of a right setting is named by the brokers.
    refused = headrace("topics", "alter", topic, "-c", "retention.ms=-7")
    assert refused.exit_code == ExitCode.NEGATIVE and "retention.ms" in refused.err
    assert "did you mean" not in refused.err


def test_produced_records_are_consumed(headrace: Headrace, topic: str) -> None:
    result = headrace("produce", topic, "-K", "=", "-H", "from=test", "--json", stdin=b"a=1\nb=2\nc=3\n")
    assert result.json["records"] == 3
    lines = headrace("consume", topic, "--from", "beginning", "--to-end", "--json").out.splitlines()
    records = [json.loads(line) for line in lines]
    assert {record["key"]: record["value"] for record in records} == {"a": "1", "b": "2", "c": "3"}
    assert {record["headers"]["from"] for record in records} == {"test"}
    assert len(headrace("consume", topic, "--from", "2015-05-17", "-n", 2).out.splitlines()) == 2
    assert headrace("consume", topic, "--to-end").out == ""


def test_events_of_east_are_decoded_in_analysis(
    headrace: Headrace, running_site: RunningSite, topic: str
) -> None:
    """The schema was registered in east alone; analysis has a registry of its own."""
    east = running_site.site.datacenter("east")
    with (
        SchemaRegistryClient(east.registry_url) as registry,
        Producer(east.producer_bootstrap) as producer,
    ):
        serializer = AvroSerializer(registry, json.dumps({**SCHEMA, "doc": topic}))
        for name in ("one", "two"):
            producer.send(topic, serializer.serialize(topic, {"name": name}))

    def values() -> list[Any]:
        lines = headrace(
            *("consume", topic, "-d", "analysis", "--from", "beginning", "--to-end", "--json")
        ).out.splitlines()
        return sorted((json.loads(line)["value"] for line in lines), key=str)

    _eventually(lambda: len(values()) == 2, "two values are mirrored")
    assert values() == [{"name": "one"}, {"name": "two"}]

    def subjects() -> set[str]:
        return {row["subject"] for row in headrace("schemas", "list", "-d", "analysis", "--json").json}

    _eventually(lambda: f"{topic}-value" in subjects(), "the subject is copied")


def _eventually(holds: Callable[[], bool], what: str) -> None:
    wait_for(lambda: None if holds() else "not yet", MIRROR_WAIT_MAX_S, what)


def test_a_topic_declares_whether_its_producers_report(headrace: Headrace, tmp_path: Path) -> None:
    name = f"cli-{uuid.uuid4().hex[:8]}"
    assert headrace("topics", "create", name, "--producers", "any").exit_code == ExitCode.DONE
    assert headrace("topics", "describe", name, "--json").json["producers"] == "any"
    assert "producers: any (counted from the log on)" in headrace("topics", "describe", name).out
    assert headrace("topics", "alter", name, "--producers", "reporting").exit_code == ExitCode.DONE
    _eventually(
        lambda: headrace("topics", "describe", name, "--json").json["producers"] == "reporting",
        "the change is seen",
    )
    assert "UTC on; any before" in headrace("topics", "describe", name).out
    refused = headrace("topics", "alter", name, "--producers", "some")
    assert refused.exit_code == ExitCode.USAGE and "'some'" in refused.err
    refused = headrace("topics", "alter", name, "-c", "headrace.producers=some")
    assert "headrace.producers=some: must be reporting or any" in refused.err

    file = tmp_path / "topics.yaml"
    file.write_text(f"topics: {{{name}: {{owner: tests, producers: any}}}}")
    declared = headrace("topics", "declare", file)
    assert f"{name} of east: producers any" in declared.out
    assert declared.exit_code == ExitCode.NEGATIVE, "west does not have it"
    assert f"west has no topic {name} yet" in declared.out


def test_a_group_continues_at_the_offsets_of_a_reset(headrace: Headrace, topic: str) -> None:
    headrace("produce", topic, "-p", 1, stdin=b"x\n" * 100)
    group = f"group-of-{topic}"
    assert headrace("groups", "reset", group, "--topic", topic, "--to", "beginning").exit_code == 0
    rows = headrace("groups", "describe", group, "--json").json["partitions"]
    assert [row["offset"] for row in rows] == [0, 0]
    assert rows[1]["lag_bytes"] == rows[1]["end"] > 0
    headrace("groups", "reset", group, "--topic", topic, "--to", "end")
    rows = headrace("groups", "describe", group, "--json").json["partitions"]
    assert [row["lag_bytes"] for row in rows] == [0, 0]
    assert any(row["group"] == group for row in headrace("groups", "list", "--json").json)
    assert group in headrace("groups", "list").out


def test_schemas_are_registered_and_checked(headrace: Headrace, tmp_path: Path) -> None:
    subject = f"{uuid.uuid4().hex[:8]}-value"
    good, worse, none = tmp_path / "good.avsc", tmp_path / "worse.avsc", tmp_path / "none.avsc"
    good.write_text(json.dumps(SCHEMA))
    worse.write_text(json.dumps({**SCHEMA, "fields": [{"name": "other", "type": "int"}]}))
    none.write_text("{")
    registered = headrace("schemas", "register", subject, good, "--json").json
    assert registered["version"] == 1
    assert headrace("schemas", "check", subject, good).exit_code == ExitCode.DONE
    refused = headrace("schemas", "check", subject, worse)
    assert refused.exit_code == ExitCode.NEGATIVE
    assert "may not follow" in refused.out
    shown = headrace("schemas", "show", subject, "--json").json
    assert (shown["id"], shown["schema"]["name"]) == (registered["id"], "Thing")
    assert any(row["subject"] == subject for row in headrace("schemas", "list", "--json").json)
    assert headrace("schemas", "register", subject, none).exit_code == ExitCode.USAGE


def test_the_files_of_a_partition_are_dumped(
    headrace: Headrace, topic: str, running_site: RunningSite
) -> None:
    headrace("produce", topic, "-p", 0, "-z", "zstd", stdin=b"first\nsecond\n")
    directory, *others = sorted(running_site.site.home.glob(f"data/east/broker-*/{topic}-0"))
    assert len(others) == 1, "a replica on each broker"
    assert headrace("dump-log", others[0], "--json").json == headrace("dump-log", directory, "--json").json
    batches = headrace("dump-log", directory, "--records", "--json").json
    assert [record["value"] for batch in batches for record in batch["records"]] == ["first", "second"]
    assert batches[0]["address"] == 0
    assert all(batch["problem"] is None for batch in batches)
    assert "zstd" in headrace("dump-log", directory).out
    damaged = directory.parent.parent / "00000000000000000000.log"
    data = bytearray(next(directory.glob("*.log")).read_bytes())
    data[70] ^= 0xFF
    damaged.write_bytes(data)
    result = headrace("dump-log", damaged)
    assert result.exit_code == ExitCode.NEGATIVE
    assert "damaged" in result.out


def test_mirrors_show_how_far_they_have_copied(headrace: Headrace, topic: str) -> None:
    headrace("produce", topic, stdin=b"one\n")

    def problem() -> str | None:
        result = headrace("mirror", "status")
        assert result.exit_code == 0
        return None if topic in result.out else result.out

    wait_for(problem, MIRROR_WAIT_MAX_S, "the topic's copy is shown")
    assert "copied to" in headrace("mirror", "status").out
    assert {answer["source"] for answer in headrace("mirror", "status", "--json").json} == {"east", "west"}


def test_the_warehouse_names_a_missing_table(headrace: Headrace) -> None:
    assert headrace("warehouse", "ls").exit_code == 0
    result = headrace("warehouse", "ls", "no-such-table")
    assert result.exit_code == ExitCode.NEGATIVE
    assert result.err.startswith("error: the warehouse has no table 'no-such-table'; ")
    for command in ("verify", "retain", "replay", "compact", "move"):
        result = headrace("warehouse", command, "no-such-table")
        assert result.exit_code == ExitCode.NEGATIVE, command
        assert result.err.startswith("error: the warehouse has no table 'no-such-table'; "), command


def test_a_load_that_is_refused_or_has_no_news_starts_no_spark(
    headrace: Headrace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAVA_HOME", "/nowhere")
    topic = f"silent-{uuid.uuid4().hex[:8]}"
    headrace("topics", "create", topic, "-d", "analysis")
    assert headrace("warehouse", "load", topic).out == f"{topic}: nothing new\n"
    headrace("produce", topic, "-d", "analysis", stdin=b"not an event\n")
    refused = headrace("warehouse", "load", topic)
    assert refused.exit_code == ExitCode.NEGATIVE
    assert f"no registry has the subject {topic}-value" in refused.err and refused.out == ""


def test_an_empty_report_is_not_a_success(headrace: Headrace) -> None:
    result = headrace("audit", "report", "--topic", "no-such-topic", "--from", "2015-05-17T10")
    assert result.exit_code == ExitCode.UNREACHABLE
    assert "no tier has reported anything" in result.out
    assert headrace("audit", "report", "--topic", "no-such-topic", "--json").json["status"] == "unknown"


@pytest.mark.parametrize(
    ("words", "exit_code", "error"),
    [
        (("topics", "describe", "no-such-topic"), ExitCode.NEGATIVE, "there is no topic 'no-such-topic'"),
        (
            ("topics", "list", "-d", "north"),
            ExitCode.NEGATIVE,
            "'north' is not part of this site; it has east, west, analysis",
        ),
        (("topics", "list", "-b", "127.106.2.1:1"), ExitCode.UNREACHABLE, "127.106.2.1:1"),
        (("topics", "list", "-b", "127.106.2.1:1", "-d", "east"), ExitCode.USAGE, "not both"),
        (("topics", "alter", "t"), ExitCode.USAGE, "nothing to change"),
        (("topics", "create", "t", "-c", "x"), ExitCode.USAGE, "'x' is not NAME=VALUE"),
        (("schemas", "list", "-r", "http://127.106.2.1:1"), ExitCode.UNREACHABLE, "127.106.2.1:1"),
        (("schemas", "show", "no-such-subject"), ExitCode.NEGATIVE, "no-such-subject"),
        (("groups", "describe", "no-such-group"), ExitCode.NEGATIVE, "there is no group 'no-such-group'"),
        (("consume", "no-such-topic"), ExitCode.NEGATIVE, "no-such-topic"),
        (("audit", "report", "--from", "yesterday"), ExitCode.USAGE, "'yesterday' is not a time"),
        (("dump-log", "/no/such/place"), ExitCode.USAGE, "/no/such/place is neither"),
        (("logs", "no-such-unit"), ExitCode.USAGE, "there is no unit 'no-such-unit'"),
    ],
)
def test_errors_are_one_line(headrace: Headrace, words: tuple[str, ...], exit_code: int, error: str) -> None:
    result = headrace(*words)
    assert result.exit_code == exit_code
    assert error in result.err
    assert result.err.startswith("error: ")
    assert len(result.err.splitlines()) == 1, result.err
    assert "Traceback" not in result.err
