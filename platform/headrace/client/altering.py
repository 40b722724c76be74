"""IncrementalAlterConfigs (KIP-339) for one topic or broker, as `client.admin` sends it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from headrace.client.admin_requests import ResultCode
from headrace.client.calls import Schema

TOPIC_RESOURCE: Final = 2
BROKER_RESOURCE: Final = 4
SET: Final = 0
DELETE: Final = 1
APPEND: Final = 2
SUBTRACT: Final = 3


def altering(
    kind: int,
    name: str,
    changes: Mapping[str, str | None],
    *,
    validate_only: bool = False,
    operation: int = SET,
) -> tuple[Callable[[Schema], Any], Callable[[Any], list[ResultCode]]]:
    """Returns what makes an IncrementalAlterConfigs of one resource, and what reads the answer. `operation`:
    what is done with the values; of settings that are lists also `APPEND` or `SUBTRACT`.
    """

    def build(schema: Schema) -> Any:
        configs = tuple(
            schema.make(
                "AlterableConfig",
                name=setting,
                config_operation=DELETE if value is None else operation,
                value=value,
            )
            for setting, value in changes.items()
        )
        resource = schema.make(
            "AlterConfigsResource", resource_type=kind, resource_name=name, configs=configs
        )
        return schema.make(
            "IncrementalAlterConfigsRequest", resources=(resource,), validate_only=validate_only
        )

    def results_of(body: Any) -> list[ResultCode]:
        subject = f"broker {name}" if kind == BROKER_RESOURCE else repr(name)
        return [ResultCode(r.error_code, subject, r.error_message) for r in body.responses]

    return build, results_of
