"""`headrace up | down | status | restart | logs`: the units of the site on this machine."""

from __future__ import annotations

import subprocess
import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headrace.agent.report import UnitReport
    from headrace.agent.unit import Unit
    from headrace.fleet.foreign import ForeignUnit
    from headrace.site.site import Site

from headrace.cli import names
from headrace.cli.context import site
from headrace.cli.errors import CommandError, ExitCode, print_error, print_note
from headrace.cli.output import (
    JsonOption,
    agrees,
    in_bytes,
    in_duration,
    out,
    print_json,
    print_table,
    write,
)
from headrace.cli.topics import declare_topics
from headrace.cli.values import parse_span_ms
from headrace.process.clock import process_age_s
from headrace.process.nearest import question

AGENT_ANSWER_MIN_S = 1.5
UP_WAIT = "5m"
RESTART_WAIT_MAX_MS = 600_000
UP_WAIT_MAX_MS = 3_600_000


class Part(StrEnum):
    """A part of a site that can be left out."""

    AIRFLOW = "airflow"


WithoutOption = Annotated[
    list[Part] | None, typer.Option("--without", help="A part to leave out, and to stop if it runs.")
]
OthersOption = Annotated[
    bool,
    typer.Option("--yes", "-y", help="Remove units that others made, such as Terraform, without asking."),
]
WaitOption = Annotated[
    bool, typer.Option("--wait", help="Go on waiting for units that are slow or fail, until --timeout.")
]
TimeoutOption = Annotated[
    str | None,
    typer.Option(
        "--timeout", help="With --wait: how long all units together may take, such as 90s; by default 5m."
    ),
]


def up(
    without: WithoutOption = None,
    yes: OthersOption = False,
    wait: WaitOption = False,
    timeout: TimeoutOption = None,
    json: JsonOption = False,
) -> None:
    """Start every unit of the site that does not run yet, and wait until all are ready.

    Each unit has its own time to become ready, and the first one that does not ends the command. With --wait
    the others go on: what is still missing is printed every ten seconds, and named at the end (exit code 1).

    Units that the site no longer has are stopped. If `headrace up` did not make one of them, the command
    names them and asks first; without a terminal it needs --yes.
    """
    from headrace.fleet import operate
    from headrace.fleet.airflow_database import airflow_database
    from headrace.fleet.airflow_units import check_installed
    from headrace.fleet.paths import check_paths
    from headrace.fleet.units import units_of
    from headrace.fleet.waiting import Waiting

    if timeout is not None and not wait:
        raise CommandError("--timeout is the bound of --wait; give both", ExitCode.USAGE)
    given = timeout or UP_WAIT
    wait_ms = parse_span_ms(given, "s", option="--timeout", least_ms=1000, most_ms=UP_WAIT_MAX_MS)
    here = site()
    if without:
        here = here.model_copy(update={part.value: False for part in without})
    check_paths(here)
    check_installed(here)
    if here.airflow and (note := airflow_database(here).note):
        print_note(note)
    units = units_of(here)
    ready: list[str] = []

    def show(unit: Unit, event: str) -> None:
        if event == "ready":
            ready.append(unit.name)
            where = " ".join(str(address) for address in unit.listens[:2])
            if not json:
                out.print(f"  [green]ready[/] {len(ready):2d}/{len(units)}  {unit.name:<24} {where}")

    if not json:
        out.print(f"starting {len(units)} units; state and logs in [bold]{escape(str(here.home))}[/]")
    operate.up(
        here,
        show,
        may_change=lambda units: _may_change(units, is_agreed=yes),
        waiting=Waiting(wait_ms / 1000, print_note) if wait else None,
    )
    if not json:
        out.print("all units are ready; `headrace status` shows them, `headrace down` stops them")
    topics = declare_topics(quiet=json)
    if json:
        print_json({"home": str(here.home), "ready": ready, "topics": [each._asdict() for each in topics]})
        return
    _print_pages(here)
    if here.airflow:
        _print_login(here)


def _may_change(units: Sequence[ForeignUnit], *, is_agreed: bool) -> bool:
    """Names the units of others that `up` would remove or change, and asks on a terminal."""
    from headrace.fleet.foreign import sentence

    print_note(f"`headrace up` will {sentence(units)}")
    if is_agreed or not sys.stdin.isatty():
        return is_agreed
    return agrees("Their data stays on disk. Shall it?")


