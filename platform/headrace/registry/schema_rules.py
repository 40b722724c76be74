"""What a schema must be to be understood alike by every Avro library. Pure.

fastavro and the `avro` package each accept schemas that the other one, or Java's, refuses or stumbles over.
The rules here are Java's; a schema that passes them is then parsed by both libraries, too.
"""

import unicodedata
from typing import Any, Final

from headrace.registry.strict_json import shown

NESTING_MAX: Final = 64
"""Types within types. The libraries descend by recursion, some with six calls a level."""
FIXED_SIZE_MAX: Final = 2**31 - 1
FASTAVRO_MARKS: Final = ("__fastavro_parsed", "__named_schemas")

PRIMITIVES: Final = frozenset(("null", "boolean", "int", "long", "float", "double", "bytes", "string"))
NAMED: Final = frozenset(("record", "enum", "fixed"))
_ORDERS: Final = ("ascending", "descending", "ignore")
_INT_BITS: Final = {"int": 31, "long": 63}


class InvalidSchemaError(ValueError):
    """The text is not an Avro schema. The message names the problem."""


class RuleCheck:
    """Checks one schema; afterwards `parts` and `branches_max` say how large it is, and `illegal_name` which
    name Java's Avro refuses ("" if none). Other libraries take it, so schemas with such a name may be there.
    """

    def __init__(self) -> None:
        self.parts = 0
        """Types, counted wherever one is written or referred to."""
        self.branches_max = 1
        """Branches of the largest union."""
        self.illegal_name = ""
        self._named: dict[str, dict[str, Any]] = {}
        self._defaults: list[tuple[Any, Any, str, str]] = []

    def check(self, tree: Any) -> None:
        """Raises `InvalidSchemaError`."""
        self._type(tree, "", "the schema", 1)
        # Afterwards, because a default's type may be defined behind it.
        for schema, value, namespace, where in self._defaults:
            self._default(schema, value, namespace, where)

    # --- types ---

    def _type(self, schema: Any, namespace: str, where: str, depth: int) -> None:
        self.parts += 1
        if depth > NESTING_MAX:
            raise InvalidSchemaError(
                f"the schema is nested too deeply: more than {NESTING_MAX} types in types"
            )
        if isinstance(schema, list):
            self.branches_max = max(self.branches_max, len(schema))
            for number, branch in enumerate(schema):
                if isinstance(branch, list):
                    raise InvalidSchemaError(f"{where}: branch {number} of a union is a union itself")
                self._type(branch, namespace, f"{where}, branch {number}", depth + 1)
        elif isinstance(schema, dict):
            self._definition(schema, namespace, where, depth)
        elif not isinstance(schema, str):
            kind = type(schema).__name__
            raise InvalidSchemaError(
                f"{where} is {shown(schema)} ({kind}), not the name of a type or a definition"
            )

    def _definition(self, schema: dict[str, Any], namespace: str, where: str, depth: int) -> None:
        kind = _required(schema, "type", where)
        if kind in ("error", "error_union", "request"):
            raise InvalidSchemaError(
                f'{where}: type "{kind}" is for RPC protocols, not for values; use "record"'
            )
        if isinstance(kind, dict | list):
            self._type(kind, namespace, where, depth + 1)
        elif not isinstance(kind, str):
            raise InvalidSchemaError(f"{where}: type is {shown(kind)}, not a type")
        elif kind == "array":
            self._type(_required(schema, "items", where), namespace, f"{where}, items", depth + 1)
        elif kind == "map":
            self._type(_required(schema, "values", where), namespace, f"{where}, values", depth + 1)
        elif kind in NAMED:
            self._named_type(kind, schema, namespace, where, depth)

    def _named_type(self, kind: str, schema: dict[str, Any], namespace: str, where: str, depth: int) -> None:
        name = _text(schema, "name", where, required=True)
        _text(schema, "namespace", where)
        full = full_name(name, _space(schema, namespace))
        where = f"{kind} {shown(full)[1:-1]}"
        for alias in _names(schema, "aliases", where):
            self._note_name(alias.rpartition(".")[2], f"{where}: the alias {shown(alias)}")
        self._named[full] = schema
        if kind == "fixed":
            size = _required(schema, "size", where)
            if not _is_int(size) or not 0 <= size <= FIXED_SIZE_MAX:
                raise InvalidSchemaError(f"{where}: size is {shown(size)}, not a number from 0 to 2^31-1")
        elif kind == "enum":
            symbols = _names(schema, "symbols", where, required=True)
            if "default" in schema and schema["default"] not in symbols:
                raise InvalidSchemaError(
                    f"{where}: default {shown(schema['default'])} is not one of its symbols"
                )
        else:
            fields = _required(schema, "fields", where)
            if not isinstance(fields, list):
                raise InvalidSchemaError(f"{where}: fields is {shown(fields)}, not a list")
            for number, field in enumerate(fields):
                self._field(field, full.rpartition(".")[0], f"{where}, field {number}", depth)

    def _field(self, field: Any, namespace: str, where: str, depth: int) -> None:
        if not isinstance(field, dict):
            raise InvalidSchemaError(f"{where} is {shown(field)}, not an object with name and type")
        name = _text(field, "name", where, required=True)
        where = f"{where} {shown(name)}"
        self._note_name(name, where)
        _names(field, "aliases", where)
        order = field.get("order", "ascending")
        if order not in _ORDERS:
            raise InvalidSchemaError(f"{where}: order is {shown(order)}, not one of {', '.join(_ORDERS)}")
        kind = _required(field, "type", where)
        self._type(kind, namespace, where, depth + 1)
        if "default" in field:
            self._defaults.append((kind, field["default"], namespace, where))

    def _note_name(self, name: str, where: str) -> None:
        if not _is_java_name(name):
            self.illegal_name = self.illegal_name or (
                f"{where} is no name for Java: use letters, digits and underscores, and no digit first"
            )

    # --- defaults ---

    def _default(self, schema: Any, value: Any, namespace: str, where: str) -> None:
        if not self._fits(schema, value, namespace):
            raise InvalidSchemaError(
                f"{where}: Default value {shown(value)} does not fit its type {shown(_type_name(schema))}"
            )

    def _fits(self, schema: Any, value: Any, namespace: str) -> bool:
        if isinstance(schema, list):
            return any(self._fits(branch, value, namespace) for branch in schema)
        if isinstance(schema, str):
            if schema in PRIMITIVES:
                return _fits_primitive(schema, value)
            definition = self._named.get(full_name(schema, namespace)) or self._named.get(schema)
            return definition is None or self._fits(
                definition, value, full_name(schema, namespace).rpartition(".")[0]
            )
        kind = schema["type"]
        if kind == "array":
            return isinstance(value, list) and all(
                self._fits(schema["items"], item, namespace) for item in value
            )
        if kind == "map":
            return isinstance(value, dict) and all(
                self._fits(schema["values"], item, namespace) for item in value.values()
            )
        if kind == "fixed":
            return _fits_primitive("bytes", value) and len(value) == schema["size"]
        if kind == "enum":
            return value in schema["symbols"]
        if kind == "record":
            space = full_name(schema["name"], _space(schema, namespace)).rpartition(".")[0]
            return isinstance(value, dict) and all(
                self._fits(field["type"], value.get(field["name"], field.get("default")), space)
                if field["name"] in value or "default" in field
                else False
                for field in schema["fields"]
            )
        return self._fits(kind, value, namespace)


