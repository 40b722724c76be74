"""The command `headrace`: all command groups as one command line."""

from __future__ import annotations

import logging
import os
import platform
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from typing import Annotated, NoReturn

import typer
from typer.exceptions import TyperException

from headrace.cli import (
    agent,
    audit,
    audit_accept,
    audit_dedupe,
    audit_drill,
    audit_ended,
    audit_recount,
    audit_repair,
    backup,
    brokers,
    brokers_refetch,
    completion,
    consume,
    contexts,
    demo,
    dump_log,
    groups,
    help_texts,
    log,
    mirror,
    produce,
    schema_changes,
    schema_diff,
    schemas,
    site,
    topics,
    topics_new,
    warehouse,
    warehouse_upkeep,
)
from headrace.cli.errors import DEBUG_VARIABLE, ExitCode, exit_with, print_error
from headrace.cli.output import OutputClosedError, drop_output, err, write
from headrace.cli.selection import in_context
from headrace.process.logs import LineFormatter

app = typer.Typer(
    name="headrace",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for command in (site.up, site.down, site.status, site.restart, site.logs, agent.agent, demo.demo):
    app.command(rich_help_panel="The site on this machine")(command)
app.add_typer(topics.app, name="topics", rich_help_panel="Topics and events")
app.command("produce", rich_help_panel="Topics and events")(in_context(produce.produce))
app.command("consume", rich_help_panel="Topics and events")(in_context(consume.consume))
app.add_typer(groups.app, name="groups", rich_help_panel="Topics and events")
app.add_typer(brokers.app, name="brokers", rich_help_panel="Topics and events")
app.add_typer(mirror.app, name="mirror", rich_help_panel="Between datacenters")
topics.app.command()(topics_new.new)
audit.app.command()(audit_repair.repair)
audit.app.command()(audit_accept.accept)
audit.app.command()(audit_recount.recount)
brokers.app.command()(brokers_refetch.refetch)
audit.app.command()(audit_dedupe.dedupe)
audit.app.command()(audit_drill.drill)
audit.app.command()(audit_ended.ended)
warehouse.app.command()(warehouse_upkeep.replay)
warehouse.app.command()(warehouse_upkeep.compact)
warehouse.app.command()(warehouse_upkeep.retain)
warehouse.app.command()(warehouse_upkeep.move)
warehouse.app.command()(warehouse_upkeep.verify)
warehouse.app.command()(warehouse_upkeep.ddl)
app.add_typer(warehouse.app, name="warehouse", rich_help_panel="Warehouse")
app.add_typer(audit.app, name="audit", rich_help_panel="Audit")
schemas.app.command()(schema_diff.diff)
schemas.app.command()(schema_changes.delete)
schemas.app.command()(schema_changes.compatibility)
app.add_typer(schemas.app, name="schemas", rich_help_panel="Schemas")
app.add_typer(log.app, name="log", rich_help_panel="Topics and events")
app.command("dump-log", rich_help_panel="Topics and events")(dump_log.dump_log)
app.add_typer(backup.app, name="backup", rich_help_panel="The site on this machine")
app.command("restore", rich_help_panel="The site on this machine")(backup.restore)
app.add_typer(contexts.app, name="context", rich_help_panel="The site on this machine")
for group in (topics.app, groups.app, brokers.app, mirror.app, warehouse.app, audit.app, schemas.app):
    for known in group.registered_commands:
        assert known.callback is not None
        known.callback = in_context(known.callback)
app.command("completion", rich_help_panel="The site on this machine")(completion.completion)
help_texts.complete(app)


def _print_version(wanted: bool) -> None:
    if wanted:
        write(f"headrace {version('headrace')} (Python {platform.python_version()})\n")
        raise typer.Exit


@app.callback()
def _options(
    is_version: Annotated[
        bool,
        typer.Option("--version", help="Print the version.", is_eager=True, callback=_print_version),
    ] = False,
) -> None:
    """Events from many datacenters into one warehouse, and the proof that none was lost."""


def main() -> None:
    """Runs the command line of this process; exits with a line and a code if it fails."""
    with _log_lines():
        try:
            if completion.is_asked_for():
                completion.prepare()
            # Not typer's own handling of errors: it would print words of the command line unescaped.
            sys.exit(_run())
        except TyperException as error:
            _exit_with_usage(error)
        except typer.Abort:
            if not sys.stdin.isatty():
                err.print()  # nobody has ended the line of the question
            print_error("nothing was done, as you did not confirm")
            sys.exit(ExitCode.NEGATIVE)
        except OutputClosedError:
            drop_output()
            sys.exit(ExitCode.CLOSED)
        except Exception as error:
            exit_with(error)


def _run() -> int:
    """Runs the command, and returns its exit code. Raises `OutputClosedError` also for a page of help."""
    try:
        code: int = app(standalone_mode=False, complete_var=completion.VARIABLE)
    except SystemExit:
        if completion.is_asked_for():
            raise
        # No command ends so: rich does, which prints the help, when the reader of its output has gone.
        raise OutputClosedError from None
    return code


def _exit_with_usage(error: TyperException) -> NoReturn:
    message = error.format_message()
    if message:  # without one the help was printed instead
        context = getattr(error, "ctx", None)
        command = "headrace" if context is None else context.command_path
        # What pydantic puts before the words of a check.
        message = message.replace("Value error, ", "").rstrip(".")
        print_error(f"{message}{' See' if message.endswith('?') else '; see'} `{command} --help`")
    sys.exit(error.exit_code)


@contextmanager
def _log_lines() -> Iterator[None]:
    """Prints what libraries log for users on stderr, each event as one escaped line."""
    is_debugging = bool(os.environ.get(DEBUG_VARIABLE))
    handler = logging.StreamHandler()
    handler.setFormatter(LineFormatter("%(message)s"))
    handler.setLevel(logging.DEBUG if is_debugging else logging.WARNING)
    if not is_debugging:
        # The error of the session says that ZooKeeper is unreachable, once.
        handler.addFilter(lambda record: not record.name.startswith("kazoo"))
    root = logging.getLogger()
    root.addHandler(handler)
    try:
        yield
    finally:
        root.removeHandler(handler)
