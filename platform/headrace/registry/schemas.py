"""A schema's text, its normal form, and the id computed from it. Pure.

The id follows from the content, so the registries of all datacenters assign the same id without coordination:
a value that was framed in one datacenter and mirrored verbatim can be read in another. Two texts are the same
schema if they differ only in white space, in the order of attributes, or in the notation of names and
primitive types.
"""

import hashlib
import json
import warnings
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

import avro.errors
import avro.schema
import fastavro.schema

SCHEMA_MAX_BYTES: Final = 900_000
"""Below ZooKeeper's limit of 1 MiB per node."""
SCHEMA_ID_MAX: Final = 2**31 - 1

_FASTAVRO_MARKS: Final = ("__fastavro_parsed", "__named_schemas")
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


class InvalidSchemaError(ValueError):
    """The text is not an Avro schema. The message names the problem."""


@dataclass(frozen=True, slots=True)
class ParsedSchema:
    """`text`: as given, without white space. `normal_text`: full names, attributes in a fixed order."""

    text: str
    normal_text: str
    schema_id: int

    def is_same_as(self, other: "ParsedSchema") -> bool:
        return bool(json.loads(self.normal_text) == json.loads(other.normal_text))


@lru_cache(maxsize=512)
def parse(text: str) -> ParsedSchema:
    """Parses `text` by the rules of both Avro libraries. Raises `InvalidSchemaError`."""
    if len(text.encode()) > SCHEMA_MAX_BYTES:
        raise InvalidSchemaError(f"the schema is longer than {SCHEMA_MAX_BYTES} bytes")
    try:
        tree = json.loads(text)
        parsed = fastavro.schema.parse_schema(tree)
        parse_for_rules(text)
    except avro.errors.AvroException as error:
        raise InvalidSchemaError(str(error)) from None
    except RecursionError:
        raise InvalidSchemaError("the schema is nested too deeply") from None
    except KeyError as error:
        raise InvalidSchemaError(f"a part of the schema lacks its attribute {error}") from None
    except Exception as error:
        # fastavro raises TypeError, AttributeError or its own errors, depending on the invalid part.
        raise InvalidSchemaError(f"{type(error).__name__} {error}") from None
    normal = _normal(parsed)
    identity = json.dumps(normal, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return ParsedSchema(
        text=json.dumps(tree, separators=(",", ":"), ensure_ascii=False),
        normal_text=json.dumps(normal, separators=(",", ":"), ensure_ascii=False),
        schema_id=schema_id_of(identity),
    )


def schema_id_of(identity: str) -> int:
    """Returns the schema id of a normal form: 31 bits of its SHA-256, never 0."""
    number = int.from_bytes(hashlib.sha256(identity.encode()).digest()[:4], "big") & SCHEMA_ID_MAX
    return number or SCHEMA_ID_MAX


@lru_cache(maxsize=512)
def parse_for_rules(text: str) -> Any:
    """Returns the schema as the `avro` package's type. Raises that package's exceptions."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", category=avro.errors.AvroWarning)
        return avro.schema.parse(text)


def record_name(text: str) -> str:
    """Returns the full name of a schema's top-level type, or of the primitive type."""
    normal = json.loads(parse(text).normal_text)
    if isinstance(normal, str):
        return normal
    if isinstance(normal, dict):
        return str(normal.get("name", normal["type"]))
    raise InvalidSchemaError("a union has no name: use a subject named after the topic")


def _normal(part: Any) -> Any:
    if isinstance(part, list):
        return [_normal(item) for item in part]
    if not isinstance(part, dict):
        return part
    kept = {key: _attribute(key, value) for key, value in part.items() if key not in _FASTAVRO_MARKS}
    if set(kept) == {"type"} and isinstance(kept["type"], str):
        return kept["type"]
    first = [key for key in _ATTRIBUTE_ORDER if key in kept]
    return {key: kept[key] for key in [*first, *sorted(kept.keys() - set(first))]}


def _attribute(key: str, value: Any) -> Any:
    """Normalizes attributes that hold schemas; defaults and custom properties stay as they are."""
    return _normal(value) if key in {"type", "fields", "items", "values"} else value
