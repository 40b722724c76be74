"""`python containers/container_image.py`: builds the container image `headrace` without a registry.

Owns what the image contains and when it is built again. Debian packages (mmdebstrap), the pinned Python
packages (uv) and the jars (Maven, by `warehouse.jars`) are the image `headrace-base`; headrace's own wheel on
top of it is the image `headrace`. Each has a digest of its content as its label: an image that exists is not
built twice, and a test never runs an image of other content. Needs a Docker engine on this machine and its
command; tests call `engine_problem` before they import Docker's packages.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Final

import httpx

ROOT: Final = Path(__file__).parents[1]
HERE: Final = ROOT / "containers"
IMAGE: Final = "headrace"
BASE: Final = "headrace-base"
LABEL: Final = "headrace.content"

SUITE: Final = "bookworm"
"""The Debian release that has the image's Python (3.11) and Java (17)."""
PACKAGES: Final = ("python3", "openjdk-17-jre-headless", "haproxy", "tini", "ca-certificates")
LEFT_OUT: Final = ("/usr/share/man/*", "/usr/share/doc/*", "/usr/share/locale/*")
PYTHON_VERSION: Final = "3.11"
JARS: Final = ("zookeeper", "hdfs")

ENGINE_WAIT_MAX_S: Final = 5.0
SOCKET: Final = "unix:///var/run/docker.sock"


class ImageError(Exception):
    """The image cannot be built; the message says what is missing and what to do."""


def engine_problem() -> str | None:
    """Why no container can run here; None if a Docker engine responds. Takes a millisecond."""
    address = os.environ.get("DOCKER_HOST") or SOCKET
    if not address.startswith("unix://"):
        return f"DOCKER_HOST is {address}, and only an engine of this machine (unix://…) can be used"
    path = address.removeprefix("unix://")
    if not Path(path).exists():
        return f"no Docker engine here: {path} does not exist (DOCKER_HOST may name another)"
    try:
        with httpx.Client(transport=httpx.HTTPTransport(uds=path), timeout=ENGINE_WAIT_MAX_S) as client:
            status = client.get("http://localhost/_ping").status_code
    except httpx.HTTPError as error:
        return f"the Docker engine at {path} does not respond: {error}"
    return None if status == 200 else f"the Docker engine at {path} answered {status}"


def content() -> str:
    """A digest of all content of the image `headrace`."""
    folders = ("platform", "broker", "mirror", "terraform/headrace", "schemas")
    code = [path for folder in folders for path in _files(ROOT / folder)]
    own = [ROOT / "pyproject.toml", HERE / "Dockerfile", HERE / "headrace", HERE / "headrace-container"]
    return _digest([*code, *own], base_content())


def base_content() -> str:
    """A digest of all content of the image `headrace-base`."""
    warehouse = ROOT / "platform" / "headrace" / "warehouse"
    poms = [warehouse / "jars" / f"{name}.xml" for name in JARS]
    files = [
        ROOT / "requirements" / "image.txt",
        HERE / "base.Dockerfile",
        *poms,
        warehouse / "hdfs" / "LocalHdfs.java",
    ]
    return _digest(files, *_root_command())


def _files(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file() and "__pycache__" not in path.parts]


def _digest(paths: Iterable[Path], *words: str) -> str:
    sums = hashlib.sha256("\0".join(words).encode())
    for path in sorted(paths):
        sums.update(f"{path.relative_to(ROOT)}\0{hashlib.sha256(path.read_bytes()).hexdigest()}\0".encode())
    return sums.hexdigest()[:16]


def _root_command() -> list[str]:
    command = ["mmdebstrap", "--quiet", "--variant=essential", f"--include={','.join(PACKAGES)}"]
    command += [f"--dpkgopt=path-exclude={pattern}" for pattern in LEFT_OUT]
    command += ["--dpkgopt=path-include=/usr/share/doc/*/copyright"]
    # Java's package links its manual pages into this folder, and fails without it.
    return [*command, '--setup-hook=mkdir -p "$1/usr/share/man/man1"', SUITE]


