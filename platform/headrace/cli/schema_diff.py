"""`headrace schemas diff`: what differs between two versions of a schema, and which readers that breaks."""

from __future__ import annotations

import json as jsonlib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

if TYPE_CHECKING:
    from headrace.registry.client import SchemaRegistryClient
    from headrace.registry.differences import Comparison, Difference, Side

from headrace.cli.context import DatacenterOption, RegistryOption
from headrace.cli.errors import CommandError, ExitCode
from headrace.cli.output import JsonOption, out, plain, print_json, print_table
from headrace.cli.schemas import SubjectArgument, naming, read_schema, registry_of

LATEST = "latest"


class _Schema(NamedTuple):
    """One side: `name` for people; version and id, or the file that it is from."""

    name: str
    text: str
    version: int | None = None
    schema_id: int | None = None
    file: str | None = None

    def as_json(self) -> dict[str, Any]:
        if self.file is not None:
            return {"file": self.file}
        return {"version": self.version, "id": self.schema_id}


def diff(
    subject: SubjectArgument,
    old: Annotated[
        str | None,
        typer.Argument(help="A version, latest, or an .avsc file; by default the version before the newest."),
    ] = None,
    new: Annotated[
        str | None, typer.Argument(help="What to compare it with; by default the newest version.")
    ] = None,
    where: DatacenterOption = None,
    registry: RegistryOption = None,
    json: JsonOption = False,
) -> None:
    """Show what differs between two versions, field by field, and which readers that breaks.

    `diff SUBJECT 1 3` compares two versions, `diff SUBJECT FILE` the newest version with a file that is to
    follow it. The exit code says nothing of the differences: `headrace schemas check` decides about a file.
    """
    from headrace.registry.differences import compare
    from headrace.registry.schemas import InvalidSchemaError

    with registry_of(where, registry) as client, naming(client, subject):
        before, after = _chosen(client, subject, old, new)
        level = client.config(subject)
    try:
        found = compare(before.text, after.text)
    except InvalidSchemaError as error:
        which = next((each.file for each in (before, after) if each.file), subject)
        raise CommandError(f"{which} is not an Avro schema: {error}", ExitCode.USAGE) from None
    if json:
        print_json(_as_json(subject, before, after, found, level))
    else:
        _print(subject, before, after, found, level)


def _chosen(
    client: SchemaRegistryClient, subject: str, old: str | None, new: str | None
) -> tuple[_Schema, _Schema]:
    """Returns both sides. A file alone is compared with the newest version, which it is to follow."""
    if old is None:
        versions = client.versions(subject)
        if len(versions) < 2:
            raise CommandError(
                f"{subject} has one version only, so there is nothing to compare; give a file that is to "
                f"follow it: `headrace schemas diff {subject} FILE`"
            )
        return _version(client, subject, str(versions[-2])), _version(client, subject, LATEST)
    if new is None and not _is_version(old):
        return _version(client, subject, LATEST), _side(client, subject, old)
    return _side(client, subject, old), _side(client, subject, new or LATEST)


def _is_version(word: str) -> bool:
    return word == LATEST or word.isdecimal()


def _side(client: SchemaRegistryClient, subject: str, word: str) -> _Schema:
    if _is_version(word):
        return _version(client, subject, word)
    return _Schema(Path(word).name, jsonlib.dumps(read_schema(Path(word))), file=word)


def _version(client: SchemaRegistryClient, subject: str, word: str) -> _Schema:
    found = client.version(subject, word)
    return _Schema(f"version {found.version}", found.schema, found.version, found.schema_id)


# --- output ---


def _as_json(subject: str, before: _Schema, after: _Schema, found: Comparison, level: str) -> dict[str, Any]:
    return {
        "subject": subject,
        "old": before.as_json(),
        "new": after.as_json(),
        "differences": [
            {
                "field": each.path,
                "change": each.change,
                "old": _side_json(each.before),
                "new": _side_json(each.after),
                "new_reads_old": each.new_reads_old,
                "old_reads_new": each.old_reads_new,
                "note": each.note,
            }
            for each in found.differences
        ],
        "new_reads_old": found.new_reads_old,
        "old_reads_new": found.old_reads_new,
        "compatibility": level,
    }


def _side_json(side: Side | None) -> dict[str, Any] | None:
    if side is None:
        return None
    default = {} if side.default is None else {"default": jsonlib.loads(side.default)}
    return {"type": side.type, **default}


def _print(subject: str, before: _Schema, after: _Schema, found: Comparison, level: str) -> None:
    out.print(f"[bold]{plain(subject)}[/]: {plain(before.name)} → {plain(after.name)}")
    print_table(
        ["field", "change", plain(before.name), plain(after.name), "breaks"],
        [
            (
                plain(each.path or "(the schema)"),
                each.change,
                plain("-" if each.before is None else str(each.before)),
                plain("-" if each.after is None else str(each.after)),
                plain("; ".join([*_broken(each), *([each.note] if each.note else [])]) or "nothing"),
            )
            for each in found.differences
        ],
        empty="no difference",
    )
    if found.differences:
        _print_reads(after.name, before.name, found.new_reads_old)
        _print_reads(before.name, after.name, found.old_reads_new)
        out.print(f"compatibility level: {level}")


def _print_reads(reader: str, writer: str, reads: bool) -> None:
    verb = "[green]read[/]" if reads else "[red]cannot read[/]"
    out.print(f"readers with {plain(reader)} {verb} records of {plain(writer)}")


def _broken(each: Difference) -> list[str]:
    broken = []
    if not each.new_reads_old:
        broken.append("new readers of old records")
    if not each.old_reads_new:
        broken.append("old readers of new records")
    return broken
