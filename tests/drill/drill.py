"""The drill: plants failures, asks the audit, and scores its answers.

make drill [N=10000] [COPIES=6] [SEED=1] [KINDS="stored twice;topic made again"] [JSON=file]
make drill WITHOUT=marks     a check turned off: the drill must fail

N failures are planted in simulated worlds, each kind twelve times in tables' files, and COPIES times in the
logs, services and replicas of real installations (`--copies 0` leaves these out). A simulated world follows
from its seed: `SEED=<seed> N=1` repeats it. The exit code is 1 unless nothing was missed (called complete),
nothing false (called lost or doubled though it is there once), and all at its place.
"""

from __future__ import annotations

import argparse
import itertools
import json
import logging
import os
import sys
import time
from collections import deque
from collections.abc import Collection, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Final

from drill import drill_brokers, drill_files, drill_planning, drill_replicas, drill_seals
from drill.drill_switches import SWITCHES
from drill.drill_tables import add_runs
from drill.drill_truth import Score

AHEAD: Final = 2
"""Worlds a core that are begun before their score is asked for."""


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="drill", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--plants", type=int, default=10_000)
    parser.add_argument(
        "--copies", type=int, default=0, help="how often each kind is planted in brokers' logs"
    )
    parser.add_argument("--file-seeds", type=int, default=12, help="how often each kind is planted in files")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--kinds", default="", help="names of kinds, separated by semicolons")
    parser.add_argument("--json", type=Path, default=None)
    parser.add_argument("--without", choices=list(SWITCHES), default=None)
    chosen = parser.parse_args(arguments)
    logging.disable(logging.CRITICAL)
    kinds = {name.strip() for name in chosen.kinds.split(";") if name.strip()}
    parts = (drill_planning, drill_files, drill_seals, drill_brokers, drill_replicas)
    known = {name: kind for part in parts for name, kind in part.KINDS.items()}
    if unknown := kinds - known.keys():
        print(f"there are no kinds {sorted(unknown)}; there are: {'; '.join(known)}", file=sys.stderr)
        return 2
    result = {}
    with SWITCHES[chosen.without]():
        if not kinds or kinds & drill_planning.KINDS.keys():
            result["simulated"] = run_simulated(chosen.seed, chosen.plants, kinds)
        if not kinds or kinds & (drill_files.KINDS.keys() | drill_seals.KINDS.keys()):
            result["files"] = run_files(chosen.seed, chosen.file_seeds, kinds)
        if chosen.copies and (not kinds or kinds & drill_brokers.KINDS.keys()):
            result["brokers"] = run_brokers(chosen.seed, chosen.copies, kinds)
        if chosen.copies and (not kinds or kinds & drill_replicas.KINDS.keys()):
            result["replicas"] = run_replicas(chosen.seed, chosen.copies, kinds)
    if chosen.json is not None:
        chosen.json.write_text(json.dumps(result, indent=1) + "\n")
    return 0 if all(part["good"] for part in result.values()) else 1


def run_simulated(first_seed: int, plants: int, kinds: Collection[str] = ()) -> dict[str, Any]:
    """Plants failures in simulated worlds from one seed on, until there are so many; prints the score."""
    score, count, cpu_s, began_s = Score(), 0, 0.0, time.monotonic()
    for one, spent_s in _worlds(first_seed, kinds):
        score.merge(one)
        count, cpu_s = count + 1, cpu_s + spent_s
        if score.planted >= plants:
            break
    where = f"in {count} simulated worlds, seeds {first_seed} to {first_seed + count - 1}"
    return shown(score, drill_planning.KNOWN_MISSES, where, cpu_s, time.monotonic() - began_s)


def _worlds(first_seed: int, kinds: Collection[str]) -> Iterator[tuple[Score, float]]:
    """Yields the score of one simulated world after another, and its seconds of CPU.

    One process a core; they are forked, since a switch that is turned off must be off in them, too.
    """
    seeds = itertools.count(first_seed)
    cores = len(os.sched_getaffinity(0))
    with ProcessPoolExecutor(cores, mp_context=get_context("fork")) as pool:
        ahead = deque(pool.submit(_world, next(seeds), kinds) for _ in range(AHEAD * cores))
        try:
            while True:
                yield ahead.popleft().result()
                ahead.append(pool.submit(_world, next(seeds), kinds))
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


def _world(seed: int, kinds: Collection[str]) -> tuple[Score, float]:
    began_s, score = time.process_time(), Score()
    world = drill_planning.planned(seed, kinds)
    world.run()
    score.add(world.plants, world.verdicts)
    return score, time.process_time() - began_s


def run_files(first_seed: int, seeds: int, kinds: Collection[str] = ()) -> dict[str, Any]:
    """Plants failures in tables' files, each kind with so many seeds; prints the score."""
    began_s, score = time.process_time(), Score()
    for part in (drill_files, drill_seals):
        wanted = [kind for kind in part.KINDS if not kinds or kind in kinds]
        add_runs(score, part.run, wanted, range(first_seed, first_seed + seeds))
    where = f"in the files of as many tables, seeds {first_seed} to {first_seed + seeds - 1}"
    return shown(score, drill_files.KNOWN_MISSES, where, time.process_time() - began_s)


def run_brokers(seed: int, copies: int, kinds: Collection[str] = ()) -> dict[str, Any]:
    """Plants failures in a real installation, each kind so often; prints the score."""
    began_s = time.process_time()
    score = drill_brokers.run_brokers(seed, copies, kinds)
    where = f"in a real installation, seed {seed}"
    return shown(score, drill_brokers.KNOWN_MISSES, where, time.process_time() - began_s)


def run_replicas(seed: int, copies: int, kinds: Collection[str] = ()) -> dict[str, Any]:
    """Plants failures in followers of a datacenter of two brokers, each kind so often; prints the score."""
    began_s = time.process_time()
    score = drill_replicas.run_replicas(seed, copies, kinds)
    return shown(score, {}, f"in replicas of two brokers, seed {seed}", time.process_time() - began_s)


def shown(
    score: Score, known_misses: Mapping[str, str], where: str, cpu_s: float, took_s: float | None = None
) -> dict[str, Any]:
    """Prints a score; returns it as plain data."""
    print(score.table())
    for name in sorted(known_misses.keys() & score.bad()):
        print(f"known miss: {name}: {known_misses[name]}")
    grade = "good" if score.is_good else "NOT GOOD"
    took = "" if took_s is None else f" in {took_s:.0f} s"
    print(f"{score.planted} plants {where}, {cpu_s:.0f} s of CPU{took}: {grade}", flush=True)
    times = {"cpu_s": cpu_s} if took_s is None else {"cpu_s": cpu_s, "took_s": took_s}
    return {"good": score.is_good, "where": where, **times, **score.to_json()}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
