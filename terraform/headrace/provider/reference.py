"""The reference of all resources and data sources, as Markdown: `python -m headrace.provider.reference`.

Writes the tables of docs/terraform.md; a test compares them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any, Final

from headrace.provider.attributes import Attribute
from headrace.provider.provider import SCHEMA, HeadraceProvider
from headrace.provider.unit_resource import UnitResource
from headrace.provider.units import UNIT_RESOURCES

_NESTING: Final = {"map": "map of objects", "list": "list of objects", "single": "object"}


def reference() -> str:
    """Returns the whole reference."""
    provider = HeadraceProvider()
    units = [resource.get_schema() for resource in UNIT_RESOURCES]
    common = [
        attribute
        for attribute in units[0].attributes
        if all(attribute in schema.attributes for schema in units)
    ]
    text = f"Attributes that the resources of all units have. Import id: {UnitResource.import_id}."
    parts = [
        _section('provider "headrace"', SCHEMA.description, SCHEMA.attributes),
        _section("all units", text, common),
    ]
    for resource in provider.get_resources():
        schema, is_unit = resource.get_schema(), issubclass(resource, UnitResource)
        import_id = "" if is_unit else f" Import id: {resource.import_id}."
        own = [attribute for attribute in schema.attributes if not is_unit or attribute not in common]
        parts.append(_section(f"headrace_{resource.get_name()}", schema.description + import_id, own))
    for source in provider.get_data_sources():
        schema = source.get_schema()
        parts += [_section(f'data "headrace_{source.get_name()}"', schema.description, schema.attributes)]
    return "\n".join(parts)


def _section(title: str, text: str, attributes: Iterable[Attribute]) -> str:
    table = ["| attribute | type | | description |", "|---|---|---|---|", *_rows(attributes, "")]
    return f"### {title}\n\n{text}\n\n" + "\n".join(table) + "\n"


def _rows(attributes: Iterable[Attribute], prefix: str) -> Iterable[str]:
    for attribute in attributes:
        name = f"{prefix}{attribute.name}"
        nesting = attribute.nesting
        type_ = _NESTING[nesting] if nesting else _type_name(attribute.type)
        yield f"| `{name}` | {type_} | {_flags(attribute)} | {attribute.description} |"
        if nesting is not None:
            yield from _rows(attribute.type, f"{name}{'[…]' if nesting != 'single' else ''}.")


def _type_name(type_: Any) -> str:
    return type_ if isinstance(type_, str) else f"{type_[0]}({_type_name(type_[1])})"


def _flags(attribute: Attribute) -> str:
    if attribute.computed:
        flags = ["optional, or computed" if attribute.optional else "computed"]
    elif attribute.is_required:
        flags = ["required"]
    elif attribute.has_default:
        flags = [f"default `{json.dumps(attribute.default)}`"]
    else:
        flags = ["optional"]
    flags += ["sensitive"] if attribute.sensitive else []
    flags += ["**replaces**"] if attribute.replaces else []
    return ", ".join(flags)


if __name__ == "__main__":
    print(reference())
