"""Files that people write, or somebody else in their name: one line of error, soon, and in bounded memory."""

from __future__ import annotations

import resource
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.airflow.topics import TopicsFileError, parse_declarations, parse_topics, read_topics
from headrace.process.yaml_text import DEPTH_MAX, SIZE_MAX_CHARS, YamlError, load, shown
from headrace.site.errors import SiteFileError
from headrace.site.site import Site, parse_site

ERROR_MAX_CHARS = 2_000
ERROR_MAX_S = 5.0
LEVELS = 9
BOMB = "\n".join(
    ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    + [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, LEVELS)]
)
"""A few hundred bytes that mean 387 million values."""
TEXTS = {
    "bomb": BOMB,
    "bomb among topics": f"{BOMB}\ntopics: *a{LEVELS - 1}",
    "bomb as a field": f"topics: {{t: {{schedule: 1}}}}\n{BOMB}\ndatacenters: *a{LEVELS - 1}",
    "merged bomb": "a: &a {x: 1}\n" + "b: {<<: [" + "*a, " * 150_000 + "*a]}",
    "holds itself": "topics: &t\n  a: *t\ndatacenters: *t",
    "deep": "[" * 100_000,
    "deep blocks": "\n".join(" " * n + "a:" for n in range(1_000)),
    "long": "#" * (SIZE_MAX_CHARS + 1),
    "no date": "topics: {a: {start: 2026-02-31}}\ndatacenters: 2026-02-31",
    "no number": "topics: !!int x\ndatacenters: !!int x",
    "an object": "topics: !!python/object/apply:os.system ['exit 1']",
    "bytes": "topics: !!binary /w==\ndatacenters: !!binary /w==",
    "not a number": "topics: {a: {schedule: .nan, max_events: .inf}}\ndatacenters: .nan",
    "two documents": "--- {}\n--- {}",
    "control characters": "topics: \x00",
    "surrogates": "topics: \ud800",
    "keys that are lists": "? [a, b]\n: 1",
    "a list": "[]\n---",
    "a number": "7",
    "names": 'topics: {"../../x": {}, "a\\nb": {}, 7: {}, "": {}}\ndatacenters: {"../x": {}, 7: {}}',
}


def one_line(error: Exception) -> None:
    text = str(error)
    assert text and "\n" not in text and len(text) < ERROR_MAX_CHARS, text[:3_000]


@pytest.mark.parametrize("name", TEXTS)
def test_a_hostile_text_is_refused_in_a_line(name: str, tmp_path: Path) -> None:
    for read in (
        lambda: parse_topics(TEXTS[name], where="topics.yaml"),
        lambda: parse_declarations(TEXTS[name], where="topics.yaml"),
        lambda: parse_site(TEXTS[name], home=tmp_path, where="site.yaml"),
    ):
        began_s = time.monotonic()
        with pytest.raises((TopicsFileError, SiteFileError)) as caught:
            read()
        one_line(caught.value)
        assert time.monotonic() - began_s < ERROR_MAX_S


def test_bytes_that_are_no_text(tmp_path: Path) -> None:
    path = tmp_path / "topics.yaml"
    path.write_bytes(b"topics: \xff\xfe")
    with pytest.raises(TopicsFileError, match="is not UTF-8") as topics:
        read_topics(path)
    path.rename(tmp_path / "site.yaml")
    with pytest.raises(SiteFileError, match="is not UTF-8") as site:
        Site.load(tmp_path)
    one_line(topics.value)
    one_line(site.value)


def test_a_bomb_costs_no_memory(tmp_path: Path) -> None:
    """In a process of its own, which may have no more than this one of Python's start."""
    path = tmp_path / "site.yaml"
    path.write_text(TEXTS["bomb as a field"])
    limit = 600 << 20
    found = subprocess.run(
        [sys.executable, "-m", "headrace.cli", "site", "show"],
        env={"HEADRACE_HOME": str(tmp_path), "PATH": "/usr/bin:/bin"},
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (limit, limit)),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert found.returncode != 0
    assert "Traceback" not in found.stderr and "Memory" not in found.stderr, found.stderr
    assert "means more than" in found.stderr or "No such command" in found.stderr, found.stderr


def test_honest_texts_are_read_as_before() -> None:
    text = "defaults: &d {x: 1}\ntopics:\n  a: {<<: *d, y: [1, 2]}\n  b: *d\n"
    assert load(text) == {"defaults": {"x": 1}, "topics": {"a": {"x": 1, "y": [1, 2]}, "b": {"x": 1}}}
    assert load("") is None
    nested = "[" * DEPTH_MAX + "]" * DEPTH_MAX
    assert load(nested) is not None
    with pytest.raises(YamlError, match="nests deeper"):
        load(f"[{nested}]")


def test_a_shown_value_is_short() -> None:
    value: list[object] = []
    for _ in range(60):
        value = [value, value]
    assert len(shown(value)) < ERROR_MAX_CHARS
    assert len(shown(dict.fromkeys(range(1000), "x" * 10000))) < ERROR_MAX_CHARS


@settings(max_examples=300, deadline=None)
@given(st.text(alphabet="abt:{}[]&*!?-|><%'\"#, \n\t\x01\u20280123", max_size=80))
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        load(text)
    except YamlError as error:
        one_line(error)
