"""Java artifacts: what is fetched from Maven Central, once, and where it lies.

Owns: the pom files beside this module, `$HEADRACE_HOME/jars/<set>/`, and the compiled launcher of the
local HDFS. Nothing else in headrace runs Maven. Uses neither Spark nor the network itself.

A set is complete when its marker holds the digest of the pom (and of the launcher's source) it was made
from, so a changed pom is fetched anew and an interrupted download is never taken for a whole one.
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
from pathlib import Path
from typing import Final

DEFAULT_SETS: Final = ("hdfs", "spark")
MAVEN_TIMEOUT_S: Final = 900.0
_HERE: Final = Path(__file__).parent
_LAUNCHER: Final = _HERE.parent / "hdfs" / "LocalHdfs.java"
_MARKER: Final = ".complete"


class JarsError(Exception):
    """Setting up the Java artifacts failed; the message says what is missing and what to do."""


def headrace_home() -> Path:
    """`$HEADRACE_HOME`, by default `.headrace/` of the working directory."""
    return Path(os.environ.get("HEADRACE_HOME", ".headrace")).resolve()


def jars_dir(name: str, home: Path | None = None) -> Path:
    """Where the set `name` lies. It may not be there yet: see `ensure_jars`."""
    return (home or headrace_home()) / "jars" / name


def java() -> str:
    """The path of the `java` command: `$JAVA_HOME`'s, else the one on `PATH`."""
    return _tool("java")


def ensure_jars(
    sets: tuple[str, ...] = DEFAULT_SETS,
    *,
    home: Path | None = None,
    say: Callable[[str], None] = lambda line: print(line, file=sys.stderr),
) -> dict[str, Path]:
    """Fetch every set that is not here yet. Safe to call from several processes at once.

    Returns the directory of each set, holding its `.jar` files (`hdfs` also holds `classes/`, the launcher).
    Raises `JarsError` where Java or Maven is missing, or Maven fails.
    """
    return {name: _ensure(name, home or headrace_home(), say) for name in sets}


def pom(name: str) -> Path:
    """The pom file of the set `name`."""
    path = _HERE / f"{name}.xml"
    if not path.is_file():
        known = ", ".join(sorted(each.stem for each in _HERE.glob("*.xml")))
        raise JarsError(f"there is no set of jars named {name!r}; there are: {known}")
    return path


def _ensure(name: str, home: Path, say: Callable[[str], None]) -> Path:
    target = jars_dir(name, home)
    digest = _digest(name)
    if _is_complete(target, digest):
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    with _locked(target.parent / f".{name}.lock"):
        if _is_complete(target, digest):
            return target
        say(f"fetching the jars of {name!r} from Maven Central into {target}")
        with tempfile.TemporaryDirectory(prefix=f".{name}-", dir=target.parent) as scratch:
            fresh = Path(scratch) / name
            fresh.mkdir()
            _copy_dependencies(name, fresh)
            if name == "hdfs":
                _compile_launcher(fresh)
            (fresh / _MARKER).write_text(digest)
            if target.exists():
                shutil.rmtree(target)
            fresh.rename(target)
    return target


def _copy_dependencies(name: str, into: Path) -> None:
    # Maven reads the pom's folder: a copy keeps its `target/` out of an installed package.
    with tempfile.TemporaryDirectory() as scratch:
        copied = Path(scratch) / "pom.xml"
        shutil.copy(pom(name), copied)
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
            f"Maven could not fetch the jars of {name!r} (no network? it is safe to repeat)",
        )
    if not any(into.glob("*.jar")):
        raise JarsError(f"Maven fetched no jar for {name!r}")


def _compile_launcher(into: Path) -> None:
    classes = into / "classes"
    classes.mkdir()
    _run(
        [_tool("javac"), "-nowarn", "-proc:none", "-cp", f"{into}/*", "-d", str(classes), str(_LAUNCHER)],
        "the HDFS launcher did not compile",
    )


def _run(command: list[str], problem: str) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=MAVEN_TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired as error:
        raise JarsError(f"{problem}: no end after {MAVEN_TIMEOUT_S:.0f} s") from error
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


def _digest(name: str) -> str:
    content = pom(name).read_bytes() + (_LAUNCHER.read_bytes() if name == "hdfs" else b"")
    return hashlib.sha256(content).hexdigest()


def _is_complete(target: Path, digest: str) -> bool:
    marker = target / _MARKER
    return marker.is_file() and marker.read_text() == digest


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
