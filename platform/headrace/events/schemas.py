"""Finds the events' Avro schemas: `<topic>.avsc` in `schemas/` of a checkout, or in the installed package."""

from functools import cache
from pathlib import Path

AUDIT_PRODUCER_SCHEMA = "audit-producer.avsc"


class MissingSchemaError(LookupError):
    """A topic has no schema file. The message names the folders searched."""


@cache
def default_schemas_dir() -> Path:
    """Returns the folder of this installation. Raises `MissingSchemaError` if it has none."""
    packaged = Path(__file__).parent / "schemas"
    checkout = Path(__file__).parents[3] / "schemas"
    for folder in (packaged, checkout):
        if (folder / AUDIT_PRODUCER_SCHEMA).is_file():
            return folder
    raise MissingSchemaError(f"no schemas in {packaged} nor {checkout}; give schemas_dir")


def read_schema(file_name: str, schemas_dir: Path | None = None) -> str:
    """Returns the text of a schema file, searched in `schemas_dir`, then in `default_schemas_dir()`.

    Raises `MissingSchemaError`.
    """
    folders = [default_schemas_dir()] if schemas_dir is None else [schemas_dir, default_schemas_dir()]
    for folder in folders:
        path = folder / file_name
        if path.is_file():
            return path.read_text()
    places = " nor ".join(str(folder) for folder in folders)
    raise MissingSchemaError(f"no schema file {file_name} in {places}; add it there, or give schemas_dir")
