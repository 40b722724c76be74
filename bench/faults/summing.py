"""Adds the JSON files of several runs up into one table, for docs/reliability.md.

    PYTHONPATH=tests:bench .venv/bin/python -m faults.summing run-1.json run-2.json …

Exit code: 0 all runs were clean; 1 one was not; 2 a file is not what `make jepsen JSON=…` wrote.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from faults.judge import percentile

UNTOUCHED: Final = "none"
"""The kind of the time before the first fault."""
ADDED: Final = ("injected", "acknowledged", "lost", "doubled", "reordered")
BAD_READS: Final = ("went_back", "skipped", "lost_places")
HEADS: Final = ("fault", "times", "acknowledged", "lost", "doubled", "reordered", "reads that went wrong")
SECONDS_HEADS: Final = ("unavailable s p50", "max", "live again s p50", "max")


def summed(runs: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    """Returns a row for each kind, and one for all, in the order of `HEADS` and `SECONDS_HEADS`.

    `runs`: documents of `report.Verdict`. Raises `KeyError` if one lacks the seconds of each fault.
    """
    kinds = sorted({kind for run in runs for kind in run["kinds"]} - {UNTOUCHED})
    rows = [_row(kind, [run["kinds"][kind] for run in runs if kind in run["kinds"]]) for kind in kinds]
    everything = [tally for run in runs for kind, tally in run["kinds"].items() if kind != UNTOUCHED]
    return [*rows, _row("all", everything)]


def _row(kind: str, tallies: Sequence[Mapping[str, Any]]) -> list[str]:
    counts = [sum(tally[name] for tally in tallies) for name in ADDED]
    bad_reads = sum(tally[name] for tally in tallies for name in BAD_READS)
    seconds = []
    for name in ("unavailable_s", "recovery_s"):
        values = [value for tally in tallies for value in tally[name]]
        seconds += [f"{percentile(values, share):.1f}" for share in (0.5, 1.0)]
    return [kind, *(f"{count:,}" for count in (*counts, bad_reads)), *seconds]


def described(runs: Sequence[Mapping[str, Any]]) -> list[str]:
    """Returns sentences about all runs: how many, how long, under which load, and what was found."""
    faults = [fault for run in runs for fault in run["faults"]]
    loads = [fault["load"] for fault in faults]
    seeds = ", ".join(str(run["seed"]) for run in runs)
    lines = [
        (
            f"{len(faults):,} faults in {len(runs)} runs (seeds {seeds}), "
            f"{sum(run['minutes'] for run in runs):.0f} minutes added up"
        ),
        f"load when they healed: p50 {percentile(loads, 0.5):.0f}, max {percentile(loads, 1.0):.0f}",
    ]
    return lines + [f"seed {run['seed']}: {finding}" for run in runs for finding in run["findings"]]


def main(paths: Sequence[str]) -> int:
    try:
        runs = [json.loads(Path(path).read_text()) for path in paths]
        rows, lines = summed(runs), described(runs)
    except (OSError, ValueError, KeyError) as error:
        print(f"not a run's figures: {error!r}", file=sys.stderr)
        return 2
    print(*lines, sep="\n", end="\n\n")
    heads = [*HEADS, *SECONDS_HEADS]
    for row in (heads, ["---", *["---:"] * (len(heads) - 1)], *rows):
        print(f"| {' | '.join(row)} |")
    return 0 if all(run["clean"] for run in runs) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
