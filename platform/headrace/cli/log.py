"""`headrace log check | set-aside`: a broker's files, without the broker.

`check` changes nothing and may run beside the broker. `set-aside` claims the partitions that it works on:
beside a running broker those that are offline there.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from headrace.log.check import Report
    from headrace.log.set_aside import Plan

from headrace.cli.errors import CommandError, ExitCode
from headrace.cli.output import JsonOption, in_bytes, out, print_json
from headrace.process.text import counted

BUSY_SHOWN_MAX = 10

app = typer.Typer(help="A broker's log files: damage, and what to do about it.", no_args_is_help=True)

DirectoryArgument = Annotated[
    Path, typer.Argument(metavar="DIR", help="A broker's data directory, or a partition's folder in it.")
]
PartitionOption = Annotated[
    str | None, typer.Option("--partition", help="Only this partition, such as page-view-0.")
]


@app.command()
def check(path: DirectoryArgument, partition: PartitionOption = None, json: JsonOption = False) -> None:
    """Read a broker's logs, and name what is damaged. The exit code is 1 if something is."""
    from headrace.log.check import check_partition

    reports = [check_partition(folder) for folder in _folders(path, partition)]
    if json:
        print_json([_as_json(report) for report in reports])
    else:
        for report in reports:
            _print(report)
        damaged = sum(bool(report.findings) for report in reports)
        _say(
            f"{counted(len(reports), 'partition')}, "
            f"{counted(sum(len(report.segments) for report in reports), 'segment')}, "
            f"{in_bytes(sum(report.size_bytes for report in reports))}, "
            f"{counted(sum(report.batches for report in reports), 'good batch', 'good batches')} with "
            f"{counted(sum(report.records for report in reports), 'record')}: "
            + (
                f"{counted(damaged, 'partition is', 'partitions are')} damaged"
                if damaged
                else "nothing is damaged"
            )
        )
    if any(report.findings for report in reports):
        raise typer.Exit(ExitCode.NEGATIVE)


@app.command("set-aside")
def set_aside(
    path: DirectoryArgument,
    partition: PartitionOption = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would be done.")] = False,
    resume_at: Annotated[
        int | None,
        typer.Option(
            "--resume-at", min=0, help="Where the log goes on, if nobody knows where it ended; one partition."
        ),
    ] = None,
    json: JsonOption = False,
) -> None:
    """Move damaged segments aside, so that their partition serves again, with a named gap.

    Works beside a running broker, on the partitions that are offline there; it opens them again by itself.
    """
    from headrace.log import set_aside as room
    from headrace.log.directory import OWNER_FILE

    folders = _folders(path, partition)
    if resume_at is not None and len(folders) != 1:
        raise CommandError(
            f"--resume-at is for one partition, {path} holds {len(folders)}: add --partition", ExitCode.USAGE
        )
    data_dir = folders[0].parent
    if not (data_dir / OWNER_FILE).exists() and not dry_run:
        raise CommandError(
            f"{data_dir} is not a broker's data directory: it lacks {OWNER_FILE}", ExitCode.USAGE
        )
    rows: list[dict[str, Any]] = []
    with nullcontext(folders) if dry_run else _free(data_dir, folders, quiet=json) as free:
        for folder in free:
            planned, moved = room.set_aside(folder, resume_at=resume_at, dry_run=dry_run)
            rows.append(_plan_as_json(folder, planned, moved, dry_run=dry_run))
            if not json:
                _print_plan(folder, planned, moved, dry_run=dry_run)
    if json:
        print_json(rows)


def _plan_as_json(folder: Path, planned: Plan, moved: list[str], *, dry_run: bool) -> dict[str, Any]:
    return {
        "partition": folder.name,
        "changed": bool(moved or planned.gaps) and not dry_run,
        "gaps": [{"from": gap.start, "to": gap.end, "cause": gap.cause} for gap in planned.gaps],
        "aside": list(planned.aside),
        "kept_as": list(moved),
        "end": planned.end,
    }


@contextmanager
def _free(data_dir: Path, folders: list[Path], *, quiet: bool) -> Iterator[list[Path]]:
    """Claims the partitions that no broker has open, and says which it has. Raises `CommandError` if there
    are none.
    """
    from headrace.log.claims import Claims
    from headrace.log.directory import lock
    from headrace.log.errors import DirectoryLockedError

    held: int | None = None
    with suppress(DirectoryLockedError):
        held = lock(data_dir, "")  # nobody starts a broker here meanwhile
    claims = Claims(data_dir)
    try:
        free = [folder for folder in folders if claims.take(folder.name)]
        busy = [folder.name for folder in folders if folder not in free]
        if busy and not free:
            raise CommandError(
                f"{data_dir}: {', '.join(busy[:BUSY_SHOWN_MAX])}: the log is open in a running broker, or "
                "another command is at work there: stop the broker first"
            )
        if busy and not quiet:
            partitions = counted(len(busy), "partition is", "partitions are")
            _say(f"{partitions} open in the running broker, and left alone")
        yield free
    finally:
        claims.close()
        if held is not None:
            os.close(held)


def _folders(path: Path, partition: str | None) -> list[Path]:
    from headrace.log.set_aside import SetAsideError, partition_folders

    try:
        found = partition_folders(path)
    except SetAsideError as error:
        raise CommandError(str(error), ExitCode.USAGE) from None
    if partition is None:
        return found
    chosen = [folder for folder in found if folder.name == partition]
    if not chosen:
        raise CommandError(f"{path} has no partition {partition!r}", ExitCode.USAGE)
    return chosen


def _print(report: Report) -> None:
    name = report.directory.name
    for found in report.findings:
        _say(f"DAMAGED {name}: {found.file}: addresses [{found.start}, {found.end}): {found.cause}")
    for note in report.notes:
        _say(f"note    {name}: {note}")


def _print_plan(folder: Path, planned: Plan, moved: list[str], *, dry_run: bool) -> None:
    would = "would be " if dry_run else ""
    if not planned.aside and not planned.gaps and not moved:
        _say(f"{folder.name}: nothing {would}changed")
    for gap in planned.gaps:
        _say(f"{folder.name}: gap [{gap.start}, {gap.end}) of {in_bytes(gap.end - gap.start)}: {gap.cause}")
    for base in planned.aside if dry_run else ():
        _say(f"{folder.name}: the segment at {base} would be moved aside")
    for piece in planned.pieces if dry_run else ():
        _say(f"{folder.name}: addresses [{piece.start}, {piece.end}) of it would be kept")
    for name in moved:
        _say(f"{folder.name}: kept as {name}")
    if planned.gaps:
        _say(f"{folder.name}: the log {'would go' if dry_run else 'goes'} on at {planned.end}")


def _as_json(report: Report) -> dict[str, Any]:
    return {
        "partition": report.directory.name,
        "size_bytes": report.size_bytes,
        "segments": len(report.segments),
        "batches": report.batches,
        "records": report.records,
        "durable_to": report.durable,
        "findings": [found._asdict() for found in report.findings],
        "notes": report.notes,
    }


def _say(line: str) -> None:
    out.print(line, markup=False)
