"""The attributes of a resource: their types as Terraform knows them, defaults, what a change of one means.

Owns the schema. What a unit may be told is known once, by the models of `agent.configuration`: their
JSON Schema becomes attributes here. `tf` knows no attributes inside attributes (protocol 6's nested types);
they are added here.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
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

    `type` is Terraform's JSON form ("string", ["list", "string"], …), or the attributes of each element, with
    `nesting`. An input is required unless it is `optional`; with a `default` it has that in the plan when the
    HCL says nothing. `computed` ones cannot be said. `replaces`: a change of it makes a new resource.
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

    def decoded(self, value: Any) -> Any:
        """A value as it comes, with every number as `values` has it."""
        if value is None or value is Unknown or isinstance(value, ExtType):
            return value
        if self.nesting is None:
            return _decoded(self.type, value)
        if self.nesting == "single":
            return {each.name: each.decoded(value.get(each.name)) for each in self.type}
        inner = Attribute(name=self.name, type=self.type, nesting="single")
        if self.nesting == "map":
            return {key: inner.decoded(each) for key, each in value.items()}
        return [inner.decoded(each) for each in value]

    def to_pb(self) -> pb.Schema.Attribute:
        if self.nesting is None:
            shape: dict[str, Any] = {"type": json.dumps(self.type).encode()}
        else:
            inner = [each.to_pb() for each in self.type]
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
class Schema:
    """The attributes of a resource, a data source or the provider. `version` counts changes of the state's
    form.
    """

    attributes: tuple[Attribute, ...]
    description: str = ""
    version: int = 0

    def __getitem__(self, name: str) -> Attribute:
        return next(each for each in self.attributes if each.name == name)

    def names(self) -> list[str]:
        return [each.name for each in self.attributes]

    def decoded(self, values: Mapping[str, Any] | None) -> dict[str, Any] | None:
        """Values as they come, with every number as `values` has it. None is no resource at all."""
        if values is None:
            return None
        types = {each.name: each for each in self.attributes}
        return {name: types[name].decoded(value) for name, value in values.items() if name in types}

    def whole(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """The values with every attribute: Terraform wants to see each."""
        return {name: values.get(name) for name in self.names()}

    def to_pb(self) -> pb.Schema:
        attributes = [each.to_pb() for each in self.attributes]
        block = pb.Schema.Block(attributes=attributes, description=self.description)
        return pb.Schema(version=self.version, block=block)


def attributes_of(
    schema: Mapping[str, Any],
    *,
    renamed: Mapping[str, str],
    described: Callable[[str], str],
    replaces: Sequence[str],
    special: Mapping[str, Attribute],
) -> list[Attribute]:
    """The attributes that a model's JSON Schema describes, in its order; without `kind`, which is the
    resource's own.

    `renamed`: field → attribute; `described`: field → what it is for; `replaces`: fields; `special`: field →
    the attribute to have for it.
    """
    made = []
    for field, said in schema["properties"].items():
        if field == "kind":
            continue
        if field in special:
            made.append(special[field])
            continue
        shape = next((each for each in said.get("anyOf", ()) if each.get("type") != "null"), said)
        is_required = field in schema.get("required", ())
        default = said.get("default")
        made.append(
            Attribute(
                name=renamed.get(field, field),
                type=_type_of(shape),
                description=described(field),
                optional=not is_required and default is None,
                default=_MISSING if is_required or default is None else default,
                replaces=field in replaces,
                sensitive=shape.get("format") == "password",
            )
        )
    return made


def _decoded(type_: Any, value: Any) -> Any:
    if value is None or value is Unknown or isinstance(value, ExtType):
        return value
    if type_ == "number":
        return number(value)
    if isinstance(type_, list) and type_[0] == "map":
        return {key: _decoded(type_[1], each) for key, each in value.items()}
    return [_decoded(type_[1], each) for each in value] if isinstance(type_, list) else value


def _type_of(shape: Mapping[str, Any]) -> Any:
    if shape["type"] == "array":
        return ["list", _type_of(shape["items"])]
    if shape["type"] == "object":
        patterns = shape.get("patternProperties") or {"": shape["additionalProperties"]}
        (element,) = patterns.values()
        return ["map", _type_of(element)]
    return _TYPES[shape["type"]]
