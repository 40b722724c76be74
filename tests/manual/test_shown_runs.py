"""Every page says which of its commands a test runs, and the comparison of shapes sees what it should.

tests/days runs them, on real sites.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from shown_runs import NOT_RUN, SITES, MarkerError, Step, difference, has_commands, marked_blocks, steps
from shown_shell import CannotRunError, Shell

ROOT = Path(__file__).parents[2]
RUN_MIN = 25
"""Fewer commands than these would mean that markers switch off what should be run."""
NOT_RUN_BLOCKS_MAX = 24


def pages() -> Iterator[tuple[str, str]]:
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "--", "*.md"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for line in sorted(set(listed.splitlines())):
        if (ROOT / line).is_file():
            yield line, (ROOT / line).read_text()


def test_every_page_says_where_its_commands_run() -> None:
    run = sum(1 for site in SITES for page, text in pages() for _ in steps(page, text, site))
    assert run >= RUN_MIN
    not_run = [
        f"{page}:{block.first}"
        for page, text in pages()
        for block, mode in marked_blocks(page, text)
        if mode.site == NOT_RUN and has_commands(page, block)
    ]
    assert len(not_run) <= NOT_RUN_BLOCKS_MAX, not_run


PAGE = """
# A page

```
a picture
```

<!-- shown: run on demo -->

```
$ headrace topics list
 topic   bytes
 ──────────────
 t           1
$ export A=b && headrace down \\
    --now
```

<!-- shown: exits 1 | exits 2 | before: touch x; touch y -->

    headrace status     # a comment
    # only a comment

<!-- shown: run on hcl | file main.tf -->

```hcl
a = {
  b = 1
}
```

    curl -d '{"a": 1,
      "b": 2}'

<!-- shown: needs go | exits 3 -->

    go build

<!-- shown: not run: it takes hours; or more -->

    make bench
"""


def test_steps_of_a_page() -> None:
    assert list(steps("page", PAGE, "demo")) == [
        Step(
            "page",
            11,
            "headrace topics list",
            ("topic   bytes", "──────────────", "t           1"),
            frozenset({0}),
        ),
        Step("page", 15, "export A=b && headrace down --now", (), frozenset({0})),
        Step("page", 21, "touch x; touch y", (), frozenset({0})),
        Step("page", 21, "headrace status     # a comment", (), frozenset({0, 1, 2})),
    ]
    assert list(steps("page", PAGE, "hcl")) == [
        Step("page", 27, "", ("a = {", "  b = 1", "}"), frozenset({0}), "main.tf"),
        Step("page", 32, """curl -d '{"a": 1, "b": 2}'""", (), frozenset({0})),
        Step("page", 37, "go build", (), frozenset({0, 3}), needs="go"),
    ]


@pytest.mark.parametrize("marker", ["", "<!-- shown: run on mars -->", "<!-- shown: not run: -->"])
def test_a_page_without_a_right_marker_is_refused(marker: str) -> None:
    with pytest.raises(MarkerError, match="page:"):
        list(steps("page", f"{marker}\n\n    headrace status\n", "demo"))


TABLE = """
 topic       partition   copied to    lag   state
 ───────────────────────────────────────────────────
 page-view           0      12,345    0 B   caught up
 …
