"""The page of the kinds of units: the fields of their configurations, for an agent and for containers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Final

from headrace.agent.configuration import Configuration
from headrace.agent.kinds import KINDS
from reference.markdown import GENERATED, code, escaped, table

INTRODUCTION: Final = (
    "What a PUT to an [agent](../agent.md) takes as JSON, a [container](../containers.md) as options, and "
    "the resources of [Terraform](../terraform.md) as attributes, which are explained there."
)


def units_page() -> str:
    """Returns the page."""
    parts = ["# Units of an agent", GENERATED, INTRODUCTION]
    for kind in sorted(KINDS):
        configuration, _ = KINDS[kind]
        summary = (configuration.__doc__ or "").strip().split("\n\n")[0]
        parts += [
            f"## {kind}",
            escaped(" ".join(summary.split())),
            table(["field", "type", "default"], list(_rows(configuration))),
        ]
    return "\n\n".join(parts) + "\n"


def _rows(configuration: type[Configuration]) -> Iterator[tuple[str, str, str]]:
    schema = configuration.model_json_schema()
    required = schema.get("required", [])
    for name, field in schema["properties"].items():
        default = "required" if name in required else code(_text(field.get("default")))
        yield code(name), _type(field), default


def _text(value: Any) -> str:
    """A value as JSON writes it; nothing for null, which means that the field is left out."""
    return "" if value is None else json.dumps(value).strip('"')


def _type(field: dict[str, Any]) -> str:
    if "anyOf" in field:
        return " or ".join(_type(each) for each in field["anyOf"] if each.get("type") != "null")
    if "enum" in field or "const" in field:
        return " or ".join(code(str(value)) for value in field.get("enum", [field.get("const")]))
    name = str(field.get("type", "object"))
    bounds = [str(field[end]) for end in ("minimum", "maximum") if end in field]
    return f"{name}, {' to '.join(bounds)}" if len(bounds) == 2 else name
