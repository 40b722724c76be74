"""`headrace schemas`: what the schema registry of a datacenter holds."""

from __future__ import annotations

import json as jsonlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from headrace.registry.client import SchemaRegistryClient

from headrace.cli.context import DatacenterOption, datacenter
from headrace.cli.errors import CommandError, ExitCode
from headrace.cli.output import (
    JsonOption,
    out,
    print_json,
    print_table,
)

app = typer.Typer(help="Avro schemas, and what may follow them.", no_args_is_help=True)

RegistryOption = Annotated[
    str | None,
    typer.Option("--registry", "-r", help="A registry's URL, instead of a datacenter's.", metavar="URL"),
]
SubjectArgument = Annotated[str, typer.Argument(help="A subject: the topic's name and -value.")]


@contextmanager
def _registry(datacenter_name: str | None, url: str | None) -> Iterator[SchemaRegistryClient]:
    from headrace.registry.client import SchemaRegistryClient

    with SchemaRegistryClient(url or datacenter(datacenter_name).registry_url) as client:
        yield client


@app.command("list")
def list_(where: DatacenterOption = None, registry: RegistryOption = None, json: JsonOption = False) -> None:
    """List the subjects, each with its newest version, that version's id, and what may follow it."""
    with _registry(where, registry) as client:
        rows = [
            {
                "subject": subject,
                "version": (newest := client.latest(subject)).version,
                "id": newest.schema_id,
                "compatibility": client.config(subject),
            }
            for subject in sorted(client.subjects())
        ]
    if json:
        print_json(rows)
    else:
        print_table(
            ["subject", ">version", ">id", "compatibility"],
            [list(row.values()) for row in rows],
            empty="no schema is registered here",
        )


@app.command()
def show(
    subject: SubjectArgument,
    version: Annotated[str, typer.Option("--version", help="A version's number, or latest.")] = "latest",
    where: DatacenterOption = None,
    registry: RegistryOption = None,
    json: JsonOption = False,
) -> None:
    """Print one version of a subject: its schema, as Avro's JSON."""
    with _registry(where, registry) as client:
        found = client.version(subject, version)
    schema = jsonlib.loads(found.schema)
    if json:
        print_json({"subject": subject, "version": found.version, "id": found.schema_id, "schema": schema})
    else:
        out.print(f"[bold]{subject}[/] version {found.version}, id {found.schema_id}")
        out.print_json(data=schema)


@app.command()
def register(
    subject: SubjectArgument,
    file: Annotated[Path, typer.Argument(help="The schema: an .avsc file.")],
    where: DatacenterOption = None,
    registry: RegistryOption = None,
    json: JsonOption = False,
) -> None:
    """Register a schema under a subject. A schema that is there already keeps its version."""
    schema = _read(file)
    with _registry(where, registry) as client:
        client.register(subject, schema)
        found = client.lookup(subject, schema)
    if json:
        print_json({"subject": subject, "version": found.version, "id": found.schema_id})
    else:
        out.print(f"{subject}: version {found.version}, id {found.schema_id}")


@app.command()
def check(
    subject: SubjectArgument,
    file: Annotated[Path, typer.Argument(help="The schema: an .avsc file.")],
    where: DatacenterOption = None,
    registry: RegistryOption = None,
    json: JsonOption = False,
) -> None:
    """Say whether a schema may follow the newest version; the exit code is 1 when it may not."""
    with _registry(where, registry) as client:
        problems = client.check_compatibility(subject, _read(file))
    if json:
        print_json({"subject": subject, "compatible": not problems, "problems": problems})
    elif problems:
        out.print(f"{file} may not follow the newest version of {subject}:")
        for problem in problems:
            out.print(f"  {problem}", markup=False)
    else:
        out.print(f"{file} may follow the newest version of {subject}")
    if problems:
        raise typer.Exit(ExitCode.NO)


def _read(file: Path) -> dict[str, Any]:
    try:
        schema = jsonlib.loads(file.read_text())
    except OSError as error:
        raise CommandError(f"{file} cannot be read: {error.strerror}", ExitCode.USAGE) from error
    except ValueError as error:
        raise CommandError(f"{file} is not JSON: {error}", ExitCode.USAGE) from error
    if not isinstance(schema, dict):
        raise CommandError(f"{file} is not the schema of a record", ExitCode.USAGE)
    return schema
