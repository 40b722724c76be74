"""Attributes of Terraform blocks: their types, defaults, and what a change of one means.

Owns the schema, and how a model's JSON Schema becomes attributes: what a unit's configuration may hold is
defined once, by the models of `agent.configuration`. `tf` lacks attributes inside attributes (protocol 6's
nested types); they are added here.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from msgpack import ExtType
from tf.gen import tfplugin_pb2 as pb
from tf.types import Unknown

from headrace.provider.values import number

_MISSING: Final = object()
_NESTING: Final = {
    "map": pb.Schema.Object.NestingMode.MAP,
    "list": pb.Schema.Object.NestingMode.LIST,
    "single": pb.Schema.Object.NestingMode.SINGLE,
}
_TYPES: Final = {"string": "string", "integer": "number", "number": "number", "boolean": "bool"}


@dataclass(frozen=True, kw_only=True)
class Attribute:
    """One attribute.

    `type` is Terraform's JSON form ("string", ["list", "string"], …) or, with `nesting`, the attributes of
    each element. An input is required unless it is `optional` or has a `default`, which the plan shows if the
    HCL leaves the attribute out. The HCL cannot set `computed` ones. `replaces`: a change needs a new
    resource.
    """

    name: str
    type: Any = "string"
    description: str = ""
    nesting: Literal["map", "list", "single"] | None = None
    optional: bool = False
    computed: bool = False
    sensitive: bool = False
    replaces: bool = False
    default: Any = _MISSING

    @property
    def has_default(self) -> bool:
        return self.default is not _MISSING

    @property
    def is_required(self) -> bool:
        return not (self.optional or self.computed or self.has_default)

    def decode(self, value: Any) -> Any:
        """Returns a received value with every number in the form that `values` defines."""
        if value is None or value is Unknown or isinstance(value, ExtType):
            return value
        if self.nesting is None:
            return _decode(self.type, value)
        if self.nesting == "single":
            return {inner.name: inner.decode(value.get(inner.name)) for inner in self.type}
        element = Attribute(name=self.name, type=self.type, nesting="single")
        if self.nesting == "map":
            return {key: element.decode(item) for key, item in value.items()}
        return [element.decode(item) for item in value]

    def to_pb(self) -> pb.Schema.Attribute:
        if self.nesting is None:
            shape: dict[str, Any] = {"type": json.dumps(self.type).encode()}
        else:
            inner = [attribute.to_pb() for attribute in self.type]
            shape = {"nested_type": pb.Schema.Object(attributes=inner, nesting=_NESTING[self.nesting])}
        return pb.Schema.Attribute(
            name=self.name,
            description=self.description,
            required=self.is_required,
            optional=self.optional or self.has_default,
            computed=self.computed or self.has_default,
            sensitive=self.sensitive,
            **shape,
        )


@dataclass(frozen=True)
class BlockSchema:
    """The attributes of a `resource`, `data` or `provider` block."""

    attributes: tuple[Attribute, ...]
    description: str = ""

    def names(self) -> list[str]:
        return [attribute.name for attribute in self.attributes]

    def decode(self, values: Mapping[str, Any] | None) -> dict[str, Any] | None:
        """Decodes the received values that are attributes. None stands for no resource."""
        if values is None:
            return None
        types = {attribute.name: attribute for attribute in self.attributes}
        return {name: types[name].decode(value) for name, value in values.items() if name in types}

    def complete(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the values with null for each missing attribute: Terraform requires all of them."""
        return {name: values.get(name) for name in self.names()}

    def to_pb(self) -> pb.Schema:
        attributes = [attribute.to_pb() for attribute in self.attributes]
        block = pb.Schema.Block(attributes=attributes, description=self.description)
        return pb.Schema(block=block)


def attributes_of(
    schema: Mapping[str, Any],
    *,
    renamed: Mapping[str, str],
    describe: Callable[[str], str],
    replaces: Collection[str],
    special: Mapping[str, Attribute],
) -> list[Attribute]:
    """Returns the attributes for a model's JSON Schema, in its order, without `kind`.

    `renamed`: field → attribute name. `describe`: field → description. `replaces`: fields whose change needs
    a new resource. `special`: field → the attribute to use instead.
    """
    attributes = []
    for field, definition in schema["properties"].items():
        if field == "kind":
            continue
        if field in special:
            attributes.append(special[field])
            continue
        options = definition.get("anyOf", ())
        shape = next((option for option in options if option.get("type") != "null"), definition)
        is_required = field in schema.get("required", ())
        default = definition.get("default")
        attributes.append(
            Attribute(
                name=renamed.get(field, field),
                type=_type_of(shape),
                description=describe(field),
                optional=not is_required and default is None,
                default=_MISSING if is_required or default is None else default,
                replaces=field in replaces,
                sensitive=shape.get("format") == "password",
            )
        )
    return attributes


def _decode(type_: Any, value: Any) -> Any:
    if value is None or value is Unknown or isinstance(value, ExtType):
        return value
    if type_ == "number":
        return number(value)
    if isinstance(type_, list) and type_[0] == "map":
        return {key: _decode(type_[1], element) for key, element in value.items()}
    return [_decode(type_[1], element) for element in value] if isinstance(type_, list) else value


def _type_of(shape: Mapping[str, Any]) -> Any:
    if shape["type"] == "array":
        return ["list", _type_of(shape["items"])]
    if shape["type"] == "object":
        patterns = shape.get("patternProperties") or {"": shape["additionalProperties"]}
        (element,) = patterns.values()
        return ["map", _type_of(element)]
    return _TYPES[shape["type"]]
