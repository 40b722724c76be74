"""The schema files: valid by both Avro libraries, one header in all, and on board of an installed package."""

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

from headrace.events import MissingSchemaError
from headrace.events.schemas import default_schemas_dir, read_schema
from headrace.registry.schemas import parse

SCHEMAS = Path(__file__).parents[2] / "schemas"
FILES = sorted(path.name for path in SCHEMAS.iterdir())


def without_docs(schema: Any) -> Any:
    if isinstance(schema, list):
        return [without_docs(each) for each in schema]
    if isinstance(schema, dict):
        return {key: without_docs(value) for key, value in schema.items() if key != "doc"}
    return schema


@pytest.mark.parametrize("name", FILES)
def test_a_schema_file_is_valid_and_begins_with_the_common_header(name: str) -> None:
    text = (SCHEMAS / name).read_text()
    assert parse(text).schema_id
    schema = json.loads(text)
    header = json.loads((SCHEMAS / "header.avsc").read_text())
    if name != "header.avsc":
        first = schema["fields"][0]
        assert first["name"] == "header"
        assert without_docs(first["type"]) == without_docs(header), (
            "each file repeats the header, so it must be the same"
        )
    assert schema.get("doc"), "says what the event is"
    assert schema["namespace"].split(".")[0] == "headrace"


def test_record_names_are_unique() -> None:
    schemas = [json.loads((SCHEMAS / name).read_text()) for name in FILES]
    names = [f"{schema['namespace']}.{schema['name']}" for schema in schemas]
    assert len(set(names)) == len(names), "subjects of _audit go by the record's name"


def test_a_checkout_reads_its_own_files(tmp_path: Path) -> None:
    assert default_schemas_dir() == SCHEMAS
    (tmp_path / "page-view.avsc").write_text('"string"')
    assert read_schema("page-view.avsc", tmp_path) == '"string"'
    assert read_schema("header.avsc", tmp_path) == (SCHEMAS / "header.avsc").read_text()
    with pytest.raises(MissingSchemaError, match=r"no schema file nothing\.avsc in"):
        read_schema("nothing.avsc")


def test_an_installed_package_has_them_too(tmp_path: Path) -> None:
    root = SCHEMAS.parent
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(build, cwd=root, check=True, capture_output=True, timeout=120)
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "installed")
    program = "from headrace.events.schemas import default_schemas_dir; print(default_schemas_dir())"
    # The extracted wheel comes before the checkout on the path.
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "installed")}
    found = subprocess.run(
        [sys.executable, "-c", program],
        env=environment,
        check=True,
        capture_output=True,
        text=True,
        timeout=60,
    )
    folder = Path(found.stdout.strip())
    assert folder == tmp_path / "installed" / "headrace" / "events" / "schemas"
    assert sorted(path.name for path in folder.iterdir()) == FILES