"""
RECORD = """0:1659  2026-11-22 02:01:05.914  {"time": 17, "name": "x", "bytes": 6079, …}"""


@pytest.mark.parametrize(
    ("shown", "real"),
    [
        ("done (3 s)", "done (14 s)\n"),
        ("keeps retention.ms=7", "keeps retention.ms=604800000"),
        ("1 load; 3 hours", "2 loads; 1 hour"),
        ("holds 14.9 kB (14,940 bytes)\nof it", "holds 812 B (812 bytes) of it"),
        ("a\n…\nc 1", "b\na\nx\nc 2\nd\n"),
        (TABLE, TABLE.replace("12,345", "-").replace("page-view", "clicks") + "more"),
        (RECORD, '0:9  1999-01-01 00:00:00.000  {"time": 1, "name": "y z",\n"bytes": null, "more": 1}'),
    ],
)
def test_what_has_the_same_shape(shown: str, real: str) -> None:
    assert difference(shown.splitlines(), real) == ""


@pytest.mark.parametrize(
    ("shown", "real"),
    [
        ("done (3 s)", "done in 14 s\n"),
        ("done 1", "done 1\nand more"),
        ("a\n…\nc 1", "c 2\na\n"),
        ("3 partitions, retention.ms=7\n…", "3 partitions, 3 replicas, retention.ms=7\nmore"),
        (TABLE, TABLE.replace("lag", "behind")),
        (TABLE, TABLE.replace("12,345", "unknown")),
        (TABLE, ""),
        (RECORD, RECORD.replace('"bytes"', '"size"')),
    ],
)
def test_what_has_another_shape(shown: str, real: str) -> None:
    assert difference(shown.splitlines(), real)


DOCUMENT = '{"outcome": "created", "count": 3, "when": "2026-11-22", "rows": [{"name": "x"}], "none": null}'


@pytest.mark.parametrize(
    ("shown", "real"),
    [
        (
            DOCUMENT,
            '{"none":null,"rows":[{"name":"x"},{"name":"y"}],"when":"12:01","count":4.5,"outcome":"created"}',
        ),
        (DOCUMENT.replace('"none": null', '"…": "…"'), DOCUMENT.replace('"none": null', '"more": 1')),
        ("[]", "[1]"),
    ],
)
def test_documents_of_the_same_shape(shown: str, real: str) -> None:
    assert difference(shown.splitlines(), real) == ""


@pytest.mark.parametrize(
    ("change", "to", "problem"),
    [
        ("created", "changed", "it.outcome is 'changed', not 'created'"),
        ("3", '"3"', "it.count is '3', not 3"),
        ('"none": null', '"none": 1', "it.none is 1, not None"),
        (', "none": null', "", "it has no none"),
        ('"none": null', '"none": null, "more": 1', "it has more, which the page does not show"),
        ('{"name": "x"}', "", "it.rows has 0 elements, not 1"),
        ('"name": "x"', '"name": "y"', "it.rows[0].name is 'y', not 'x'"),
        ("}", "", "it is no JSON document"),
    ],
)
def test_documents_of_another_shape(change: str, to: str, problem: str) -> None:
    assert difference([DOCUMENT], DOCUMENT.replace(change, to)) == problem


def step(command: str, output: str = "", *codes: int) -> Step:
    return Step("page", 1, command, tuple(output.splitlines()), frozenset(codes or {0}))


def test_a_shell_keeps_its_folder_and_variables(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    with Shell(tmp_path, tmp_path) as shell:
        shell.follow(step("cd there && export A=b"))
        shell.follow(step('basename "$PWD" && echo $A >&2 && cat', "there\nb", 0))
        shell.follow(step("sleep 1000 &"))
        shell.follow(step("false", "", 1))
        with pytest.raises(AssertionError, match="ended with 1"):
            shell.follow(step("false"))
        with pytest.raises(AssertionError, match="not all of the output looks like 'other'"):
            shell.follow(step("echo context east; echo another", "other"))
        shell.follow(step("echo context east; echo another", "another"))
        assert shell.run("exit_code() { return 7; }; exit_code").code == 7


def test_a_command_that_does_not_end_is_named(tmp_path: Path) -> None:
    with Shell(tmp_path, tmp_path) as shell, pytest.raises(AssertionError, match="begun"):
        shell.run("echo begun; sleep 1000", timeout_s=0.5)


def test_what_a_step_needs(tmp_path: Path) -> None:
    """A missing program, and one that does not reach its packages, are named; any other failure is one."""
    needs = step("false")._replace(needs="headrace-knows-no-such-program")
    (tmp_path / "fetch").write_text("echo dial tcp: lookup nowhere: no such host; exit $1")
    fetches = step("bash fetch 1")._replace(needs="bash")
    with Shell(tmp_path, tmp_path) as shell:
        with pytest.raises(CannotRunError, match="headrace-knows-no-such-program is not installed"):
            shell.follow(needs)
        with pytest.raises(CannotRunError, match=r"bash does not reach its registry.*dial tcp"):
            shell.follow(fetches)
        shell.follow(fetches._replace(command="bash fetch 0"))
        with pytest.raises(AssertionError, match="ended with 1"):
            shell.follow(fetches._replace(command="echo dial tcp; false"))
        with pytest.raises(AssertionError, match="ended with 1"):
            shell.follow(fetches._replace(command="bash -c false"))