def make_image(home: Path) -> None:
    """Builds the images that do not exist yet; `home` keeps their parts. Raises `ImageError`."""
    if problem := engine_problem():
        raise ImageError(problem)
    wanted = content()
    if _use(IMAGE, wanted):
        print(f"the image {IMAGE} exists already, with the same content ({wanted})")
        return
    work = home / "image"
    work.mkdir(parents=True, exist_ok=True)
    if not _use(BASE, base_content()):
        _make_base(work, home)
    context = _emptied(work / "code")
    _run(
        "headrace's wheel could not be built",
        *(_beside_python("uv"), "build", "-q", "--wheel", "--no-build-isolation", "--python", sys.executable),
        *("-o", context / "wheel", ROOT),
    )
    (wheel,) = (context / "wheel").glob("*.whl")
    _install(context / "code", "--no-deps", wheel)
    shutil.rmtree(context / "wheel")
    for name in ("headrace", "headrace-container"):
        shutil.copy(HERE / name, context)
    _build(IMAGE, wanted, HERE / "Dockerfile", context)
    shutil.rmtree(context)


def _make_base(work: Path, home: Path) -> None:
    # Imported here because tests import this file without the extra `warehouse`.
    from headrace.warehouse.jars import JarsError, ensure_jars

    root = work / f"root-{_digest([], *_root_command())}.tar"
    if not root.exists():
        _make_root(root)
    try:
        jars = ensure_jars(JARS, home=home)
    except JarsError as error:
        raise ImageError(str(error)) from error
    context = _emptied(work / "base")
    os.link(root, context / "root.tar")
    for name in JARS:
        shutil.copytree(jars[name], context / "jars" / name, copy_function=os.link)
    _install(context / "packages", "--require-hashes", "-r", ROOT / "requirements" / "image.txt")
    _build(BASE, base_content(), HERE / "base.Dockerfile", context)
    shutil.rmtree(context)


def _make_root(path: Path) -> None:
    if shutil.which("mmdebstrap") is None:
        raise ImageError("mmdebstrap, which makes the image's root, is not installed (Debian: mmdebstrap)")
    print(f"making a root of Debian {SUITE} with {', '.join(PACKAGES)} (once, two minutes)")
    for old in path.parent.glob("root-*.tar"):
        old.unlink()
    new = path.with_suffix(".new")
    # A fixed time in the archive, so that the same packages give the same bytes.
    environment = {**os.environ, "SOURCE_DATE_EPOCH": "1700000000", "TMPDIR": str(path.parent)}
    try:
        _run("the image's root could not be built", *_root_command(), "--format=tar", new, env=environment)
        new.replace(path)
    finally:
        new.unlink(missing_ok=True)


def _install(into: Path, *what: str | Path) -> None:
    """Installs Python packages for the image's Python, which may be another than this process's."""
    _run(
        "the image's Python packages could not be installed",
        *(_beside_python("uv"), "pip", "install", "-q", "--target", into, "--python", sys.executable),
        *("--python-version", PYTHON_VERSION, *what),
    )
    # The installed commands would name this machine's Python.
    shutil.rmtree(into / "bin", ignore_errors=True)


def _beside_python(name: str) -> Path:
    return Path(sys.executable).parent / name


def _emptied(folder: Path) -> Path:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    return folder


def _use(image: str, wanted: str) -> bool:
    """Tags the image of this content with the name; returns whether there is one."""
    found = _docker("image", "ls", "-q", "--no-trunc", "--filter", f"label={LABEL}={wanted}").split()
    if found:
        _docker("tag", found[0], image)
    return bool(found)


def _build(image: str, wanted: str, dockerfile: Path, context: Path) -> None:
    print(f"building the image {image} ({wanted})")
    options = ("--network", "none", "--tag", image, "--label", f"{LABEL}={wanted}")
    _docker("build", "-q", *options, "-f", dockerfile, context)


def _docker(*words: str | Path) -> str:
    if shutil.which("docker") is None:
        raise ImageError("the command docker is not installed (Debian: docker.io, or docker-cli)")
    return _run(f"docker {words[0]} failed", "docker", *words)


def _run(problem: str, *command: str | Path, env: dict[str, str] | None = None) -> str:
    try:
        done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False, env=env)
    except OSError as error:
        raise ImageError(f"{problem}: {command[0]}: {error.strerror}") from error
    if done.returncode:
        lines = [line for line in (done.stderr or done.stdout).splitlines() if line.strip()]
        raise ImageError(f"{problem}: " + " | ".join(lines[-5:]))
    return done.stdout


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description="Make the container image headrace.")
    parser.add_argument("--engine", action="store_true", help="only check for a Docker engine")
    options = parser.parse_args(arguments)
    if options.engine:
        return 1 if engine_problem() else 0
    try:
        make_image(Path(os.environ.get("HEADRACE_HOME") or ROOT / ".headrace").absolute())
    except ImageError as error:
        print(f"headrace: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
