"""The style that a program can judge: circles, long or deep functions, names of constants, words.

Reads the production code's syntax trees; imports nothing of it.
"""

from __future__ import annotations

import ast
import io
import re
import subprocess
import tokenize
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PRODUCTION = ("platform", "broker", "mirror", "terraform", "dags", "bench", "containers", "manual")
FUNCTION_LINES_MAX = 60
NESTING_MAX = 4
BLOCKS = (
    ast.If,
    ast.For,
    ast.AsyncFor,
    ast.While,
    ast.With,
    ast.AsyncWith,
    ast.Try,
    ast.Match,
)
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
SECTION_COMMENT = re.compile(r"^# --- [a-z][^-]* ---$")
# The bound, then the unit: WAIT_MAX_S, not WAIT_S_MAX or WAIT_SECONDS.
WRONG_SUFFIX = re.compile(r"_(S|MS|SECONDS|BYTES)_(MAX|MIN|DEFAULT)$|_SECONDS$")
# Words that mean another one of the glossary in docs/ARCHITECTURE.md, or that need a second reading.
RIDDLES = re.compile(
    r"(?i)\b(whoever|whomever|troubles?|remarks?|lets? go of|(is|are|was|were|be) told|its like|one's)\b"
)


@cache
def sources() -> dict[Path, ast.Module]:
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    command += [f"{folder}/*.py" for folder in PRODUCTION]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    paths = [ROOT / line for line in sorted(set(listed.splitlines()))]
    return {path: ast.parse(path.read_text()) for path in paths if path.is_file()}


@pytest.fixture(scope="module", autouse=True)
def a_checkout() -> None:
    if not (ROOT / ".git").exists():
        pytest.skip("not a git checkout: which files belong to it cannot be known")


def module_of(path: Path) -> str:
    """The dotted name that a file is imported by; empty for what is not in the package."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    if len(parts) < 3 or parts[1] != "headrace":
        return ""
    return ".".join(parts[1:]).removesuffix(".__init__")


def imports(tree: ast.Module, modules: set[str]) -> Iterator[str]:
    """Every module of the package that a file imports: late, or for its types alone, all the same."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in modules)
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"line {node.lineno}: imports are absolute"
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                yield inner if inner in modules else str(node.module)


def circles(graph: dict[str, set[str]]) -> list[list[str]]:
    """The groups of modules in which each imports each other one, directly or not."""

    def reach(start: str) -> set[str]:
        seen: set[str] = set()
        ahead = [start]
        while ahead:
            for module in graph[ahead.pop()] - seen:
                seen.add(module)
                ahead.append(module)
        return seen

    reached = {module: reach(module) for module in graph}
    found = {
        tuple(sorted(other for other in reached[module] if module in reached[other]))
        for module in graph
        if module in reached[module]
    }
    return [list(circle) for circle in sorted(found)]


def test_circles_are_found() -> None:
    graph = {"a": {"b"}, "b": {"c"}, "c": {"b", "d"}, "d": set[str](), "e": {"a"}}
    assert circles(graph) == [["b", "c"]]


def test_no_modules_import_each_other_in_a_circle() -> None:
    named = {module_of(path): tree for path, tree in sources().items() if module_of(path)}
    modules = set(named)
    # A package's face hands on names of its own files; what imports those imports the package, too.
    graph = {
        module: {other for other in imports(tree, modules) if other in modules and other != module}
        for module, tree in named.items()
    }
    assert not circles(graph)


def functions() -> Iterator[tuple[Path, ast.FunctionDef | ast.AsyncFunctionDef]]:
    for path, tree in sources().items():
        for node in ast.walk(tree):
            if isinstance(node, FUNCTIONS):
                yield path, node


def nesting(node: ast.AST) -> int:
    """How deep blocks are nested, without inner functions; an `elif` is no deeper than its `if`."""
    deepest = 0
    for child in ast.iter_child_nodes(node):
        if isinstance(child, (*FUNCTIONS, ast.Lambda, ast.ClassDef)):
            continue
        is_elif = isinstance(node, ast.If) and isinstance(child, ast.If) and node.orelse == [child]
        deepest = max(deepest, nesting(child) + (isinstance(child, BLOCKS) and not is_elif))
    return deepest


def test_no_function_is_longer_than_a_page() -> None:
    long = [
        f"{path.relative_to(ROOT)}:{node.lineno} {node.name}: {lines} lines"
        for path, node in functions()
        if (lines := (node.end_lineno or 0) - node.lineno + 1) > FUNCTION_LINES_MAX
    ]
    assert not long


def test_no_function_is_nested_too_deep() -> None:
    deep = [
        f"{path.relative_to(ROOT)}:{node.lineno} {node.name}: {depth} deep"
        for path, node in functions()
        if (depth := nesting(node)) > NESTING_MAX
    ]
    assert not deep


def test_limits_have_one_suffix() -> None:
    wrong = [
        f"{path.relative_to(ROOT)}:{node.lineno} {node.id}"
        for path, tree in sources().items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Name) and node.id.isupper() and WRONG_SUFFIX.search(node.id)
    ]
    assert not wrong


def prose(path: Path, tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Comments, docstrings and names. Other strings may be a served or stored format, and are left out."""
    for token in tokenize.generate_tokens(io.StringIO(path.read_text()).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string
        elif token.type == tokenize.NAME:
            yield token.start[0], token.string.replace("_", " ")
    for node in ast.walk(tree):
        if isinstance(node, (*FUNCTIONS, ast.ClassDef, ast.Module)) and (text := ast.get_docstring(node)):
            yield getattr(node, "lineno", 1), text


def test_words_are_the_glossarys() -> None:
    riddles = [
        f"{path.relative_to(ROOT)}:{line} {found[0]}"
        for path, tree in sources().items()
        for line, text in prose(path, tree)
        if (found := RIDDLES.search(text))
    ]
    assert not riddles


def test_section_comments_are_alike() -> None:
    others = [
        f"{path.relative_to(ROOT)}:{number} {line.strip()}"
        for path in sources()
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if re.match(r"#\W*[-=*#~]{2}", line.strip()) and not SECTION_COMMENT.match(line.strip())
    ]
    assert not others