def down(json: JsonOption = False) -> None:
    """Stop every unit of the site, in the reverse order of the start."""
    from headrace.fleet import operate

    here = site()
    stopped: list[str] = []

    def show(unit: Unit, event: str) -> None:
        if event == "stopped":
            stopped.append(unit.name)
            if not json:
                out.print(f"  stopped  {unit.name}")

    def tell_foreign(names: Sequence[str]) -> None:
        stopped.extend(names)
        if not json:
            out.print(f"  stopping {', '.join(names)}: not of this site, but of this home")

    was_running = operate.down(here, show, tell_foreign=tell_foreign)
    if json:
        print_json({"home": str(here.home), "was_running": was_running, "stopped": stopped})
        return
    out.print("the site is stopped; its data stays" if was_running else f"nothing was running in {here.home}")


def status(json: JsonOption = False) -> None:
    """Show the state of every unit. The exit code is 0 only if all are ready, and 3 if their agent hangs."""
    from headrace.fleet.status import AGENT_ANSWER_MAX_S, unit_reports

    here = site()
    problems: list[str] = []
    # Where the start of a command alone takes long, so may an answer.
    agent_max_s = min(AGENT_ANSWER_MAX_S, max(AGENT_ANSWER_MIN_S, 2 * process_age_s()))
    rows = unit_reports(here, tell=problems.append, agent_max_s=agent_max_s)
    if json:
        print_json([_fields(row) for row in rows])
    else:
        print_table(
            ["unit", "state", ">pid", ">up", ">disk free", "listens on"],
            [
                (
                    row.name,
                    _state(row),
                    row.pid or "-",
                    in_duration(row.uptime_s) if row.pid else "-",
                    in_bytes(row.disk.free_bytes) if row.disk else "-",
                    " ".join(row.listens[:2]),
                )
                for row in rows
            ],
            empty="this site has no units",
        )
        for row in rows:
            for drift in row.drift:
                out.print(f"[yellow]drift[/]  {row.name}: {escape(drift.message)}; `headrace up` repairs it")
        _print_disks(rows)
        _print_unsupervised(rows)
        _print_pages(here)
        if any(row.kind == "airflow" and row.state for row in rows):
            _print_login(here)
    for problem in problems:
        print_error(problem)
    if rows and not problems and not any(row.pid or row.is_ready for row in rows):
        whose = "from $HEADRACE_HOME, or else .headrace of the working directory"
        print_note(f"nothing runs in {here.home} ({whose}); start the site with `headrace up`")
    if problems:
        raise typer.Exit(ExitCode.UNREACHABLE)
    if not all(row.is_ready for row in rows):
        raise typer.Exit(ExitCode.NEGATIVE)


def _fields(row: UnitReport) -> dict[str, object]:
    return {
        "unit": row.name,
        "kind": row.kind,
        "datacenter": row.datacenter,
        "state": row.state,
        "ready": row.is_ready,
        "problem": row.problem,
        "note": row.notice,
        "drift": [drift._asdict() for drift in row.drift],
        "pid": row.pid,
        "uptime_s": row.uptime_s,
        "listens": list(row.listens),
        "log": row.log,
        "made_by": row.made_by,
        "disk": None if row.disk is None else row.disk._asdict(),
    }


def _print_disks(rows: Sequence[UnitReport]) -> None:
    """Warns of disks that are nearly full, with all the folders that units have there."""
    folders: dict[tuple[int, int], list[str]] = {}
    for row in rows:
        if row.disk is not None and row.disk.is_nearly_full:
            folders.setdefault((row.disk.free_bytes, row.disk.size_bytes), []).append(row.disk.directory)
    for (free_bytes, size_bytes), directories in folders.items():
        used = 1 - free_bytes / size_bytes
        others = len(directories) - 1
        more = f" and {others} more folder{'' if others == 1 else 's'}" if others else ""
        out.print(
            f"[red]disk[/]  {used:.0%} used, {in_bytes(free_bytes)} free: {escape(directories[0])}{more}; "
            "delete topics or shorten their retention"
        )


