"""A schema's text, its normal form, and the id computed from it. Pure.

The id follows from the content, so the registries of all datacenters assign the same id without coordination:
a value that was framed in one datacenter and mirrored verbatim can be read in another. Two texts are the same
schema if they differ only in what Java's Avro does not print: white space, the order of attributes, the
notation of names, aliases and primitive types, attributes that say the default, fastavro's marks. Everything
else (documentation, defaults, aliases, other properties) makes a schema of its own, as in Confluent's
registry.
"""

import hashlib
import json
import uuid
import warnings
from dataclasses import dataclass
from typing import Any, Final

import avro.errors
import avro.name
import avro.schema
import fastavro.schema

from headrace.registry.schema_rules import FASTAVRO_MARKS, InvalidSchemaError, RuleCheck, full_name
from headrace.registry.strict_json import JsonError, loads, shown

__all__ = ["InvalidSchemaError", "ParsedSchema", "parse", "parse_for_rules", "record_name", "shown"]

SCHEMA_MAX_BYTES: Final = 900_000
"""Of a schema as it is stored: below ZooKeeper's limit of 1 MiB a transaction, with room for a subject."""
SCHEMA_ID_MAX: Final = 2**31 - 1

_ATTRIBUTE_ORDER: Final = (
    "type",
    "name",
    "doc",
    "aliases",
    "fields",
    "symbols",
    "size",
    "items",
    "values",
    "default",
)


@dataclass(frozen=True, slots=True)
class ParsedSchema:
    """`text`: as given, without white space and fastavro's marks. `normal_text`: full names, attributes in a
    fixed order. `digest`: SHA-256 of the normal form: equal for the same schema alone."""

    text: str
    normal_text: str
    digest: bytes
    parts: int = 1
    branches_max: int = 1
    """How large the schema is: see `schema_rules.RuleCheck`."""
    illegal_name: str = ""

    @property
    def schema_id(self) -> int:
        """31 bits of the digest, never 0: two schemas may have the same one."""
        return (int.from_bytes(self.digest[:4], "big") & SCHEMA_ID_MAX) or SCHEMA_ID_MAX

    @property
    def guid(self) -> str:
        """122 bits of the digest, as a UUID of version 8: nobody can make two schemas of one GUID."""
        number = int.from_bytes(self.digest[:16], "big")
        number = number & ~(0xF << 76) & ~(0x3 << 62) | (0x8 << 76) | (0x2 << 62)
        return str(uuid.UUID(int=number))

    def is_same_as(self, other: "ParsedSchema") -> bool:
        return self.digest == other.digest


def id_of_guid(guid: str) -> int | None:
    """Returns the id of the schema that has this GUID, if there is one; None if no schema can have it."""
    try:
        number = uuid.UUID(guid)
    except ValueError:
        return None
    return (int.from_bytes(number.bytes[:4], "big") & SCHEMA_ID_MAX) or SCHEMA_ID_MAX


