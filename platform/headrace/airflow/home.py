"""An Airflow home: its `airflow.cfg`, its secrets and its password.

Owns the files that must exist before Airflow starts. Imports nothing of Airflow, which reads its
configuration at import. Secrets are generated once and kept; every file with a secret has mode 0600.
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
_LOST: Final[Mapping[str, str]] = {
    PASSWORD_FILE_NAME: "the login has another password (`headrace status` shows it)",
    SECRETS_FILE_NAME: "passwords of connections that people made in Airflow have to be entered again",
}
# Worker slots: two loads plus sensors and seals. Each costs an idle process of about 50 MB.
PARALLELISM: Final = 4
# Two dictionaries, because Airflow adds to the first one what the asynchronous driver does not know.
SQLITE_CONNECT_ARGS: Final[Mapping[str, float]] = {"timeout": 30.0}
SQLITE_CONNECT_ARGS_ASYNC: Final[Mapping[str, float]] = {"timeout": 30.0}


@dataclass(frozen=True, slots=True)
class AirflowSettings:
    """The settings of one Airflow.

    `listen` is HOST:PORT of the api-server, the only address that Airflow binds. `database_url` is
    SQLAlchemy's, None for an SQLite file in the home directory. `dags` is the folder of DAG files.
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


def configuration(settings: AirflowSettings, secret: Mapping[str, str]) -> str:
    """Returns the text of `airflow.cfg`; other settings keep Airflow's defaults."""
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
        "database": {"sql_alchemy_conn": settings.sqlalchemy_url},
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
            # Seconds instead of minutes until the tasks of a killed scheduler are rescheduled.
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
        # Five processes share the file: a writer waits for another one instead of failing.
        sections["database"]["sql_alchemy_connect_args"] = f"{__name__}.SQLITE_CONNECT_ARGS"
        sections["database"]["sql_alchemy_connect_args_async"] = f"{__name__}.SQLITE_CONNECT_ARGS_ASYNC"
        sections["database"]["sql_alchemy_session_maker"] = "headrace.airflow.sqlite.session_maker"
    parser = configparser.RawConfigParser()
    for name, values in sections.items():
        # Airflow reads the file with configparser, where % begins a reference.
        parser[name] = {key: str(value).replace("%", "%%") for key, value in values.items()}
    text = io.StringIO()
    parser.write(text)
    return text.getvalue()


class HomeError(Exception):
    """Airflow cannot start with what is in its home; one line with the way out."""


def write_home(settings: AirflowSettings) -> None:
    """Creates the home directory and its files; existing secrets and passwords are kept.

    Raises `HomeError` if they cannot be read, and `OSError`.
    """
    settings.home.mkdir(parents=True, exist_ok=True)
    secret = _read_or_write(
        settings.home / SECRETS_FILE_NAME,
        {
            "fernet_key": base64.urlsafe_b64encode(secrets.token_bytes(32)).decode(),
            "secret_key": secrets.token_urlsafe(32),
            # HS512 requires 64 bytes.
            "jwt_secret": secrets.token_urlsafe(64),
        },
    )
    _read_or_write(settings.home / PASSWORD_FILE_NAME, {USER: secrets.token_urlsafe(12)})
    _write_private(settings.home / "airflow.cfg", configuration(settings, secret))


def _read_or_write(path: Path, values: Mapping[str, str]) -> dict[str, str]:
    """Returns the values in the file; writes `values` if there is no file."""
    try:
        known = json.loads(path.read_bytes())
    except FileNotFoundError:
        _write_private(path, json.dumps(values))
        return dict(values)
    except (ValueError, RecursionError):
        known = None
    if not isinstance(known, dict) or not all(isinstance(known.get(name), str) for name in values):
        raise HomeError(
            f"{path} is damaged: restore it from a backup, or remove it; a new one is then made, and "
            f"{_LOST[path.name]}"
        )
    if path.stat().st_mode & 0o077:
        path.chmod(0o600)
    return known


def _write_private(path: Path, text: str) -> None:
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())  # else a power cut may leave an empty file under the name
    temporary.replace(path)
