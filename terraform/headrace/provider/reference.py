"""The reference of all resources and data sources, as Markdown: `python -m headrace.provider.reference`.

Owns the tables of docs/terraform.md, which are written by it, and compared with it by a test.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any, Final

from headrace.provider.attributes import Attribute
from headrace.provider.provider import SCHEMA, HeadraceProvider
from headrace.provider.units import UNIT_RESOURCES

_IDS: Final = {
    "topic": "`BROKER,…/NAME`, such as `127.1.0.11:9092/page-view`",
    "schema": "`REGISTRY_URL/SUBJECT`, such as `http://127.1.0.3:8081/page-view-value`",
    "load": "`HOST/TOPIC`, such as `local/page-view`",
}
_UNIT_ID: Final = "`HOST/NAME`, such as `local/east-zookeeper`"


def reference() -> str:
    """All of it."""
    provider = HeadraceProvider()
    units = [each.get_schema() for each in UNIT_RESOURCES]
    common = [each for each in units[0].attributes if all(each in schema.attributes for schema in units)]
    parts = [
        _section('provider "headrace"', SCHEMA.description, SCHEMA.attributes),
        _section("all units", f"What the resources of units have in common. Import id: {_UNIT_ID}.", common),
    ]
    for resource in provider.get_resources():
        schema, name = resource.get_schema(), resource.get_name()
        words = f"{schema.description} Import id: {_IDS[name]}." if name in _IDS else schema.description
        own = (
            schema.attributes if name in _IDS else [each for each in schema.attributes if each not in common]
        )
        parts.append(_section(f"headrace_{name}", words, own))
    for source in provider.get_data_sources():
        schema = source.get_schema()
        parts += [_section(f'data "headrace_{source.get_name()}"', schema.description, schema.attributes)]
    return "\n".join(parts)


def _section(title: str, words: str, attributes: Iterable[Attribute]) -> str:
    table = ["| attribute | type | | what it is |", "|---|---|---|---|", *_rows(attributes, "")]
    return f"### {title}\n\n{words}\n\n" + "\n".join(table) + "\n"


def _rows(attributes: Iterable[Attribute], prefix: str) -> Iterable[str]:
    for each in attributes:
        name = f"{prefix}{each.name}"
        yield f"| `{name}` | {_type(each)} | {_kind(each)} | {each.description} |"
        if each.nesting is not None:
            yield from _rows(each.type, f"{name}{'[…]' if each.nesting != 'single' else ''}.")


def _type(attribute: Attribute) -> str:
    if attribute.nesting is not None:
        return {"map": "map of objects", "list": "list of objects", "single": "object"}[attribute.nesting]
    return _name(attribute.type)


def _name(type_: Any) -> str:
    return type_ if isinstance(type_, str) else f"{type_[0]}({_name(type_[1])})"


def _kind(attribute: Attribute) -> str:
    if attribute.computed:
        said = ["computed"]
    elif attribute.is_required:
        said = ["required"]
    else:
        said = [f"default `{json.dumps(attribute.default)}`" if attribute.has_default else "optional"]
    said += ["sensitive"] if attribute.sensitive else []
    said += ["**replaces**"] if attribute.replaces else []
    return ", ".join(said)


if __name__ == "__main__":
    print(reference())