def parse(text: str) -> ParsedSchema:
    """Parses `text` by the rules of Avro in Java and of both Avro libraries. Raises `InvalidSchemaError`."""
    if len(text) > SCHEMA_MAX_BYTES:
        raise InvalidSchemaError(f"the schema is longer than {SCHEMA_MAX_BYTES} bytes")
    try:
        tree = _without_marks(loads(text))
    except JsonError as error:
        raise InvalidSchemaError(str(error)) from None
    except RecursionError:
        raise InvalidSchemaError("the schema is nested too deeply") from None
    rules = RuleCheck()
    try:
        rules.check(tree)
        parsed = fastavro.schema.parse_schema(tree)
        plain = json.dumps(tree, separators=(",", ":"), ensure_ascii=False)
        parse_for_rules(plain)
    except avro.errors.AvroException as error:
        raise InvalidSchemaError(_one_line(str(error))) from None
    except InvalidSchemaError:
        raise
    except RecursionError:
        raise InvalidSchemaError("the schema is nested too deeply") from None
    except KeyError as error:
        raise InvalidSchemaError(f"a part of the schema lacks its attribute {error}") from None
    except Exception as error:
        # fastavro raises TypeError, AttributeError or its own errors, depending on the invalid part.
        raise InvalidSchemaError(_one_line(f"{type(error).__name__} {error}")) from None
    # As it is stored: in ASCII, inside another JSON document.
    if len(json.dumps(plain)) > SCHEMA_MAX_BYTES:
        raise InvalidSchemaError(
            f"the schema is longer than {SCHEMA_MAX_BYTES} bytes as it is stored (JSON inside JSON, in ASCII)"
        )
    normal = _normal(parsed, "")
    identity = json.dumps(normal, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return ParsedSchema(
        text=plain,
        normal_text=json.dumps(_spelled(normal, ""), separators=(",", ":"), ensure_ascii=False),
        digest=hashlib.sha256(identity.encode()).digest(),
        parts=rules.parts,
        branches_max=rules.branches_max,
        illegal_name=rules.illegal_name,
    )


def parse_for_rules(text: str) -> Any:
    """Returns the schema as the `avro` package's type. Raises that package's exceptions, and `ValueError` for
    what is not JSON.
    """
    tree, names = json.loads(text), avro.name.Names()
    if _has_empty_namespace(tree):
        tree, names = fastavro.schema.parse_schema(tree, _write_hint=False), _FullNames()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", category=avro.errors.AvroWarning)
        schema = avro.schema.make_avsc_object(tree, names)
    for named in names.names.values():
        # The package compares a writer's full name with the aliases as they are written.
        if isinstance(aliases := named.props.get("aliases"), list):
            namespace = named.fullname.rpartition(".")[0]
            named.set_prop("aliases", [full_name(alias, namespace) for alias in aliases])
    return schema


class _FullNames(avro.name.Names):  # type: ignore[misc]
    """Takes every name as it is. The package reads an empty namespace as the one around it."""

    @property
    def default_namespace(self) -> None:
        return None

    @default_namespace.setter
    def default_namespace(self, _: str | None) -> None: ...


def _has_empty_namespace(part: Any) -> bool:
    if isinstance(part, list):
        return any(map(_has_empty_namespace, part))
    if not isinstance(part, dict):
        return False
    return part.get("namespace") == "" or any(_has_empty_namespace(part.get(key)) for key in _HOLD_SCHEMAS)


def record_name(text: str) -> str:
    """Returns the full name of a schema's top-level type, or of the primitive type."""
    normal = json.loads(parse(text).normal_text)
    if isinstance(normal, str):
        return normal
    if isinstance(normal, dict):
        return str(normal.get("name", normal["type"]))
    raise InvalidSchemaError("a union has no name: use a subject named after the topic")


MESSAGE_MAX: Final = 500


def _one_line(message: str) -> str:
    """A library's message may hold the whole schema."""
    line = " ".join(message.split())
    return line if len(line) <= MESSAGE_MAX else f"{line[:MESSAGE_MAX]}…"


def _without_marks(part: Any) -> Any:
    """Drops fastavro's marks, which stand where a parsed schema was dumped as JSON."""
    if isinstance(part, list):
        return [_without_marks(item) for item in part]
    if not isinstance(part, dict):
        return part
    return {
        key: _without_marks(value) if key in _HOLD_SCHEMAS else value
        for key, value in part.items()
        if key not in FASTAVRO_MARKS
    }


_HOLD_SCHEMAS: Final = frozenset(("type", "fields", "items", "values"))


def _normal(part: Any, namespace: str, *, are_fields: bool = False) -> Any:
    if isinstance(part, list):
        return [_normal(item, namespace, are_fields=are_fields) for item in part]
    if not isinstance(part, dict):
        return part
    is_named = part.get("type") in ("record", "enum", "fixed")
    if is_named:
        namespace = part["name"].rpartition(".")[0]
    # Defaults and custom properties stay as they are.
    kept = {
        key: _normal(value, namespace, are_fields=key == "fields") if key in _HOLD_SCHEMAS else value
        for key, value in part.items()
        if key not in FASTAVRO_MARKS
    }
    if not kept.get("aliases", True):
        del kept["aliases"]
    elif is_named and "aliases" in kept:
        kept["aliases"] = [full_name(alias, namespace) for alias in kept["aliases"]]
    if are_fields and kept.get("order") == "ascending":
        del kept["order"]
    if set(kept) == {"type"} and isinstance(kept["type"], str):
        return kept["type"]
    first = [key for key in _ATTRIBUTE_ORDER if key in kept]
    return {key: kept[key] for key in [*first, *sorted(kept.keys() - set(first))]}


def _spelled(normal: Any, namespace: str) -> Any:
    """Returns a normal form as text must spell it: a name without namespace takes the one around it, unless
    the definition says that it has none.
    """
    if isinstance(normal, list):
        return [_spelled(item, namespace) for item in normal]
    if not isinstance(normal, dict):
        return normal
    around = namespace
    if normal.get("type") in ("record", "enum", "fixed"):
        namespace = normal["name"].rpartition(".")[0]
    spelled: dict[str, Any] = {}
    for key, value in normal.items():
        spelled[key] = _spelled(value, namespace) if key in _HOLD_SCHEMAS else value
        if key == "name" and around and not namespace:
            spelled["namespace"] = ""
    return spelled
