"""`python -m headrace.agent.foreground KIND --datacenter east …`: one unit, in place of this process.

For containers and for machines with another supervisor. Converts a command line into a unit's typed
configuration; `agent.kinds` makes the process of it, as for units of the agent: same command, same files,
same folders below `$HEADRACE_HOME`. The unit inherits this process's output, and signals reach it directly.
`--health` probes the unit that was last started this way in this home, or else the home's agent.

The options of a kind are the fields of its configuration, as in `GET /v1/kinds` of an agent.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NoReturn, get_origin

from pydantic.fields import FieldInfo

from headrace.agent.configuration import NAME_PATTERN, Configuration
from headrace.agent.folders import write_durably, write_files
from headrace.agent.host import Host
from headrace.agent.kinds import KINDS, Kinds, parse_configuration, unit_of
from headrace.agent.local import find_agent
from headrace.site.environment_variables import HOME_VARIABLE
from headrace.site.errors import SiteError

DATACENTER_VARIABLE: Final = "HEADRACE_DATACENTER"
RECORD: Final = "foreground.json"
"""The file that records what runs in the foreground of a home, for `--health`."""
# `requires` orders the units of an agent; `connections` is JSON, unfit for a command line.
_NOT_AN_OPTION: Final = ("kind", "datacenter", "requires", "connections")


def parse(arguments: list[str], *, kinds: Kinds = KINDS) -> tuple[str, Configuration]:
    """Reads a command line: the unit's name and its configuration.

    Raises `SiteError` for wrong values. Like argparse, ends the process with a usage line for wrong options.
    """
    parser = argparse.ArgumentParser(
        prog="python -m headrace.agent.foreground", description="One unit, in place of this process."
    )
    parser.add_argument("--health", action="store_true", help="alone: report the health of what runs here")
    subparsers = parser.add_subparsers(dest="kind", metavar="KIND", required=True)
    for kind, (configuration, _) in kinds.items():
        of_kind = subparsers.add_parser(kind, help=_first_sentence(configuration))
        add = of_kind.add_argument
        add(
            "--name",
            type=_unit_name,
            default=kind,
            help="names its folder of data (default: %(default)s)",
        )
        add(
            "--datacenter",
            default=os.environ.get(DATACENTER_VARIABLE),
            required=DATACENTER_VARIABLE not in os.environ,
            help=f"(default: ${DATACENTER_VARIABLE})",
        )
        for name, field in configuration.model_fields.items():
            if name not in _NOT_AN_OPTION:
                _add_option(of_kind, name, field)
    fields = vars(parser.parse_args(arguments))
    name = fields.pop("name")
    del fields["health"]
    given = {field: value for field, value in fields.items() if value is not None}
    return name, parse_configuration(name, given, kinds)


def _add_option(parser: argparse.ArgumentParser, name: str, field: FieldInfo) -> None:
    flag, default = "--" + name.replace("_", "-"), field.default
    container = get_origin(field.annotation)
    if container is Mapping:
        parser.add_argument(
            "--set",
            action=_Setting,
            dest=name,
            metavar="NAME=VALUE",
            help="a setting; may be repeated",
        )
        return
    shown = "" if field.is_required() or default is None else f"(default: {default})"
    if container is tuple:
        parser.add_argument(
            flag,
            type=lambda text: text.split(","),
            required=field.is_required(),
            metavar="VALUE,…",
            help=shown,
        )
    else:
        parser.add_argument(flag, required=field.is_required(), metavar="VALUE", help=shown)


def _unit_name(text: str) -> str:
    if not re.fullmatch(NAME_PATTERN, text):
        raise argparse.ArgumentTypeError(f"{text!r} is not a unit name: expected {NAME_PATTERN}")
    return text


class _Setting(argparse.Action):
    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, value: Any, *_: Any
    ) -> None:
        name, equals, text = str(value).partition("=")
        if not equals:
            parser.error(f"--set takes NAME=VALUE, not {value!r}")
        setattr(namespace, self.dest, {**(getattr(namespace, self.dest) or {}), name: text})


def _first_sentence(configuration: type[Configuration]) -> str:
    return (configuration.__doc__ or "").partition(".")[0].replace("%", "%%")


def run(name: str, configuration: Configuration, home: Path) -> NoReturn:
    """Replaces this process by the unit's process. Raises `SiteError` for what this host does not have."""
    unit = unit_of(name, configuration, Host.here(home))
    try:
        write_files(unit.files, unit.kept_before)
        record = {"name": name, "configuration": configuration.model_dump(mode="json")}
        write_durably(home / RECORD, json.dumps(record), is_durable=False)
    except OSError as error:
        raise SiteError(
            f"{error.filename} cannot be written ({error.strerror}); set ${HOME_VARIABLE} to a "
            f"folder that user {os.getuid()} may write"
        ) from error
    environment = {**os.environ, "PYTHONUNBUFFERED": "1", **unit.environment, HOME_VARIABLE: str(home)}
    try:
        os.execvpe(unit.command[0], unit.command, environment)
    except OSError as error:
        raise SiteError(
            f"{unit.command[0]}, which unit {name} needs, cannot be run: {error.strerror}"
        ) from error


def check_health(home: Path) -> str | None:
    """The problem of the unit that was last started here in the foreground, or, without one, of the agent;
    None if it is ready.
    """
    try:
        record = json.loads((home / RECORD).read_bytes())
    except FileNotFoundError:
        return _problem_of_agent(home)
    configuration = parse_configuration(record["name"], record["configuration"])
    return unit_of(record["name"], configuration, Host.here(home)).probe.check()


def _problem_of_agent(home: Path) -> str | None:
    agent = find_agent(home)
    if agent is None:
        return f"neither a unit nor an agent was started in the foreground in {home}"
    with agent:
        supervisord = agent.health()["supervisord"]
    return None if supervisord == "running" else f"supervisord of {home} is {supervisord}"


def main(arguments: list[str]) -> int:
    """Runs the unit in place of this process, or reports `--health`; returns the exit code otherwise."""
    home = Path(os.environ.get(HOME_VARIABLE) or ".headrace").absolute()
    try:
        if arguments == ["--health"]:
            found = check_health(home)
            print(found or "ready")
            return 1 if found else 0
        run(*parse(arguments), home)
    except SiteError as error:
        print(f"headrace: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
