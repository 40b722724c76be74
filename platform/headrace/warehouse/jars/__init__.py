"""The Java artifacts, which Maven fetches once from Maven Central.

Owns the pom files beside this module, `$HEADRACE_HOME/jars/<set>/`, and the compiled launcher of the local
HDFS. Nothing else in headrace runs Maven; the bench has sets of its own, fetched by `ensure_set`.

A set's marker is written last and holds the digest of its pom and of its Java sources. A set without the
current digest is fetched again: its download was interrupted, or the pom or a source has changed. Only jars
with the SHA-256 that is pinned beside the pom are taken (`pins`).
"""

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from headrace.warehouse.jars.pins import PinsError, check_pins, pins_path, write_pins

DEFAULT_SETS: Final = ("hdfs", "spark")
MAVEN_TIMEOUT_S: Final = 900.0
_HERE: Final = Path(__file__).parent
_LAUNCHER: Final = _HERE.parent / "hdfs" / "LocalHdfs.java"
_MARKER: Final = ".complete"


class JarsError(Exception):
    """The Java artifacts can't be set up. The message names what is missing and what to do."""


@dataclass(frozen=True)
class JarSet:
    """What a folder of jars is made from: a pom, and Java sources that are compiled against its jars."""

    name: str
    pom: Path
    sources: tuple[Path, ...] = ()

    @property
    def digest(self) -> str:
        content = b"".join(path.read_bytes() for path in (self.pom, *self.sources))
        return hashlib.sha256(content).hexdigest()


def print_progress(line: str) -> None:
    print(line, file=sys.stderr)


def headrace_home() -> Path:
    """Returns `$HEADRACE_HOME`, by default `.headrace/` in the working directory."""
    return Path(os.environ.get("HEADRACE_HOME", ".headrace")).resolve()


def jars_dir(name: str, home: Path | None = None) -> Path:
    """Returns the directory of the set `name`, which may not exist yet: see `ensure_jars`."""
    return (home or headrace_home()) / "jars" / name


def java() -> str:
    """Returns the path of the `java` command: that of `$JAVA_HOME`, else the one on `PATH`."""
    return _tool("java")


def ensure_jars(
    sets: tuple[str, ...] = DEFAULT_SETS,
    *,
    home: Path | None = None,
    progress: Callable[[str], None] = print_progress,
) -> dict[str, Path]:
    """Fetches the sets that are missing. Safe to call from several processes at once.

    Returns the directory of each set, which holds its `.jar` files (that of `hdfs` also `classes/`, the
    launcher). Raises `JarsError` if Java or Maven is missing, or Maven fails.
    """
    return {name: ensure_set(_set(name), home=home, progress=progress) for name in sets}


def pom(name: str) -> Path:
    """Returns the pom file of the set `name`."""
    path = _HERE / f"{name}.xml"
    if not path.is_file():
        known = ", ".join(sorted(path.stem for path in _HERE.glob("*.xml")))
        raise JarsError(f"unknown set of jars {name!r}; known are: {known}")
    return path


def ensure_set(
    wanted: JarSet, *, home: Path | None = None, progress: Callable[[str], None] = print_progress
) -> Path:
    """Fetches one set if it is missing, and compiles its sources into `classes/`. Returns its directory.

    Safe to call from several processes at once. Raises `JarsError`.
    """
    target = jars_dir(wanted.name, home)
    digest = wanted.digest
    if _is_complete(target, digest):
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    with _locked(target.parent / f".{wanted.name}.lock"):
        if _is_complete(target, digest):
            return target
        progress(f"fetching the jars of {wanted.name!r} from Maven Central into {target}")
        with tempfile.TemporaryDirectory(prefix=f".{wanted.name}-", dir=target.parent) as scratch:
            fresh = Path(scratch) / wanted.name
            fresh.mkdir()
            _copy_dependencies(wanted.pom, fresh)
            _check(fresh, wanted.pom)
            if wanted.sources:
                _compile(wanted, fresh)
            (fresh / _MARKER).write_text(digest)
            if target.exists():
                shutil.rmtree(target)
            fresh.rename(target)
    return target


def _set(name: str) -> JarSet:
    return JarSet(name, pom(name), (_LAUNCHER,) if name == "hdfs" else ())


def pin(pom_file: Path) -> Path:
    """Fetches the jars of a pom, pins what came, and returns the file of the pins. Raises `JarsError`."""
    with tempfile.TemporaryDirectory() as scratch:
        _copy_dependencies(pom_file, Path(scratch))
        write_pins(Path(scratch), pins_path(pom_file))
    return pins_path(pom_file)


def _check(folder: Path, pom_file: Path) -> None:
    try:
        check_pins(folder, pins_path(pom_file))
    except PinsError as error:
        raise JarsError(str(error)) from error


def _copy_dependencies(pom_file: Path, into: Path) -> None:
    # Maven writes `target/` beside the pom: a copy keeps it out of an installed package.
    with tempfile.TemporaryDirectory() as scratch:
        copied = Path(scratch) / "pom.xml"
        shutil.copy(pom_file, copied)
        _run(
            [
                _tool("mvn"),
                "-q",
                "-B",
                "-f",
                str(copied),
                "dependency:copy-dependencies",
                "-DincludeScope=runtime",
                f"-DoutputDirectory={into}",
            ],
            f"Maven could not fetch the jars of {pom_file.name} (no network? repeating is safe)",
        )
    if not any(into.glob("*.jar")):
        raise JarsError(f"Maven fetched no jar for {pom_file.name}")


def _compile(wanted: JarSet, into: Path) -> None:
    classes = into / "classes"
    classes.mkdir()
    options = ["-nowarn", "-proc:none", "-cp", f"{into}/*", "-d", str(classes)]
    _run(
        [_tool("javac"), *options, *map(str, wanted.sources)],
        f"the Java sources of {wanted.name!r} did not compile",
    )


def _run(command: list[str], problem: str) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=MAVEN_TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired as error:
        raise JarsError(f"{problem}: not finished after {MAVEN_TIMEOUT_S:.0f} s") from error
    if done.returncode != 0:
        lines = [line for line in (done.stdout + done.stderr).splitlines() if line.strip()]
        raise JarsError(f"{problem}: " + " | ".join(lines[:5]))


def _tool(name: str) -> str:
    home = os.environ.get("JAVA_HOME")
    if home and name != "mvn" and (Path(home) / "bin" / name).is_file():
        return str(Path(home) / "bin" / name)
    found = shutil.which(name)
    if found is None:
        package = {"mvn": "Maven (Debian: maven)", "javac": "a JDK 17 (Debian: openjdk-17-jdk-headless)"}
        raise JarsError(f"the command {name!r} is missing: install {package.get(name, 'Java 17')}")
    return found


def _is_complete(target: Path, digest: str) -> bool:
    marker = target / _MARKER
    return marker.is_file() and marker.read_text() == digest


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
