"""The working copy that Terraform runs in."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from headrace.fleet.terraform.folder import make_folder
from headrace.site.site import Site, parse_site

PASSWORD = "a-password"


@pytest.fixture
def site(tmp_path: Path) -> Site:
    text = f"airflow_database: postgresql+psycopg2://airflow:{PASSWORD}@db.example/airflow"
    return parse_site(text, home=tmp_path / "home", where="here")


def test_nobody_else_can_read_the_password_of_airflows_database(site: Site) -> None:
    before = os.umask(0o022)
    try:
        (site.home / "terraform").mkdir(parents=True)  # as an earlier version made it
        folder = make_folder(site)
    finally:
        os.umask(before)
    assert PASSWORD in (folder / "terraform.tfvars.json").read_text()
    folders = [path for path in (folder, *folder.parents) if path.is_relative_to(site.home / "terraform")]
    assert any(path.stat().st_mode & 0o077 == 0 for path in folders)
