"""Runs the code of one Markdown page: ``python runner.py PAGE.md``, in an empty directory.

- A ``python`` block whose first line is ``# name.py`` becomes that file. Every other one is executed, all in
  one namespace, in order; ``await`` works at the top level, as in ``python -m asyncio``.
- A comment ``# -> text`` in a block is a line that the block must print, in order. A block without such
  comments may print what it likes.
- In a ``sh`` block, lines that begin with ``windlass`` or ``python`` are run. A worker without ``--burst``
  stays in the background until the page ends. Other lines (``pip install``) are for people. Variables of the
  environment are filled in; a line that ends in ``|| true`` may fail.
- A block that follows ``<!-- not run -->`` is left alone.
"""

from __future__ import annotations

import ast
import asyncio
import contextlib
import io
import os
import re
import shlex
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

_FENCE = re.compile(
    r"^(?P<skip><!-- not run -->\n+)?^```(?P<kind>\w+)\n(?P<code>.*?)^```$", re.MULTILINE | re.DOTALL
)
_EXPECTED = re.compile(r"#\s*-> ?(.*)$", re.MULTILINE)
_FILE = re.compile(r"\A# (\w+\.py)\n")


@dataclass
class Block:
    """One fenced block and the line where its code begins."""

    kind: str
    code: str
    line: int


def blocks_of(text: str) -> list[Block]:
    """The blocks of a page that are to be run."""
    return [
        Block(match["kind"], match["code"], text[: match.start("code")].count("\n") + 1)
        for match in _FENCE.finditer(text)
        if not match["skip"] and match["kind"] in ("python", "sh")
    ]


class Page:
    """A page while it is run."""

    def __init__(self, path: Path) -> None:
        self._path = path
        module = sys.modules["page"] = ModuleType("page")  # dataclasses look themselves up there
        self._namespace: dict[str, Any] = module.__dict__
        self._loop = asyncio.Runner()
        self._background: list[subprocess.Popen[bytes]] = []

    def run(self) -> int:
        """Run every block; returns how many there were."""
        sys.path.insert(0, os.getcwd())
        blocks = blocks_of(self._path.read_text())
        try:
            for block in blocks:
                if block.kind == "sh":
                    self._shell(block)
                elif found := _FILE.match(block.code):
                    Path(found[1]).write_text(block.code)
                else:
                    self._python(block)
        finally:
            self._end()
        return len(blocks)

    def _python(self, block: Block) -> None:
        source = "\n" * (block.line - 1) + block.code
        code: CodeType = compile(
            source, str(self._path), "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True
        )
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            self._loop.run(self._execute(code))
        expected = [line.strip() for line in _EXPECTED.findall(block.code)]
        lines = [line.strip() for line in printed.getvalue().splitlines()]
        if expected and lines != expected:
            raise AssertionError(f"{self._path.name}:{block.line} printed {lines}, the page says {expected}")

    async def _execute(self, code: CodeType) -> None:
        answer = eval(code, self._namespace)
        if asyncio.iscoroutine(answer):
            await answer

    def _shell(self, block: Block) -> None:
        for line in block.code.replace("\\\n", " ").splitlines():
            line, may_fail, _ = line.partition("|| true")
            words = shlex.split(os.path.expandvars(line), comments=True)
            if not words or words[0] not in ("windlass", "python"):
                continue
            start = [sys.executable, "-m", "windlass"] if words[0] == "windlass" else [sys.executable]
            if words[:2] == ["windlass", "worker"] and "--burst" not in words:
                self._background.append(subprocess.Popen([*start, *words[1:]], stderr=subprocess.DEVNULL))
                continue
            done = subprocess.run(
                [*start, *words[1:]], capture_output=True, text=True, check=False, timeout=50
            )
            if done.returncode != 0 and not may_fail:
                raise AssertionError(
                    f"{self._path.name}: {line!r} ended with {done.returncode}: {done.stderr}"
                )

    def _end(self) -> None:
        self._loop.close()
        for process in self._background:
            process.terminate()
        for process in self._background:
            process.wait(30)


if __name__ == "__main__":
    sys.stdout.write(f"{Page(Path(sys.argv[1])).run()} blocks\n")
