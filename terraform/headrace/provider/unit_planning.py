"""Planning a unit: its computed attributes, and a dry run at its agent if that can be reached already."""

from __future__ import annotations

import logging

from tf.types import Unknown

from headrace.agent.errors import AgentRefusedError, AgentUnreachableError
from headrace.provider.agents import NotYetKnownError
from headrace.provider.planning import ResourceChange, ResourcePlan, replaces_of
from headrace.provider.problems import Problem, ResourceError
from headrace.provider.resource import Context
from headrace.provider.unit_kind import UnitKind
from headrace.provider.unit_problems import adopted, is_unreachable, name_in_use, refused
from headrace.provider.values import Values, is_known

logger = logging.getLogger(__name__)


def plan_unit(kind: UnitKind, context: Context, change: ResourceChange) -> ResourcePlan:
    """Plans a creation or an update. Raises `ResourceError`."""
    problems = kind.problems(change.planned)
    if any(not problem.is_warning for problem in problems):
        raise ResourceError(*problems)
    if is_known(change.planned["host"]):
        context.agents.check_host(change.planned["host"])
    replaces = replaces_of(kind.schema, change)
    planned = change.planned | _computed(kind, change)
    if not replaces and planned != change.prior:
        problems += _dry_run(kind, context, change)
    return ResourcePlan(planned, replaces, tuple(problems))


def _dry_run(kind: UnitKind, context: Context, change: ResourceChange) -> list[Problem]:
    """Returns what the agent objects to; nothing if it cannot be reached yet."""
    values = change.planned
    host, name = values["host"], values["name"]
    if not (is_known(host) and is_known(name) and kind.is_complete(values)):
        return []
    try:
        client = context.agents.client(host)
        put = client.put(name, kind.configuration(values), dry_run=True)
    except NotYetKnownError:
        return []
    except AgentUnreachableError as error:
        # The host may be created by this same apply.
        logger.info("no dry run: %s", error)
        return []
    except AgentRefusedError as error:
        return refused(kind, error, values, is_plan=True)
    if not change.is_creation or put.outcome == "created" or f"{host}/{name}" in context.known:
        return []
    return [adopted(values) if put.outcome == "unchanged" else name_in_use(values)]


def _computed(kind: UnitKind, change: ResourceChange) -> Values:
    """Returns the computed attributes of a unit that is ready, without drift, as far as they are known."""
    planned, prior = change.planned, change.prior
    is_named = is_known(planned["host"]) and is_known(planned["name"])
    identity = f"{planned['host']}/{planned['name']}" if is_named else Unknown
    if prior is None:
        return {"id": identity, "listens": Unknown, "version": Unknown, "ready": Unknown, "drift": []}
    # Nobody can promise that a host comes back.
    is_reachable = not is_unreachable(prior)
    return {
        "id": identity,
        "listens": Unknown if change.changed & kind.listen_attributes else prior.get("listens"),
        "version": prior.get("version"),
        "ready": True if is_reachable else Unknown,
        "drift": [] if is_reachable else Unknown,
    }
