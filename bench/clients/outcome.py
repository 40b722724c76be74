"""What a client program of the bench reports: one JSON object on one line of its standard output.

A client prints the line `begin` once its warm-up is over and the measured part starts, and at its end the
object.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any


class ClientFailedError(Exception):
    """A client reported an error or no outcome. The message shows what it printed."""


@dataclass(frozen=True)
class Outcome:
    """`records` records of `size_bytes` bytes in all were acknowledged (or consumed) in `seconds`.

    `cpu_s` is the client's own CPU time in the measured part, `memory_bytes` its largest resident memory.
    `more` holds what only some clients measure, such as latencies in ms.
    """

    records: int
    size_bytes: int
    seconds: float
    cpu_s: float
    memory_bytes: int = 0
    more: dict[str, float] = field(default_factory=dict)

    @property
    def records_per_s(self) -> float:
        return self.records / self.seconds

    @classmethod
    def parse(cls, line: str) -> Outcome:
        """Reads the object that a client printed. Raises `ClientFailedError`."""
        try:
            told: dict[str, Any] = json.loads(line)
            known = {name: told.pop(name) for name in ("records", "size_bytes", "seconds", "cpu_s")}
            memory_bytes = int(told.pop("memory_bytes", 0))
            more = {name: float(value) for name, value in told.items()}
            outcome = cls(**known, memory_bytes=memory_bytes, more=more)
        except (ValueError, KeyError, TypeError) as error:
            raise ClientFailedError(f"not the outcome of a client: {line[:500]!r} ({error})") from None
        if outcome.seconds <= 0 or outcome.records <= 0:
            raise ClientFailedError(f"a client has moved nothing: {line[:500]!r}")
        return outcome
