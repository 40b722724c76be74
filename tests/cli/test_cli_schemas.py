"""`headrace schemas` on a real registry: what differs, what is deleted in which step, which level applies."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fix_cli import Headrace, Result, command_runner
from headrace.cli.errors import ExitCode
from headrace.registry.client import SchemaRegistryClient


def schema(*fields: dict[str, Any]) -> dict[str, Any]:
    return {"type": "record", "name": "View", "namespace": "test", "fields": list(fields)}


PATH = {"name": "path", "type": "string"}
STATUS = {"name": "status", "type": "int"}
REFERRER = {"name": "referrer", "type": ["null", "string"], "default": None}
V1, V2 = schema(PATH, STATUS), schema(PATH, {**STATUS, "type": "long"}, REFERRER)


@pytest.fixture
def headrace(
    registry_url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Headrace:
    """Runs `headrace schemas …` in this process, with the test's registry."""

    runner = command_runner(monkeypatch, capsys)

    def run(command: str, *words: object) -> Result:
        return runner("schemas", command, *words, "--registry", registry_url)

    return run


@pytest.fixture
def subject(registry_url: str) -> str:
    """A subject with two versions, of which the second reads the first, and not the reverse."""
    name = f"view-{uuid.uuid4().hex[:8]}-value"
    with SchemaRegistryClient(registry_url) as registry:
        registry.register(name, V1)
        registry.register(name, V2)
    return name


@pytest.fixture
def avsc(tmp_path: Path) -> Callable[[object], Path]:
    def write(content: object) -> Path:
        path = tmp_path / "new.avsc"
        path.write_text(content if isinstance(content, str) else json.dumps(content))
        return path

    return write


def test_two_versions_are_compared_by_field(headrace: Headrace, subject: str) -> None:
    for words in ((), (1,), (1, 2), ("1", "latest")):
        found = headrace("diff", subject, *words, "--json").json
        assert (found["old"]["version"], found["new"]["version"]) == (1, 2), words
    rows = {row.pop("field"): row for row in found["differences"]}
    assert rows["status"] == {
        "change": "changed",
        "old": {"type": "int"},
        "new": {"type": "long"},
        "new_reads_old": True,
        "old_reads_new": False,
        "note": "",
    }
    assert (rows["referrer"]["old"], rows["referrer"]["new"]) == (
        None,
        {"type": "null | string", "default": None},
    )
    assert (found["new_reads_old"], found["old_reads_new"], found["compatibility"]) == (
        True,
        False,
        "BACKWARD",
    )
    shown = headrace("diff", subject, 2, 1)
    assert shown.exit_code == ExitCode.DONE
    assert "version 2 → version 1" in shown.out
    assert "new readers of old records" in shown.out
    assert "readers with version 1 cannot read records of version 2" in shown.out


def test_a_file_is_compared_with_the_newest_version(
    headrace: Headrace, subject: str, avsc: Callable[[object], Path]
) -> None:
    file = avsc(schema(PATH))
    found = headrace("diff", subject, file, "--json").json
    assert (found["old"]["version"], found["new"]) == (2, {"file": str(file)})
    assert {(row["field"], row["change"]) for row in found["differences"]} == {
        ("status", "removed"),
        ("referrer", "removed"),
    }
    assert headrace("diff", subject, 1, file, "--json").json["old"]["version"] == 1
    assert "version 2 → new.avsc" in headrace("diff", subject, file).out
    assert "no difference" in headrace("diff", subject, avsc(V2)).out
    wrong = headrace("diff", subject, avsc({"type": "record"}))
    assert wrong.exit_code == ExitCode.USAGE and "new.avsc is not an Avro schema: " in wrong.err
    missing = headrace("diff", subject, "no.avsc")
    assert missing.exit_code == ExitCode.USAGE and "no.avsc cannot be read" in missing.err


def test_one_version_has_nothing_to_be_compared_with(
    headrace: Headrace, avsc: Callable[[object], Path]
) -> None:
    name = f"one-{uuid.uuid4().hex[:8]}-value"
    first = headrace("register", name, avsc(V1), "--json").json
    again = headrace("register", name, avsc(V1), "--json").json
    assert (first["registered"], again["registered"]) == (True, False)
    assert {**first, "registered": False} == again
    alone = headrace("diff", name)
    assert alone.exit_code == ExitCode.NEGATIVE and "has one version only" in alone.err
    assert headrace("diff", name, 7).err.startswith("error: Version 7 not found")


