"""Problems of units: refused by an agent, existing already, or not ready."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from headrace.agent.errors import AgentRefusedError
from headrace.agent.logs import collapsed
from headrace.provider.problems import Path, Problem
from headrace.provider.unit_kind import UnitKind
from headrace.provider.values import Values

if TYPE_CHECKING:
    from headrace.agent.client import AgentClient
    from headrace.agent.report import UnitReport

LOG_LINES: Final = 15


def refused(
    kind: UnitKind, error: AgentRefusedError, values: Values, *, is_plan: bool = False
) -> list[Problem]:
    """Returns the problems for an agent's error response, each at its attribute."""
    host = values["host"]
    if error.code == "configuration_invalid":
        return [
            kind.invalid(detail["field"], detail["value"], detail["message"])
            for detail in error.details["fields"]
        ]
    if error.code != "conflict":
        return [Problem(f"The agent of host {host} refuses the unit", str(error))]
    problems = []
    for conflict in error.details["conflicts"]:
        # The plan may delete the unit that uses the address.
        may_end = is_plan and conflict["unit"] is not None
        remedy = (
            "The apply fails unless it deletes that unit first."
            if may_end
            else "Change or delete one of them."
        )
        path = _path_of_value(kind, values, conflict["what"])
        detail = f"On host {host} it is used by {conflict['held_by']}. {remedy}"
        problems.append(Problem(f"{conflict['what']} is in use", detail, path, is_warning=may_end))
    return problems


def _path_of_value(kind: UnitKind, values: Values, value: str) -> Path:
    canonical = kind.canonical(values) or {}
    for field, name in kind.attribute_names.items():
        if canonical.get(field) == value:
            return (name,)
    return ()


def adopted(values: Values) -> Problem:
    return Problem(
        f"Unit {values['name']} already exists; Terraform adopts it",
        f"Host {values['host']} has it with the same configuration: it was created by an interrupted apply "
        "or by someone else.",
        is_warning=True,
    )


def name_in_use(values: Values) -> Problem:
    host, name = values["host"], values["name"]
    return Problem(
        f"Host {host} has another unit {name}",
        "Someone else created it, with another configuration. Import it with `terraform import`, as "
        f"{host}/{name}, or choose another name.",
        ("name",),
    )


def unreachable(state: Values) -> Values:
    """Returns the state of a unit whose host does not answer: an apply has something to do."""
    return {**state, "ready": False, "drift": [_unreachable_drift(state)]}


def is_unreachable(state: Values) -> bool:
    """Whether the unit's host did not answer when the unit was last read."""
    return _unreachable_drift(state) in (state.get("drift") or ())


def _unreachable_drift(state: Values) -> str:
    return f"the agent of host {state['host']} does not answer"


def left_behind(state: Values) -> Problem:
    name, host = state["name"], state["host"]
    return Problem(
        f"Unit {name} was not deleted from host {host}",
        f"The agent there does not answer, or the provider's `agents` no longer has it. If {host} comes "
        f"back, its agent starts {name} again: stop that agent, or delete the unit there.",
        is_warning=True,
    )


def not_ready(client: AgentClient, report: UnitReport, timeout_s: float) -> Problem:
    why = f"not within {timeout_s:g} s"
    if report.failing:
        why = "its process ends in every attempt to start it"
    elif report.has_failed:
        why = f"supervisord has given up: {report.note}"
    tail = collapsed(client.log(report.name, lines=LOG_LINES).rstrip()) or "(it is empty)"
    return Problem(
        f"Unit {report.name} is not ready, {why}",
        f"{report.problem}\n\nThe end of its log, {report.log} on its host:\n\n{tail}",
    )