def _print_unsupervised(rows: Sequence[UnitReport]) -> None:
    from headrace.agent.report import UNSUPERVISED

    count = sum(row.state == UNSUPERVISED for row in rows)
    if count:
        out.print(
            f"[yellow]{count} units run, but the agent and the supervisor that started them are gone[/]: "
            "`headrace up` starts these units again under a new supervisor, `headrace down` stops them; "
            "their data stays"
        )


def _state(row: UnitReport) -> str:
    if row.problem:
        return f"[red]{escape(row.problem)}[/]"
    return f"[green]ready[/] {escape(row.notice)}".rstrip()


def _print_pages(here: Site) -> None:
    from headrace.agent.home import AgentHome, AgentRecord

    paths = AgentHome(here.home)
    record = AgentRecord.read(paths.record)
    if record is not None:
        out.print(f"Pages: {record.url}/  any user name, its password is in {escape(str(paths.read_token))}")


def _print_login(here: Site) -> None:
    from headrace.fleet.airflow_units import USER, airflow_password, airflow_url
    from headrace.site.errors import SiteError

    try:
        password = f"[bold]{escape(airflow_password(here) or 'not generated yet')}[/]"
    except SiteError as error:
        password = f"[red]{escape(str(error))}[/]"
    out.print(f"Airflow: {airflow_url(here)}  user [bold]{USER}[/]  password {password}")


def logs(
    unit: Annotated[
        str,
        typer.Argument(
            help="A unit, such as east-broker-1, or supervisord, or agent.", autocompletion=names.units
        ),
    ],
    lines: Annotated[int, typer.Option("--lines", "-n", min=1, max=100_000, help="Number of lines.")] = 30,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Also print new lines, until Ctrl-C.")
    ] = False,
) -> None:
    """Print the last lines of a unit's log."""
    from headrace.agent.logs import log_tail
    from headrace.fleet.units import units_of

    here = site()
    paths = {known.name: known.log_path for known in units_of(here)}
    # The agent may have units that are not in the site's description; their logs are there, too.
    for name in ("supervisord", "agent", unit):
        path = here.home / "logs" / f"{name}.log"
        if name != unit or (path.parent == here.home / "logs" and path.exists()):
            paths[name] = path
    if unit not in paths:
        raise CommandError(
            f"there is no unit {unit!r}{question(unit, paths)}; there are {', '.join(sorted(paths))}",
            ExitCode.USAGE,
        )
    if not paths[unit].exists():
        raise CommandError(f"{unit} has no log yet ({paths[unit]}); start the site with `headrace up`")
    if follow:
        raise typer.Exit(_follow(paths[unit], lines))
    write(log_tail(paths[unit], lines) + "\n")


def _follow(path: Path, lines: int) -> int:
    """Prints a file's last lines, and new ones until Ctrl-C; returns the exit code."""
    # tail(1) follows a file even when it is rotated.
    command = ["tail", "-n", str(lines), "-F", str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, errors="backslashreplace") as tail:
        assert tail.stdout is not None
        try:
            for line in tail.stdout:
                write(line)
        except KeyboardInterrupt:
            return ExitCode.DONE
        finally:
            tail.terminate()
        return tail.wait()


def restart(
    units: Annotated[
        list[str] | None,
        typer.Argument(help="Units to restart, in this order; by default all.", autocompletion=names.units),
    ] = None,
    wait: Annotated[
        str,
        typer.Option("--wait", help="How long until each unit must be ready again: seconds, or such as 2m."),
    ] = "60",
    json: JsonOption = False,
) -> None:
    """Restart units one after another, each after the one before is ready again."""
    from headrace.fleet import restarting

    wait_s = parse_span_ms(wait, "s", option="--wait", least_ms=1000, most_ms=RESTART_WAIT_MAX_MS) / 1000
    done: list[str] = []

    def show(name: str) -> None:
        done.append(name)
        if not json:
            out.print(f"  [green]ready again[/]  {name}")

    restarting.restart(site(), units or None, show, wait_s=wait_s)
    if json:
        print_json({"restarted": done})
    else:
        out.print(f"restarted {len(done)} unit{'' if len(done) == 1 else 's'}, one after another")
