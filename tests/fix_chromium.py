"""Debian's Chromium without a screen, for pages that a person would open.

Owns `Browser`, which speaks the DevTools protocol (chromedevtools.github.io/devtools-protocol) over a pipe.
Fixtures: `browser`, one for each file; `page_after_scripts`, the page as HTML. Both skip tests without
Chromium.
"""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest

from fix_zookeeper import die_with_parent

NAMES: Final = ("chromium", "chromium-browser", "google-chrome")
WAIT_MAX_S: Final = 120.0
OPTIONS: Final = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-proxy-server"),
    *("--no-first-run", "--disable-background-networking", "--disable-component-update"),
)
QUIET_S: Final = 0.3
"""A page is settled once no request is under way, and for so long nothing was told of it."""
ERROR_STATUS_MIN: Final = 400
_READ_BYTES: Final = 1 << 16
_LINKS: Final = "JSON.stringify([...document.links].map(link => link.href))"
_TEXT: Final = "document.body.innerText"


class Opened(NamedTuple):
    """A page in the browser: its title, the text that a person reads, where its links lead, and its errors.

    `errors`: what the console shows in red, scripts that failed, and requests that were refused.
    """

    title: str
    text: str
    links: list[str]
    errors: list[str]
    image: bytes


class Browser:
    """One Chromium with one tab."""

    def __init__(self, program: str, folder: Path) -> None:
        commands, self._commands = os.pipe()
        self._answers, answers = os.pipe()
        self._read = b""
        self._number = 0
        self._events: list[dict[str, Any]] = []
        # Chromium reads commands at descriptor 3, and writes at 4.
        script = f'exec 3<&{commands} 4>&{answers}; exec "$0" "$@"'
        words = [program, *OPTIONS, "--remote-debugging-pipe", f"--user-data-dir={folder}", "about:blank"]
        with (folder.parent / "chromium.log").open("wb") as log:
            self._process = subprocess.Popen(
                ["bash", "-c", script, *words],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=(commands, answers),
                preexec_fn=die_with_parent,
            )
        os.close(commands)
        os.close(answers)
        self._session = ""
        (target,) = [
            each["targetId"]
            for each in self._call("Target.getTargets")["targetInfos"]
            if each["type"] == "page"
        ]
        self._session = self._call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self._call(f"{domain}.enable")

    def open(self, url: str, *, password: str | None = None) -> Opened:
        """Opens a URL, and lets its scripts and requests end."""
        basic = base64.b64encode(f"operator:{password}".encode()).decode()
        headers = {} if password is None else {"Authorization": f"Basic {basic}"}
        self._call("Network.setExtraHTTPHeaders", headers=headers)
        self._call("Page.navigate", url="about:blank")
        self._settle()
        self._events = []
        self._call("Log.clear")
        problem = self._call("Page.navigate", url=url).get("errorText")
        self._settle()
        errors = [f"{url}: {problem}"] if problem else []
        errors += [error for event in self._events if (error := _error_of(event)) is not None]
        return Opened(
            self._evaluate("document.title"),
            self._evaluate(_TEXT),
            json.loads(self._evaluate(_LINKS)),
            errors,
            base64.b64decode(self._call("Page.captureScreenshot")["data"]),
        )

    def close(self) -> None:
        for descriptor in (self._commands, self._answers):
            os.close(descriptor)
        try:
            self._process.wait(10.0)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _settle(self) -> None:
        deadline = time.monotonic() + WAIT_MAX_S
        seen = 0
        while True:
            while self._receive(QUIET_S) is not None:
                assert time.monotonic() < deadline, "the page does not come to rest"
            loaded = any(event["method"] == "Page.loadEventFired" for event in self._events)
            if loaded and not self._under_way() and seen == len(self._events):
                return
            seen = len(self._events)
            assert time.monotonic() < deadline, f"the page does not end loading: {self._under_way()}"

    def _under_way(self) -> set[str]:
        begun = {e["params"]["requestId"] for e in self._events if e["method"] == "Network.requestWillBeSent"}
        ended = ("Network.loadingFinished", "Network.loadingFailed")
        return begun - {e["params"]["requestId"] for e in self._events if e["method"] in ended}

    def _evaluate(self, expression: str) -> Any:
        found = self._call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in found, found
        return found["result"]["value"]

    def _call(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._commands, json.dumps(message).encode() + b"\0")
        deadline = time.monotonic() + WAIT_MAX_S
        while time.monotonic() < deadline:
            answer = self._receive(WAIT_MAX_S)
            if answer is not None and answer.get("id") == self._number:
                assert "error" not in answer, (method, answer)
                result: dict[str, Any] = answer["result"]
                return result
        raise AssertionError(f"Chromium did not answer {method}")

    def _receive(self, timeout_s: float) -> dict[str, Any] | None:
        """The next message; None if there is none in this time. Events are kept."""
        while b"\0" not in self._read:
            if not select.select([self._answers], [], [], timeout_s)[0]:
                return None
            piece = os.read(self._answers, _READ_BYTES)
            assert piece, "Chromium has ended"
            self._read += piece
        text, _, self._read = self._read.partition(b"\0")
        message: dict[str, Any] = json.loads(text)
        if "method" in message:
            self._events.append(message)
        return message


def _error_of(event: dict[str, Any]) -> str | None:
    parameters = event["params"]
    match event["method"]:
        case "Log.entryAdded" if parameters["entry"]["level"] in ("warning", "error"):
            return f"{parameters['entry']['text']} ({parameters['entry'].get('url', '')})"
        case "Runtime.exceptionThrown":
            return f"a script failed: {parameters['exceptionDetails']}"
        case "Runtime.consoleAPICalled" if parameters["type"] in ("warning", "error", "assert"):
            return f"console: {parameters['args']}"
        case "Network.responseReceived" if parameters["response"]["status"] >= ERROR_STATUS_MIN:
            return f"{parameters['response']['url']}: {parameters['response']['status']}"
        case "Network.loadingFailed":
            return f"a request failed: {parameters['errorText']}"
    return None


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    folder = tmp_path_factory.mktemp("chromium") / "browser"
    folder.mkdir()
    made = Browser(chromium(), folder)
    try:
        yield made
    finally:
        made.close()


def chromium() -> str:
    """The program; skips the test if there is none."""
    program = next((found for name in NAMES if (found := shutil.which(name))), None)
    if program is None:
        pytest.skip("Chromium is not installed: apt-get install chromium")
    return program


@pytest.fixture
def page_after_scripts(tmp_path: Path) -> Callable[[str], str]:
    """Opens a URL, lets its scripts and requests end, and returns the page as HTML."""
    program = chromium()

    def opened(url: str) -> str:
        command = [program, *OPTIONS, f"--user-data-dir={tmp_path / 'browser'}"]
        command += ["--virtual-time-budget=20000", "--dump-dom", url]
        done = subprocess.run(command, capture_output=True, text=True, timeout=WAIT_MAX_S, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    return opened
