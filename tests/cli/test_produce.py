"""`headrace produce` of plain lines, as users of kcat know it: keys, null, times, headers, wrong lines."""

from __future__ import annotations

import json
import os
from typing import Any

import pytest

from fix_cli import Headrace, Result, command_runner
from fix_client import FakeCluster, StartCluster
from headrace.cli import produce
from headrace.cli.errors import ExitCode
from headrace.wire.records import Record, encode_batch


@pytest.fixture
def cluster(fake_cluster: StartCluster) -> FakeCluster:
    return fake_cluster()


@pytest.fixture
def headrace(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Headrace:
    runner = command_runner(monkeypatch, capsys)

    def run(command: str, *words: object, stdin: bytes = b"", topic: str = "t") -> Result:
        return runner(command, topic, "-b", cluster.bootstrap, *words, stdin=stdin)

    return run


def rows(headrace: Headrace) -> list[dict[str, Any]]:
    result = headrace("consume", "--from", "beginning", "--to-end", "-o", "json")
    return [json.loads(line) for line in result.out.splitlines()]


def test_keys_headers_and_times(headrace: Headrace) -> None:
    words = ("-K", ":", "-H", "from=test", "--timestamp", "2015-05-17T12:00:00Z")
    assert headrace("produce", *words, stdin=b"a:1\nb:2:3\n:4\n").exit_code == 0
    assert [(row["key"], row["value"]) for row in rows(headrace)] == [("a", "1"), ("b", "2:3"), ("", "4")]
    assert {row["timestamp_ms"] for row in rows(headrace)} == {1_431_864_000_000}
    assert {row["headers"]["from"] for row in rows(headrace)} == {"test"}


def test_one_key_and_nulls(headrace: Headrace) -> None:
    assert headrace("produce", "-k", "k", "-Z", stdin=b"1\n\n").exit_code == 0
    assert headrace("produce", stdin=b"").out.startswith("published 0 records to t")
    assert [(row["key"], row["value"]) for row in rows(headrace)] == [("k", "1"), ("k", None)]


def test_words_that_are_not_utf_8_are_sent_as_they_are(headrace: Headrace) -> None:
    latin = os.fsdecode(b"caf\xe9")
    assert headrace("produce", "-k", latin, "-H", f"h={latin}", "-H", "h=2", stdin=b"1\n").exit_code == 0
    assert headrace("produce", "-K", os.fsdecode(b"\xe9"), stdin=b"a\xe92\n").exit_code == 0
    first, second = rows(headrace)
    assert (first["key"], first["value"], second["key"], second["value"]) == ("caf\\xe9", "1", "a", "2")
    found = headrace("consume", "--from", "beginning", "--to-end", "--key", latin, "-o", "raw")
    assert found.out == "1\n"
    wrong = headrace("produce", "-H", f"{latin}=1", stdin=b"1\n")
    assert wrong.exit_code == ExitCode.USAGE and "--header: the name 'caf\\udce9' is not UTF-8" in wrong.err


def test_a_header_may_be_there_twice(headrace: Headrace, cluster: FakeCluster) -> None:
    assert headrace("produce", "-H", "h=1", "-H", "h=2", stdin=b"1\n").exit_code == 0
    [record] = cluster.log().records()
    assert [each for each in record.headers if each[0] == "h"] == [("h", b"1"), ("h", b"2")]


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (("-K", ":", "-k", "k"), "give either --key or --key-separator"),
        (("-K", ""), "--key-separator is empty"),
        (("-z", "zip"), "--compression zip is not none, gzip"),
        (("--acks", "2"), "--acks 2 is not 0, 1 or all"),
        (("--timestamp", "1700000000"), "looks like seconds"),
        (("-H", "x"), "'x' is not NAME=VALUE"),
    ],
)
def test_wrong_usage(headrace: Headrace, words: tuple[str, ...], problem: str) -> None:
    result = headrace("produce", *words, stdin=b"x\n")
    assert result.exit_code == ExitCode.USAGE and problem in result.err
    assert rows(headrace) == []


def test_a_wrong_line_is_named(headrace: Headrace, monkeypatch: pytest.MonkeyPatch) -> None:
    result = headrace("produce", "-K", "=", stdin=b"a=1\nnothing\nb=2\n")
    assert result.exit_code == ExitCode.USAGE
    assert "line 2: 'nothing' has no key separator '='; 1 line before it is published" in result.err
    monkeypatch.setattr(produce, "LINE_MAX_BYTES", 10)
    result = headrace("produce", stdin=b"short\n" + b"x" * 11 + b"\n")
    assert result.exit_code == ExitCode.USAGE and "line 2: it has more than 10 bytes" in result.err
    assert [row["value"] for row in rows(headrace)] == ["1", "short"]


def test_an_offset_outside_of_the_log_is_refused(headrace: Headrace, cluster: FakeCluster) -> None:
    with cluster.lock:
        cluster.log().append(encode_batch([Record(0, 1_431_864_000_000, b"\xff\x00", b"\x1b[2J")]))
    end = cluster.log().end
    beyond = headrace("consume", "-p", 0, "--from", end + 1, "--to-end")
    assert (
        beyond.exit_code == ExitCode.USAGE
        and f"is not in the log of t-0, which goes from 0 to {end}" in beyond.err
    )
    assert headrace("consume", "-p", 0, "--from", end, "--to-end").out == ""
    alone = headrace("consume", "--from", "5", "--to-end")
    assert alone.exit_code == ExitCode.USAGE and "say of which partition: --partition" in alone.err
    assert headrace("consume", "-p", 0, "--from", "\u00b2").exit_code == ExitCode.USAGE
    assert headrace("consume", "-p", 7).exit_code == ExitCode.USAGE
    reverse = headrace("consume", "--from", "now", "--until", "-1h")
    assert reverse.exit_code == ExitCode.USAGE and "--until -1h is before --from now" in reverse.err
    by_shown_key = headrace("consume", "--from", "beginning", "--to-end", "--key", "\\xff\x00")
    assert "\\x1b[2J" in by_shown_key.out and "\x1b" not in by_shown_key.out


def test_a_name_that_is_nearly_one_is_named(headrace: Headrace, cluster: FakeCluster) -> None:
    with cluster.lock:
        cluster.creates_topics = False
        cluster.create("page-view", 1)
    result = headrace("consume", "--to-end", topic="page-vew")
    assert result.exit_code == ExitCode.NEGATIVE
    assert "there is no topic 'page-vew'; did you mean 'page-view'?" in result.err


def test_a_topic_that_the_brokers_make_by_the_way_is_told(headrace: Headrace, cluster: FakeCluster) -> None:
    with cluster.lock:
        cluster.create("page-view", 1)
    told = "there was no topic 'page-vew': the brokers have made it; did you mean 'page-view'?"
    made = headrace("produce", stdin=b"1\n", topic="page-vew")
    assert made.exit_code == ExitCode.DONE and told in made.err
    again = headrace("produce", stdin=b"1\n", topic="page-vew")
    assert again.exit_code == ExitCode.DONE and "there was no topic" not in again.err
