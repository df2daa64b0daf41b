"""Finding Java, and saying how to get it."""

from __future__ import annotations

import stat
from pathlib import Path
from types import SimpleNamespace

import pytest

from windlass.pipeline.session import (
    JavaMissingError,
    SessionOptions,
    SparkJobError,
    _raise_java_error,
    _settings,
    find_java,
    require_java,
)


def fake_java(folder: Path, version: str) -> None:
    path = folder / "bin" / "java"
    path.parent.mkdir(parents=True)
    path.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\"' >&2\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)


def test_without_java_the_message_says_how_to_get_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    assert find_java() is None
    with pytest.raises(JavaMissingError, match="openjdk-17-jre-headless"):
        require_java()


@pytest.mark.parametrize(
    ("version", "good"), [("1.8.0_392", False), ("11.0.2", False), ("17.0.15", True), ("21", True)]
)
def test_old_java_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str, good: bool
) -> None:
    fake_java(tmp_path, version)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    if good:
        assert require_java() == str(tmp_path / "bin" / "java")
    else:
        with pytest.raises(JavaMissingError, match="Java 17"):
            require_java()


def test_settings_fit_the_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYSPARK_GATEWAY_PORT", raising=False)
    assert _settings(SessionOptions())["spark.master"] == "local[*]"
    cluster = _settings(SessionOptions(master="spark://somewhere:7077"))
    assert "spark.driver.host" not in cluster
    assert _settings(SessionOptions(conf={"spark.ui.enabled": "true"}))["spark.ui.enabled"] == "true"
    monkeypatch.setenv("PYSPARK_GATEWAY_PORT", "1")
    assert "spark.master" not in _settings(SessionOptions())  # spark-submit has said where


def test_an_error_of_the_jvm_is_told_in_one_line_of_ours() -> None:
    """Its own text cannot be had any more when the JVM has ended."""
    from py4j.protocol import Py4JJavaError

    error = Py4JJavaError.__new__(Py4JJavaError)
    error.java_exception = SimpleNamespace(getMessage=lambda: "Job aborted: task 0 failed 4 times\n\tat java")
    with pytest.raises(SparkJobError, match=r"gave up: Job aborted: task 0 failed 4 times$"):
        _raise_java_error(error)
    _raise_java_error(ValueError("not of the JVM"))
