"""The house's own rules: where files may lie, how long they may be, and what must be written down."""

from __future__ import annotations

import re
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer.main

ROOT = Path(__file__).parents[1]
PATH_FOLDERS = ("platform", "broker", "mirror", "terraform")
LINES_MAX = 400
# Written in pieces, so that this file does not name them either.
REGISTRY_HOSTS = [
    "pypi" + ".org",
    "python" + "hosted.org",
    "registry.npm" + "js",
    "repo1.maven" + ".org",
    "repo.maven" + ".apache.org",
    "deb.deb" + "ian.org",
]


def tracked(*patterns: str) -> list[Path]:
    """Files that git knows, or would add; those deleted meanwhile are left out."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "--", *patterns]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return [ROOT / line for line in sorted(set(listed.splitlines())) if (ROOT / line).is_file()]


@pytest.fixture(scope="module", autouse=True)
def a_checkout() -> None:
    if not (ROOT / ".git").exists():
        pytest.skip("not a git checkout: which files belong to it cannot be known")


def rooms() -> list[str]:
    """Every package `headrace.<room>`."""
    return sorted(
        path.parent.name
        for folder in PATH_FOLDERS
        for path in (ROOT / folder / "headrace").glob("*/__init__.py")
    )


@pytest.mark.parametrize("folder", PATH_FOLDERS)
def test_the_namespace_package_has_no_init(folder: str) -> None:
    assert not (ROOT / folder / "__init__.py").exists(), "it would shadow Python's own module, or be shadowed"
    assert not (ROOT / folder / "headrace" / "__init__.py").exists(), (
        "it would hide the other portions of headrace"
    )


@pytest.mark.parametrize("folder", PATH_FOLDERS)
def test_no_stray_module_in_a_folder_on_the_path(folder: str) -> None:
    assert not list((ROOT / folder).glob("*.py"))
    assert not list((ROOT / folder / "headrace").glob("*.py"))


def test_each_room_has_one_portion() -> None:
    assert len(rooms()) == len(set(rooms())), "two portions of the namespace hold a room of the same name"


def test_tests_have_no_init_and_unique_names() -> None:
    files = tracked("tests/*.py")
    assert not [path for path in files if path.name == "__init__.py"]
    names = [path.name for path in files if path.name != "conftest.py"]
    assert not {name for name in names if names.count(name) > 1}


def test_every_folder_of_a_room_is_a_package() -> None:
    """A folder without `__init__.py` would be importable by accident, and left out of the wheel."""
    for folder in PATH_FOLDERS:
        for path in tracked(f"{folder}/headrace/*.py"):
            assert (path.parent / "__init__.py").exists(), (
                f"{path.parent.relative_to(ROOT)} has no __init__.py"
            )


def test_no_file_is_longer_than_a_room() -> None:
    long = {
        str(path.relative_to(ROOT)): count
        for path in tracked("*.py")
        if (count := len(path.read_text().splitlines())) > LINES_MAX
    }
    assert not long, f"files over {LINES_MAX} lines are two rooms: {long}"


def test_every_module_says_what_it_is() -> None:
    bare = [
        str(path.relative_to(ROOT))
        for folder in PATH_FOLDERS
        for path in tracked(f"{folder}/*.py")
        if path.read_text().strip() and not path.read_text().lstrip().startswith(('"""', 'r"""'))
    ]
    assert not bare, f"without a docstring at their head: {bare}"


def test_every_room_is_described_and_layered() -> None:
    page = (ROOT / "docs" / "ARCHITECTURE.md").read_text()
    layers = (ROOT / "pyproject.toml").read_text()
    assert not [room for room in rooms() if f"\n**{room}**" not in page]
    assert not [room for room in rooms() if f"headrace.{room}" not in layers]


@pytest.mark.parametrize("page", ["ARCHITECTURE.md", "CONTRIBUTING.md"])
def test_modules_that_a_page_names_exist(page: str) -> None:
    """`room.module` in a page is a file or a folder of that room."""
    packages = {
        init.parent.name: init.parent
        for folder in PATH_FOLDERS
        for init in (ROOT / folder / "headrace").glob("*/__init__.py")
    }
    named = re.findall(r"`([a-z_]+)\.([a-z_]+)", (ROOT / "docs" / page).read_text())
    missing = [
        f"{room}.{module}"
        for room, module in named
        if room in packages
        and (room, module) != ("site", "yaml")
        and module not in ("x", "hop_")  # any module of the room, and those that begin so
        and not (packages[room] / f"{module}.py").exists()
        and not (packages[room] / module).is_dir()
    ]
    assert not missing


def test_the_wheel_holds_every_portion() -> None:
    build = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]
    assert sorted(build["dev-mode-dirs"]) == sorted(PATH_FOLDERS)
    assert sorted(build["targets"]["wheel"]["packages"]) == sorted(
        f"{folder}/headrace" for folder in PATH_FOLDERS
    )


def test_no_package_registry_is_named() -> None:
    named = {
        str(path.relative_to(ROOT)): host
        for path in tracked()
        for host in REGISTRY_HOSTS
        if host.encode() in path.read_bytes()
    }
    assert not named


def test_nothing_generated_or_big_is_tracked() -> None:
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    kinds = {".jar", ".class", ".pyc", ".whl", ".parquet", ".so", ".zip", ".gz"}
    assert not [name for name in listed.splitlines() if Path(name).suffix in kinds]
    assert not [path for path in tracked() if path.stat().st_size > 512 << 10]


def test_every_fixture_file_is_listed() -> None:
    conftest = (ROOT / "tests" / "conftest.py").read_text()
    with_fixtures = [path.stem for path in tracked("tests/fix_*.py") if "@pytest.fixture" in path.read_text()]
    assert not [name for name in with_fixtures if f'"{name}"' not in conftest]


def test_links_between_pages_lead_somewhere() -> None:
    broken = [
        f"{page.relative_to(ROOT)} → {target}"
        for page in tracked("*.md")
        for target in re.findall(r"\]\(([^)#\s]+)", page.read_text())
        if "://" not in target and not (page.parent / target).exists()
    ]
    assert not broken


def commands() -> Iterator[str]:
    """Every command of the command line, as a user types it; hidden ones are left out."""
    from headrace.cli.main import app

    def walk(command: object, words: tuple[str, ...]) -> Iterator[str]:
        children = getattr(command, "commands", None)
        if children is None:
            yield " ".join(words)
            return
        for name, child in children.items():
            if not child.hidden:
                yield from walk(child, (*words, name))

    return walk(typer.main.get_command(app), ("headrace",))


def test_every_command_is_documented() -> None:
    page = (ROOT / "docs" / "cli.md").read_text()
    missing = [command for command in commands() if f"`{command}" not in page and f"\n{command}" not in page]
    assert not missing
