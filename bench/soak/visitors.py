"""The visitors: each is a process that makes one kind of visit again and again."""

from __future__ import annotations

import multiprocessing
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from multiprocessing.synchronize import Event
from typing import Any, Final

from soak.visits import KINDS, Place

FAILURES_MAX: Final = 3
"""That are told of each visitor."""


@dataclass(frozen=True)
class Visitor:
    """A kind's process, and what it tells: visits, failures, the first errors."""

    process: BaseProcess
    visits: Any
    failures: Any
    errors: Any


def live(kind: str, place: Place, ended: Event, visits: Any, failures: Any, errors: Any) -> None:
    """Visits until `ended`."""
    visit = KINDS[kind].make(place)
    number = 0
    while not ended.wait(KINDS[kind].pause_s):
        number += 1
        try:
            visit(number)
            visits.value += 1
        except Exception as error:
            failures.value += 1
            if failures.value <= FAILURES_MAX:
                errors.put(f"{kind}, visit {number}: {type(error).__name__}: {error}")


def start(place: Place, ended: Event) -> dict[str, Visitor]:
    context = multiprocessing.get_context("spawn")
    visitors = {}
    for kind in KINDS:
        told = context.Value("L", 0), context.Value("L", 0), context.Queue()
        process = context.Process(target=live, args=(kind, place, ended, *told), daemon=True)
        process.start()
        visitors[kind] = Visitor(process, *told)
    return visitors
