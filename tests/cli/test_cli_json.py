"""What commands that change something print with --json: the keys that docs/cli.md lists, and no others."""

from __future__ import annotations

import io
import json
import re
import sys
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fix_broker import BrokerCluster
from headrace.cli import main as cli
from headrace.cli.errors import ExitCode

PAGE = (Path(__file__).parents[2] / "docs" / "cli.md").read_text()
SCHEMA = {"type": "record", "name": "R", "fields": [{"name": "x", "type": "int"}]}


def listed() -> dict[str, list[list[str]]]:
    """The keys of each command: of its document, and of the rows in it."""
    found = {}
    table = PAGE.partition("\n## JSON\n")[2].partition("\n## ")[0]
    for command, cell in re.findall(r"^\| `headrace ([^`]+)` \| (.*) \|$", table, re.MULTILINE):
        cell = re.sub(r"\([^)]*\)", "", cell)
        levels = cell.removeprefix("for each partition: ").split(": ")
        found[command] = [re.findall(r"`([a-z_]+)`", level) for level in levels]
    return found


LISTED = listed()
Run = Callable[..., Any]


@pytest.fixture
def headrace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    monkeypatch.setenv("HEADRACE_HOME", str(tmp_path))

    def run(command: str, *words: object, stdin: bytes = b"", code: ExitCode = ExitCode.DONE) -> Any:
        """Runs a command with --json, and checks its keys. Returns the document."""
        capsys.readouterr()
        line = ["headrace", *command.split(), *map(str, words), "--json"]
        monkeypatch.setattr(sys, "argv", line)
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        with pytest.raises(SystemExit) as ended:
            cli.main()
        output = capsys.readouterr()
        assert int(ended.value.code or 0) == code, output.err
        if code is not ExitCode.DONE:
            assert output.out == ""
            return None
        document = json.loads(output.out)
        keys, *inner = LISTED[command]
        for row in document if isinstance(document, list) else [document]:
            assert sorted(row) == sorted(keys), command
            for each in row[keys[-1]] if inner else ():
                assert sorted(each) == sorted(inner[0]), command
        return document

    return run


def test_the_page_lists_every_command_that_changes_something() -> None:
    assert len(LISTED) == 22
    assert LISTED["topics delete"] == [["topic", "deleted", "load"]]
    assert LISTED["groups reset"][1] == ["topic", "partition", "before", "after", "lag_bytes"]


def test_topics_and_groups(headrace: Run, one_broker: BrokerCluster) -> None:
    topic, group = (f"json-{uuid.uuid4().hex[:8]}" for _ in range(2))
    here = ("-b", one_broker.bootstrap)
    made = headrace("topics create", topic, "-p", 2, "-c", "retention.ms=7d", *here)
    assert made["config"] == {"retention.ms": "604800000"} and made["created"] is True
    headrace("topics create", topic, *here, code=ExitCode.NEGATIVE)
    altered = headrace("topics alter", topic, "-c", "retention.ms=", "-p", 3, *here)
    assert (altered["config"], altered["partitions"]) == ({"retention.ms": None}, 3)
    published = headrace("produce", topic, *here, stdin=b"a\nb\n")
    assert published["records"] == 2 == sum(published["partitions"].values())
    words = (group, "--topic", topic, "--to", "earliest", "--yes", *here)
    assert headrace("groups reset", *words, "--dry-run")["changed"] is False
    assert headrace("groups reset", *words)["changed"] is True
    assert headrace("groups delete", group, "--topic", topic, "--yes", *here)["topics"] == [topic]
    assert headrace("groups delete", group, "--yes", *here)["deleted"] is True
    assert headrace("topics delete", topic, "--yes", *here)["deleted"] is True
    headrace("topics delete", topic, "--yes", *here, code=ExitCode.NEGATIVE)


def test_schemas(headrace: Run, registry_url: str, tmp_path: Path) -> None:
    file = tmp_path / "r.avsc"
    file.write_text(json.dumps(SCHEMA))
    here = ("-r", registry_url)
    headrace("schemas register", "s", file, *here)
    headrace("schemas compatibility", "s", "--set", "FULL", *here)
    headrace("schemas delete", "s", "--yes", *here)


def test_contexts(headrace: Run, tmp_path: Path) -> None:
    outputs = tmp_path / "outputs.json"
    outputs.write_text(json.dumps({"east": {"value": {"bootstrap_servers": ["127.0.0.1:1"]}}}))
    made = headrace("context import", "prod", outputs)
    assert made == {"context": "prod", "datacenters": ["east"], "created": True, "in_use": True}
    assert headrace("context import", "prod", outputs)["created"] is False
    assert headrace("context use", "site")["context"] == "site"


def test_a_log_that_needs_nothing(headrace: Run, one_broker: BrokerCluster) -> None:
    topic = f"json-{uuid.uuid4().hex[:8]}"
    headrace("topics create", topic, "-p", 1, "-b", one_broker.bootstrap)
    headrace("produce", topic, "-b", one_broker.bootstrap, stdin=b"a\n")
    (row,) = headrace("log set-aside", one_broker[1].data_dir / f"{topic}-0", "--dry-run")
    assert (row["changed"], row["gaps"]) == (False, [])
