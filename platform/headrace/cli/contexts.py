"""`headrace context`: the installations that commands of this home can work on."""

from __future__ import annotations

import re
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headrace.cli.errors import CommandError, ExitCode, print_note
from headrace.cli.output import JsonOption, out, plain, print_json, print_table
from headrace.cli.selection import complete_contexts, current, store

if TYPE_CHECKING:
    from headrace.site.context import Context
    from headrace.site.context_store import ContextStore

app = typer.Typer(
    help="Contexts: the installations that commands can work on, and the one in use.",
    no_args_is_help=True,
)

INPUT_MAX_CHARACTERS = 16 << 20
# As SQLAlchemy reads a URL: a password may have colons and slashes. Drivers take it as a parameter, too.
_PASSWORD = re.compile(r"(?<=://)([^:/@]*):[^@]*@")
_PASSWORD_PARAMETER = re.compile(r"([?&][^=&]*password=)[^&]*", re.IGNORECASE)


@app.command("list")
def list_(json: JsonOption = False) -> None:
    """List the contexts of this home; `*` marks the one in use."""
    contexts = store()
    in_use = contexts.in_use()
    rows = [_row(contexts, name, name == in_use) for name in contexts.names()]
    if json:
        print_json(rows)
        return
    print_table(
        ["", "context", "made of", "datacenters"],
        [
            (
                "*" if row["in_use"] else "",
                row["context"],
                row["origin"] or "-",
                "-" if row["problem"] else ", ".join(row["datacenters"]),
            )
            for row in rows
        ],
        empty="there are no contexts",
    )
    for row in rows:
        if row["problem"]:
            print_note(row["problem"])
    if in_use is None:
        out.print(
            "none is chosen: commands work on this home's site; `headrace context use NAME` chooses one"
        )


def _row(contexts: ContextStore, name: str, is_in_use: bool) -> dict[str, Any]:
    """Returns what is listed of a context. One that cannot be read has a `problem`, and no more."""
    from headrace.site.errors import SiteError

    row: dict[str, Any] = {"context": name, "in_use": is_in_use, "origin": None, "datacenters": []}
    try:
        context = contexts.load(name)
    except SiteError as error:
        return {**row, "problem": str(error)}
    names = [each.name for each in context.datacenters]
    return {**row, "origin": context.origin, "datacenters": names, "problem": None}


@app.command()
def use(
    name: Annotated[
        str,
        typer.Argument(help="A context; site is this home's own.", autocompletion=complete_contexts),
    ],
    json: JsonOption = False,
) -> None:
    """Choose the context of all later commands in this home."""
    store().use(name)
    if json:
        print_json({"context": name, "in_use": True})
    else:
        out.print(f"commands work on context {plain(name)} now")


@app.command()
def show(
    name: Annotated[
        str | None,
        typer.Argument(help="A context; by default the one in use.", autocompletion=complete_contexts),
    ] = None,
    json: JsonOption = False,
) -> None:
    """Show the addresses of a context. Passwords are left out."""
    context = current() if name is None else store().load(name)
    data = context.model_dump(mode="json")
    data["audit_store"] = _without_password(context.audit_store)
    if json:
        print_json(data)
        return
    out.print(f"[bold]{plain(context.name)}[/] (of {context.origin})")
    print_table(
        ["datacenter", "brokers", "services publish to", "registry", "ZooKeeper"],
        [
            (
                each.name,
                " ".join(each.bootstrap_servers),
                each.balancer or "-",
                each.registry_url or "-",
                each.zookeeper_servers or "-",
            )
            for each in context.datacenters
        ],
        empty="it has no datacenters",
    )
    for mirror in context.mirrors:
        out.print(f"mirror {mirror.source} → {mirror.target}: {mirror.status_url}", markup=False)
    for what, value in (
        ("warehouse", context.warehouse),
        ("HDFS", context.hdfs),
        ("WebHDFS", context.webhdfs),
        ("Airflow", context.airflow_url),
        ("audit store", data["audit_store"]),
    ):
        if value is not None:
            out.print(f"{what}: {value}", markup=False)


@app.command("import")
def import_(
    name: Annotated[str, typer.Argument(help="What to call the context.")],
    file: Annotated[
        Path | None, typer.Argument(help="What `terraform output -json` printed; by default stdin.")
    ] = None,
    site: Annotated[
        Path | None,
        typer.Option("--site", help="Make it of this site.yaml, or of a home that has one.", metavar="PATH"),
    ] = None,
    json: JsonOption = False,
) -> None:
    """Make a context of Terraform's outputs: `terraform output -json | headrace context import NAME`.

    A context of that name is replaced. The first one that is imported is in use at once.
    """
    contexts = store()
    contexts.check_name(name)
    if site is not None and file is not None:
        raise CommandError("give either a file of Terraform's outputs or --site, not both", ExitCode.USAGE)
    context = _of_site(site, name) if site is not None else _of_outputs(file, name)
    is_new = name not in contexts.names()
    contexts.save(context)
    is_first = contexts.in_use() is None
    if is_first:
        contexts.use(name)
    names = [each.name for each in context.datacenters]
    if json:
        in_use = contexts.in_use() == name
        print_json({"context": name, "datacenters": names, "created": is_new, "in_use": in_use})
        return
    out.print(f"{'made' if is_new else 'replaced'} context {name}: {plain(', '.join(names))}")
    if is_first:
        out.print(f"commands work on context {name} now; `headrace context use site` changes that")


def _of_site(path: Path, name: str) -> Context:
    from headrace.site.context import context_of
    from headrace.site.site import SITE_FILE_NAME, Site

    home = path if path.is_dir() else path.parent
    if not (home / SITE_FILE_NAME).is_file() or (not path.is_dir() and path.name != SITE_FILE_NAME):
        raise CommandError(f"{path} is neither a {SITE_FILE_NAME} nor a home that has one", ExitCode.USAGE)
    return context_of(Site.load(home), name)


def _of_outputs(file: Path | None, name: str) -> Context:
    from headrace.site.context import parse_outputs

    if file is None and sys.stdin.isatty():
        raise CommandError(
            f"write `terraform output -json | headrace context import {name}`, or give a file", ExitCode.USAGE
        )
    try:
        with nullcontext(sys.stdin) if file is None else file.open() as source:
            text = source.read(INPUT_MAX_CHARACTERS + 1)
    except OSError as error:
        raise CommandError(f"{file} cannot be read: {error.strerror}", ExitCode.USAGE) from error
    except UnicodeDecodeError:
        raise CommandError(f"{file or 'stdin'} is not text", ExitCode.USAGE) from None
    if len(text) > INPUT_MAX_CHARACTERS:
        raise CommandError(
            f"{file or 'stdin'} has more than {INPUT_MAX_CHARACTERS} characters: give Terraform's outputs",
            ExitCode.USAGE,
        )
    return parse_outputs(text, name)


def _without_password(url: str | None) -> str | None:
    if url is None:
        return None
    return _PASSWORD_PARAMETER.sub(r"\1(hidden)", _PASSWORD.sub(r"\1:(hidden)@", url))
