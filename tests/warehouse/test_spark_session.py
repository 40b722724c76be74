"""Which Python Spark's workers are, and what is on its path."""

import subprocess
import sys

import pytest

from headrace.warehouse.session import worker_environment


@pytest.fixture(autouse=True)
def no_spark_home(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SPARK_HOME", raising=False)


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    python = worker_environment(sys.executable)["PYSPARK_PYTHON"]
    return subprocess.run(
        [python, *arguments], env=environment, capture_output=True, text=True, check=False, timeout=60
    )


@pytest.mark.parametrize(
    ("path", "kept"),
    [
        (
            "/s/python/lib/pyspark.zip:/s/python/lib/py4j-0.10.9.9-src.zip:/s/jars/spark-core_2.13-4.3.0.jar",
            "",
        ),
        (
            "/s/python/lib/pyspark.zip:/mine a:/other.zip:/s/jars/spark-core_2.13-4.3.0.jar:/b",
            "/mine a:/other.zip:/b",
        ),
        ("/mine", "/mine"),
        ("", ""),
    ],
)
def test_sparks_own_zip_is_taken_off_the_path_and_nothing_else(path: str, kept: str) -> None:
    program = "import os, sys; print(os.environ['PYTHONPATH']); print(sys.argv[1:])"
    done = run("-c", program, "two words", "", HEADRACE_PYTHON=sys.executable, PYTHONPATH=path)
    assert done.stdout.splitlines() == [kept, "['two words', '']"], done.stderr


def test_a_missing_interpreter_is_named() -> None:
    done = run("-c", "")
    assert done.returncode != 0
    assert "HEADRACE_PYTHON: is not set: it names the Python that has headrace" in done.stderr


def test_a_spark_of_the_user_keeps_its_zip(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_HOME", "/opt/spark")
    assert worker_environment("/a/python") == {"PYSPARK_PYTHON": "/a/python"}
