"""What a resource and a data source are to the servicer.

Owns the two base classes, and `Call`, what one request of Terraform's carries. Resources raise
`ResourceError`; whatever else they raise of headrace's own errors is told by its message.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

from headrace.provider.attributes import Schema
from headrace.provider.planning import Change, Plan, replaces_of
from headrace.provider.values import Trouble, Values

if TYPE_CHECKING:
    from headrace.provider.provider import HeadraceProvider


@dataclass
class Call:
    """One request. `stopping` is set once the user has pressed Ctrl-C: waits end, changes do not begin."""

    stopping: threading.Event
    troubles: list[Trouble] = field(default_factory=list)

    def warn(self, summary: str, detail: str = "") -> None:
        self.troubles.append(Trouble(summary, detail, is_warning=True))


class Resource:
    """One type of resource; an object of it serves all resources of the type."""

    type_name: ClassVar[str]

    def __init__(self, provider: HeadraceProvider) -> None:
        self.provider = provider

    @classmethod
    def get_name(cls) -> str:
        return cls.type_name

    @classmethod
    def get_schema(cls) -> Schema:
        raise NotImplementedError

    def validate(self, config: Values) -> list[Trouble]:
        """What is wrong in the HCL, as far as it is known; nothing else is looked at."""
        return []

    def plan(self, call: Call, change: Change) -> Plan:
        """A creation or a change."""
        return Plan(change.planned, replaces_of(self.get_schema(), change))

    def plan_deletion(self, call: Call, prior: Values) -> None:
        """Raises `ResourceError` when it must not be deleted. A replacement asks it, too."""

    def read(self, call: Call, state: Values) -> Values | None:
        """The resource as it is; None when it is gone."""
        raise NotImplementedError

    def create(self, call: Call, planned: Values) -> Values:
        raise NotImplementedError

    def update(self, call: Call, prior: Values, planned: Values) -> Values:
        raise NotImplementedError

    def delete(self, call: Call, prior: Values) -> None:
        raise NotImplementedError

    def import_(self, call: Call, identity: str) -> Values:
        """The state of a resource that exists, by its import id."""
        raise NotImplementedError


class DataSource:
    """One type of data source."""

    type_name: ClassVar[str]

    def __init__(self, provider: HeadraceProvider) -> None:
        self.provider = provider

    @classmethod
    def get_name(cls) -> str:
        return cls.type_name

    @classmethod
    def get_schema(cls) -> Schema:
        raise NotImplementedError

    def validate(self, config: Values) -> list[Trouble]:
        return []

    def read(self, call: Call, config: Values) -> Values:
        raise NotImplementedError
