"""`python -m headrace.agent.foreground KIND --datacenter east …`: one unit, in place of this process.

For containers, and for whoever has a supervisor already. Owns the way from a command line to a unit's typed
configuration; what that becomes on this host is `agent.kinds`', as for the agent's own units: same command,
same files, same folders below `$HEADRACE_HOME`. Output goes where this process's goes, and signals reach the
unit itself. `--health` asks the unit that was last started so in this home, in its own protocol, or else the
home's agent.

The options of a kind are the fields of its configuration (`GET /v1/kinds` of an agent shows them, too).
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
from headrace.agent.kinds import (
    KINDS,
    Host,
    Kinds,
    parse_configuration,
    unit_of,
)
from headrace.agent.local import find_agent
from headrace.agent.supervisor import Supervisor
from headrace.site.errors import SiteError
from headrace.site.variables import HOME_VARIABLE

DATACENTER_VARIABLE: Final = "HEADRACE_DATACENTER"
RECORD: Final = "foreground.json"
"""What of a home runs in the foreground, for `--health`."""
# `requires` is an order among an agent's units; `connections` are JSON, no thing for a command line.
_NOT_AN_OPTION: Final = ("kind", "datacenter", "requires", "connections")


def parse(arguments: list[str], *, kinds: Kinds = KINDS) -> tuple[str, Configuration]:
    """A command line as a unit: its name and its configuration. Raises `SiteError`; ends the process with a
    usage line, as argparse does, for words that are no options.
    """
    parser = argparse.ArgumentParser(
        prog="python -m headrace.agent.foreground", description="One unit, in place of this process."
    )
    parser.add_argument("--health", action="store_true", help="alone: say how the unit is that runs so")
    chosen = parser.add_subparsers(dest="kind", metavar="KIND", required=True)
    for kind, (configuration, _) in kinds.items():
        of_kind = chosen.add_parser(kind, help=_first_sentence(configuration))
        add = of_kind.add_argument
        add(
            "--name",
            type=_unit_name,
            default=kind,
            help="by which its data lie in the home (default: %(default)s)",
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
    said = vars(parser.parse_args(arguments))
    name = said.pop("name")
    del said["health"]
    return name, parse_configuration(
        name, {key: value for key, value in said.items() if value is not None}, kinds
    )


def _add_option(parser: argparse.ArgumentParser, name: str, field: FieldInfo) -> None:
    flag, default = "--" + name.replace("_", "-"), field.default
    kind_of_value = get_origin(field.annotation)
    if kind_of_value is Mapping:
        parser.add_argument(
            "--set",
            action=_Setting,
            dest=name,
            metavar="NAME=VALUE",
            help="a setting by its own name; as often as needed",
        )
        return
    shown = "" if field.is_required() or default is None else f"(default: {default})"
    if kind_of_value is tuple:
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
        raise argparse.ArgumentTypeError(f"{text!r} is no unit's name: expected {NAME_PATTERN}")
    return text


class _Setting(argparse.Action):
    def __call__(
        self, parser: argparse.ArgumentParser, into: argparse.Namespace, value: Any, *_: Any
    ) -> None:
        name, equals, text = str(value).partition("=")
        if not equals:
            parser.error(f"--set wants NAME=VALUE, not {value!r}")
        setattr(into, self.dest, {**(getattr(into, self.dest) or {}), name: text})


def _first_sentence(configuration: type[Configuration]) -> str:
    return (configuration.__doc__ or "").partition(".")[0].replace("%", "%%")


def run(name: str, configuration: Configuration, home: Path) -> NoReturn:
    """Becomes the unit. Raises `SiteError` for what this host does not have."""
    unit = unit_of(name, configuration, Host.here(home))
    try:
        Supervisor(home).write_files(unit)
        record = home / RECORD
        new = record.with_suffix(".new")
        # A database's URL may hold a password.
        new.touch(mode=0o600)
        new.write_text(json.dumps({"name": name, "configuration": configuration.model_dump(mode="json")}))
        new.replace(record)
    except OSError as error:
        raise SiteError(
            f"{error.filename} cannot be written ({error.strerror}); ${HOME_VARIABLE} has to name a "
            f"folder that user {os.getuid()} may write"
        ) from error
    environment = {**os.environ, "PYTHONUNBUFFERED": "1", **unit.environment, HOME_VARIABLE: str(home)}
    try:
        os.execvpe(unit.command[0], unit.command, environment)
    except OSError as error:
        raise SiteError(
            f"{unit.command[0]}, which unit {name} needs, cannot be run: {error.strerror}"
        ) from error


def problem(home: Path) -> str | None:
    """What is wrong with the unit that was last started here in the foreground, or, where none was, with the
    agent; None when it is ready.
    """
    try:
        said = json.loads((home / RECORD).read_bytes())
    except FileNotFoundError:
        return _problem_of_agent(home)
    configuration = parse_configuration(said["name"], said["configuration"])
    return unit_of(said["name"], configuration, Host.here(home)).probe.problem()


def _problem_of_agent(home: Path) -> str | None:
    agent = find_agent(home)
    if agent is None:
        return f"neither a unit nor an agent was started in the foreground in {home}"
    with agent:
        supervisord = agent.health()["supervisord"]
    return None if supervisord == "running" else f"supervisord of {home} is {supervisord}"


def main(arguments: list[str]) -> int:
    """Becomes the unit, or answers `--health`; the exit code, when it could not become one."""
    home = Path(os.environ.get(HOME_VARIABLE) or ".headrace").absolute()
    try:
        if arguments == ["--health"]:
            trouble = problem(home)
            print(trouble or "ready")
            return 1 if trouble else 0
        run(*parse(arguments), home)
    except SiteError as error:
        print(f"headrace: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
