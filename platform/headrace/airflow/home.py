"""An Airflow home of this site: its `airflow.cfg`, its secrets and its password.

Owns the files in the home directory that are written before Airflow starts. Imports nothing of Airflow, whose
configuration is read once, at import. Secrets are made once and kept; every file with one is mode 0600.
"""

from __future__ import annotations

import base64
import configparser
import io
import json
import os
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

USER: Final = "admin"
PASSWORD_FILE_NAME: Final = "passwords.json"
SECRETS_FILE_NAME: Final = "secrets.json"
# Two cores: two loads beside sensors and seals; each slot is an idle process of some 50 MB.
PARALLELISM: Final = 4
SQLITE_CONNECT_ARGS: Final[Mapping[str, float]] = {"timeout": 30.0}


@dataclass(frozen=True, slots=True)
class Settings:
    """What one Airflow of this site is told.

    `listen` is HOST:PORT of the api-server, the only address that is bound. `database_url` is SQLAlchemy's;
    None means a SQLite file in the home directory. `dags` is the folder of DAG files.
    """

    home: Path
    listen: str
    dags: Path
    database_url: str | None = None

    @property
    def url(self) -> str:
        return f"http://{self.listen}"

    @property
    def sqlalchemy_url(self) -> str:
        return self.database_url or f"sqlite:///{self.home / 'airflow.db'}"


def configuration(settings: Settings, secret: Mapping[str, str]) -> str:
    """The text of `airflow.cfg`; what it leaves out is Airflow's default."""
    host, _, port = settings.listen.rpartition(":")
    sections: dict[str, dict[str, object]] = {
        "core": {
            "dags_folder": settings.dags,
            "load_examples": False,
            "executor": "LocalExecutor",
            "parallelism": PARALLELISM,
            "fernet_key": secret["fernet_key"],
            "execution_api_server_url": f"{settings.url}/execution/",
            "simple_auth_manager_users": f"{USER}:admin",
            "simple_auth_manager_passwords_file": settings.home / PASSWORD_FILE_NAME,
        },
        "database": {
            "sql_alchemy_conn": settings.sqlalchemy_url,
        },
        "api": {
            "host": host,
            "port": port,
            "base_url": settings.url,
            "workers": 1,
            "secret_key": secret["secret_key"],
        },
        "api_auth": {"jwt_secret": secret["jwt_secret"]},
        "logging": {"base_log_folder": settings.home / "logs"},
        "scheduler": {
            # A killed scheduler's tasks are taken back after this long, instead of minutes.
            "scheduler_health_check_threshold": 15,
            "orphaned_tasks_check_interval": 10,
            "task_instance_heartbeat_sec": 5,
            "task_instance_heartbeat_timeout": 30,
            "task_instance_heartbeat_timeout_detection_interval": 10,
        },
        "dag_processor": {
            "refresh_interval": 30,
            "min_file_process_interval": 60,
            "parsing_processes": 1,
        },
        "triggerer": {"capacity": 100},
        "usage_data_collection": {"enabled": False},
    }
    if settings.sqlalchemy_url.startswith("sqlite"):
        # Five processes share the file; a writer waits for another instead of failing.
        sections["database"]["sql_alchemy_connect_args"] = f"{__name__}.SQLITE_CONNECT_ARGS"
    parser = configparser.RawConfigParser()
    for name, values in sections.items():
        # configparser reads % as the start of a reference, and so does Airflow.
        parser[name] = {key: str(value).replace("%", "%%") for key, value in values.items()}
    text = io.StringIO()
    parser.write(text)
    return text.getvalue()


def write_home(settings: Settings) -> None:
    """Makes the home directory and its files; secrets and password stay as they are once made."""
    settings.home.mkdir(parents=True, exist_ok=True)
    secret = _once(
        settings.home / SECRETS_FILE_NAME,
        {
            "fernet_key": base64.urlsafe_b64encode(secrets.token_bytes(32)).decode(),
            "secret_key": secrets.token_urlsafe(32),
            # HS512 wants 64 bytes.
            "jwt_secret": secrets.token_urlsafe(64),
        },
    )
    _once(settings.home / PASSWORD_FILE_NAME, {USER: secrets.token_urlsafe(12)})
    _write_private(settings.home / "airflow.cfg", configuration(settings, secret))


def _once(path: Path, values: Mapping[str, str]) -> dict[str, str]:
    """The values in the file; `values` become its content when it is not there."""
    try:
        known: dict[str, str] = json.loads(path.read_text())
    except FileNotFoundError:
        _write_private(path, json.dumps(values))
        return dict(values)
    return known


def _write_private(path: Path, text: str) -> None:
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        file.write(text)
    temporary.replace(path)
