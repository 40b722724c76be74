"""`headrace schemas`: the subjects and schemas in a datacenter's schema registry."""

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
from headrace.cli.output import JsonOption, out, print_json, print_table

app = typer.Typer(help="Avro schemas in the schema registry, and their compatibility.", no_args_is_help=True)

RegistryOption = Annotated[
    str | None,
    typer.Option("--registry", "-r", help="A schema registry, instead of the datacenter's.", metavar="URL"),
]
SubjectArgument = Annotated[str, typer.Argument(help="A subject, such as page-view-value.")]


@contextmanager
def _registry(datacenter_name: str | None, url: str | None) -> Iterator[SchemaRegistryClient]:
    from headrace.registry.client import SchemaRegistryClient

    with SchemaRegistryClient(url or datacenter(datacenter_name).registry) as client:
        yield client


@app.command("list")
def list_(where: DatacenterOption = None, registry: RegistryOption = None, json: JsonOption = False) -> None:
    """List the subjects: newest version, its id, and the compatibility level."""
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
            empty="no schema is registered",
        )


@app.command()
def show(
    subject: SubjectArgument,
    version: Annotated[str, typer.Option("--version", help="A version number, or latest.")] = "latest",
    where: DatacenterOption = None,
    registry: RegistryOption = None,
    json: JsonOption = False,
) -> None:
    """Print the schema of one version of a subject, as JSON."""
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
    """Register a schema under a subject. A schema that is registered already keeps its version."""
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
    """Check whether a schema is compatible, so that it may follow the newest version; exit code 1 if not."""
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
        raise typer.Exit(ExitCode.NEGATIVE)


def _read(file: Path) -> dict[str, Any]:
    try:
        schema = jsonlib.loads(file.read_text())
    except OSError as error:
        raise CommandError(f"{file} cannot be read: {error.strerror}", ExitCode.USAGE) from error
    except ValueError as error:
        raise CommandError(f"{file} is not JSON: {error}", ExitCode.USAGE) from error
    if not isinstance(schema, dict):
        raise CommandError(f"{file} is not a JSON object, and so no schema of a record", ExitCode.USAGE)
    return schema
