"""A checkout or a home whose path the JVM's programs cannot live with: refused at once, by name."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from headrace.fleet.paths import FORBIDDEN, check_paths
from headrace.site.errors import SiteError
from headrace.site.site import Site

ROOT = Path(__file__).parents[2]
FINE = Path("/opt/headrace/.venv")


@pytest.mark.parametrize(("character", "name"), FORBIDDEN.items())
def test_home_and_checkout_are_named(character: str, name: str) -> None:
    bad = Path(f"/srv/my{character}folder")
    with pytest.raises(SiteError, match=f"the home, .*{name} in its path.*HEADRACE_HOME"):
        check_paths(Site.one_machine(bad / ".headrace"), FINE)
    with pytest.raises(SiteError, match=f"environment, .*{name} in its path.*move the checkout"):
        check_paths(Site.one_machine(Path("/srv/home")), bad / ".venv")
    check_paths(Site.one_machine(Path("/srv/ho-me_1.2~é")), FINE)


@pytest.mark.parametrize("target", ["demo", "up", "test", "help"])
def test_make_says_so_before_it_does_anything(tmp_path: Path, target: str) -> None:
    folder = tmp_path / "a checkout"
    folder.mkdir()
    shutil.copy(ROOT / "Makefile", folder)
    environment = {name: value for name, value in os.environ.items() if name != "HEADRACE_HOME"}
    done = subprocess.run(["make", target], cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 2
    assert f'move it away from "{folder}"' in done.stderr
    assert [path.name for path in folder.iterdir()] == ["Makefile"]


def test_make_refuses_such_a_home(tmp_path: Path) -> None:
    shutil.copy(ROOT / "Makefile", tmp_path)
    home = f"{tmp_path}/a home"
    done = subprocess.run(
        ["make", "help"],
        cwd=tmp_path,
        env={**os.environ, "HEADRACE_HOME": home},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2
    assert f'set it to another folder than "{home}"' in done.stderr
