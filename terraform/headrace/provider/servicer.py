"""Terraform's requests, each to the resource it is about.

Owns the way from protocol 6 to `resource` and back, and that no request ends in a traceback. `tf`'s servicer
is the ground; replaced is what it cannot: plans that look at the HCL itself (so that a removed line means the
default again), plans of creations and deletions by the resource, a state beside an error, a StopProvider that
lets calls come to their end.
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable
from decimal import Decimal
from typing import Any, Final, TypeVar

from tf.gen import tfplugin_pb2 as pb
from tf.provider import ProviderServicer
from tf.utils import Diagnostics, read_dynamic_value, to_dynamic_value

from headrace.agent.errors import AgentUnreachableError
from headrace.provider.attributes import Schema
from headrace.provider.planning import change_of
from headrace.provider.provider import SCHEMA, HeadraceProvider
from headrace.provider.resource import Call, DataSource, Resource
from headrace.provider.values import (
    INTERRUPTED,
    ResourceError,
    Trouble,
    Values,
    wire,
)
from headrace.site.errors import SiteError

logger = logging.getLogger(__name__)

T = TypeVar("T")

_WHO: Final = {
    "headrace.client.": "The brokers",
    "headrace.registry.": "The schema registry",
    "headrace.audit.": "The audit store",
    "headrace.warehouse.": "HDFS",
    "headrace.coordination.": "ZooKeeper",
}
REPORT_IT: Final = "This is a fault of headrace's provider. TF_LOG=error shows where; please report it."


class Servicer(ProviderServicer):
    """One provider, many threads."""

    def __init__(self, provider: HeadraceProvider) -> None:
        super().__init__(provider)
        self.provider = provider
        self._stopping = threading.Event()

    def stop(self) -> None:
        """Waits end from now on, and nothing new is begun."""
        self._stopping.set()

    def StopProvider(self, request: pb.StopProvider.Request, context: object) -> pb.StopProvider.Response:
        logger.info("Terraform asks to stop: calls come to their end")
        self.stop()
        return pb.StopProvider.Response()

    def GetProviderSchema(self, request: object, context: object) -> pb.GetProviderSchema.Response:
        answer = super().GetProviderSchema(request, context)
        # Without this Terraform plans deletions by itself, whatever is in the thing.
        answer.server_capabilities.plan_destroy = True
        answer.server_capabilities.get_provider_schema_optional = True
        return answer

    # what the HCL says

    def ValidateProviderConfig(self, request: Any, context: object) -> pb.ValidateProviderConfig.Response:
        call = self._call()
        config = SCHEMA.decoded(read_dynamic_value(request.config)) or {}
        self._guarded(call, lambda: call.troubles.extend(self.provider.validate(config)))
        return pb.ValidateProviderConfig.Response(diagnostics=_told(call))

    def ConfigureProvider(self, request: Any, context: object) -> pb.ConfigureProvider.Response:
        call = self._call()
        config = SCHEMA.decoded(read_dynamic_value(request.config)) or {}
        self._guarded(call, lambda: self.provider.configure(config))
        return pb.ConfigureProvider.Response(diagnostics=_told(call))

    def ValidateResourceConfig(self, request: Any, context: object) -> pb.ValidateResourceConfig.Response:
        call, resource = self._call(), self._resource(request.type_name)
        config = _read(resource, request.config) or {}
        self._guarded(call, lambda: call.troubles.extend(resource.validate(config)))
        return pb.ValidateResourceConfig.Response(diagnostics=_told(call))

    def ValidateDataResourceConfig(
        self, request: Any, context: object
    ) -> pb.ValidateDataResourceConfig.Response:
        call, source = self._call(), self._data_source(request.type_name)
        config = _read(source, request.config) or {}
        self._guarded(call, lambda: call.troubles.extend(source.validate(config)))
        return pb.ValidateDataResourceConfig.Response(diagnostics=_told(call))

    # a resource's life

    def UpgradeResourceState(self, request: Any, context: object) -> pb.UpgradeResourceState.Response:
        """A state that an older provider wrote: what is no attribute any more is left out."""
        schema = self._resource(request.type_name).get_schema()
        state = schema.decoded(json.loads(request.raw_state.json, parse_float=Decimal))
        return pb.UpgradeResourceState.Response(upgraded_state=_encoded(schema, state))

    def ReadResource(self, request: Any, context: object) -> pb.ReadResource.Response:
        call, resource = self._call(), self._resource(request.type_name)
        state = _read(resource, request.current_state) or {}
        found = self._guarded(call, lambda: resource.read(call, state))
        if _failed(call):
            found = state
        return pb.ReadResource.Response(
            new_state=_encoded(resource.get_schema(), found), diagnostics=_told(call)
        )

    def PlanResourceChange(self, request: Any, context: object) -> pb.PlanResourceChange.Response:
        call, resource = self._call(), self._resource(request.type_name)
        prior = _read(resource, request.prior_state)
        config = _read(resource, request.config)
        if config is None:
            self._guarded(call, lambda: resource.plan_deletion(call, prior or {}))
            return pb.PlanResourceChange.Response(diagnostics=_told(call))
        schema = resource.get_schema()
        change = change_of(schema, config, prior)
        plan = self._guarded(call, lambda: resource.plan(call, change))
        if plan is None:
            return pb.PlanResourceChange.Response(diagnostics=_told(call))
        call.troubles.extend(plan.troubles)
        if plan.replaces:
            # Terraform asks for the plan of a deletion when it is one, not when it is half of a replacement.
            self._guarded(call, lambda: resource.plan_deletion(call, prior or {}))
        paths = [pb.AttributePath(steps=[pb.AttributePath.Step(attribute_name=n)]) for n in plan.replaces]
        return pb.PlanResourceChange.Response(
            planned_state=_encoded(resource.get_schema(), plan.planned),
            requires_replace=paths,
            diagnostics=_told(call),
        )

    def ApplyResourceChange(self, request: Any, context: object) -> pb.ApplyResourceChange.Response:
        call, resource = self._call(), self._resource(request.type_name)
        prior = _read(resource, request.prior_state)
        planned = _read(resource, request.planned_state)

        def change() -> Values | None:
            if self._stopping.is_set():
                raise ResourceError(INTERRUPTED, state=prior)
            if planned is None:
                resource.delete(call, prior or {})
                return None
            if prior is None:
                return resource.create(call, planned)
            return resource.update(call, prior, planned)

        try:
            state = self._telling(call, change)
        except ResourceError as error:
            state = error.state if error.state is not None else prior
        return pb.ApplyResourceChange.Response(
            new_state=_encoded(resource.get_schema(), state), diagnostics=_told(call)
        )

    def ImportResourceState(self, request: Any, context: object) -> pb.ImportResourceState.Response:
        call, resource = self._call(), self._resource(request.type_name)
        state = self._guarded(call, lambda: resource.import_(call, request.id))
        imported = []
        if state is not None:
            encoded = _encoded(resource.get_schema(), state)
            imported.append(
                pb.ImportResourceState.ImportedResource(type_name=request.type_name, state=encoded)
            )
        return pb.ImportResourceState.Response(imported_resources=imported, diagnostics=_told(call))

    def ReadDataSource(self, request: Any, context: object) -> pb.ReadDataSource.Response:
        call, source = self._call(), self._data_source(request.type_name)
        config = _read(source, request.config) or {}
        found = self._guarded(call, lambda: source.read(call, config))
        return pb.ReadDataSource.Response(state=_encoded(source.get_schema(), found), diagnostics=_told(call))

    # hands

    def _call(self) -> Call:
        return Call(self._stopping)

    def _resource(self, type_name: str) -> Resource:
        return self.provider.new_resource(self._get_res_cls(type_name))

    def _data_source(self, type_name: str) -> DataSource:
        return self.provider.new_data_source(self._get_ds_cls(type_name))

    def _guarded(self, call: Call, do: Callable[[], T]) -> T | None:
        """What it returns; None when it failed, which the call then tells."""
        try:
            return self._telling(call, do)
        except ResourceError:
            return None

    def _telling(self, call: Call, do: Callable[[], T]) -> T:
        """Notes in the call whatever goes wrong, and raises `ResourceError`."""
        try:
            return do()
        except ResourceError as error:
            call.troubles.extend(error.troubles)
            raise
        except Exception as error:
            trouble = _trouble_of(error)
            call.troubles.append(trouble)
            raise ResourceError(trouble) from error


def _trouble_of(error: Exception) -> Trouble:
    if isinstance(error, AgentUnreachableError):
        return Trouble("A host's agent does not answer", f"{error}. Is it started, and is its URL right?")
    if isinstance(error, SiteError):
        return Trouble("The host's agent could not do it", str(error))
    # Clients are imported only where they are used; their errors are made for people.
    for module, who in _WHO.items():
        if type(error).__module__.startswith(module):
            return Trouble(f"{who} could not do it", f"{error}.")
    logger.error("unforeseen", exc_info=error)
    return Trouble(f"{type(error).__name__}: {error}", REPORT_IT)


def _failed(call: Call) -> bool:
    return any(not each.is_warning for each in call.troubles)


def _read(thing: Resource | DataSource, value: pb.DynamicValue) -> Values | None:
    return thing.get_schema().decoded(read_dynamic_value(value))


def _encoded(schema: Schema, state: Values | None) -> pb.DynamicValue:
    return to_dynamic_value(None if state is None else wire(schema.whole(state)))


def _told(call: Call) -> list[pb.Diagnostic]:
    diagnostics = Diagnostics()
    for each in call.troubles:
        tell = diagnostics.add_warning if each.is_warning else diagnostics.add_error
        tell(each.summary, each.detail, list(each.path) or None)
    return list(diagnostics.to_pb())
