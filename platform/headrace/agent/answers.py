"""Answers of an agent, read within bounds: it may be of another version, or something else at its address.

Owns how much of an answer is read, and for how long, and the error for what is not in it.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import httpx

from headrace.agent.errors import AgentUnreachableError
from headrace.agent.report import UnitReport

ANSWER_MAX_BYTES: Final = 64 << 20
"""64 units may have configurations of 256 KiB each."""


def whole(response: httpx.Response, url: str, answer_max_s: float) -> httpx.Response:
    """Returns the response of a stream with its whole body. Raises `AgentUnreachableError`, `HTTPError`."""
    deadline_s = time.monotonic() + answer_max_s
    found = bytearray()
    for piece in response.iter_bytes():
        found += piece
        if len(found) > ANSWER_MAX_BYTES:
            raise AgentUnreachableError(
                f"not an agent at {url}: it answered more than {ANSWER_MAX_BYTES} bytes"
            )
        if time.monotonic() > deadline_s:
            raise AgentUnreachableError(
                f"the agent at {url} does not answer: its answer took longer than {answer_max_s:g} s"
            )
    return httpx.Response(response.status_code, content=bytes(found))


@contextmanager
def understood(what: str) -> Iterator[None]:
    """Raises `AgentUnreachableError` for an answer in which `what` is not as this version knows it."""
    try:
        yield
    except (KeyError, TypeError, ValueError) as error:
        problem = f"it lacks {error}" if isinstance(error, KeyError) else str(error)
        raise AgentUnreachableError(
            f"the agent is of another version, or is none: {what} is not as expected: {problem}"
        ) from error


def report_in(data: Any) -> UnitReport:
    """Returns a unit's report, of an answer's JSON. Raises `AgentUnreachableError`."""
    with understood("its report of a unit"):
        return UnitReport.from_json(data)
