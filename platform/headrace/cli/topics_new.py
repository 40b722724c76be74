"""`headrace topics new`: a topic with all that belongs to it, from a schema file."""

from __future__ import annotations

import getpass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

if TYPE_CHECKING:
    from headrace.fleet.topics.deciding import Plan, Step
    from headrace.fleet.topics.wanted import NewTopic
    from headrace.site.context import Context

from headrace.cli.cluster import ReplicationFactorOption
from headrace.cli.context import context
from headrace.cli.context import site as load_site
from headrace.cli.errors import CommandError, ExitCode, print_error
from headrace.cli.output import JsonOption, note, out, plain, print_json, write
from headrace.cli.topics import ProducersOption
from headrace.cli.values import (
    PARTITIONS_MAX,
    parse_duration_ms,
    parse_pairs,
    parse_settings,
    parse_size_bytes,
)
from headrace.registry.level import Level

RETENTION_MS = "retention.ms"
RETENTION_BYTES = "retention.bytes"


SchemaArgument = Annotated[
    Path | None,
    typer.Argument(
        help="The schema of its events, an .avsc file; by default TOPIC.avsc here.", show_default=False
    ),
]
PartitionsOption = Annotated[
    int | None,
    typer.Option("--partitions", "-p", min=1, max=PARTITIONS_MAX, help="How many partitions; by default 3."),
]
RetentionOption = Annotated[
    str | None,
    typer.Option("--retention", help="How long brokers keep records, such as 7d.", metavar="DURATION"),
]
RetentionSizeOption = Annotated[
    str | None,
    typer.Option(
        "--retention-size", help="How much of each partition they keep, such as 10GiB.", metavar="SIZE"
    ),
]
ConfigOption = Annotated[
    list[str] | None,
    typer.Option(
        "--config", "-c", help="Another setting of the topic; may be repeated.", metavar="NAME=VALUE"
    ),
]
CompatibilityOption = Annotated[
    Level | None,
    typer.Option(
        "--compatibility", help="The subject's own level, such as full_transitive.", case_sensitive=False
    ),
]
OwnerOption = Annotated[
    str | None,
    typer.Option("--owner", help="Who is responsible for the topic's data; by default you.", metavar="TEAM"),
]
LoadOption = Annotated[
    list[str] | None,
    typer.Option(
        "--load",
        help="A field of its load, such as schedule='0 * * * *', grace=30m; may be repeated.",
        metavar="NAME=VALUE",
    ),
]
ContractTestOption = Annotated[
    Path | None,
    typer.Option("--contract-test", help="Where to write the contract test; by default beside the schema."),
]
NoContractTestOption = Annotated[bool, typer.Option("--no-contract-test", help="Write no contract test.")]
HclOption = Annotated[
    bool, typer.Option("--hcl", help="Print Terraform's resources instead, and make nothing.")
]
DryRunOption = Annotated[bool, typer.Option("--dry-run", help="Show the plan, and change nothing.")]


def new(
    topic: Annotated[str, typer.Argument(help="The topic's name.", show_default=False)],
    schema: SchemaArgument = None,
    partitions: PartitionsOption = None,
    replication_factor: ReplicationFactorOption = None,
    retention: RetentionOption = None,
    retention_size: RetentionSizeOption = None,
    config: ConfigOption = None,
    producers: ProducersOption = None,
    compatibility: CompatibilityOption = None,
    owner: OwnerOption = None,
    load: LoadOption = None,
    contract_test: ContractTestOption = None,
    no_contract_test: NoContractTestOption = False,
    hcl: HclOption = False,
    dry_run: DryRunOption = False,
    json: JsonOption = False,
) -> None:
    """Make a topic from a schema file: schema, partitions, copy, load, DAGs and contract test.

    It is made in every datacenter where services publish. What is there already stays; what contradicts the
    options is named before anything is changed. Run it again to finish what was interrupted.
    """
    if contract_test is not None and no_contract_test:
        raise CommandError("give either --contract-test or --no-contract-test", ExitCode.USAGE)
    here = context()
    _check_context(here, topic, is_hcl=hcl)
    from headrace.fleet.topics.contract_test import contract_test_name
    from headrace.fleet.topics.wanted import NewTopic, check_name, read_event_schema

    check_name(topic)
    path = schema or Path(f"{topic}.avsc")
    wanted = NewTopic(
        topic,
        read_event_schema(path),
        partitions,
        _settings(retention, retention_size, config),
        None if producers is None else producers.value,
        None if compatibility is None else compatibility.value,
        _load_fields(owner, load),
        _load_defaults(is_site=not hcl),
        None if no_contract_test else contract_test or path.with_name(contract_test_name(topic)),
        replication_factor,
    )
    if hcl:
        from headrace.fleet.topics.hcl import blocks

        write(blocks(wanted, here))
        return
    _make(wanted, here.name, dry_run=dry_run, json=json)


