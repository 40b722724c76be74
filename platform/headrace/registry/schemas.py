"""What a schema is to the registry: its text, its normal form, and the id that follows from it. Pure.

The id is made from the schema's content, so every registry of every datacenter gives the same schema the
same id without
asking anybody: a value that was framed in one datacenter and mirrored verbatim can be read in another. Two
texts are the same
schema if they differ only in white space, in the order of attributes, or in how names and primitive types
are spelled out.
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
"""ZooKeeper takes nodes of less than 1 MiB."""
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
    """The text is no Avro schema; the message says why."""


@dataclass(frozen=True, slots=True)
class ParsedSchema:
    """`text`: as given, without white space.

    `normal_text`: names in full, attributes in a fixed order. `schema_id`: 1 … 2³¹-1.
    """

    text: str
    normal_text: str
    schema_id: int

    def is_same_as(self, other: "ParsedSchema") -> bool:
        return bool(json.loads(self.normal_text) == json.loads(other.normal_text))


@lru_cache(maxsize=512)
def parse(text: str) -> ParsedSchema:
    """Checks that `text` is an Avro schema, by the rules of both Avro libraries.

    Raises `InvalidSchemaError`.
    """
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
        # What fastavro raises for nonsense (TypeError, AttributeError, its own) depends on the nonsense.
        raise InvalidSchemaError(f"{type(error).__name__} {error}") from None
    normal = _normal(parsed)
    identity = json.dumps(normal, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return ParsedSchema(
        text=json.dumps(tree, separators=(",", ":"), ensure_ascii=False),
        normal_text=json.dumps(normal, separators=(",", ":"), ensure_ascii=False),
        schema_id=id_of(identity),
    )


def id_of(identity: str) -> int:
    """The schema id of a normal form: 31 bits of its SHA-256, never 0."""
    number = int.from_bytes(hashlib.sha256(identity.encode()).digest()[:4], "big") & SCHEMA_ID_MAX
    return number or SCHEMA_ID_MAX


@lru_cache(maxsize=512)
def parse_for_rules(text: str) -> Any:
    """The schema as the compatibility rules want it. Raises the Avro library's exceptions."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", category=avro.errors.AvroWarning)
        return avro.schema.parse(text)


def record_name(text: str) -> str:
    """The full name of a schema's top type (a primitive's is the primitive)."""
    normal = json.loads(parse(text).normal_text)
    if isinstance(normal, str):
        return normal
    if isinstance(normal, dict):
        return str(normal.get("name", normal["type"]))
    raise InvalidSchemaError("a union has no name of its own: use the topic's name as subject")


def _normal(part: Any) -> Any:
    if isinstance(part, list):
        return [_normal(each) for each in part]
    if not isinstance(part, dict):
        return part
    kept = {key: _attribute(key, value) for key, value in part.items() if key not in _FASTAVRO_MARKS}
    if set(kept) == {"type"} and isinstance(kept["type"], str):
        return kept["type"]
    first = [key for key in _ATTRIBUTE_ORDER if key in kept]
    return {key: kept[key] for key in [*first, *sorted(kept.keys() - set(first))]}


def _attribute(key: str, value: Any) -> Any:
    """Only what holds schemas is brought into order; a default or a property is data, and stays as it is."""
    return _normal(value) if key in {"type", "fields", "items", "values"} else value
