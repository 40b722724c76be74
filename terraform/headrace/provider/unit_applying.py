"""Applying a unit: puts it to its host's agent and waits until it is ready."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from headrace.agent.errors import AgentRefusedError
from headrace.provider.problems import Problem, ResourceError
from headrace.provider.resource import ResourceCall
from headrace.provider.unit_kind import UnitKind
from headrace.provider.unit_problems import adopted, name_in_use, not_ready, refused
from headrace.provider.values import Values, is_known

if TYPE_CHECKING:
    from headrace.agent.client import AgentClient
    from headrace.agent.report import UnitReport

# Waits are cut into slices, so that Ctrl-C ends them.
WAIT_SLICE_S: Final = 1.0


def is_adopted(kind: UnitKind, call: ResourceCall, client: AgentClient, planned: Values) -> bool:
    """Whether the host has this very unit already, which it warns of. Raises `ResourceError` if it has
    another one of this name."""
    name = planned["name"]
    try:
        outcome = client.put(name, kind.configuration(planned), dry_run=True).outcome
        if outcome == "created":
            return False
        if outcome == "changed":
            # The same configuration may be `changed`, too: when the unit has drift.
            report = client.unit(name)
            if report.kind != kind.name or report.configuration != kind.canonical(planned):
                raise ResourceError(name_in_use(planned))
    except AgentRefusedError as error:
        raise ResourceError(*refused(kind, error, planned)) from error
    call.problems.append(adopted(planned))
    return True


def put_unit(
    kind: UnitKind,
    call: ResourceCall,
    client: AgentClient,
    planned: Values,
    prior: Values | None,
    *,
    timeout_s: float,
) -> Values:
    """Puts the unit and returns its state once it is ready. Raises `ResourceError`."""
    name = planned["name"]
    try:
        report = client.put(name, kind.configuration(planned)).unit
    except AgentRefusedError as error:
        raise ResourceError(*refused(kind, error, planned), state=prior) from error
    assert report is not None
    deadline = time.monotonic() + timeout_s
    while not report.is_ready:
        state = {**applied(planned, report), "ready": False}
        if report.has_failed or time.monotonic() >= deadline:
            raise ResourceError(not_ready(client, report, timeout_s), state=state)
        if call.stopping.is_set():
            text = f"Unit {name} was configured but is not ready: {report.problem}. The next apply waits."
            if prior is None:
                # After an error Terraform would replace the unit.
                call.warn("Interrupted", text)
                return state
            raise ResourceError(Problem("Interrupted", text), state=state)
        report = _wait(client, report)
    return applied(planned, report)


def _wait(client: AgentClient, report: UnitReport) -> UnitReport:
    """Returns the unit's report once it is ready, or after one slice."""
    # Imported here because it takes 0.15 s, and only applies need it.
    from headrace.agent.answers import report_in

    try:
        return client.unit(report.name, wait_s=WAIT_SLICE_S)
    except AgentRefusedError as error:
        if error.code != "not_ready":
            raise
        return report_in(error.details.get("unit"))


def reported(report: UnitReport) -> Values:
    """Returns the computed attributes that an agent reports."""
    return {
        "listens": list(report.listens),
        "version": report.version,
        "ready": report.is_ready,
        "drift": [drift.message for drift in report.drift],
    }


def applied(planned: Values, report: UnitReport) -> Values:
    """Returns the state after an apply. Planned values stay as Terraform was promised them."""
    now = {**reported(report), "drift": []}
    promised = {name for name in now if planned.get(name) is not None and is_known(planned[name])}
    return {**planned, **{name: value for name, value in now.items() if name not in promised}}
