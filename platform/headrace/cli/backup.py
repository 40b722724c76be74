"""`headrace backup create | list | verify` and `headrace restore`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from headrace.backup.manifest import Manifest

from headrace.cli.context import DatacenterOption, site
from headrace.cli.errors import CommandError, ExitCode, print_note
from headrace.cli.output import JsonOption, in_bytes, in_time, out, print_json, print_table
from headrace.cli.values import given_path, parse_size_bytes
from headrace.process.text import counted

DAMAGED_SHOWN_MAX = 20
_HDFS = ("all", "log", "none")

app = typer.Typer(help="Backups of this home: create, list, verify.", no_args_is_help=True)

ShelfArgument = Annotated[
    Path,
    typer.Argument(
        metavar="DIR", help="The folder that holds the backups, best on another disk.", parser=given_path
    ),
]
BackupArgument = Annotated[
    Path,
    typer.Argument(
        metavar="BACKUP", help="A backup, as `headrace backup list` shows it: a folder.", parser=given_path
    ),
]
RateOption = Annotated[
    str | None,
    typer.Option(
        "--bytes-per-second", metavar="SIZE", help="Copy at most so much in a second, such as 20MiB."
    ),
]


def _rate(text: str | None) -> int | None:
    if text is None:
        return None
    rate = parse_size_bytes(text)
    if rate < 1:
        raise CommandError(f"--bytes-per-second {text}: it must be at least 1", ExitCode.USAGE)
    return rate


def _tell(line: str) -> None:
    print_note(line)


@app.command()
def create(
    folder: ShelfArgument,
    hdfs: Annotated[
        str,
        typer.Option(
            "--hdfs", metavar="WHAT", help="Of HDFS: all, log (commit logs and seals alone), or none."
        ),
    ] = "all",
    bytes_per_second: RateOption = None,
    checksum: Annotated[
        bool, typer.Option("--checksum", help="Read files that look unchanged, too, and compare them.")
    ] = False,
    keep: Annotated[
        int | None, typer.Option("--keep", min=1, help="Then remove all but so many of the newest backups.")
    ] = None,
    json: JsonOption = False,
) -> None:
    """Take a backup of this home, running or stopped. The exit code is 1 if something is missing in it."""
    from headrace.backup import taking

    if hdfs not in _HDFS:
        raise CommandError(f"--hdfs {hdfs}: it is one of {', '.join(_HDFS)}", ExitCode.USAGE)
    options = taking.Options(hdfs, _rate(bytes_per_second), checksum, keep)
    taken = taking.take(site(), folder, options, _tell)
    if json:
        print_json(
            {
                **_as_json(taken.folder, taken.manifest),
                "copied_bytes": taken.copied_bytes,
                "taken_over_bytes": taken.taken_over_bytes,
                "removed": taken.removed,
            }
        )
    else:
        _print_notes(taken.manifest)
        for name in taken.removed:
            out.print(f"removed {name}", markup=False)
        seconds = (taken.manifest.ended_ms - taken.manifest.began_ms) / 1000
        out.print(
            f"{taken.folder}: {counted(len(taken.manifest.files), 'file')}, "
            f"{in_bytes(taken.manifest.size_bytes)}, of which "
            f"{in_bytes(taken.copied_bytes)} were copied and "
            f"{in_bytes(taken.taken_over_bytes)} taken over from an "
            f"earlier backup, in {seconds:.1f} s",
            markup=False,
        )
    if taken.manifest.problems:
        raise typer.Exit(ExitCode.NEGATIVE)


@app.command("list")
def list_(folder: ShelfArgument, json: JsonOption = False) -> None:
    """List the backups of a folder, the oldest first, and those that were interrupted."""
    from headrace.backup import manifest
    from headrace.backup.errors import BackupError
    from headrace.backup.shelf import Shelf

    shelf = Shelf(folder)
    shelf.check()
    if not folder.is_dir():
        raise CommandError(f"there is no folder {folder}; `headrace backup create {folder}` makes it")
    rows: list[dict[str, Any]] = []
    for one in [*shelf.whole(), *shelf.halves()]:
        try:
            rows.append(_as_json(one, manifest.load(one)))
        except (BackupError, OSError) as error:
            rows.append({"backup": str(one), "problem": "half" if one in shelf.halves() else str(error)})
    if json:
        print_json(rows)
        return
    print_table(
        ["backup", "taken (UTC)", "of", ">files", ">size", "notes"],
        [
            (
                Path(row["backup"]).name,
                in_time(row["began_ms"])[:19] if "began_ms" in row else "-",
                row.get("home", "-"),
                f"{row['files']:,}" if "files" in row else "-",
                in_bytes(row["size_bytes"]) if "size_bytes" in row else "-",
                row.get("problem")
                or (counted(len(row["problems"]), "problem") if row.get("problems") else ""),
            )
            for row in rows
        ],
        empty=f"{folder} holds no backup",
    )


@app.command()
def verify(backup: BackupArgument, bytes_per_second: RateOption = None, json: JsonOption = False) -> None:
    """Read a backup, and compare every file with its size and SHA-256. The exit code is 1 if one differs."""
    from headrace.backup.pace import Pace
    from headrace.backup.verifying import verify as verified

    found = verified(backup, Pace(_rate(bytes_per_second)))
    if json:
        print_json(
            {
                **_as_json(backup, found.manifest),
                "damaged": [{"path": path, "problem": problem} for path, problem in found.damaged],
                "extra": found.extra,
            }
        )
    else:
        for path, problem in found.damaged[:DAMAGED_SHOWN_MAX]:
            out.print(f"DAMAGED {path}: {problem}", markup=False)
        if len(found.damaged) > DAMAGED_SHOWN_MAX:
            out.print(f"… and {len(found.damaged) - DAMAGED_SHOWN_MAX} more")
        for path in found.extra[:DAMAGED_SHOWN_MAX]:
            out.print(f"extra   {path}: the manifest does not name it", markup=False)
        _print_notes(found.manifest)
        count = len(found.manifest.files)
        damaged = counted(len(found.damaged), "is", "are")
        state = f"{damaged} damaged" if found.damaged else "all are as they were written"
        out.print(
            f"{counted(count, 'file')}, {in_bytes(found.manifest.size_bytes)}: {state}",
            markup=False,
        )
    if found.damaged:
        raise typer.Exit(ExitCode.NEGATIVE)


def restore(
    backup: BackupArgument,
    into: Annotated[
        Path | None,
        typer.Option(
            "--into", metavar="HOME", help="An empty home; by default $HEADRACE_HOME.", parser=given_path
        ),
    ] = None,
    partition: Annotated[
        str | None,
        typer.Option(
            "--partition", help="Only mend this partition, such as page-view-0, beside running brokers."
        ),
    ] = None,
    datacenter: DatacenterOption = None,
    broker: Annotated[
        int | None,
        typer.Option("--broker", min=0, help="With --partition: of several replicas here, this broker's."),
    ] = None,
    shorter: Annotated[
        bool,
        typer.Option("--shorter", help="With --partition: also if its log then ends earlier than it did."),
    ] = False,
    bytes_per_second: RateOption = None,
    json: JsonOption = False,
) -> None:
    """Restore a backup into an empty home, or mend one partition that is offline.

    Every digest is checked before anything is written, and nothing is overwritten.
    """
    if partition is not None:
        if into is not None:
            raise CommandError("--into is for a whole home: leave out --partition, or --into", ExitCode.USAGE)
        _mend(backup, partition, datacenter, broker, shorter=shorter, json=json)
        return
    if shorter:
        raise CommandError("--shorter is for --partition", ExitCode.USAGE)
    if broker is not None:
        raise CommandError("--broker is for --partition", ExitCode.USAGE)
    from headrace.backup import restoring

    home = into or site().home
    restored = restoring.restore(backup, home, bytes_per_second=_rate(bytes_per_second), observe=_tell)
    if json:
        print_json(
            {
                **_as_json(backup, restored.manifest),
                "restored_to": str(restored.home),
                "notes": restored.notes,
            }
        )
        return
    for note in restored.notes:
        print_note(note)
    out.print(
        f"restored {counted(len(restored.manifest.files), 'file')}, "
        f"{in_bytes(restored.manifest.size_bytes)}, to {restored.home}; "
        f"{_next_step(restored.home, restored.manifest)}",
        markup=False,
    )


def _next_step(home: Path, made: Manifest) -> str:
    """Returns what starts the units again. A site that describes other ones would begin with empty logs."""
    from headrace.site.errors import SiteError
    from headrace.site.site import Site

    up = "`headrace up` starts what the site describes"
    try:
        site = Site.load(home)
    except SiteError:
        return up
    described = {str(address) for each in site.datacenters for address in each.brokers.values()}
    brokers = {name: of for name, of in made.configurations.items() if of.get("kind") == "broker"}
    others = [name for name, of in brokers.items() if of.get("listen") not in described]
    if not others:
        return up
    return (
        f"its site.yaml, or the default, does not describe {', '.join(others[:3])}"
        f"{f' and {len(others) - 3} more' if len(others) > 3 else ''}: start the agent of this home, and "
        "`terraform apply` makes them again, with this data; `headrace up` would start another site"
    )


def _mend(
    backup: Path, partition: str, datacenter: str | None, broker: int | None, *, shorter: bool, json: bool
) -> None:
    from headrace.backup import manifest, mendable, mending, units

    found = mendable.find(manifest.load(backup), partition, datacenter, broker)
    mine = units.units_in(site())
    folders = {each.name: each.directory for each in mine if each.unit.data_dir is not None}
    piece = mendable.choose(found, partition, folders)
    done = mending.mend(backup, piece, partition, folders[piece.name], may_be_shorter=shorter)
    if json:
        print_json(
            {
                "partition": partition,
                "folder": str(done.folder),
                "restored": [list(each) for each in done.ranges],
                "end": done.end,
                "kept_as": None if done.kept_as is None else str(done.kept_as),
            }
        )
        return
    for start, end in done.ranges:
        out.print(
            f"{partition}: addresses [{start}, {end}), {in_bytes(end - start)}, are of the backup",
            markup=False,
        )
    if done.kept_as is not None:
        out.print(f"{partition}: the damaged files are kept in {done.kept_as}", markup=False)
    out.print(
        f"{partition}: the log ends at {done.end}; a running broker opens it within seconds", markup=False
    )


def _print_notes(made: Manifest) -> None:
    for problem in made.problems:
        out.print(f"PROBLEM {problem}", markup=False)
    for note in made.notes:
        out.print(f"note    {note}", markup=False)


def _as_json(folder: Path, made: Manifest) -> dict[str, Any]:
    return {
        "backup": str(folder),
        "home": made.home,
        "host": made.host,
        "began_ms": made.began_ms,
        "ended_ms": made.ended_ms,
        "files": len(made.files),
        "size_bytes": made.size_bytes,
        "versions": dict(made.versions),
        "pieces": [
            {"name": piece.name, "kind": piece.kind, "datacenter": piece.datacenter, **piece.facts}
            for piece in made.pieces
        ],
        "problems": list(made.problems),
        "notes": list(made.notes),
    }
