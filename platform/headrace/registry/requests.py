"""What requests may say: names of subjects, a schema in a body; and the refusals that several share. Pure."""

from typing import Any, Final

from headrace.registry import errors
from headrace.registry.errors import RegistryError
from headrace.registry.strict_json import shown
from headrace.registry.subjects import SUBJECT_STORED_MAX_BYTES

AVRO: Final = "AVRO"
READONLY: Final = "READONLY"
SUBJECT_MAX_BYTES: Final = 1_000


def schema_text(body: dict[str, Any]) -> str:
    """Returns the schema in a request's body: only Avro, and only without references."""
    kind = body.get("schemaType")
    if kind not in (None, AVRO):
        raise RegistryError(
            errors.INVALID_SCHEMA, f"Invalid schema type {shown(kind)}: this registry supports only AVRO"
        )
    if body.get("references"):
        raise RegistryError(
            errors.INVALID_SCHEMA,
            "Schema references are not supported: include the referenced types in the schema itself",
        )
    for name in ("metadata", "ruleSet"):
        if body.get(name):
            raise RegistryError(errors.INVALID_SCHEMA, f"'{name}' is not supported by this registry")
    text = body.get("schema")
    if not isinstance(text, str) or not text.strip():
        raise RegistryError(errors.INVALID_SCHEMA, 'Empty schema: the body must have a string "schema"')
    return text


def subject_not_found(name: str) -> RegistryError:
    return RegistryError(errors.SUBJECT_NOT_FOUND, f"Subject '{name}' not found.")


def version_not_found(version: str) -> RegistryError:
    return RegistryError(errors.VERSION_NOT_FOUND, f"Version {version} not found.")


def too_large(name: str) -> RegistryError:
    return RegistryError(
        errors.TOO_LARGE,
        f"Subject '{name}' has as many versions as ZooKeeper can store in one node "
        f"({SUBJECT_STORED_MAX_BYTES} bytes): delete old versions permanently, or use another one",
    )


def check_name(name: str) -> None:
    """Refuses what can't be a subject's name: it would break a line of a log or of a terminal."""
    size_bytes = len(name.encode(errors="surrogatepass"))  # half a pair of UTF-16 is not printable
    if not 0 < size_bytes <= SUBJECT_MAX_BYTES or not name.replace(" ", "x").isprintable():
        raise RegistryError(
            errors.INVALID_SUBJECT,
            f"The specified subject {shown(name)} is not a valid subject: it must have "
            f"1 to {SUBJECT_MAX_BYTES} bytes of UTF-8 and no control characters",
        )


def check_new_name(name: str) -> None:
    check_name(name)
    if name.startswith(":."):
        raise RegistryError(
            errors.INVALID_SUBJECT,
            f"The specified subject '{name}' is not a valid subject: it must not name a context (:.name:)",
        )


def check_writable(name: str, mode: str) -> None:
    if mode == READONLY:
        scope = f"Subject '{name}'" if name else "The registry"
        raise RegistryError(errors.NOT_PERMITTED, f"{scope} is in read-only mode")
