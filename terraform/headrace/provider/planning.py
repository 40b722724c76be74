"""From what the HCL says and what there is to the plan. Pure."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, NamedTuple

from tf.types import Unknown

from headrace.provider.attributes import Schema
from headrace.provider.values import Trouble, Values, is_same


class Change(NamedTuple):
    """One planned change, as a resource sees it.

    `prior` is None for a creation. `planned` holds the inputs, defaults filled in; computed attributes are
    the resource's to add. `changed`: inputs that differ, or may differ once they are known.
    """

    prior: Values | None
    planned: Values
    changed: frozenset[str]

    @property
    def is_creation(self) -> bool:
        return self.prior is None


class Plan(NamedTuple):
    """What a resource plans. `replaces`: the attributes on whose account there will be a new one."""

    planned: Values
    replaces: Collection[str] = ()
    troubles: tuple[Trouble, ...] = ()


def change_of(schema: Schema, config: Values, prior: Values | None) -> Change:
    """The inputs as the HCL says them now: what it says no more goes back to its default."""
    planned: Values = {}
    for each in schema.attributes:
        if each.computed:
            continue
        said = config.get(each.name)
        planned[each.name] = each.default if said is None and each.has_default else said
    before = prior or {}
    changed = frozenset(name for name, value in planned.items() if not is_same(before.get(name), value))
    return Change(prior, planned, changed)


def replaces_of(schema: Schema, change: Change) -> list[str]:
    """The changed attributes that make a new resource, in the schema's order."""
    if change.is_creation:
        return []
    return [each.name for each in schema.attributes if each.replaces and each.name in change.changed]


def settled(known: dict[str, Any], prior: Values | None, *, changes: bool) -> Values:
    """Computed attributes that only a change of the resource can change: unknown until then."""
    if prior is None or changes:
        return dict.fromkeys(known, Unknown)
    return {name: prior.get(name) for name in known}