def _space(schema: dict[str, Any], namespace: str) -> str:
    """Returns the namespace for a definition's name: an empty one is that without a name, not the one
    around it.
    """
    own: str = schema.get("namespace", namespace)
    return own


def _is_java_name(name: str) -> bool:
    kinds = ["L" if each == "_" else unicodedata.category(each) for each in name]
    return bool(kinds) and kinds[0][0] == "L" and all(kind[0] == "L" or kind == "Nd" for kind in kinds)


def full_name(name: str, namespace: str) -> str:
    return name if "." in name or not namespace else f"{namespace}.{name}"


def _fits_primitive(kind: str, value: Any) -> bool:
    if kind == "null":
        return value is None
    if kind == "boolean":
        return isinstance(value, bool)
    if kind in _INT_BITS:
        limit: int = 1 << _INT_BITS[kind]
        return _is_int(value) and -limit <= value < limit
    if kind in ("float", "double"):
        return _is_int(value) or isinstance(value, float)
    return isinstance(value, str) and (kind == "string" or all(ord(character) <= 0xFF for character in value))


def _type_name(schema: Any) -> Any:
    return schema.get("name", schema["type"]) if isinstance(schema, dict) else schema


def _is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


# --- attributes ---


def _required(schema: dict[str, Any], attribute: str, where: str) -> Any:
    if attribute not in schema:
        raise InvalidSchemaError(f"{where} lacks its attribute '{attribute}'")
    return schema[attribute]


def _text(schema: dict[str, Any], attribute: str, where: str, *, required: bool = False) -> str:
    value = _required(schema, attribute, where) if required else schema.get(attribute, "")
    if not isinstance(value, str):
        raise InvalidSchemaError(f"{where}: {attribute} is {shown(value)}, not a string")
    return value


def _names(schema: dict[str, Any], attribute: str, where: str, *, required: bool = False) -> list[str]:
    value = _required(schema, attribute, where) if required else schema.get(attribute, [])
    if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
        raise InvalidSchemaError(f"{where}: {attribute} is {shown(value)}, not a list of strings")
    return value
