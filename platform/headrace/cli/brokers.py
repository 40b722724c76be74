"""`headrace brokers`: what each broker holds; moving replicas away from one, and spreading them evenly."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Final

import typer

if TYPE_CHECKING:
    from headrace.client.replica_admin import ReplicaAdmin
    from headrace.reassignment.moving import Progress

from headrace.cli import names
from headrace.cli.brokers_view import (
    broker_rows,
    disk_rows,
    move_rows,
    print_brokers,
    print_disks,
    print_loads,
    print_moves,
)
from headrace.cli.cluster import (
    CHANGE_TIMEOUT_MS,
    Brokers,
    brokers_of,
    exit_if_silent,
    read_timeout_ms,
)
from headrace.cli.context import BootstrapOption, DatacenterOption
from headrace.cli.errors import CommandError, ExitCode, print_error, print_note
from headrace.cli.output import JsonOption, in_bytes, out, print_json
from headrace.cli.values import parse_size_bytes, parse_span_ms

app = typer.Typer(help="Brokers: what each holds, and moving replicas between them.", no_args_is_help=True)

PROGRESS_INTERVAL_S: Final = 2.0
GOES_ON: Final = "what was begun goes on in the brokers; the same command continues with the rest"

BrokerArgument = Annotated[
    int, typer.Argument(help="A broker's id.", min=0, show_default=False, autocompletion=names.broker_ids)
]
TimeoutOption = Annotated[
    str,
    typer.Option(
        "--timeout", help="How long it may take, such as 30m; a bare number is seconds.", metavar="DURATION"
    ),
]
ThrottleOption = Annotated[
    str | None,
    typer.Option(
        "--throttle",
        help="How much each broker copies a second at most, such as 10MB, in each direction. Replicas in "
        "sync are not slowed down.",
        metavar="SIZE",
        show_default=False,
    ),
]
DryRunOption = Annotated[bool, typer.Option("--dry-run", help="Show what would move, and change nothing.")]


IgnoreRoomOption = Annotated[
    bool,
    typer.Option(
        "--ignore-room",
        help="Move replicas also to brokers whose disks have no room for them, or that do not say how much "
        "is free. A disk that becomes full stops what is on it.",
    ),
]


@contextmanager
def admin_of(found: Brokers, *, timeout_ms: float = CHANGE_TIMEOUT_MS) -> Iterator[ReplicaAdmin]:
    from headrace.client.replica_admin import ReplicaAdmin

    with ReplicaAdmin(found.bootstrap, timeout_ms=timeout_ms) as admin:
        yield admin


@app.command("list")
def list_(where: DatacenterOption = None, brokers: BootstrapOption = None, json: JsonOption = False) -> None:
    """List the brokers: rack, epoch, whether they are alive and drained, what they lead and hold.

    The exit code is 1 if a replica is not in sync.
    """
    found = brokers_of(where, brokers)
    with admin_of(found, timeout_ms=read_timeout_ms()) as admin:
        survey = admin.replicas(known=found.known)
    rows = broker_rows(survey, {each: str(address) for each, address in found.known.items()})
    if json:
        print_json(rows)
    else:
        print_brokers(rows)
    exit_if_silent(survey.silent)
    if any(row["out_of_sync"] for row in rows):
        raise typer.Exit(ExitCode.NEGATIVE)


@app.command()
def drain(
    broker: BrokerArgument,
    timeout: TimeoutOption = "1h",
    throttle: ThrottleOption = None,
    dry_run: DryRunOption = False,
    ignore_room: IgnoreRoomOption = False,
    where: DatacenterOption = None,
    brokers: BootstrapOption = None,
    json: JsonOption = False,
) -> None:
    """Move all replicas of a broker, alive or dead, to others, and keep new ones away.

    Partitions that could not keep their replicas, or for which the others' disks have no room, are named, and
    nothing is changed then (exit code 1). It may be interrupted, and run again: it continues.
    """
    from headrace.reassignment import operations

    timeout_s = parse_span_ms(timeout, "s", option="--timeout", least_ms=1000) / 1000
    rate = _rate(throttle)
    with admin_of(brokers_of(where, brokers)) as admin:
        survey = admin.replicas()
        plan = operations.plan_of_drain(survey, broker, ignore_room=ignore_room)
        if plan.stuck:
            raise operations.CannotDrainError(broker, plan)
        disks = operations.disks_of(survey, plan.moves)
        if dry_run:
            done = operations.Moved(len(plan.moves), sum(move.copied_bytes for move in plan.moves))
        else:
            with interruptible():
                done = operations.drain(
                    admin,
                    broker,
                    timeout_s=timeout_s,
                    throttle_bytes_per_s=rate,
                    ignore_room=ignore_room,
                    report=reporter(),
                )
    if json:
        print_json(
            {
                "broker": broker,
                "dry_run": dry_run,
                "drained": not dry_run,
                "partitions": done.partitions,
                "copied_bytes": done.copied_bytes,
                "moves": move_rows(plan.moves),
                "disks": disk_rows(disks),
            }
        )
        return
    what = f"{_partitions(done.partitions)}, {in_bytes(done.copied_bytes)}"
    if dry_run:
        print_moves(plan.moves)
        print_disks(disks)
        out.print(f"draining broker {broker} would move {what}")
    else:
        out.print(f"broker {broker} is drained: {what} moved; it gets no new replicas")


@app.command()
def undrain(
    broker: BrokerArgument,
    where: DatacenterOption = None,
    brokers: BootstrapOption = None,
    json: JsonOption = False,
) -> None:
    """Let a broker that was drained get new replicas again; `balance` gives it its share of the others."""
    from headrace.reassignment import operations

    with admin_of(brokers_of(where, brokers)) as admin:
        changed = operations.undrain(admin, broker)
    if json:
        print_json({"broker": broker, "changed": changed})
    elif changed:
        out.print(f"broker {broker} gets new replicas again; `headrace brokers balance` gives it its share")
    else:
        out.print(f"broker {broker} was not drained")


@app.command()
def balance(
    timeout: TimeoutOption = "1h",
    throttle: ThrottleOption = None,
    dry_run: DryRunOption = False,
    ignore_room: IgnoreRoomOption = False,
    where: DatacenterOption = None,
    brokers: BootstrapOption = None,
    json: JsonOption = False,
) -> None:
    """Spread replicas, bytes and leaders evenly over the brokers that are not drained, by few moves.

    A broker gets only what its disk has room for.
    """
    from headrace.reassignment import operations

    timeout_s = parse_span_ms(timeout, "s", option="--timeout", least_ms=1000) / 1000
    rate = _rate(throttle)
    refused: dict[tuple[str, int], str] = {}
    with admin_of(brokers_of(where, brokers)) as admin:
        survey = admin.replicas()
        plan = operations.plan_of_balance(survey, ignore_room=ignore_room)
        disks = operations.disks_of(survey, plan.moves)
        done = operations.Moved(len(plan.moves), sum(move.copied_bytes for move in plan.moves))
        if not dry_run:
            with interruptible():
                done, refused = operations.balance(
                    admin,
                    plan,
                    timeout_s=timeout_s,
                    throttle_bytes_per_s=rate,
                    ignore_room=ignore_room,
                    report=reporter(),
                )
    if json:
        print_json(
            {
                "dry_run": dry_run,
                "partitions": done.partitions,
                "copied_bytes": done.copied_bytes,
                "refused": list(refused.values()),
                "shortage": plan.shortage,
                "moves": move_rows(plan.moves),
                "disks": disk_rows(disks),
            }
        )
    else:
        if dry_run:
            print_moves(plan.moves)
            print_disks(disks)
        print_loads(plan.before, plan.after)
        verb = "would move" if dry_run else "moved"
        out.print(f"{_partitions(done.partitions)} {verb}, {in_bytes(done.copied_bytes)} to copy")
    _note_shortage(plan.shortage)
    for problem in refused.values():
        print_error(problem)
    if refused:
        raise typer.Exit(ExitCode.NEGATIVE)


# --- what moves ---


def _rate(throttle: str | None) -> int | None:
    """Returns the bytes a second of `--throttle`."""
    if throttle is None:
        return None
    rate = parse_size_bytes(throttle)
    if rate < 1:
        raise CommandError(f"--throttle {throttle}: must be at least 1 byte a second", ExitCode.USAGE)
    return rate


@contextmanager
def interruptible() -> Iterator[None]:
    try:
        yield
    except KeyboardInterrupt:
        print_note(GOES_ON)
        raise


def reporter() -> Callable[[Progress], None]:
    """Returns what prints progress on stderr: a line every `PROGRESS_INTERVAL_S` at most, and the last."""
    last_s = 0.0

    def report(progress: Progress) -> None:
        nonlocal last_s
        if progress.partitions_left and time.monotonic() - last_s < PROGRESS_INTERVAL_S:
            return
        last_s = time.monotonic()
        if progress.partitions_total:
            print_note(
                f"{progress.partitions_left} of {_partitions(progress.partitions_total)} left, "
                f"{in_bytes(progress.copied_bytes)} of {in_bytes(progress.total_bytes)} copied, "
                f"{in_bytes(round(progress.bytes_per_s))}/s"
            )

    return report


def _note_shortage(shortage: str) -> None:
    if shortage:
        print_note(
            f"some brokers get less than their share, because their disks have no room: {shortage} "
            "(docs/operations/full-disk.md)"
        )


def _partitions(count: int) -> str:
    return f"{count} partition{'' if count == 1 else 's'}"
