"""The reference has all that the code has: commands, options, settings, codes, figures; and man pages."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer.main

from headrace.agent.kinds import KINDS
from headrace.broker.settings.config import BROKER_SETTINGS, TOPIC_SETTINGS
from headrace.cli.errors import ExitCode
from headrace.cli.main import app
from headrace.warehouse.source.option_table import OPTIONS
from reference import codes, command_page, commands, figures, man, settings_page, units_page

ROOT = commands.read(app)


def in_code(app_: typer.Typer) -> Iterator[tuple[str, Any]]:
    """Every command with its full name, read another way than `commands` does."""

    def walk(command: Any, words: tuple[str, ...]) -> Iterator[tuple[str, Any]]:
        yield " ".join(words), command
        for name, child in getattr(command, "commands", {}).items():
            if not child.hidden:
                yield from walk(child, (*words, name))

    return walk(typer.main.get_command(app_), ("headrace",))


def written(param: Any) -> tuple[str, ...]:
    """How a parameter is written on the command line; of an argument, the word that stands for it."""
    is_argument = param.param_type_name == "argument"
    return (param.metavar,) if is_argument else (*param.opts, *param.secondary_opts)


# --- commands ---


def test_every_command_and_every_option_is_on_the_page() -> None:
    sections = command_page.page(ROOT, codes.exit_code_table()).split("\n##")
    by_title = {section.lstrip("# ").partition("\n")[0]: section for section in sections}
    missing = [
        f"{name} {text}"
        for name, command in in_code(app)
        for param in command.params
        if not param.hidden
        for text in written(param)
        if not re.search(rf"(?<![\w-]){text}(?![\w-])", by_title[name])
    ]
    assert not missing


def test_help_is_shown_whole() -> None:
    page = " ".join(command_page.page(ROOT, "").replace("\\", "").split())
    missing = [
        name
        for name, command in in_code(app)
        if " ".join((command.help or "").split("\n\n")[0].split()) not in page
    ]
    assert not missing


def test_defaults_are_shown() -> None:
    (create,) = (command for command in ROOT.every() if command.name == "headrace topics create")
    (partitions,) = (entry for entry in create.options if "--partitions" in entry.name)
    assert "default: 3" in partitions.help
    assert any("-h" in entry.name for entry in create.options), "the root's settings hold for commands, too"


def test_exit_codes_are_those_of_the_code() -> None:
    assert list(codes.exit_codes()) == [str(int(code)) for code in ExitCode]


# --- man pages ---


def test_every_command_has_a_man_page() -> None:
    pages = man.man_pages(ROOT, codes.exit_codes())
    assert len(pages) == len(list(in_code(app)))
    text = pages["headrace-topics-create.1"]
    assert text.startswith('.TH "HEADRACE\\-TOPICS\\-CREATE" "1"')
    assert "\\-\\-partitions" in text and ".SH EXIT STATUS" in text


def test_text_reaches_troff_as_it_is() -> None:
    assert man.roff("a-b \\n\n.SH x\n'y") == "a\\-b \\en\n\\&.SH x\n\\&'y"


@pytest.mark.skipif(shutil.which("groff") is None, reason="there is no groff")
def test_groff_has_no_complaint(tmp_path: Path) -> None:
    files = []
    for name, text in man.man_pages(ROOT, codes.exit_codes()).items():
        (tmp_path / name).write_text(text)
        files.append(str(tmp_path / name))
    command = ["groff", "-man", "-Tutf8", "-Kutf8", "-ww", "-z", *files]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert not done.stderr


# --- settings, options, codes, figures ---


def test_every_setting_is_on_its_page() -> None:
    page = settings_page.settings_page()
    names = [*BROKER_SETTINGS, *TOPIC_SETTINGS]
    assert len(names) > 50
    assert not [name for name in names if f"<code>{name}</code>" not in page]


def test_every_option_of_the_spark_source_is_on_its_page() -> None:
    page = settings_page.spark_page()
    assert not [option.name for option in OPTIONS if f"| <code>{option.name}</code> |" not in page]


def test_every_kind_of_unit_has_its_fields() -> None:
    page = units_page.units_page()
    for kind, (configuration, _) in KINDS.items():
        assert f"## {kind}\n" in page
        assert not [name for name in configuration.model_fields if f"<code>{name}</code>" not in page]


def test_codes_have_meanings() -> None:
    found = codes.agent_codes()
    assert {"unauthorized", "conflict", "not_ready", "host_failed", "load_unknown"} <= {
        each.code for each in found
    }
    assert not [each for each in found if not each.meaning]
    assert {each.status for each in codes.registry_codes()} <= {404, 409, 422, 500, 503}


def test_every_figure_of_a_process_is_explained() -> None:
    assert not figures.unexplained()
    assert all(each.fields for each in figures.FIGURES)
