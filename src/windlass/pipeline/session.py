"""The only place that builds a Spark session: settings for production, for tests and for clusters.

Java 17 is found (``$JAVA_HOME``, ``PATH``) or the error says how to install it. Python workers use the same
interpreter as the driver. For a master that is not local, the package is sent as a zip.
"""

from __future__ import annotations

import atexit
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from windlass.core.text import printable
from windlass.errors import WindlassError, not_installed

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

JAVA_WANTED = 17
#: The folder for class-data archives, which halve the time to start. If unset, none are made or used.
CACHE_VARIABLE = "WINDLASS_SPARK_CACHE"
#: The profile of sessions that do not name one. Default: ``work``.
PROFILE_VARIABLE = "WINDLASS_SPARK_PROFILE"

_COMMON = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.parquet.compression.codec": "zstd",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.sql.sources.partitionColumnTypeInference.enabled": "true",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "ERROR",
}
_LOCAL = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.ui.enabled": "false",
    "spark.driver.memory": "2g",
    "spark.sql.shuffle.partitions": "4",
}
_TEST = {
    **_LOCAL,
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.adaptive.enabled": "false",
    # For a handful of rows, compiling a plan takes longer than interpreting it.
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.driver.memory": "1g",
}


class JavaMissingError(WindlassError):
    """Spark needs Java 17 or later, and none was found."""

    code = "java_missing"


class SparkJobError(WindlassError):
    """A Spark job failed after all attempts of a task."""

    code = "spark_job"


@dataclass(frozen=True, kw_only=True)
class SessionOptions:
    """How to run Spark. ``conf`` overrides everything else."""

    #: None: the master of ``spark-submit`` if it started this process, else all cores of this machine.
    master: str | None = None
    app_name: str = "windlass"
    #: ``test`` starts quickly and suits a handful of rows. None: ``$WINDLASS_SPARK_PROFILE``.
    profile: Literal["work", "test"] | None = None
    conf: dict[str, str] = field(default_factory=dict)


def build_session(options: SessionOptions | None = None) -> SparkSession:
    """Build the session and register the ``windlass`` format."""
    options = options or SessionOptions()
    require_java()
    require_packages()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    settings = _settings(options)
    if "spark.driver.bindAddress" in settings:
        os.environ.setdefault("SPARK_LOCAL_IP", settings["spark.driver.bindAddress"])
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.appName(options.app_name)
    for name, value in settings.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    if not _is_local(spark.sparkContext.master):
        spark.sparkContext.addPyFile(str(package_zip(_scratch())))
    from windlass.pipeline.source import register

    register(spark)
    return spark


