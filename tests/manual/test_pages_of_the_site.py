"""The pages that `make docs` builds: links, lists, navigation; and the site, where its environment is."""

from __future__ import annotations

import os
import re
import subprocess
from html.parser import HTMLParser
from pathlib import Path, PurePosixPath

import pytest
import yaml

from headrace.cli.main import app
from reference import commands, pages
from reference.dialect import links, lists

ROOT = Path(__file__).parents[2]
MKDOCS = ROOT / ".venv-docs" / "bin" / "mkdocs"
DOCS = PurePosixPath("docs")
MOVED = {"README.md": "index.md"}


# --- the dialect ---


@pytest.mark.parametrize(
    ("github", "python_markdown"),
    [
        ("Text:\n- a\n- b\n", "Text:\n\n-   a\n-   b\n"),
        ("- a\n  goes on\n", "-   a\n    goes on\n"),
        ("1. a\n   goes on\n2. b\n", "1.  a\n    goes on\n2.  b\n"),
        ("- a\n  - b\n    c\n- d\n", "-   a\n    -   b\n        c\n-   d\n"),
        ("- a\n\n      code\n\ntext\n", "-   a\n\n        code\n\ntext\n"),
        ("```\n- no list\n```\n", "```\n- no list\n```\n"),
        ("- a\n\n```\n  - no list\n```\n", "-   a\n\n```\n  - no list\n```\n"),
        ("- a\n\n    indented\n", "-   a\n\n      indented\n"),
        ("a - b\n", "a - b\n"),
    ],
)
def test_lists(github: str, python_markdown: str) -> None:
    assert lists(github) == python_markdown


@pytest.mark.parametrize(
    ("page", "text", "changed"),
    [
        ("README.md", "[x](docs/cli.md)", "[x](cli.md)"),
        ("README.md", "![x](docs/picture.svg)", "![x](picture.svg)"),
        ("docs/cli.md", "[x](agent.md#tokens)", "[x](agent.md#tokens)"),
        ("docs/decisions/0001.md", "[x](../cli.md)", "[x](../cli.md)"),
        ("docs/cli.md", "[x](../README.md)", "[x](index.md)"),
        ("docs/decisions/0001.md", "[x](../../README.md)", "[x](../index.md)"),
        ("docs/tour.md", "[the example](../terraform/examples)", "the example (`terraform/examples`)"),
        ("docs/tour.md", "[terraform/examples](../terraform/examples)", "terraform/examples"),
        ("docs/cli.md", "[x](#site)", "[x](#site)"),
        ("docs/cli.md", "[x](https://example.org/a)", "[x](https://example.org/a)"),
    ],
)
def test_links(page: str, text: str, changed: str) -> None:
    assert links(text, PurePosixPath(page), DOCS, MOVED) == changed


# --- the pages ---


def test_every_page_is_in_the_navigation() -> None:
    texts = pages.generated(commands.read(app)) | pages.our_pages()
    navigation = yaml.safe_load(pages.CONFIGURATION.read_text())["nav"]
    filled = pages.navigation(navigation, texts)
    assert [title for group in filled for title in group] == [
        "Start",
        "Tutorial",
        "How to",
        "Operations",
        "Reference",
        "Explanation",
    ]
    with pytest.raises(pages.PagesError, match=r"manual/mkdocs.yml: forgotten\.md"):
        pages.navigation(navigation, {**texts, "forgotten.md": "# Forgotten"})
    with pytest.raises(pages.PagesError, match=r"not there: tour\.md"):
        pages.navigation(navigation, {name: text for name, text in texts.items() if name != "tour.md"})


def test_every_page_has_one_title() -> None:
    for name, text in pages.our_pages().items():
        without_code = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
        assert len(re.findall(r"^# ", without_code, re.MULTILINE)) == 1, name


def test_nothing_is_fetched_from_elsewhere() -> None:
    configuration = yaml.safe_load(pages.CONFIGURATION.read_text())
    assert configuration["theme"]["font"] is False
    assert configuration["plugins"] == ["search"]
    assert "http" not in pages.CONFIGURATION.read_text()


# --- the built site ---


class Fetched(HTMLParser):
    """Collects what a browser fetches for a page without a click."""

    def __init__(self) -> None:
        super().__init__()
        self.addresses: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        if tag in ("script", "img", "iframe", "source"):
            self.addresses.append(values.get("src") or "")
        elif tag == "link" and values.get("rel") != "canonical":
            self.addresses.append(values.get("href") or "")


@pytest.mark.slow
@pytest.mark.skipif(not MKDOCS.exists(), reason="there is no .venv-docs: `make docs` makes it")
def test_the_site_is_built_without_a_warning(tmp_path: Path) -> None:
    count = pages.write(tmp_path / "docs")
    command = [
        str(MKDOCS),
        "build",
        "--strict",
        "-f",
        str(tmp_path / "docs" / "mkdocs.yml"),
        "-d",
        str(tmp_path / "site"),
    ]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0 and "WARNING" not in done.stderr, done.stderr
    built = sorted((tmp_path / "site").rglob("*.html"))
    assert len(built) >= count
    for path in built:
        parser = Fetched()
        html = path.read_text()
        parser.feed(html)
        assert not [address for address in parser.addresses if "//" in address], path
        assert "<p>| " not in html and "|---|" not in html, f"{path.name}: a table that is none"
    assert (tmp_path / "site" / "search" / "search_index.json").stat().st_size > 100_000
