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

from headrace.cli import names
from headrace.cli.context import DatacenterOption, RegistryOption, datacenter
from headrace.cli.errors import CommandError, ExitCode
from headrace.cli.output import JsonOption, out, plain, print_json, print_table
from headrace.cli.suggestions import did_you_mean

TIMEOUT_S = 10.0
"""Of one request: a registry that checks a large schema takes up to four seconds."""

app = typer.Typer(help="Avro schemas in the schema registry, and their compatibility.", no_args_is_help=True)

SubjectArgument = Annotated[
    str, typer.Argument(help="A subject, such as page-view-value.", autocompletion=names.subjects)
]


@contextmanager
def registry_of(datacenter_name: str | None, url: str | None) -> Iterator[SchemaRegistryClient]:
    """The registry at `url`, or else the datacenter's."""
    from headrace.registry.client import SchemaRegistryClient

    with SchemaRegistryClient(
        url or datacenter(datacenter_name).registry, timeout_s=TIMEOUT_S, retry_rounds=1
    ) as client:
        yield client


@contextmanager
def naming(client: SchemaRegistryClient, subject: str) -> Iterator[None]:
    """Says which subject may be meant, if the registry does not know this one."""
    from headrace.registry.errors import SUBJECT_NOT_FOUND, RegistryError

    try:
        yield
    except RegistryError as error:
        if error.error_code != SUBJECT_NOT_FOUND:
            raise
        hint = did_you_mean(subject, client.subjects(), "headrace schemas list")
        raise CommandError(f"there is no subject {subject!r}{hint}") from error


@app.command("list")
def list_(
    subject: Annotated[
        str | None,
        typer.Argument(
            help="List this subject's versions; by default all subjects.", autocompletion=names.subjects
        ),
    ] = None,
    deleted: Annotated[
        bool, typer.Option("--deleted", help="List what is deleted, but not permanently.")
    ] = False,
    where: DatacenterOption = None,
    registry: RegistryOption = None,
    json: JsonOption = False,
) -> None:
    """List the subjects with their newest version and its id, and levels; or the versions of one subject."""
    with registry_of(where, registry) as client:
        rows = _subjects(client, deleted) if subject is None else _versions(client, subject, deleted)
    if json:
        print_json(rows)
        return
    columns = [">version", "id"] if subject else ["subject", ">version", ">id", "compatibility"]
    if deleted:
        columns = [">version"] if subject else ["subject", ">versions"]
    which = "of this subject is deleted" if subject else "is deleted"
    print_table(
        columns,
        [["-" if value is None else value for value in row.values()] for row in rows],
        empty=f"no version {which}" if deleted else "no schema is registered (--deleted lists deleted ones)",
    )


def _subjects(client: SchemaRegistryClient, deleted: bool) -> list[dict[str, Any]]:
    if deleted:
        return [
            {"subject": name, "versions": len(client.versions(name, deleted_only=True))}
            for name in sorted(client.subjects(deleted_only=True))
        ]
    return [
        {
            "subject": name,
            "version": (newest := client.latest(name)).version,
            "id": newest.schema_id,
            "compatibility": client.config(name),
        }
        for name in sorted(client.subjects())
    ]


def _versions(client: SchemaRegistryClient, subject: str, deleted: bool) -> list[dict[str, Any]]:
    with naming(client, subject):
        numbers = client.versions(subject, deleted_only=deleted)
        if deleted:
            return [{"version": number} for number in numbers]
        return [{"version": number, "id": client.version(subject, number).schema_id} for number in numbers]


@app.command()
def show(
    subject: SubjectArgument,
    version: Annotated[str, typer.Option("--version", help="A version number, or latest.")] = "latest",
    where: DatacenterOption = None,
    registry: RegistryOption = None,
    json: JsonOption = False,
) -> None:
    """Print the schema of one version of a subject, as JSON."""
    with registry_of(where, registry) as client, naming(client, subject):
        found = client.version(subject, version)
    schema = jsonlib.loads(found.schema)
    if json:
        print_json({"subject": subject, "version": found.version, "id": found.schema_id, "schema": schema})
    else:
        out.print(f"[bold]{plain(subject)}[/] version {found.version}, id {found.schema_id}")
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
    schema = read_schema(file)
    with registry_of(where, registry) as client:
        before = _newest_version(client, subject)
        client.register(subject, schema)
        found = client.lookup(subject, schema)
    is_new = found.version > before
    if json:
        row = {"subject": subject, "version": found.version, "id": found.schema_id, "registered": is_new}
        print_json(row)
    else:
        how = "registered as" if is_new else "was registered before, as"
        out.print(f"{plain(subject)}: {how} version {found.version}, id {found.schema_id}")


@app.command()
def check(
    subject: SubjectArgument,
    file: Annotated[Path, typer.Argument(help="The schema: an .avsc file.")],
    where: DatacenterOption = None,
    registry: RegistryOption = None,
    json: JsonOption = False,
) -> None:
    """Check whether a schema may follow the newest version, as `register` does; exit code 1 if not.

    With a transitive level it is compared with all versions.
    """
    with registry_of(where, registry) as client:
        problems = client.check_compatibility(subject, read_schema(file), version=None)
    if json:
        print_json({"subject": subject, "compatible": not problems, "problems": problems})
    elif problems:
        out.print(f"{file} may not follow the newest version of {subject}:", markup=False)
        for problem in problems:
            out.print(f"  {problem}", markup=False)
    else:
        out.print(f"{file} may follow the newest version of {subject}", markup=False)
    if problems:
        raise typer.Exit(ExitCode.NEGATIVE)


def _newest_version(client: SchemaRegistryClient, subject: str) -> int:
    """Returns the newest version's number; 0 without any."""
    from headrace.registry.errors import SUBJECT_NOT_FOUND, RegistryError

    try:
        return max(client.versions(subject))
    except RegistryError as error:
        if error.error_code != SUBJECT_NOT_FOUND:
            raise
        return 0


def read_schema(file: Path) -> dict[str, Any]:
    """Returns the schema of an .avsc file. Raises `CommandError`."""
    try:
        schema = jsonlib.loads(file.read_text())
    except OSError as error:
        raise CommandError(f"{file} cannot be read: {error.strerror}", ExitCode.USAGE) from error
    except ValueError as error:
        raise CommandError(f"{file} is not JSON: {error}", ExitCode.USAGE) from error
    if not isinstance(schema, dict):
        raise CommandError(f"{file} is not a JSON object, and so no schema of a record", ExitCode.USAGE)
    return schema
