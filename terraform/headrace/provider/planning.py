"""What a resource plans, computed from the HCL and the prior state. Pure."""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from tf.types import Unknown

from headrace.provider.attributes import BlockSchema
from headrace.provider.problems import Problem
from headrace.provider.values import Values, is_same


class ResourceChange(NamedTuple):
    """A creation or an update that Terraform asks a resource to plan.

    `prior` is None for a creation. `planned` holds the inputs, with defaults; the resource adds its computed
    attributes. `changed` names the inputs that differ, or may differ once they are known.
    """

    prior: Values | None
    planned: Values
    changed: frozenset[str]

    @property
    def is_creation(self) -> bool:
        return self.prior is None


class ResourcePlan(NamedTuple):
    """A resource's plan. `replaces` names the attributes whose change needs a new resource."""

    planned: Values
    replaces: Collection[str] = ()
    problems: tuple[Problem, ...] = ()


def change_of(schema: BlockSchema, config: Values, prior: Values | None) -> ResourceChange:
    """Returns the change from `prior` to the HCL. Attributes that the HCL leaves out get their default; those
    that are computed then keep what they have.
    """
    before = prior or {}
    planned: Values = {}
    for attribute in schema.attributes:
        if attribute.computed and not attribute.optional:
            continue
        value = config.get(attribute.name)
        if value is None and attribute.has_default:
            value = attribute.default
        elif value is None and attribute.computed:
            value = before.get(attribute.name, Unknown)
        planned[attribute.name] = value
    changed = frozenset(name for name, value in planned.items() if not is_same(before.get(name), value))
    return ResourceChange(prior, planned, changed)


def replaces_of(schema: BlockSchema, change: ResourceChange) -> list[str]:
    """Returns the changed attributes that need a new resource, in the schema's order."""
    if change.is_creation:
        return []
    return [
        attribute.name
        for attribute in schema.attributes
        if attribute.replaces and attribute.name in change.changed
    ]
