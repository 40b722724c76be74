"""Protocol 6: dispatches Terraform's requests to resources and data sources.

Owns the conversion of requests and responses, and that no request ends in a traceback. Built on `tf`'s
servicer, of which it replaces what `tf` lacks: plans that start from the HCL (so that a removed line restores
the default), plans of creations and deletions by the resource, a state beside an error, and a StopProvider
that lets running calls finish.
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
from headrace.provider.attributes import BlockSchema
from headrace.provider.planning import change_of
from headrace.provider.problems import INTERRUPTED, Problem, ResourceError
from headrace.provider.provider import SCHEMA, HeadraceProvider
from headrace.provider.resource import Block, DataSource, Resource, ResourceCall
from headrace.provider.values import Values, to_wire
from headrace.site.errors import SiteError

logger = logging.getLogger(__name__)

T = TypeVar("T")

# By the package that defines an error's class: the server whose request failed.
_SERVERS: Final = {
    "headrace.client.": "The brokers",
    "headrace.registry.": "The schema registry",
    "headrace.audit.": "The audit store",
    "headrace.warehouse.": "HDFS",
    "headrace.coordination.": "ZooKeeper",
}
BUG: Final = "This is a bug in headrace's provider. TF_LOG=error shows where it is; please report it."


class Servicer(ProviderServicer):
    """Serves one provider to many threads."""

    def __init__(self, provider: HeadraceProvider) -> None:
        super().__init__(provider)
        self.provider = provider
        self._stopping = threading.Event()

    def stop(self) -> None:
        """Ends all waits; no change begins from now on."""
        self._stopping.set()

    def StopProvider(self, request: pb.StopProvider.Request, context: object) -> pb.StopProvider.Response:
        logger.info("Terraform asks to stop; running calls finish")
        self.stop()
        return pb.StopProvider.Response()

    def GetProviderSchema(self, request: object, context: object) -> pb.GetProviderSchema.Response:
        response = super().GetProviderSchema(request, context)
        # Without this Terraform plans deletions itself, and no resource could refuse one.
        response.server_capabilities.plan_destroy = True
        response.server_capabilities.get_provider_schema_optional = True
        return response

    # --- configuration ---

    def ValidateProviderConfig(self, request: Any, context: object) -> pb.ValidateProviderConfig.Response:
        diagnostics = self._validate(self.provider, SCHEMA, request)
        return pb.ValidateProviderConfig.Response(diagnostics=diagnostics)

    def ConfigureProvider(self, request: Any, context: object) -> pb.ConfigureProvider.Response:
        call = self._call()
        config = _decode(SCHEMA, request.config) or {}
        self._try(call, lambda: self.provider.configure(config))
        return pb.ConfigureProvider.Response(diagnostics=_diagnostics(call))

    def ValidateResourceConfig(self, request: Any, context: object) -> pb.ValidateResourceConfig.Response:
        resource = self._resource(request.type_name)
        diagnostics = self._validate(resource, resource.get_schema(), request)
        return pb.ValidateResourceConfig.Response(diagnostics=diagnostics)

    def ValidateDataResourceConfig(
        self, request: Any, context: object
    ) -> pb.ValidateDataResourceConfig.Response:
        source = self._data_source(request.type_name)
        diagnostics = self._validate(source, source.get_schema(), request)
        return pb.ValidateDataResourceConfig.Response(diagnostics=diagnostics)

    def _validate(
        self, block: HeadraceProvider | Block, schema: BlockSchema, request: Any
    ) -> list[pb.Diagnostic]:
        call = self._call()
        config = _decode(schema, request.config) or {}
        self._try(call, lambda: call.problems.extend(block.validate(config)))
        return _diagnostics(call)

    # --- resources ---

    def UpgradeResourceState(self, request: Any, context: object) -> pb.UpgradeResourceState.Response:
        """Returns a state that an older provider wrote without attributes that no longer exist."""
        schema = self._resource(request.type_name).get_schema()
        state = schema.decode(json.loads(request.raw_state.json, parse_float=Decimal))
        return pb.UpgradeResourceState.Response(upgraded_state=_encode(schema, state))

    def ReadResource(self, request: Any, context: object) -> pb.ReadResource.Response:
        call, resource = self._call(), self._resource(request.type_name)
        prior = _decode(resource.get_schema(), request.current_state) or {}
        state = self._try(call, lambda: resource.read(call, prior))
        if call.has_failed:
            state = prior
        return pb.ReadResource.Response(
            new_state=_encode(resource.get_schema(), state), diagnostics=_diagnostics(call)
        )

    def PlanResourceChange(self, request: Any, context: object) -> pb.PlanResourceChange.Response:
        call, resource = self._call(request.prior_private), self._resource(request.type_name)
        prior = _decode(resource.get_schema(), request.prior_state)
        config = _decode(resource.get_schema(), request.config)
        if config is None:
            self._try(call, lambda: resource.plan_deletion(call, prior or {}))
            return pb.PlanResourceChange.Response(diagnostics=_diagnostics(call))
        schema = resource.get_schema()
        change = change_of(schema, config, prior)
        plan = self._try(call, lambda: resource.plan(call, change))
        if plan is None:
            return pb.PlanResourceChange.Response(diagnostics=_diagnostics(call))
        call.problems.extend(plan.problems)
        if plan.replaces:
            # Terraform itself asks for the plan of a deletion, but not for that of a replacement's deletion.
            self._try(call, lambda: resource.plan_deletion(call, prior or {}))
        paths = [pb.AttributePath(steps=[pb.AttributePath.Step(attribute_name=n)]) for n in plan.replaces]
        return pb.PlanResourceChange.Response(
            planned_state=_encode(resource.get_schema(), plan.planned),
            requires_replace=paths,
            # Terraform plans a replacement twice, hands this on, and gives it to the deletion.
            planned_private=json.dumps(call.private).encode() if call.private else b"",
            diagnostics=_diagnostics(call),
        )

    def ApplyResourceChange(self, request: Any, context: object) -> pb.ApplyResourceChange.Response:
        call, resource = self._call(request.planned_private), self._resource(request.type_name)
        prior = _decode(resource.get_schema(), request.prior_state)
        planned = _decode(resource.get_schema(), request.planned_state)

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
            state = self._run(call, change)
        except ResourceError as error:
            state = error.state if error.state is not None else prior
        return pb.ApplyResourceChange.Response(
            new_state=_encode(resource.get_schema(), state), diagnostics=_diagnostics(call)
        )

    def ImportResourceState(self, request: Any, context: object) -> pb.ImportResourceState.Response:
        call, resource = self._call(), self._resource(request.type_name)
        state = self._try(call, lambda: resource.import_(call, request.id))
        imported = []
        if state is not None:
            encoded = _encode(resource.get_schema(), state)
            imported.append(
                pb.ImportResourceState.ImportedResource(type_name=request.type_name, state=encoded)
            )
        return pb.ImportResourceState.Response(imported_resources=imported, diagnostics=_diagnostics(call))

    def ReadDataSource(self, request: Any, context: object) -> pb.ReadDataSource.Response:
        call, source = self._call(), self._data_source(request.type_name)
        config = _decode(source.get_schema(), request.config) or {}
        found = self._try(call, lambda: source.read(call, config))
        return pb.ReadDataSource.Response(
            state=_encode(source.get_schema(), found), diagnostics=_diagnostics(call)
        )

    # --- helpers ---

    def _call(self, private: bytes = b"") -> ResourceCall:
        return ResourceCall(self._stopping, private=json.loads(private) if private else {})

    def _resource(self, type_name: str) -> Resource:
        return self.provider.new_resource(self._get_res_cls(type_name))

    def _data_source(self, type_name: str) -> DataSource:
        return self.provider.new_data_source(self._get_ds_cls(type_name))

    def _try(self, call: ResourceCall, do: Callable[[], T]) -> T | None:
        """Returns what `do` returns; None if it failed, with the problem noted in the call."""
        try:
            return self._run(call, do)
        except ResourceError:
            return None

    def _run(self, call: ResourceCall, do: Callable[[], T]) -> T:
        """Runs `do`. Notes every failure in the call and raises it as `ResourceError`."""
        try:
            return do()
        except ResourceError as error:
            call.problems.extend(error.problems)
            raise
        except Exception as error:
            problem = _problem_of(error)
            call.problems.append(problem)
            raise ResourceError(problem) from error


def _problem_of(error: Exception) -> Problem:
    if isinstance(error, AgentUnreachableError):
        return Problem("A host's agent does not answer", f"{error}. Is it running, and is its URL right?")
    if isinstance(error, SiteError):
        return Problem("The host's agent failed", str(error))
    # By module name, because the clients are imported only where they are used.
    for module, server in _SERVERS.items():
        if type(error).__module__.startswith(module):
            return Problem(f"{server} failed", f"{error}.")
    logger.error("unexpected exception", exc_info=error)
    return Problem(f"{type(error).__name__}: {error}", BUG)


def _decode(schema: BlockSchema, value: pb.DynamicValue) -> Values | None:
    return schema.decode(read_dynamic_value(value))


def _encode(schema: BlockSchema, state: Values | None) -> pb.DynamicValue:
    return to_dynamic_value(None if state is None else to_wire(schema.complete(state)))


def _diagnostics(call: ResourceCall) -> list[pb.Diagnostic]:
    diagnostics = Diagnostics()
    for problem in call.problems:
        add = diagnostics.add_warning if problem.is_warning else diagnostics.add_error
        add(problem.summary, problem.detail, list(problem.path) or None)
    return list(diagnostics.to_pb())
