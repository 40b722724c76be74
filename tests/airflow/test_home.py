"""Airflow's home: its configuration and secrets; processes that an earlier run left behind."""

import json
import os
import stat
import subprocess
import sys
from configparser import ConfigParser
from pathlib import Path

import pytest

from headrace.airflow.home import AirflowSettings, HomeError, configuration, write_home
from headrace.process.leftovers import end_leftovers, processes_in

SECRET = {"fernet_key": "f", "secret_key": "s", "jwt_secret": "j"}


def settings(home: Path, **more: str) -> AirflowSettings:
    return AirflowSettings(home=home, listen="127.9.0.7:8080", dags=Path("/srv/dags"), **more)


def test_airflow_listens_only_on_the_configured_address(tmp_path: Path) -> None:
    parser = ConfigParser()
    parser.read_string(configuration(settings(tmp_path), SECRET))
    assert (parser["api"]["host"], parser["api"]["port"]) == ("127.9.0.7", "8080")
    assert parser["core"]["execution_api_server_url"] == "http://127.9.0.7:8080/execution/"
    assert parser["database"]["sql_alchemy_conn"] == f"sqlite:///{tmp_path}/airflow.db"
    assert parser["usage_data_collection"]["enabled"] == "False"
    assert parser["core"]["load_examples"] == "False"


def test_a_configured_database_url_keeps_its_percent_signs(tmp_path: Path) -> None:
    url = "postgresql+psycopg2://airflow:p%40ss@127.0.0.1:5432/airflow"
    parser = ConfigParser()
    parser.read_string(configuration(settings(tmp_path, database_url=url), SECRET))
    assert parser["database"]["sql_alchemy_conn"] == url
    assert "sql_alchemy_connect_args" not in parser["database"]


def test_secrets_and_password_are_made_once_and_only_the_owner_reads_them(tmp_path: Path) -> None:
    home = tmp_path / "airflow"
    write_home(settings(home))
    first = {path.name: path.read_text() for path in home.iterdir()}
    write_home(settings(home))
    assert {path.name: path.read_text() for path in home.iterdir()} == first
    assert all(stat.S_IMODE(path.stat().st_mode) == 0o600 for path in home.iterdir())
    assert len(json.loads(first["passwords.json"])["admin"]) >= 16
    other = tmp_path / "other"
    write_home(settings(other))
    assert (other / "passwords.json").read_text() != first["passwords.json"]
    assert json.loads((other / "secrets.json").read_text()) != json.loads(first["secrets.json"])


@pytest.mark.parametrize("name", ["passwords.json", "secrets.json"])
@pytest.mark.parametrize("content", [b"", b"\xff\xfe", b"{", b"[]", b'{"admin": 7}', b"[" * 100_000])
def test_damaged_secrets_are_named_and_left_alone(tmp_path: Path, name: str, content: bytes) -> None:
    write_home(settings(tmp_path))
    (tmp_path / name).write_bytes(content)
    with pytest.raises(HomeError, match=f"{name} is damaged: restore it from a backup, or remove it"):
        write_home(settings(tmp_path))
    assert (tmp_path / name).read_bytes() == content
    (tmp_path / name).unlink()
    write_home(settings(tmp_path))


def test_secrets_that_others_could_read_are_closed_to_them(tmp_path: Path) -> None:
    write_home(settings(tmp_path))
    for name in ("passwords.json", "secrets.json", "airflow.cfg"):
        (tmp_path / name).chmod(0o644)
    write_home(settings(tmp_path))
    assert all(stat.S_IMODE(path.stat().st_mode) == 0o600 for path in tmp_path.iterdir())


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_only_processes_of_an_earlier_run_are_killed(tmp_path: Path) -> None:
    mine, other = tmp_path / "scheduler", tmp_path / "triggerer"
    mine.mkdir()
    other.mkdir()
    command = [sys.executable, "-c", "import time; print('up', flush=True); time.sleep(60)"]
    processes = [
        subprocess.Popen(command, cwd=directory, stdout=subprocess.PIPE, start_new_session=True)
        for directory in (mine, mine, other)
    ]
    try:
        for process in processes:
            assert process.stdout is not None
            process.stdout.readline()
        assert sorted(end_leftovers(mine)) == sorted(process.pid for process in processes[:2])
        assert [process.wait(10) for process in processes[:2]] == [-9, -9]
        assert processes[2].poll() is None
        assert processes_in(other) == [processes[2].pid]
        assert os.getpid() not in processes_in(Path.cwd())
    finally:
        for process in processes:
            process.kill()
            process.communicate()
