"""`python -m headrace.postgresql`: run the PostgreSQL server of Airflow's database in the foreground.

The server replaces this process, so that a supervisor's signals reach it: SIGINT ends it at once and in
order, SIGTERM only when its clients have left. If root starts it, it runs as Debian's user `postgres`.
"""

from __future__ import annotations

import argparse
import os
import pwd
import sys
from pathlib import Path
from typing import NoReturn

from headrace.postgresql.cluster import (
    CLUSTER,
    ClusterError,
    Folder,
    environment,
    prepare,
    server_command,
    strangers_in,
)
from headrace.postgresql.installation import SERVER_USER, WAY_OUT, installations, user_problem
from headrace.process.disk import explained
from headrace.process.own_folder import make_own_folder


def main(arguments: list[str] | None = None) -> NoReturn:
    parser = argparse.ArgumentParser(
        prog="python -m headrace.postgresql", description="PostgreSQL for Airflow, on a Unix socket alone."
    )
    parser.add_argument("--data-dir", required=True, type=Path, help="the folder of the data")
    parser.add_argument(
        "--socket-folder", required=True, type=Path, help="a link to the socket's folder that is made there"
    )
    options = parser.parse_args(arguments)
    try:
        command = server(options.data_dir.absolute(), options.socket_folder.absolute())
    except ClusterError as error:
        sys.exit(f"postgresql: {error}")
    except OSError as error:
        sys.exit(f"postgresql: {explained(error)}")
    os.execve(command[0], command, environment())


def server(data_dir: Path, socket_folder: Path) -> list[str]:
    """Makes everything ready, as the user who is to run the server; returns its command line.

    Raises `ClusterError` and `OSError`.
    """
    found = installations(Path(sys.prefix))
    if problem := user_problem(os.geteuid()) or (None if found else "PostgreSQL is not installed"):
        raise ClusterError(f"{problem}: {WAY_OUT}")
    client = pwd.getpwuid(os.geteuid()).pw_name
    data_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
    _link(socket_folder, data_dir / CLUSTER)
    folder = Folder(os.open(data_dir, os.O_RDONLY | os.O_DIRECTORY), data_dir.resolve())
    os.set_inheritable(folder.descriptor, True)
    if os.geteuid() == 0:
        _become_server_user(folder)
    os.chdir("/")
    return server_command(folder, prepare(folder, found, client))


def _become_server_user(folder: Folder) -> None:
    user = pwd.getpwnam(SERVER_USER)
    if os.fstat(folder.descriptor).st_uid != user.pw_uid and (others := strangers_in(folder)):
        raise ClusterError(
            f"{folder.path} holds other files, such as {others[0]}: give the database a folder of its own"
        )
    os.fchown(folder.descriptor, user.pw_uid, user.pw_gid)
    os.setgroups([])
    os.setgid(user.pw_gid)
    os.setuid(user.pw_uid)


def _link(link: Path, target: Path) -> None:
    """Makes or corrects the link through which clients find the socket."""
    if not make_own_folder(link.parent):
        raise ClusterError(
            f"others than this user can write {link.parent}, where the database's socket has to be found: "
            f"remove it, or `chmod go-w {link.parent}`"
        )
    if link.is_symlink() and link.readlink() == target:
        return
    link.unlink(missing_ok=True)
    link.symlink_to(target)


if __name__ == "__main__":
    main()
