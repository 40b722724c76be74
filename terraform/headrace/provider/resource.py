"""What resources and data sources are to the servicer, and what they need of the provider.

Owns the two base classes, `Context` and `ResourceCall`. Resources raise `ResourceError`; the servicer turns
headrace's other errors into problems by their messages.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final

from headrace.provider.agents import Agents
from headrace.provider.attributes import BlockSchema
from headrace.provider.drained import DrainedBrokers
from headrace.provider.planning import ResourceChange, ResourcePlan, replaces_of
from headrace.provider.problems import Problem, ResourceError
from headrace.provider.slots import Slots
from headrace.provider.values import Values

READY_TIMEOUT_DEFAULT_S: Final = 180.0


@dataclass
class Context:
    """What all resources of one configured provider share. Many threads use it.

    `known` holds the identities of the resources in the state, as far as they were read; `deleted_topics` the
    ids of topics that this plan deletes: their data does not keep a broker or a ZooKeeper from being deleted;
    `deleted_subjects` the names of subjects, likewise (the apply sees which registry has them still);
    `copied_schemas` the ZooKeepers of registries that copy from others, and that it deletes.
    `leaving_brokers`: by ZooKeeper, the ids of brokers that it destroys; `replaced_brokers`: by ZooKeeper and
    id those that this apply has deleted, and makes again elsewhere, until they hold their replicas again;
    `brokers_being_made`: those that it makes just now, also if another apply has deleted them. `drained`: the
    brokers that get no replicas.
    """

    agents: Agents = field(default_factory=lambda: Agents({}))
    ready_timeout_s: float = READY_TIMEOUT_DEFAULT_S
    slots: Slots = field(default_factory=Slots)
    known: set[str] = field(default_factory=set)
    deleted_topics: set[str] = field(default_factory=set)
    deleted_subjects: set[str] = field(default_factory=set)
    copied_schemas: set[str] = field(default_factory=set)
    leaving_brokers: defaultdict[str, set[int]] = field(default_factory=lambda: defaultdict(set))
    replaced_brokers: dict[tuple[str, int], Replacement] = field(default_factory=dict)
    brokers_being_made: set[tuple[str, int]] = field(default_factory=set)
    drained: DrainedBrokers = field(default_factory=DrainedBrokers)


@dataclass
class Replacement:
    """A broker between its deletion and the moment when it holds its replicas again. `begun`: whether it is
    being made; `failed`: that it was not.
    """

    deleted_s: float
    begun: bool = False
    failed: bool = False


@dataclass
class ResourceCall:
    """One request of Terraform and its problems. `stopping` is set on Ctrl-C: waits end, no change begins.

    `private`: what a plan of a replacement hands to the deletion that the apply begins with.
    """

    stopping: threading.Event
    problems: list[Problem] = field(default_factory=list)
    private: dict[str, Any] = field(default_factory=dict)

    @property
    def has_failed(self) -> bool:
        return any(not problem.is_warning for problem in self.problems)

    def warn(self, summary: str, detail: str = "") -> None:
        self.problems.append(Problem(summary, detail, is_warning=True))

    def warn_unreachable(self, what: str, error: Exception) -> None:
        """Warns that `what` was not read. An error would prevent the plan that repairs its server."""
        self.warn(f"{what} could not be read", f"The plan uses its last known state: {error}.")


class Block:
    """What resources and data sources have in common. `tf` prescribes the names of the class methods."""

    type_name: ClassVar[str]
    schema: ClassVar[BlockSchema]

    def __init__(self, context: Context) -> None:
        self.context = context

    @classmethod
    def get_name(cls) -> str:
        return cls.type_name

    @classmethod
    def get_schema(cls) -> BlockSchema:
        return cls.schema

    def validate(self, config: Values) -> list[Problem]:
        """Returns the problems of the HCL, as far as it is known. Contacts no server."""
        return []


class DataSource(Block):
    """One type of data source."""

    def read(self, call: ResourceCall, config: Values) -> Values:
        raise NotImplementedError


class Resource(Block):
    """One type of resource; an object of it serves all resources of the type."""

    import_id: ClassVar[str]
    """The form of the id that `terraform import` takes, with an example, for people."""

    def plan(self, call: ResourceCall, change: ResourceChange) -> ResourcePlan:
        """Plans a creation or an update."""
        return ResourcePlan(change.planned, replaces_of(self.get_schema(), change))

    def plan_deletion(self, call: ResourceCall, prior: Values) -> None:
        """Raises `ResourceError` if the resource must not be deleted; also called for a replacement."""

    def read(self, call: ResourceCall, state: Values) -> Values | None:
        """Returns the resource as it is now; None if it no longer exists."""
        raise NotImplementedError

    def create(self, call: ResourceCall, planned: Values) -> Values:
        raise NotImplementedError

    def update(self, call: ResourceCall, prior: Values, planned: Values) -> Values:
        raise NotImplementedError

    def delete(self, call: ResourceCall, prior: Values) -> None:
        raise NotImplementedError

    def import_(self, call: ResourceCall, identity: str) -> Values:
        """Returns the state of an existing resource, by its import id."""
        raise NotImplementedError

    def split_import_id(self, identity: str) -> tuple[str, str]:
        """Splits an import id at its last slash. Raises `ResourceError` if either part is empty."""
        parent, _, name = identity.rpartition("/")
        if not parent or not name:
            raise self.invalid_import_id(identity)
        return parent, name

    def invalid_import_id(self, identity: str) -> ResourceError:
        return ResourceError(Problem(f"Invalid import id {identity!r}", f"Expected {self.import_id}."))