def _scratch() -> Path:
    """A folder that exists until the process ends, because Spark's executors may read from it until then."""
    folder = Path(tempfile.mkdtemp(prefix="windlass-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


@contextmanager
def session(options: SessionOptions | None = None) -> Iterator[SparkSession]:
    """A session, with its JVM, for the duration of the block.

    If one is running already (in a notebook, for example), it is used as it is and not stopped.
    """
    running = _running_session()
    if running is not None:
        yield running
        return
    spark = build_session(options)
    try:
        yield spark
    except Exception as exc:
        _raise_java_error(exc)
        raise
    finally:
        stop_session(spark)


def _raise_java_error(error: Exception) -> None:
    """Raise an error of the JVM as ours, in one line. The JVM must still run, because it holds the text."""
    from py4j.protocol import Py4JJavaError

    if isinstance(error, Py4JJavaError):
        text = str(error.java_exception.getMessage()).strip().partition("\n")[0]
        raise SparkJobError(f"Spark gave up: {printable(text)}") from error


def _running_session() -> SparkSession | None:
    require_packages()
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    from windlass.pipeline.source import register

    if SparkContext._active_spark_context is None:
        return None
    spark = SparkSession.builder.getOrCreate()
    register(spark)
    return spark


def stop_session(spark: SparkSession) -> None:
    """Stop Spark and wait until its JVM has exited."""
    from pyspark import SparkContext

    gateway = spark.sparkContext._gateway
    spark.stop()
    process = getattr(gateway, "proc", None)
    if gateway is None or process is None:
        return  # spark-submit owns the JVM
    gateway.shutdown()
    process.stdin.close()
    process.wait(timeout=60)
    SparkContext._gateway = None
    SparkContext._jvm = None


def _settings(options: SessionOptions) -> dict[str, str]:
    quick = (options.profile or os.environ.get(PROFILE_VARIABLE)) == "test"
    master = options.master
    if master is None and "PYSPARK_GATEWAY_PORT" not in os.environ:
        master = "local[1]" if quick else "local[*]"
    settings = dict(_COMMON)
    if master is not None:
        settings["spark.master"] = master
    if quick:
        settings.update(_TEST)
    elif master is None or _is_local(master):
        settings.update(_LOCAL)
    flags = _java_flags(quick)
    if flags:
        settings["spark.driver.extraJavaOptions"] = flags
    return {**settings, **options.conf}


def _is_local(master: str | None) -> bool:
    return master is not None and master.startswith("local") and not master.startswith("local-cluster")


def _java_flags(quick: bool) -> str:
    # With one compiler, Java reserves less code cache than a whole test run needs.
    flags = ["-XX:TieredStopAtLevel=1", "-XX:ReservedCodeCacheSize=192m"] if quick else []
    archive = class_archive()
    if archive is not None and archive.exists():
        flags += [f"-XX:SharedArchiveFile={archive}", "-Xlog:cds=off", "-Xlog:cds+dynamic=off"]
    return " ".join(flags)


# --- Java -----------------------------------------------------------------------------------------------


def require_packages() -> None:
    """Raise ``ConfigError`` unless the packages of ``windlass[spark]`` are installed."""
    try:
        import deltalake  # noqa: F401 - only whether it is there
        import pyarrow  # noqa: F401 - only whether it is there
        import pyspark  # noqa: F401 - only whether it is there
    except ImportError as exc:
        raise not_installed("pipeline", "the pipeline", "windlass[spark]") from exc


def require_java() -> str:
    """The path of a Java that Spark can use. Raises ``JavaMissingError`` if there is none."""
    java = find_java()
    advice = (
        f"Spark needs Java {JAVA_WANTED} or later: on Debian and Ubuntu 'apt-get install "
        f"openjdk-{JAVA_WANTED}-jre-headless', on macOS 'brew install openjdk@{JAVA_WANTED}'; or point "
        "JAVA_HOME at one"
    )
    if java is None:
        raise JavaMissingError(f"no java was found. {advice}")
    version = java_version(java)
    if version < JAVA_WANTED:
        raise JavaMissingError(f"{java} is Java {version}. {advice}")
    return java


def find_java() -> str | None:
    """``$JAVA_HOME/bin/java``, else ``java`` on the path."""
    home = os.environ.get("JAVA_HOME")
    if home:
        java = Path(home) / "bin" / "java"
        return str(java) if java.exists() else None
    return shutil.which("java")


def java_version(java: str) -> int:
    """The major version; 0 if it is unknown."""
    done = subprocess.run([java, "-version"], capture_output=True, text=True, check=False)
    found = re.search(r'version "(?:1\.)?(\d+)', done.stderr + done.stdout)
    return int(found.group(1)) if found else 0


def class_archive() -> Path | None:
    """The class-data archive for this Spark, if a cache folder is set."""
    folder = os.environ.get(CACHE_VARIABLE)
    if not folder:
        return None
    from pyspark.version import __version__

    return Path(folder) / f"spark-{__version__}-java{JAVA_WANTED}.jsa"


def train_class_archive() -> Path | None:
    """Make the class-data archive by running a small session once; None if no cache folder is set."""
    archive = class_archive()
    if archive is None or archive.exists():
        return archive
    archive.parent.mkdir(parents=True, exist_ok=True)
    draft = archive.with_name(f"{archive.name}.{os.getpid()}")
    code = (
        "from windlass.pipeline.session import SessionOptions, session\n"
        f"conf = {{'spark.driver.extraJavaOptions': '-XX:ArchiveClassesAtExit={draft}'}}\n"
        "with session(SessionOptions(profile='test', conf=conf)) as spark:\n"
        "    spark.range(100).selectExpr('id % 7 as k', 'id').groupBy('k').count().toPandas()\n"
    )
    subprocess.run([sys.executable, "-c", code], check=False, capture_output=True)
    if draft.exists():
        draft.rename(archive)
    return archive


# --- packaging --------------------------------------------------------------------------------------------


def package_zip(folder: Path) -> Path:
    """Write the package as ``windlass.zip`` to ``folder``, for ``--py-files``. (Executors take no wheels.)"""
    import windlass

    parent = Path(windlass.__file__).parent.parent
    if not parent.is_dir():  # already running from a zip
        return parent
    ignore = shutil.ignore_patterns("__pycache__", "*.pyc")
    with tempfile.TemporaryDirectory() as room:
        shutil.copytree(parent / "windlass", Path(room) / "windlass", ignore=ignore)
        return Path(shutil.make_archive(str(folder / "windlass"), "zip", room))
