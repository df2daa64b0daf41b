"""The look for things that must not be committed."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.hygiene import problems, project_files

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("see https://py" + "pi.org/simple\n", "names a package host"),
        ("pip install --index-" + "url=https://example.org/simple x\n", "sets a package index"),
        ("path = '/ho" + "me/ada/project'\n", "names a path into a home folder"),
        ("path = '/ro" + "ot/project'\n", "names a path into a home folder"),
        ("#!/usr/bin/env bash\nif true; then\n", "does not parse"),
    ],
)
def test_a_bad_file_is_reported(tmp_path: Path, text: str, complaint: str) -> None:
    path = tmp_path / "file.txt"
    path.write_text(text)
    found = list(problems(path, tmp_path))
    assert len(found) == 1
    assert complaint in found[0]


@pytest.mark.parametrize(
    "text",
    [
        "sqlite:////var/lib/app/jobs.db\n",
        "GET /homepage and tree/root/leaf\n",
        "#!/bin/sh\ntrue\n",
        "index-url is set\n",
    ],
)
def test_a_good_file_passes(tmp_path: Path, text: str) -> None:
    path = tmp_path / "file.txt"
    path.write_text(text)
    assert list(problems(path, tmp_path)) == []


def test_bytes_that_are_no_text_are_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "image.png"
    path.write_bytes(b"\x89PNG\xff\xfe")
    assert list(problems(path, tmp_path)) == []


def test_the_files_of_the_project_are_found() -> None:
    assert ROOT / "pyproject.toml" in project_files(ROOT)
