"""Starts one component of Airflow: `python -m headrace.airflow.run api-server --home DIR --listen H:P …`.

Owns what happens before Airflow's own code runs: kills processes that an earlier run of the component left
behind and, for the api-server, writes the home's files and sets up the database and its connections (the
other components wait for the database). The component then runs in this same process.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from typing import Final

from headrace.airflow.home import AirflowSettings, HomeError, write_home
from headrace.process.disk import explained
from headrace.process.leftovers import end_leftovers

COMPONENTS: Final[dict[str, tuple[str, ...]]] = {
    "api-server": (),
    # Their log servers would listen on every address of the machine; logs are read from files instead.
    "scheduler": ("--skip-serve-logs",),
    "dag-processor": (),
    "triggerer": ("--skip-serve-logs",),
}


def main(arguments: list[str] | None = None) -> None:
    """Runs the component; returns only when it ends."""
    options = _parser().parse_args(arguments)
    os.umask(0o077)  # the database and the logs hold what others must not read
    settings = AirflowSettings(
        home=options.home.absolute(),
        listen=options.listen,
        dags=options.dags.absolute(),
        database_url=_database_url(options),
    )
    # The working directory identifies the component's processes, and holds the files they create.
    directory = (settings.home / "run" / options.component).resolve()
    directory.mkdir(parents=True, exist_ok=True)
    # A killed scheduler leaves its workers and their tasks running. The next one runs those tasks again, so
    # the old ones must end. Nothing is lost: tasks commit their results by rename.
    end_leftovers(directory)
    os.chdir(directory)
    os.environ["AIRFLOW_HOME"] = str(settings.home)
    if options.component == "api-server":
        try:
            write_home(settings)
        except HomeError as error:
            sys.exit(f"airflow: {error}")
        except OSError as error:
            sys.exit(f"airflow: {explained(error)}")
        # Imported here because Airflow reads its configuration at import: its home must exist first.
        from headrace.airflow.database import prepare

        prepare(connections=json.loads(options.connections.read_text()) if options.connections else {})
    sys.argv = ["airflow", options.component, *COMPONENTS[options.component]]
    from airflow.__main__ import main as airflow

    airflow()


def _database_url(options: argparse.Namespace) -> str | None:
    given: str | None = options.database_url
    return options.database_url_file.read_text().strip() if options.database_url_file else given


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m headrace.airflow.run", description=__doc__)
    parser.add_argument("component", choices=COMPONENTS)
    parser.add_argument("--home", type=Path, required=True, help="Airflow's home directory")
    parser.add_argument("--listen", required=True, metavar="HOST:PORT", help="the api-server's address")
    parser.add_argument("--dags", type=Path, required=True, help="folder of DAG files")
    url = parser.add_mutually_exclusive_group()
    url.add_argument("--database-url", help="SQLAlchemy URL (default: a SQLite file in the home)")
    url.add_argument(
        "--database-url-file", type=Path, help="a file that holds the URL: command lines show passwords"
    )
    parser.add_argument(
        "--connections",
        type=Path,
        help="JSON file {id: {conn_type, …}} of connections; those that users edited are kept",
    )
    return parser


if __name__ == "__main__":
    main()
