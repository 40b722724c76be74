"""What can go wrong when a host's agent is asked for something.

Owns the agent's error tree. Each error has the code and the HTTP status that a client sees; `details` are
fields of the answer beside `error` and `message`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Final, NamedTuple

from headrace.site.errors import SiteError

VALUE_SHOWN_MAX: Final = 120


class AgentError(SiteError):
    """Base of what the agent refuses."""

    code: ClassVar[str] = "failed"
    status: ClassVar[int] = 500

    @property
    def details(self) -> Mapping[str, Any]:
        return {}


class BadRequestError(AgentError):
    """The request itself is wrong: its body, a parameter."""

    code = "request_invalid"
    status = 422


class BodyTooLongError(BadRequestError):
    code = "body_too_long"
    status = 413


class FieldProblem(NamedTuple):
    """One field that is wrong: where, what it says, why that cannot be."""

    field: str
    value: str
    reason: str

    def __str__(self) -> str:
        return f"{self.field}: {shortened(self.value)}: {self.reason}"


def shortened(text: str) -> str:
    return text if len(text) <= VALUE_SHOWN_MAX else text[: VALUE_SHOWN_MAX - 1] + "…"


class ConfigurationError(BadRequestError):
    """A configuration that cannot be."""

    code = "configuration_invalid"

    def __init__(self, name: str, problems: Sequence[FieldProblem], *, what: str = "unit") -> None:
        self.problems = tuple(problems)
        super().__init__(f"{what} {name}: " + "; ".join(map(str, problems)))

    @property
    def details(self) -> Mapping[str, Any]:
        return {
            "fields": [
                {"field": each.field, "value": shortened(each.value), "message": each.reason}
                for each in self.problems
            ]
        }


class UnitUnknownError(AgentError):
    code = "unit_unknown"
    status = 404

    def __init__(self, name: str, known: Sequence[str]) -> None:
        there = f"it has {', '.join(sorted(known))}" if known else "it has none; PUT one"
        super().__init__(f"unit {shortened(name)} is not one of this host; {there}")


class Conflict(NamedTuple):
    """Something that a unit needs and another holds. `unit`: that other, when it is one of this host."""

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
        self.conflicts = tuple(conflicts)
        said = "; ".join(map(str, conflicts))
        super().__init__(f"{said}. End that process, delete that unit, or give this one another")

    @property
    def details(self) -> Mapping[str, Any]:
        return {"conflicts": [each._asdict() for each in self.conflicts]}


class AddressNotHereError(BadRequestError):
    """A unit should listen on an address that this machine does not have."""

    code = "address_not_here"


class TooManyUnitsError(AgentError):
    code = "too_many_units"
    status = 409


class BusyError(AgentError):
    """Another change of the same thing has not ended in time; ask again."""

    code = "busy"
    status = 503


class UnitsLeftError(AgentError):
    """The agent is asked to end its work while it has units."""

    code = "units_left"
    status = 409


class NotReadyError(AgentError):
    """A unit is not ready within the wait that was asked for. What was changed stays changed."""

    code = "not_ready"
    status = 504

    def __init__(self, message: str, details: Mapping[str, Any]) -> None:
        self._details = dict(details)
        super().__init__(message)

    @property
    def details(self) -> Mapping[str, Any]:
        return self._details


class NotReadyBeforeError(NotReadyError):
    """A rolling restart is refused: it would take a unit away while another is missing already."""

    status = 409


class AgentStateError(SiteError):
    """What the agent keeps on disk cannot be used; the message says which file."""


class AgentUnreachableError(SiteError):
    """No agent answers."""


class AgentRefusedError(SiteError):
    """The agent said no. `code` is its error, `details` the whole answer."""

    def __init__(self, message: str, status: int, code: str, details: Mapping[str, Any]) -> None:
        self.status = status
        self.code = code
        self.details = dict(details)
        super().__init__(message)


class AddressTakenError(SiteError):
    """Somebody else listens on an address that a unit needs."""


class UnitFailedError(SiteError):
    """A unit did not become ready; carries the last lines of its log."""

    def __init__(self, unit: str, reason: str, log_tail: str, log_path: str) -> None:
        self.unit = unit
        self.reason = reason
        self.log_tail = log_tail
        self.log_path = log_path
        tail = f"\nlast lines of {log_path}:\n{log_tail}" if log_tail else f" (its log {log_path} is empty)"
        super().__init__(f"unit {unit} is not ready: {reason}{tail}")


class SupervisorError(SiteError):
    """supervisord could not be started or does not answer."""
