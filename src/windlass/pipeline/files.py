"""The few file operations a lake needs, on local paths and on anything that Hadoop can reach.

``LocalFiles`` needs no JVM: exclusive creation is a hard link to a finished, synced file, so that a reader
never sees half of one. ``HadoopFiles`` speaks to Spark's file system API; it relies on the store's own
exclusive create and on atomic rename of a file (true of HDFS). Paths are relative to the lake's root.
"""

from __future__ import annotations

import io
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import urlsplit

from windlass.backend.urls import hide_secrets
from windlass.core.ids import new_id

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Files(Protocol):
    """Files below one root."""

    @property
    def root(self) -> str:
        """The root as Spark should be told."""
        ...

    def exists(self, path: str) -> bool: ...

    def read(self, path: str) -> bytes:
        """The whole file, or ``FileNotFoundError``."""
        ...

    def create(self, path: str, data: bytes) -> bool:
        """Create the file with all its content; False (and nothing done) when it is there."""
        ...

    def replace(self, path: str, data: bytes) -> None:
        """Write a file whether it is there or not. Only for hints: need not be atomic."""
        ...

    def move(self, source: str, target: str) -> None:
        """Rename a file, making the folders on the way."""
        ...

    def delete(self, path: str) -> None:
        """Delete a file or a whole folder; fine when there is none."""
        ...

    def names(self, path: str) -> list[str]:
        """The names in a folder, sorted; none when there is no such folder."""
        ...

    def walk(self, path: str) -> Iterator[str]:
        """Every file below a folder, as paths from the root."""
        ...

    def open(self, path: str) -> Any:
        """A seekable binary file to read from."""
        ...

    def size(self, path: str) -> int: ...

    def sync(self, path: str) -> None:
        """Make the content survive a power cut, where the store does not do so by itself."""
        ...


def open_files(root: str, spark: SparkSession | None = None) -> Files:
    """The files below ``root``: a plain path, or a URL that Hadoop understands (needs ``spark``)."""
    parts = urlsplit(root)
    if parts.scheme in ("", "file"):
        return LocalFiles(parts.path if parts.scheme else root)
    if spark is None:
        raise ValueError(f"{hide_secrets(root)} can only be read through Spark")
    return HadoopFiles(root, spark)


class LocalFiles:
    """A folder of this machine (or one mounted on all machines at the same place)."""

    def __init__(self, root: str | os.PathLike[str]) -> None:
        self._root = Path(root).absolute()

    @property
    def root(self) -> str:
        return str(self._root)

    def exists(self, path: str) -> bool:
        return (self._root / path).exists()

    def read(self, path: str) -> bytes:
        return (self._root / path).read_bytes()

    def create(self, path: str, data: bytes) -> bool:
        target = self._root / path
        if target.exists():
            return False
        target.parent.mkdir(parents=True, exist_ok=True)
        draft = target.with_name(f".{target.name}.{new_id()}")
        try:
            with draft.open("xb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            os.link(draft, target)
        except FileExistsError:
            return False
        finally:
            draft.unlink(missing_ok=True)
        _sync_folder(target.parent)
        return True

    def replace(self, path: str, data: bytes) -> None:
        target = self._root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        draft = target.with_name(f".{target.name}.{new_id()}")
        draft.write_bytes(data)
        draft.replace(target)

    def move(self, source: str, target: str) -> None:
        path = self._root / target
        path.parent.mkdir(parents=True, exist_ok=True)
        (self._root / source).rename(path)

    def delete(self, path: str) -> None:
        target = self._root / path
        if target.is_dir():
            shutil.rmtree(target, ignore_errors=True)
        else:
            target.unlink(missing_ok=True)

    def names(self, path: str) -> list[str]:
        try:
            return sorted(name for name in os.listdir(self._root / path) if not name.startswith("."))
        except FileNotFoundError:
            return []

    def walk(self, path: str) -> Iterator[str]:
        for folder, _, names in os.walk(self._root / path):
            inside = Path(folder).relative_to(self._root)
            for name in sorted(names):
                yield str(inside / name)

    def open(self, path: str) -> Any:
        return (self._root / path).open("rb")

    def size(self, path: str) -> int:
        return (self._root / path).stat().st_size

    def sync(self, path: str) -> None:
        with (self._root / path).open("rb") as file:
            os.fsync(file.fileno())


def _sync_folder(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


class HadoopFiles:
    """A folder that Spark's Hadoop file system API reaches, such as ``hdfs://`` or ``s3a://``."""

    def __init__(self, root: str, spark: SparkSession) -> None:
        # py4j's objects have no types: everything behind _jvm is Any.
        self._jvm: Any = spark._jvm
        self._root = root.rstrip("/")
        base = self._path("")
        self._fs: Any = base.getFileSystem(spark._jsc.hadoopConfiguration())

    @property
    def root(self) -> str:
        return self._root

    def _path(self, path: str) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path(f"{self._root}/{path}".rstrip("/"))

    def exists(self, path: str) -> bool:
        return bool(self._fs.exists(self._path(path)))

    def read(self, path: str) -> bytes:
        if not self.exists(path):
            raise FileNotFoundError(f"{self._root}/{path}")
        with self.open(path) as file:
            return bytes(file.read())

    def create(self, path: str, data: bytes) -> bool:
        from py4j.protocol import Py4JJavaError

        try:
            stream = self._fs.create(self._path(path), False)
        except Py4JJavaError as exc:
            if "FileAlreadyExists" in exc.java_exception.getClass().getName():
                return False
            raise
        self._write(stream, data)
        return True

    def replace(self, path: str, data: bytes) -> None:
        self._write(self._fs.create(self._path(path), True), data)

    def _write(self, stream: Any, data: bytes) -> None:
        try:
            stream.write(bytearray(data))
        finally:
            stream.close()

    def move(self, source: str, target: str) -> None:
        wanted = self._path(target)
        self._fs.mkdirs(wanted.getParent())
        if not self._fs.rename(self._path(source), wanted):
            raise OSError(f"could not move {source} to {target}")

    def delete(self, path: str) -> None:
        self._fs.delete(self._path(path), True)

    def names(self, path: str) -> list[str]:
        if not self.exists(path):
            return []
        found = (status.getPath().getName() for status in self._fs.listStatus(self._path(path)))
        return sorted(name for name in found if not name.startswith("."))

    def walk(self, path: str) -> Iterator[str]:
        if not self.exists(path):
            return
        found = self._fs.listFiles(self._path(path), True)
        prefix = len(self._fs.makeQualified(self._path("")).toString()) + 1
        while found.hasNext():
            yield found.next().getPath().toString()[prefix:]

    def open(self, path: str) -> Any:
        return io.BufferedReader(_HadoopInput(self._fs.open(self._path(path)), self.size(path)))

    def size(self, path: str) -> int:
        return int(self._fs.getFileStatus(self._path(path)).getLen())

    def sync(self, path: str) -> None:
        """Distributed stores acknowledge a closed file only when it is safe."""


class _HadoopInput(io.RawIOBase):
    """A Hadoop input stream as a Python file: enough for reading Parquet footers and JSON."""

    def __init__(self, stream: Any, size: int) -> None:
        self._stream = stream
        self._size = size
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._at = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        return self._at

    def readinto(self, buffer: Any) -> int:
        length = min(len(buffer), self._size - self._at)
        if length <= 0:
            return 0
        self._stream.seek(self._at)
        data = bytes(self._stream.readNBytes(length))
        buffer[: len(data)] = data
        self._at += len(data)
        return len(data)

    def close(self) -> None:
        if not self.closed:
            self._stream.close()
        super().close()
