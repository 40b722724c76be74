"""The errors of a host's agent.

An `AgentError` has the code and the HTTP status that a client sees; `details` are fields of the response
beside `error` and `message`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Final, NamedTuple

from headrace.process.nearest import question
from headrace.site.errors import SiteError

VALUE_SHOWN_MAX: Final = 120


class AgentError(SiteError):
    """Base of the errors by which the agent refuses a request."""

    code: ClassVar[str] = "failed"
    status: ClassVar[int] = 500

    def __init__(self, message: str, details: Mapping[str, Any] | None = None) -> None:
        super().__init__(message)
        self.details = dict(details or {})


class BadRequestError(AgentError):
    """The request itself is wrong: its body or a parameter."""

    code = "request_invalid"
    status = 422


class BodyTooLongError(BadRequestError):
    """The body is longer than the agent accepts."""

    code = "body_too_long"
    status = 413


class FieldProblem(NamedTuple):
    """One field that is wrong: its name, its value, and what is wrong with that."""

    field: str
    value: str
    message: str

    def __str__(self) -> str:
        return f"{self.field}: {shortened(self.value)}: {self.message}"


def shortened(text: str) -> str:
    return text if len(text) <= VALUE_SHOWN_MAX else text[: VALUE_SHOWN_MAX - 1] + "…"


class ConfigurationError(BadRequestError):
    """A configuration with wrong fields."""

    code = "configuration_invalid"

    def __init__(self, name: str, problems: Sequence[FieldProblem], *, what: str = "unit") -> None:
        fields = [problem._replace(value=shortened(problem.value))._asdict() for problem in problems]
        super().__init__(f"{what} {name}: " + "; ".join(map(str, problems)), {"fields": fields})


class UnitUnknownError(AgentError):
    """The host has no unit of this name."""

    code = "unit_unknown"
    status = 404

    def __init__(self, name: str, known: Sequence[str]) -> None:
        units = ", ".join(sorted(known)) if known else "no units; create one with PUT"
        hint = question(name, known)
        super().__init__(f"unit {shortened(name)} is not a unit of this host{hint}; it has {units}")


class Conflict(NamedTuple):
    """An address or folder that a unit needs and another process holds. `unit`: the holder, if it is a unit
    of this host.
    """

    what: str
    wanted_by: str
    held_by: str
    unit: str | None

    def __str__(self) -> str:
        return f"{self.what}, for unit {self.wanted_by}, is taken by {self.held_by}"


class ConflictError(AgentError):
    """An address or a folder that a unit needs is taken."""

    code = "conflict"
    status = 409

    def __init__(self, conflicts: Sequence[Conflict]) -> None:
        taken = "; ".join(map(str, conflicts))
        super().__init__(
            f"{taken}. End that process, delete that unit, or give this unit another address or folder",
            {"conflicts": [conflict._asdict() for conflict in conflicts]},
        )


class AddressNotOnHostError(BadRequestError):
    """A unit's configuration has an address that this machine does not have."""

    code = "address_not_here"


class TooManyUnitsError(AgentError):
    """The host has as many units as an agent accepts."""

    code = "too_many_units"
    status = 409


class BusyError(AgentError):
    """Another change of the unit, or another rolling restart, is in progress; the request can be repeated."""

    code = "busy"
    status = 503


class UnitsLeftError(AgentError):
    """A shutdown was requested while the agent has units."""

    code = "units_left"
    status = 409


class NotReadyError(AgentError):
    """A unit did not become ready within the requested wait. What was changed stays changed."""

    code = "not_ready"
    status = 504


class NotReadyForRestartError(NotReadyError):
    """A rolling restart is refused because one of its units is not ready beforehand."""

    status = 409


class AgentStateError(SiteError):
    """A file of the agent cannot be used; the message names it."""


class DiskFullError(AgentStateError):
    """A disk, or a quota on it, is full; the message names the path and the free space."""


class AgentUnreachableError(SiteError):
    """No agent responds."""


class AgentRefusedError(SiteError):
    """The agent refused a request. `code` is its error, `details` the whole response."""

    def __init__(self, message: str, status: int, code: str, details: Mapping[str, Any]) -> None:
        self.status = status
        self.code = code
        self.details = dict(details)
        super().__init__(message)


class AddressTakenError(SiteError):
    """Another process listens on an address that a unit needs."""


class UnitFailedError(SiteError):
    """A unit did not become ready; has the last lines of its log."""

    def __init__(self, unit: str, problem: str, log_tail: str, log_path: str) -> None:
        self.unit = unit
        self.problem = problem
        self.log_tail = log_tail
        self.log_path = log_path
        tail = f"\nlast lines of {log_path}:\n{log_tail}" if log_tail else f" (its log {log_path} is empty)"
        super().__init__(f"unit {unit} is not ready: {problem}{tail}")


class SupervisorError(SiteError):
    """supervisord did not start or does not respond."""
