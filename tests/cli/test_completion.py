"""Shell completion: the scripts are printed, and the shells' questions are answered."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

import pytest

from tests.cli.support import Cli

pytestmark = pytest.mark.feature("X3")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_of_a_shell(cli: Cli, shell: str) -> None:
    text = cli("completion", shell).output
    assert "_WINDLASS_COMPLETE" in text
    assert cli.json("completion", shell)["script"].strip() == text.strip()


def test_bash_accepts_it(cli: Cli) -> None:
    bash = shutil.which("bash")
    assert bash is not None
    done = subprocess.run(
        [bash, "-n"], input=cli("completion", "bash").output, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    ("words", "expected"),
    [("windlass que", "queues"), ("windlass jobs --sta", "--state"), ("windlass fl", "flow")],
)
def test_commands_and_options_are_completed(words: str, expected: str) -> None:
    env = {
        **os.environ,
        "_WINDLASS_COMPLETE": "bash_complete",
        "COMP_WORDS": words,
        "COMP_CWORD": str(len(words.split()) - 1),
    }
    program = "import sys; sys.argv[0] = 'windlass'; from windlass.cli.main import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", program], env=env, capture_output=True, text=True, check=False, timeout=30
    )
    assert f"plain,{expected}" in done.stdout, done.stderr


def test_an_unknown_shell_is_refused(cli: Cli) -> None:
    assert "is not one of 'bash', 'fish', 'zsh'" in cli("completion", "tcsh", code=2).stderr
