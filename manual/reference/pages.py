"""Puts together what mkdocs builds: our pages, README as the first one, and the reference of the code."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path, PurePosixPath
from typing import Any, Final

import yaml

from headrace.cli.main import app
from reference import codes, command_page, commands, figures, man, settings_page, units_page
from reference.dialect import links, lists

ROOT: Final = Path(__file__).parents[2]
FOLDER: Final = PurePosixPath("docs")
MOVED: Final = {"README.md": "index.md"}
KINDS: Final = frozenset(
    {".md", ".png", ".svg", ".json", ".java", ".go", ".mod", ".sum", ".py", ".avsc", ".xml"}
)
CONFIGURATION: Final = ROOT / "manual" / "mkdocs.yml"
DECISIONS: Final = "decisions/"


class PagesError(Exception):
    """The pages do not fit together; the message says what to change."""


def write(target: Path) -> int:
    """Writes pages, configuration and man pages below an own folder, and returns the number of pages."""
    if target.exists():
        shutil.rmtree(target)
    root = commands.read(app)
    texts = generated(root) | our_pages()
    configuration = yaml.safe_load(CONFIGURATION.read_text())
    configuration["nav"] = navigation(configuration["nav"], texts)
    for name, text in texts.items():
        path = target / "pages" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    for file in _tracked():
        if file.suffix != ".md" and file.is_relative_to(FOLDER):
            copied = target / "pages" / file.relative_to(FOLDER)
            copied.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / file, copied)
    (target / "mkdocs.yml").write_text(yaml.safe_dump(configuration, sort_keys=False))
    (target / "man" / "man1").mkdir(parents=True)
    for name, text in man.man_pages(root, codes.exit_codes()).items():
        (target / "man" / "man1" / name).write_text(text)
    return len(texts)


def generated(root: commands.Command) -> dict[str, str]:
    """Returns the pages that are made from the code, by their paths in the site."""
    return {
        "reference/commands.md": command_page.page(root, codes.exit_code_table()),
        "reference/settings.md": settings_page.settings_page(),
        "reference/spark.md": settings_page.spark_page(),
        "reference/units.md": units_page.units_page(),
        "reference/codes.md": codes.codes_page(),
        "reference/figures.md": figures.figures_page(),
    }


def our_pages() -> dict[str, str]:
    """Returns README and the pages of docs/, with the site's links, by their paths in the site."""
    pages = {}
    for page in _tracked():
        if page.suffix == ".md":
            name = MOVED.get(str(page)) or str(page.relative_to(FOLDER))
            pages[name] = lists(links((ROOT / page).read_text(), page, FOLDER, MOVED))
    return pages


def navigation(groups: list[dict[str, Any]], texts: dict[str, str]) -> list[dict[str, Any]]:
    """Returns the navigation with the decisions in it. Raises `PagesError` if it lacks a page."""
    filled = [
        {title: [_with_decisions(entry, texts) for entry in entries] for title, entries in group.items()}
        for group in groups
    ]
    named = [*_paths(filled)]
    if missing := sorted(texts.keys() - set(named)):
        raise PagesError(f"add to `nav` in manual/mkdocs.yml: {', '.join(missing)}")
    if extra := sorted(set(named) - texts.keys()):
        raise PagesError(f"`nav` in manual/mkdocs.yml names pages that are not there: {', '.join(extra)}")
    return filled


def _with_decisions(entry: Any, texts: dict[str, str]) -> Any:
    if not isinstance(entry, dict) or DECISIONS not in entry.values():
        return entry
    (title,) = entry
    return {title: [{_title(texts[name]): name} for name in sorted(texts) if name.startswith(DECISIONS)]}


def _title(text: str) -> str:
    found = re.search(r"^# (.+)$", text, re.MULTILINE)
    if found is None:
        raise PagesError(f"a page without a title: {text[:60]!r}")
    return found[1]


def _paths(entries: Any) -> list[str]:
    if isinstance(entries, str):
        return [entries]
    below = entries.values() if isinstance(entries, dict) else entries
    return [path for entry in below for path in _paths(entry)]


def _tracked() -> list[PurePosixPath]:
    """README and the files below docs/ that git knows or would add."""
    command = [
        "git",
        "ls-files",
        "--cached",
        "--others",
        "--exclude-standard",
        "--",
        "README.md",
        str(FOLDER),
    ]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    paths = [PurePosixPath(line) for line in sorted(set(listed.splitlines()))]
    return [path for path in paths if path.suffix in KINDS and (ROOT / path).is_file()]
