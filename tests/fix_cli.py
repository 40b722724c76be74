"""Commands of `headrace` on the running site, in this process. Fixtures: `headrace`, `empty_home`."""

import io
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest
import yaml

from fix_site import RunningSite
from headrace.cli import main as cli
from headrace.process.text import has_control

HEADERS: Final = ("context ", "no context, ")


class Result(NamedTuple):
    """A command's exit code and output."""

    exit_code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        assert self.out.strip(), f"exit code {self.exit_code}, and no JSON: {self.err}"
        return json.loads(self.out)


Headrace = Callable[..., Result]


@pytest.fixture
def headrace(
    running_site: RunningSite, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Headrace:
    """Runs commands in this process, by `main`, on the running site."""
    site = running_site.site
    description = {
        "datacenters": {
            each.name: {"network": each.network, "broker_count": each.broker_count}
            for each in site.datacenters
        }
    }
    (site.home / "site.yaml").write_text(yaml.safe_dump(description, sort_keys=False))
    monkeypatch.setenv("HEADRACE_HOME", str(site.home))
    return command_runner(monkeypatch, capsys)


@pytest.fixture
def empty_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home with nothing in it, and no context chosen."""
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("HEADRACE_HOME", str(home))
    for name in ("HEADRACE_CONTEXT", "HEADRACE_DATACENTER"):
        monkeypatch.delenv(name, raising=False)
    return home


def command_runner(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Headrace:
    """What runs a command by `main`, with the words of a command line."""

    def run(*words: object, stdin: bytes = b"") -> Result:
        capsys.readouterr()
        monkeypatch.setattr(sys, "argv", ["headrace", *map(str, words)])
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        with pytest.raises(SystemExit) as ended:
            cli.main()
        captured = capsys.readouterr()
        assert "Traceback" not in captured.out + captured.err
        assert not any(has_control(char) for char in captured.out + captured.err if char not in "\t\n")
        # The line that says on which installation the command works: tests/cli/test_contexts.py has it.
        lines = captured.err.splitlines(keepends=True)
        errors = "".join(line for line in lines if not line.startswith(HEADERS))
        return Result(int(ended.value.code or 0), captured.out, errors)

    return run
