"""The command `headrace`: all command groups as one command line."""

from __future__ import annotations

import typer

from headrace.cli import (
    audit,
    completion,
    consume,
    contexts,
    dump_log,
    groups,
    log,
    mirror,
    produce,
    schemas,
    site,
    topics,
    warehouse,
    warehouse_upkeep,
)
from headrace.cli.errors import exit_with
from headrace.cli.selection import in_context

app = typer.Typer(
    name="headrace",
    help="Events from many datacenters into one warehouse, and the proof that none was lost.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for command in (site.up, site.down, site.status, site.restart, site.logs, site.agent, site.demo):
    app.command(rich_help_panel="The site on this machine")(command)
app.add_typer(topics.app, name="topics", rich_help_panel="Topics and events")
app.command("produce", rich_help_panel="Topics and events")(in_context(produce.produce))
app.command("consume", rich_help_panel="Topics and events")(in_context(consume.consume))
app.add_typer(groups.app, name="groups", rich_help_panel="Topics and events")
app.add_typer(mirror.app, name="mirror", rich_help_panel="Between datacenters")
warehouse.app.command()(warehouse_upkeep.replay)
warehouse.app.command()(warehouse_upkeep.compact)
warehouse.app.command()(warehouse_upkeep.retain)
warehouse.app.command()(warehouse_upkeep.verify)
app.add_typer(warehouse.app, name="warehouse", rich_help_panel="Warehouse")
app.add_typer(audit.app, name="audit", rich_help_panel="Audit")
app.add_typer(schemas.app, name="schemas", rich_help_panel="Schemas")
app.add_typer(log.app, name="log", rich_help_panel="Topics and events")
app.command("dump-log", rich_help_panel="Topics and events")(dump_log.dump_log)
app.add_typer(contexts.app, name="context", rich_help_panel="The site on this machine")
for group in (topics.app, groups.app, mirror.app, warehouse.app, audit.app, schemas.app):
    for known in group.registered_commands:
        assert known.callback is not None
        known.callback = in_context(known.callback)
app.command("completion", rich_help_panel="The site on this machine")(completion.completion)


def main() -> None:
    """Runs the command line of this process; exits with a line and a code if it fails."""
    try:
        if completion.is_asked_for():
            completion.prepare()
        app(complete_var=completion.VARIABLE)
    except Exception as error:
        exit_with(error)