def _check_context(here: Context, topic: str, *, is_hcl: bool) -> None:
    """Raises `CommandError` for an installation whose topics this command must not make."""
    from headrace.site.context import SITE

    if is_hcl or here.name == SITE:
        return
    if here.origin == "terraform":
        raise CommandError(
            f"Terraform manages {here.name}, so nothing was made there: "
            f"`headrace topics new {topic} … --hcl` prints the resources to add to its configuration"
        )
    raise CommandError(
        f"context {here.name} is the site of another home: run this command with that home's HEADRACE_HOME, "
        f"and --context {SITE}"
    )


def _settings(retention: str | None, retention_size: str | None, config: list[str] | None) -> dict[str, str]:
    """Returns the settings of all three options. Raises `CommandError` for one that is given twice."""
    from headrace.coordination.declared import PRODUCERS

    settings = parse_settings(config or [])
    short = {}
    if retention is not None:
        short[RETENTION_MS] = str(parse_duration_ms(retention))
    if retention_size is not None:
        short[RETENTION_BYTES] = str(parse_size_bytes(retention_size))
    if twice := settings.keys() & {*short, PRODUCERS}:
        option = {RETENTION_MS: "--retention", RETENTION_BYTES: "--retention-size", PRODUCERS: "--producers"}
        name = min(twice)
        raise CommandError(f"give {option[name]}, not --config {name}", ExitCode.USAGE)
    return {**settings, **short}


def _load_fields(owner: str | None, load: list[str] | None) -> dict[str, Any]:
    """Returns the load's given fields as YAML reads them: numbers are numbers, `null` is None."""
    import yaml

    fields: dict[str, Any] = {}
    for name, value in parse_pairs(load or [], "--load"):
        try:
            fields[name] = yaml.safe_load(value)
        except yaml.YAMLError:
            fields[name] = value  # such as */10 * * * *, where YAML sees an alias
    if owner is not None:
        if "owner" in fields:
            raise CommandError("give either --owner or --load owner", ExitCode.USAGE)
        fields["owner"] = owner
    return fields


def _load_defaults(*, is_site: bool) -> dict[str, Any]:
    """Returns what a load has that was not given: what `topics.yaml` says for all topics, and an owner."""
    from headrace.airflow.topics import read_defaults
    from headrace.fleet.topics.making import topics_file

    try:
        you = getpass.getuser()
    except (OSError, KeyError):
        you = "unknown"
    return {"owner": you, **(read_defaults(topics_file()) if is_site else {"schedule": "*/10 * * * *"})}


def _make(wanted: NewTopic, here: str, *, dry_run: bool, json: bool) -> None:
    from headrace.fleet.topics.deciding import decide
    from headrace.fleet.topics.making import SiteTopics

    with SiteTopics(load_site()) as topics:
        present = topics.read(wanted)
        plan = decide(wanted, present)
        if problems := [*plan.conflicts, *topics.refusals(wanted, plan)]:
            _refuse(problems)
        done: list[Step] = []
        for step in plan.steps if dry_run else topics.make(wanted, plan, present):
            done.append(step)
            if not json:
                out.print(_line(step, dry_run=dry_run))
    if json:
        print_json(_document(wanted, here, done, dry_run=dry_run))
    else:
        _print_end(wanted, plan, dry_run=dry_run)


def _refuse(problems: list[str]) -> NoReturn:
    for problem in problems:
        print_error(problem)
    note("nothing was changed")
    raise typer.Exit(ExitCode.NEGATIVE)


def _document(wanted: NewTopic, here: str, done: list[Step], *, dry_run: bool) -> dict[str, Any]:
    return {
        "topic": wanted.name,
        "context": here,
        "dry_run": dry_run,
        "complete": not dry_run,
        "steps": [
            {
                "what": step.what,
                "where": step.where,
                "outcome": _outcome(step, dry_run=dry_run),
                "detail": step.detail,
            }
            for step in done
        ],
    }


def _outcome(step: Step, *, dry_run: bool) -> str:
    """Returns what became of a step, in a word or two."""
    done = {
        "make": "made",
        "change": "changed",
        "wait": "copied",
        "keep": "there already",
        "skip": "left out",
    }
    planned = {"make": "to make", "change": "to change", "wait": "to copy"}
    return {**done, **planned}[step.do] if dry_run else done[step.do]


def _line(step: Step, *, dry_run: bool) -> str:
    colour = {"keep": "dim", "skip": "yellow"}.get(step.do, "green")
    outcome = f"[{colour}]{_outcome(step, dry_run=dry_run):<13}[/]"
    return f"  {outcome}  {step.what:<13}  {plain(step.where)}: {plain(step.detail)}"


def _print_end(wanted: NewTopic, plan: Plan, *, dry_run: bool) -> None:
    name = plain(wanted.name)
    if dry_run:
        out.print(f"{len(plan.changes)} of {len(plan.steps)} parts would be made or changed; nothing was")
    elif plan.changes:
        out.print(f"topic {name} is ready; services publish to it now, and its load DAG takes it to HDFS")
    else:
        out.print(f"topic {name} is ready; it was complete already")