def test_a_subject_is_deleted_in_two_steps(headrace: Headrace, subject: str) -> None:
    early = headrace("delete", subject, "--permanent", "--yes")
    assert early.exit_code == ExitCode.NEGATIVE
    assert f"error: {subject} is not deleted yet" in early.err
    first = headrace("delete", subject, "--yes", "--json").json
    assert first == {"subject": subject, "versions": [1, 2], "permanent": False, "deleted": True}
    assert subject not in headrace("list").out
    assert {"subject": subject, "versions": 2} in headrace("list", "--deleted", "--json").json
    assert [row["version"] for row in headrace("list", subject, "--deleted", "--json").json] == [1, 2]
    again = headrace("delete", subject, "--yes")
    assert again.exit_code == ExitCode.NEGATIVE and "--permanent removes it for good" in again.err
    assert headrace("delete", subject, "--permanent", "--yes").out.startswith("deleted versions 1, 2 of ")
    assert "no version is deleted" in headrace("list", "--deleted").out


def test_a_version_is_deleted_alone(headrace: Headrace, subject: str) -> None:
    assert headrace("delete", subject, "--version", "latest", "--yes", "--json").json["versions"] == [2]
    assert [row["version"] for row in headrace("list", subject, "--json").json] == [1]
    assert headrace("delete", subject, "--version", 2, "--permanent", "--yes").exit_code == ExitCode.DONE
    assert headrace("delete", subject, "--version", 9, "--yes").exit_code == ExitCode.NEGATIVE


def test_a_deletion_asks(headrace: Headrace, subject: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("typer.confirm", lambda *_, **__: False)
    refused = headrace("delete", subject)
    assert refused.exit_code == ExitCode.NEGATIVE and "you did not confirm" in refused.err
    assert headrace("list", subject, "--json").json


def test_levels_are_shown_and_set(headrace: Headrace, subject: str) -> None:
    show = ("compatibility", subject, "--json")
    assert headrace(*show).json == {
        "subject": subject,
        "level": "BACKWARD",
        "set_for": "global",
        "changed": False,
    }
    own = headrace(*show, "--set", "full").json
    assert (own["level"], own["set_for"], own["changed"]) == ("FULL", "subject", True)
    assert headrace(*show, "--set", "FULL").json["changed"] is False
    assert headrace("compatibility", "--set", "NONE", "--json").json["level"] == "NONE"
    assert headrace("compatibility").out.strip().endswith(": NONE")
    assert headrace(*show).json["level"] == "FULL", "its own level stays"
    assert "NONE (the global level)" in headrace("compatibility", subject, "--unset").out
    for words in (("--set", "SIDEWAYS"), ("--unset",), (subject, "--set", "FULL", "--unset")):
        assert headrace("compatibility", *words).exit_code == ExitCode.USAGE, words


def test_an_unknown_subject_is_nearly_known(headrace: Headrace, subject: str) -> None:
    for words in (("show",), ("diff",), ("list",), ("delete", "--yes")):
        wrong = headrace(words[0], subject.replace("view", "veiw"), *words[1:])
        assert wrong.exit_code == ExitCode.NEGATIVE
        assert f"did you mean {subject!r}? `headrace schemas list` lists what there is" in wrong.err, words


def test_a_check_says_what_a_registration_will(
    headrace: Headrace, subject: str, avsc: Callable[[object], Path]
) -> None:
    """At a transitive level it looked at the newest version alone; register refused what it had allowed."""
    # Reads version 2, which always writes a long, and not version 1, whose field is another one.
    headrace("compatibility", subject, "--set", "NONE")
    third = schema(PATH, {"name": "code", "type": "string", "default": ""})
    headrace("register", subject, avsc(third))
    fourth = schema(PATH, {"name": "code", "type": "string"})
    headrace("compatibility", subject, "--set", "BACKWARD")
    assert headrace("check", subject, avsc(fourth)).exit_code == ExitCode.DONE
    headrace("compatibility", subject, "--set", "BACKWARD_TRANSITIVE")
    checked = headrace("check", subject, avsc(fourth), "--json")
    assert checked.exit_code == ExitCode.NEGATIVE and checked.json["compatible"] is False
    assert any("version 1 (writer)" in problem for problem in checked.json["problems"])
    assert "incompatible with an earlier schema" in headrace("register", subject, avsc(fourth)).err
