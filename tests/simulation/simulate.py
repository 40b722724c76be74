"""Runs simulated worlds: a seed repeats its world exactly.

make simulate SEEDS=1000 [FROM=1]      so many worlds; exit code 1 if a promise was broken in one
make simulate SEED=7 [TROUBLED_MS=…]    one world, with the trace of what happened
make simulate-mutants                  breaks the product on purpose, and looks for a world that shows it
"""

from __future__ import annotations

import argparse
import logging
import sys
import time
from collections import Counter
from typing import Final

from simulation.mutants import MUTANTS
from simulation.sim_world import Verdict, simulate

PROBLEMS_SHOWN_MAX: Final = 5
MUTANT_SEEDS_MAX: Final = 500


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="simulate", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seeds", type=int, default=100)
    parser.add_argument("--first", type=int, default=1)
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument(
        "--troubled-ms", type=float, default=None, help="how long faults come; each world draws it otherwise"
    )
    parser.add_argument("--mutants", nargs="*", choices=list(MUTANTS), default=None)
    chosen = parser.parse_args(arguments)
    logging.disable(logging.CRITICAL)
    if chosen.mutants is not None:
        return find_mutants(chosen.mutants or list(MUTANTS), chosen.first)
    if chosen.seed is not None:
        verdict = simulate(chosen.seed, chosen.troubled_ms)
        print("\n".join(verdict.trace))
        show(verdict)
        return 1 if verdict.problems else 0
    return run(chosen.first, chosen.seeds, chosen.troubled_ms)


def run(first: int, count: int, troubled_ms: float | None = None) -> int:
    """Runs worlds; prints those in which a promise was broken, and the sum of all."""
    began_s, simulated_ms, broken = time.process_time(), 0.0, 0
    faults: Counter[str] = Counter()
    acknowledged = 0
    for seed in range(first, first + count):
        verdict = simulate(seed, troubled_ms)
        simulated_ms += verdict.simulated_ms
        acknowledged += verdict.acknowledged
        faults.update(verdict.faults)
        if verdict.problems:
            broken += 1
            show(verdict)
    spent_s = max(0.001, time.process_time() - began_s)
    named = ", ".join(f"{kind} {number}" for kind, number in sorted(faults.items()))
    print(
        f"{count} worlds from seed {first}: {broken} broken; {simulated_ms / 1000:,.0f} simulated seconds,"
        f" {simulated_ms / 1000 / spent_s:.0f} a second of CPU; {acknowledged:,} acknowledged;"
        f" faults: {named}"
    )
    return 1 if broken else 0


def show(verdict: Verdict) -> None:
    word = f"{len(verdict.problems)} problems" if verdict.problems else "all promises were kept"
    print(f"seed {verdict.seed}: {word}; {verdict.acknowledged} acknowledged, faults {verdict.faults}")
    for problem in verdict.problems[:PROBLEMS_SHOWN_MAX]:
        print(f"  {problem}")


def find_mutants(names: list[str], first: int) -> int:
    """Returns 0 if a world shows each mutant."""
    missed = 0
    for name in names:
        with MUTANTS[name]():
            found = next(
                (
                    verdict
                    for seed in range(first, first + MUTANT_SEEDS_MAX)
                    if (verdict := simulate(seed)).problems
                ),
                None,
            )
        if found is None:
            missed += 1
            print(f"{name}: NOT FOUND in {MUTANT_SEEDS_MAX} worlds", flush=True)
        else:
            print(
                f"{name}: found by seed {found.seed}: {found.problems[0].splitlines()[0][:160]}", flush=True
            )
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
