"""Structure-aware fuzzing of a running broker, and of everything that reads what strangers wrote.

    make fuzz MINUTES=60 [TARGETS="frames records"] [SEED=7]

A round has a target and a seed; a line says how it went. While bytes are sent to a process, an honest client
beside them produces and consumes: its longest answer is the line's last word. A finding is printed with its
seed and kept in .headrace/fuzz/findings; SEED= with that number and TARGETS= repeat the round as the first.
Exit code: 0 nothing found, 1 something found.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Final

from fix_zookeeper import running_zookeeper
from fuzzing import (
    target_admin,
    target_agent,
    target_audit,
    target_backups,
    target_epochs,
    target_files,
    target_frames,
    target_front,
    target_log,
    target_readers,
    target_records,
    target_registry,
    target_replicas,
    target_sessions,
    target_znodes,
)
from fuzzing.honest import LATENCY_MAX_MS, Seen
from fuzzing.world import World

Target = Callable[[World, random.Random], list[str]]

TARGETS: Final[dict[str, Target]] = {
    "frames": target_frames.run,
    "sessions": target_sessions.run,
    "front": target_front.run,
    "records": target_records.run,
    "readers": target_readers.run,
    "log": target_log.run,
    "audit": target_audit.run,
    "registry": target_registry.run,
    "znodes": target_znodes.run,
    "agent": target_agent.run,
    "backups": target_backups.run,
    "epochs": target_epochs.run,
    "replicas": target_replicas.run,
    "admin": target_admin.run,
    "files": target_files.run,
}
ROUNDS_PER_WORLD: Final = 24
SEED_SPAN: Final = 1 << 32
FOLDER: Final = Path(os.environ.get("HEADRACE_HOME", ".headrace")) / "fuzz"


@dataclass
class Tally:
    """What the rounds of a target came to."""

    rounds: int = 0
    seconds: float = 0.0
    honest_exchanges: int = 0
    longest_ms: float = 0.0
    findings: list[str] = field(default_factory=list)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="fuzzing", description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=1.0)
    parser.add_argument(
        "--targets", nargs="*", default=list(TARGETS), choices=list(TARGETS), metavar="TARGET"
    )
    parser.add_argument("--seed", type=int, default=None, help="of the first round; by default the time")
    parser.add_argument("--rounds", type=int, default=0, help="end after so many rounds of each target")
    chosen = parser.parse_args(arguments)
    seed = chosen.seed if chosen.seed is not None else time.time_ns() % SEED_SPAN
    tallies = fuzz(chosen.targets or list(TARGETS), seed, chosen.minutes * 60, chosen.rounds)
    FOLDER.mkdir(parents=True, exist_ok=True)
    summary = {name: asdict(tally) for name, tally in tallies.items()}
    (FOLDER / "last.json").write_text(json.dumps(summary, indent=2))
    found = sum(len(tally.findings) for tally in tallies.values())
    for name, tally in tallies.items():
        print(
            f"{name}: {tally.rounds} rounds in {tally.seconds:.0f} s, {len(tally.findings)} findings;"
            f" {tally.honest_exchanges:,} honest exchanges, the longest {tally.longest_ms:.0f} ms"
        )
    print(f"{found} findings; they are in {FOLDER / 'findings'}" if found else "nothing found")
    return 1 if found else 0


def fuzz(names: list[str], seed: int, seconds: float, rounds_max: int = 0) -> dict[str, Tally]:
    """Rounds of each target in turn, until the time is over or each had `rounds_max` rounds."""
    tallies = {name: Tally() for name in names}
    deadline = time.monotonic() + seconds
    done = 0
    with running_zookeeper() as server:
        while time.monotonic() < deadline and not 0 < rounds_max * len(names) <= done:
            with World(server) as world:
                for _ in range(ROUNDS_PER_WORLD):
                    if time.monotonic() >= deadline or 0 < rounds_max * len(names) <= done:
                        break
                    name = names[done % len(names)]
                    found = one_round(world, name, seed, tallies[name])
                    done += 1
                    seed = (seed * 6_364_136_223_846_793_005 + 1) % SEED_SPAN
                    if found:
                        break
    return tallies


def one_round(world: World, name: str, seed: int, tally: Tally) -> bool:
    """Runs a round; returns whether it found something, after which the world is not to be trusted."""
    began_s = time.monotonic()
    honest = world.honest()
    last: list[str] = []
    failure: str | None = None
    try:
        last = TARGETS[name](world, random.Random(seed))
    except Exception:
        failure = traceback.format_exc()
    world.settle()
    seen = honest.finish()
    failure = failure or _judge(world, seen)
    tally.rounds += 1
    tally.seconds += time.monotonic() - began_s
    tally.honest_exchanges += len(seen.latencies_s)
    tally.longest_ms = max(tally.longest_ms, seen.percentile_ms(1))
    print(
        f"{name:9} seed {seed:10}: {'FOUND' if failure else 'nothing':7} {time.monotonic() - began_s:5.1f} s,"
        f" honest p99 {seen.percentile_ms(0.99):.0f} ms, longest {seen.percentile_ms(1):.0f} ms",
        flush=True,
    )
    if failure:
        tally.findings.append(failure)
        _keep(name, seed, failure, last)
    return failure is not None


def _judge(world: World, seen: Seen) -> str | None:
    trouble = world.trouble()
    if trouble:
        return trouble
    if seen.fault:
        return f"the honest client: {seen.fault}"
    if seen.percentile_ms(1) > LATENCY_MAX_MS:
        return f"the honest client waited {seen.percentile_ms(1):.0f} ms"
    return None


def _keep(name: str, seed: int, failure: str, last: list[str]) -> None:
    folder = FOLDER / "findings"
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}-{seed}.txt"
    path.write_text("\n".join([failure, "", "the last that was sent:", *last, ""]))
    print(f"  {failure.strip().splitlines()[-1][:200]}\n  kept in {path}", flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
