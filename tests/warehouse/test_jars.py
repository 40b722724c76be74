"""Java artifacts are taken only with the checksums that are pinned beside their pom."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from headrace.warehouse import jars
from headrace.warehouse.jars import JarsError, JarSet, ensure_set
from headrace.warehouse.jars.pins import PinsError, check_pins, pins_path, read_pins, write_pins

ROOT = Path(__file__).parents[2]
POMS = sorted(
    path
    for folder in ("platform/headrace/warehouse/jars", "bench/peers/jars", "tests/java")
    for path in (ROOT / folder).glob("*.xml")
)


def folder_of(path: Path, **contents: bytes) -> Path:
    path.mkdir(exist_ok=True)
    for name, content in contents.items():
        (path / f"{name}.jar").write_bytes(content)
    return path


@pytest.mark.parametrize("pom", POMS, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_every_pom_has_its_pins(pom: Path) -> None:
    assert read_pins(pins_path(pom))


def test_what_was_pinned_is_taken(tmp_path: Path) -> None:
    folder, pins = folder_of(tmp_path / "a", x=b"1", y=b"2"), tmp_path / "a.sha256"
    write_pins(folder, pins)
    assert read_pins(pins)["x.jar"] == hashlib.sha256(b"1").hexdigest()
    check_pins(folder, pins)


@pytest.mark.parametrize(
    ("change", "word"),
    [
        (lambda folder: (folder / "x.jar").write_bytes(b"3"), "x.jar has SHA-256"),
        (lambda folder: (folder / "z.jar").write_bytes(b"3"), "z.jar has SHA-256"),
        (lambda folder: (folder / "y.jar").unlink(), "y.jar is missing"),
    ],
    ids=["changed", "one more", "missing"],
)
def test_anything_else_is_refused_by_name(tmp_path: Path, change: object, word: str) -> None:
    folder, pins = folder_of(tmp_path / "a", x=b"1", y=b"2"), tmp_path / "a.sha256"
    write_pins(folder, pins)
    assert callable(change)
    change(folder)
    with pytest.raises(PinsError, match=word):
        check_pins(folder, pins)


@pytest.mark.parametrize("text", ["x.jar", f"{'0' * 64} x.jar", f"{'0' * 63}g  x.jar", f"{'0' * 64}  a/../b"])
def test_a_file_that_holds_no_pins_is_refused_with_its_line(tmp_path: Path, text: str) -> None:
    pins = tmp_path / "a.sha256"
    pins.write_text(f"{'1' * 64}  y.jar\n{text}\n")
    with pytest.raises(PinsError, match="line 2"):
        read_pins(pins)


def test_a_set_with_other_bytes_is_not_set_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pom = tmp_path / "x.xml"
    pom.write_text("<project/>")
    pins_path(pom).write_text(f"{hashlib.sha256(b'good').hexdigest()}  x.jar\n")
    brought = b"evil"
    monkeypatch.setattr(jars, "_copy_dependencies", lambda _, into: (into / "x.jar").write_bytes(brought))
    with pytest.raises(JarsError, match=r"x\.jar has SHA-256"):
        ensure_set(JarSet("x", pom), home=tmp_path, progress=lambda _: None)
    assert not (tmp_path / "jars" / "x").exists()
    brought = b"good"
    assert (
        ensure_set(JarSet("x", pom), home=tmp_path, progress=lambda _: None) / "x.jar"
    ).read_bytes() == b"good"
