"""`headrace brokers`: what each broker holds; moving replicas away from one, and spreading them evenly."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

if TYPE_CHECKING:
    from headrace.client.replica_admin import ReplicaAdmin
    from headrace.client.replicas import ReplicaSurvey
    from headrace.reassignment.model import Load, Move
    from headrace.reassignment.moving import Progress

from headrace.cli import names
from headrace.cli.cluster import (
    CHANGE_TIMEOUT_MS,
    Brokers,
    brokers_of,
    exit_if_silent,
    read_timeout_ms,
)
from headrace.cli.context import BootstrapOption, DatacenterOption
from headrace.cli.errors import CommandError, ExitCode, print_error, print_note
from headrace.cli.output import JsonOption, in_bytes, out, print_json, print_table
from headrace.cli.values import parse_size_bytes, parse_span_ms

app = typer.Typer(help="Brokers: what each holds, and moving replicas between them.", no_args_is_help=True)

PROGRESS_INTERVAL_S: Final = 2.0
MOVES_SHOWN_MAX: Final = 50
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
        print_table(
            [
                ">broker",
                "address",
                "rack",
                ">epoch",
                "alive",
                "drained",
                ">leads",
                ">replicas",
                ">out of sync",
                ">size",
            ],
            [
                (
                    row["broker"],
                    _known(row["address"]),
                    _known(row["rack"]),
                    _known(row["epoch"]),
                    "yes" if row["alive"] else "no",
                    "yes" if row["drained"] else "no",
                    row["leaders"],
                    row["replicas"],
                    row["out_of_sync"],
                    "-" if row["bytes"] is None else in_bytes(row["bytes"]),
                )
                for row in rows
            ],
            empty="no broker is registered",
        )
    exit_if_silent(survey.silent)
    if any(row["out_of_sync"] for row in rows):
        raise typer.Exit(ExitCode.NEGATIVE)


def _known(value: object) -> object:
    return "-" if value is None else value


def broker_rows(survey: ReplicaSurvey, known: Mapping[int, str]) -> list[dict[str, Any]]:
    """Returns a row for each broker that is registered, has replicas, is drained, or should be there."""
    held: dict[int, list[tuple[str, int]]] = {}
    for key, part in survey.partitions.items():
        for each in part.replicas:
            held.setdefault(each, []).append(key)
    answering = set(survey.brokers) - {each.broker_id for each in survey.silent}
    rows = []
    for broker_id in sorted({*survey.brokers, *held, *survey.drained, *known}):
        standing = survey.brokers.get(broker_id)
        keys = held.get(broker_id, [])
        adding = {key for key in keys if key in survey.reassignments}
        rows.append(
            {
                "broker": broker_id,
                "address": str(standing.address) if standing else known.get(broker_id),
                "rack": standing.rack if standing else None,
                "epoch": standing.epoch if standing and standing.epoch >= 0 else None,
                "alive": standing is not None,
                "drained": broker_id in survey.drained,
                "leaders": sum(survey.partitions[key].leader == broker_id for key in keys),
                "replicas": len(keys),
                "out_of_sync": sum(
                    broker_id not in survey.partitions[key].isr
                    and not (key in adding and broker_id in survey.reassignments[key].adding)
                    for key in keys
                ),
                "bytes": sum(
                    replica.size_bytes for name, replica in survey.stored.items() if name[0] == broker_id
                )
                if broker_id in answering
                else None,
            }
        )
    return rows


@app.command()
def drain(
    broker: BrokerArgument,
    timeout: TimeoutOption = "1h",
    throttle: ThrottleOption = None,
    dry_run: DryRunOption = False,
    where: DatacenterOption = None,
    brokers: BootstrapOption = None,
    json: JsonOption = False,
) -> None:
    """Move all replicas of a broker, alive or dead, to others, and keep new ones away.

    Partitions that could not keep their replicas are named, and nothing is changed then (exit code 1). It may
    be interrupted, and run again: it continues.
    """
    from headrace.reassignment import operations

    timeout_s = parse_span_ms(timeout, "s", option="--timeout", least_ms=1000) / 1000
    rate = _rate(throttle)
    with admin_of(brokers_of(where, brokers)) as admin:
        plan = operations.plan_of_drain(admin.replicas(), broker)
        if plan.stuck:
            raise operations.CannotDrainError(broker, plan.stuck)
        if dry_run:
            done = operations.Moved(len(plan.moves), sum(move.copied_bytes for move in plan.moves))
        else:
            with interruptible():
                done = operations.drain(
                    admin, broker, timeout_s=timeout_s, throttle_bytes_per_s=rate, report=reporter()
                )
    if json:
        print_json(
            {
                "broker": broker,
                "dry_run": dry_run,
                "drained": not dry_run,
                "partitions": done.partitions,
                "copied_bytes": done.copied_bytes,
                "moves": _move_rows(plan.moves),
            }
        )
        return
    what = f"{_partitions(done.partitions)}, {in_bytes(done.copied_bytes)}"
    if dry_run:
        _print_moves(plan.moves)
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
    where: DatacenterOption = None,
    brokers: BootstrapOption = None,
    json: JsonOption = False,
) -> None:
    """Spread replicas, bytes and leaders evenly over the brokers that are not drained, by few moves."""
    from headrace.reassignment import operations

    timeout_s = parse_span_ms(timeout, "s", option="--timeout", least_ms=1000) / 1000
    rate = _rate(throttle)
    refused: dict[tuple[str, int], str] = {}
    with admin_of(brokers_of(where, brokers)) as admin:
        plan = operations.plan_of_balance(admin.replicas())
        done = operations.Moved(len(plan.moves), sum(move.copied_bytes for move in plan.moves))
        if not dry_run:
            with interruptible():
                done, refused = operations.balance(
                    admin, plan, timeout_s=timeout_s, throttle_bytes_per_s=rate, report=reporter()
                )
    if json:
        print_json(
            {
                "dry_run": dry_run,
                "partitions": done.partitions,
                "copied_bytes": done.copied_bytes,
                "refused": list(refused.values()),
                "moves": _move_rows(plan.moves),
            }
        )
    else:
        if dry_run:
            _print_moves(plan.moves)
        _print_loads(plan.before, plan.after)
        verb = "would move" if dry_run else "moved"
        out.print(f"{_partitions(done.partitions)} {verb}, {in_bytes(done.copied_bytes)} to copy")
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


def _partitions(count: int) -> str:
    return f"{count} partition{'' if count == 1 else 's'}"


def _move_rows(moves: tuple[Move, ...]) -> list[dict[str, Any]]:
    return [
        {
            "topic": move.key[0],
            "partition": move.key[1],
            "before": list(move.before),
            "after": list(move.after),
            "bytes": move.copied_bytes,
        }
        for move in moves
    ]


def _print_moves(moves: tuple[Move, ...]) -> None:
    print_table(
        ["partition", "replicas", "then", ">to copy"],
        [
            (move.name, _ids(move.before), _ids(move.after), in_bytes(move.copied_bytes))
            for move in moves[:MOVES_SHOWN_MAX]
        ],
        empty="nothing has to move",
    )
    if len(moves) > MOVES_SHOWN_MAX:
        out.print(f"and {len(moves) - MOVES_SHOWN_MAX} more (--json lists them)")


def _ids(replicas: tuple[int, ...]) -> str:
    return ",".join(map(str, replicas))


def _print_loads(before: Mapping[int, Load], after: Mapping[int, Load]) -> None:
    print_table(
        [">broker", ">replicas", ">then", ">preferred leader", ">then", ">size", ">then"],
        [
            (
                each,
                load.replicas,
                after[each].replicas,
                load.leaders,
                after[each].leaders,
                in_bytes(load.size_bytes),
                in_bytes(after[each].size_bytes),
            )
            for each, load in sorted(before.items())
        ],
        empty="no broker can take replicas",
    )
