"""Every code by which a program tells errors apart: exit codes, the agent's `error`, the registry's numbers.

Owns the collecting. The agent's codes are attributes of its exceptions or words in its web application; the
registry's are constants.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from headrace.agent import access, app, loads
from headrace.agent.errors import AgentError
from headrace.cli.errors import EXIT_CODES
from headrace.registry import errors as registry_errors
from reference.markdown import GENERATED, code, escaped, table

MEANINGS: Final = {
    "unauthorized": "The request has no token, or an unknown one.",
    "read_only": "The token is for reading.",
    "path_unknown": "Nothing is served at this path.",
    "method_not_allowed": "The path has no such method.",
    "host_failed": "A file or a process of the host failed.",
    "supervisor_failed": "supervisord did not start, or does not answer.",
    "agent_broken": "An error of the agent itself; its log has the traceback.",
}
"""What the codes mean that the agent's web application gives itself."""
REFUSING: Final = ("refuse", "_refuse")
"""Functions that respond with a status, a code and a message."""


class Code(NamedTuple):
    """One code, the HTTP status that comes with it, and what it means as far as the code says."""

    status: int
    code: str
    meaning: str


def exit_codes() -> dict[str, str]:
    """Returns the meanings of the exit codes, by number."""
    return {str(int(number)): meaning for number, meaning in EXIT_CODES.items()}


def exit_code_table() -> str:
    return table(["code", "meaning"], list(exit_codes().items()))


def agent_codes() -> list[Code]:
    """Returns the codes of the agent's exceptions, and those that its application gives itself."""
    found = {
        (error.code, error.status): Code(error.status, error.code, str(vars(error).get("__doc__") or ""))
        for error in _subclasses(AgentError)
    }
    for each in (*_refused(app), *_refused(access), *_refused(loads)):
        found.setdefault((each.code, each.status), each)
    return sorted(found.values())


def _subclasses(of: type[AgentError]) -> Iterator[type[AgentError]]:
    for each in of.__subclasses__():
        yield each
        yield from _subclasses(each)


def _refused(module: Any) -> Iterator[Code]:
    """Codes in calls such as `refuse(503, "supervisor_failed", …)`, and those by HTTP status in a dict."""
    for node in ast.walk(ast.parse(inspect.getsource(module))):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in REFUSING:
            values = [arg.value for arg in node.args if isinstance(arg, ast.Constant)]
            if len(values) >= 2 and isinstance(values[0], int):
                yield Code(values[0], str(values[1]), MEANINGS.get(str(values[1]), ""))
        elif isinstance(node, ast.Dict):
            pairs = [
                (k, v) for k, v in zip(node.keys, node.values, strict=True) if isinstance(k, ast.Constant)
            ]
            for key, value in pairs:
                if isinstance(key.value, int) and isinstance(value, ast.Constant):
                    yield Code(key.value, str(value.value), MEANINGS.get(str(value.value), ""))


def registry_codes() -> list[Code]:
    """Returns the registry's codes; a meaning is the constant's name in words."""
    constants = {
        name: value
        for name, value in vars(registry_errors).items()
        if name.isupper() and isinstance(value, int)
    }
    return sorted(
        Code(value // 100 if value > 999 else value, str(value), name.replace("_", " ").lower())
        for name, value in constants.items()
    )


def codes_page() -> str:
    """Returns the page of all codes."""
    return (
        "\n\n".join(
            [
                "# Codes",
                GENERATED,
                "[Messages](../messages.md) says what to do about them.",
                "## Exit codes of headrace",
                exit_code_table(),
                "## `error` of the agent",
                _table(agent_codes(), "error"),
                "## `error_code` of the registry",
                "Confluent's, and our own in their gaps.",
                _table(registry_codes(), "error_code"),
            ]
        )
        + "\n"
    )


def _table(codes: list[Code], name: str) -> str:
    rows = [(code(each.code), str(each.status), escaped(" ".join(each.meaning.split()))) for each in codes]
    return table([name, "HTTP status", "meaning"], rows)
