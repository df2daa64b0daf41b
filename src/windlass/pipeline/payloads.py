"""Arguments and results of jobs as columns of JSON text: masked, bounded, and only on request.

``args`` is one object: keyword arguments by name, positional ones as ``arg0``, ``arg1``. The text is null if
it would be longer than the limit, or if the pipeline cannot read the codec; ``args_bytes`` still holds the
size in the store. The same applies to ``result``, which completed attempts have.

History does not hold them. They are read from the job's record when the run reads the attempt, and are null
if the store had pruned the record by then.

Conditions on single arguments (``args.customer = 42``) read the same text. All commands use the code here.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import msgspec

from windlass.backend import requests as rq
from windlass.core.job import AttemptOutcome, JobRecord, JobRef
from windlass.core.masks import DEFAULT_MASK, NameMask, hide_url_passwords
from windlass.errors import ConfigError
from windlass.jobs.payload import read_call
from windlass.pipeline import schemas
from windlass.serde import DEFAULT_MAX_BYTES, JSON
from windlass.serde.codecs import Codecs

if TYPE_CHECKING:
    import pyarrow as pa

    from windlass.pipeline.lake import Lake

#: Maximum length of one text in bytes, unless the run sets another.
PAYLOAD_BYTES = 10_000
#: Records per request: each may hold a payload of the maximum size.
_CHUNK = 100
#: Attempts whose texts are in memory at the same time.
_ROWS = 1_000
#: Matches conditions on single arguments. The text as a whole is an ordinary column.
_FIELD = re.compile(r"\bargs\s*\.", re.IGNORECASE)
_QUOTED = re.compile(r"'(?:[^']|'')*'")

#: A few stored bytes must not become gigabytes in the driver.
_CODECS = Codecs(JSON).bounded(DEFAULT_MAX_BYTES)

Ask = Callable[[rq.Request[Any]], Any]


@dataclass(frozen=True)
class Payloads:
    """Which parts of arguments and results to keep."""

    mask: tuple[str, ...] = DEFAULT_MASK
    max_bytes: int = PAYLOAD_BYTES

    @cached_property
    def _names(self) -> NameMask:
        return NameMask(self.mask)

    def of_attempts(self, ask: Ask, attempts: pa.RecordBatch) -> Iterator[pa.Table]:
        """Attempts in pieces, with the payload columns of their jobs."""
        import pyarrow as pa

        for first in range(0, attempts.num_rows, _ROWS):
            piece = pa.Table.from_batches([attempts.slice(first, _ROWS)])
            keys = piece.select(["queue", "job_id", "enqueued_ms", "outcome"]).to_pylist()
            found = _records(ask, {JobRef(key["queue"], key["job_id"]) for key in keys})
            rows = [self._of_attempt(key, found.get(JobRef(key["queue"], key["job_id"]))) for key in keys]
            for name in schemas.PAYLOADS:
                kind = schemas.BRONZE_ATTEMPTS.arrow.field(name).type
                piece = piece.append_column(name, pa.array([row.get(name) for row in rows], kind))
            yield piece

    def of_bronze(self, ask: Ask, rows: pa.Table, source: str) -> Iterator[pa.Table]:
        """Rows of bronze in pieces. Jobs of ``source`` that had no payload columns get them."""
        import pyarrow.compute as pc

        bare = pc.and_(pc.equal(rows.column("source"), source), pc.is_null(rows.column("args_bytes")))
        yield rows.filter(pc.invert(bare))
        for batch in rows.filter(bare).drop_columns(list(schemas.PAYLOADS)).to_batches():
            yield from self.of_attempts(ask, batch)

    def of_record(self, record: JobRecord) -> dict[str, Any]:
        """The payload columns of a job, from its current record."""
        kept: dict[str, Any] = {
            "args": self._text(lambda: arguments(record)),
            "args_bytes": len(record.payload),
        }
        if record.result is not None:
            kept["result"] = self._text(lambda: _CODECS.read_result(record))
            kept["result_bytes"] = len(record.result)
        return kept

    def _of_attempt(self, key: dict[str, Any], record: JobRecord | None) -> dict[str, Any]:
        if record is None or record.enqueued_ms != key["enqueued_ms"]:
            return {}
        kept = self.of_record(record)
        if key["outcome"] != AttemptOutcome.COMPLETED:
            kept.pop("result", None)
            kept.pop("result_bytes", None)
        return kept

    def _text(self, read: Callable[[], Any]) -> str | None:
        try:
            # Masked also before it is JSON, which has names that are bytes in base64.
            value = msgspec.json.decode(msgspec.json.encode(self._names.hide(read()), enc_hook=str))
        except Exception:  # a codec may raise anything for foreign bytes
            return None
        text = msgspec.json.encode(hide_url_passwords(self._names.hide(value)))
        return text.decode() if len(text) <= self.max_bytes else None


def arguments(record: JobRecord) -> dict[str, Any]:
    """A job's arguments by name. Errors of its codec are raised as they are."""
    call = read_call(_CODECS, record)
    return {**{f"arg{at}": value for at, value in enumerate(call.args)}, **call.kwargs}


def _records(ask: Ask, refs: Iterable[JobRef]) -> dict[JobRef, JobRecord]:
    found, wanted = {}, sorted(refs)
    for first in range(0, len(wanted), _CHUNK):
        chunk = wanted[first : first + _CHUNK]
        records: list[JobRecord | None] = ask(rq.GetJobs(refs=chunk))
        found.update({ref: record for ref, record in zip(chunk, records, strict=True) if record is not None})
    return found


# --- conditions -------------------------------------------------------------------------------------------

_KEYS = ("source", "queue", "job_id", "enqueued_ms")


def select_where(
    lake: Lake, names: Sequence[str], where: str, among: str = "true", ask: Ask | None = None
) -> pa.Table:
    """The columns ``names`` of jobs that match a condition and are ``among`` others.

    The condition may refer to single arguments. They come from the lake's ``args`` or, for jobs without that
    text, from the record in the store that ``ask`` reads. They are null for jobs that have neither.
    """
    from windlass.pipeline.sqlquery import query_arrow

    chosen = ", ".join(f'"{name}"' for name in names)
    if not _FIELD.search(_QUOTED.sub("", where)):
        return query_arrow(lake, f"SELECT {chosen} FROM jobs WHERE ({among}) AND ({where})")
    keys = ", ".join(_KEYS)
    known = query_arrow(lake, f"SELECT {keys}, args FROM jobs WHERE ({among})")
    texts = known if ask is None else _with_stored(known, ask)
    columns = query_arrow(lake, "SELECT json_group_structure(args::JSON) FROM texts", texts=texts).column(0)
    kinds = _kinds(columns[0].as_py())
    _check_exact(lake, texts, [path for path in _fractions(kinds) if _is_in(path, where)])
    shape = msgspec.json.encode(kinds).decode().replace("'", "''")
    named = f"SELECT {keys}, from_json(args, '{shape}') AS args FROM texts"
    return query_arrow(
        lake,
        f"SELECT {chosen} FROM (SELECT j.* REPLACE (t.args AS args) FROM jobs j LEFT JOIN ({named}) t "
        f"USING ({keys}) WHERE ({among})) WHERE ({where})",
        texts=texts,
    )


def _kinds(found: str | None) -> dict[str, Any]:
    """The names and types of the arguments, in DuckDB's notation. Never empty."""
    kinds = msgspec.json.decode(found or "null")
    named = _named(kinds) if isinstance(kinds, dict) else {}
    return {name: _typed(kind) for name, kind in named.items()} or {"arg0": "VARCHAR"}


def _fractions(kinds: dict[str, Any], above: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """The arguments that hold fractions, each as the names that lead to it."""
    for name, kind in kinds.items():
        if kind == "DOUBLE":
            yield (*above, name)
        elif isinstance(kind, dict):
            yield from _fractions(kind, (*above, name))


def _is_in(path: tuple[str, ...], where: str) -> bool:
    """Whether a condition names an argument."""
    names = r"\s*\.\s*".join(rf'"?{re.escape(name)}"?' for name in ("args", *path))
    return re.search(rf"(?<!\w){names}(?!\w)", where, re.IGNORECASE) is not None


def _check_exact(lake: Lake, texts: pa.Table, paths: Iterable[tuple[str, ...]]) -> None:
    """Refuse arguments with both fractions and whole numbers of more than 53 bits. DuckDB would compare all
    of them as fractions, so that a condition on one number matches its neighbours."""
    from windlass.pipeline.sqlquery import query_arrow

    for path in paths:
        pointer = "".join("/" + name.replace("~", "~0").replace("/", "~1") for name in path)
        value = "json_extract_string(args::JSON, '" + pointer.replace("'", "''") + "')"
        large = f"regexp_full_match({value}, '-?[0-9]+') AND abs({value}::DOUBLE) > {2**53 - 1}"
        if query_arrow(lake, f"SELECT 1 FROM texts WHERE {large} LIMIT 1", texts=texts).num_rows:
            name = ".".join(("args", *path))
            message = (
                f"{name} holds both fractions and whole numbers of more than 53 bits, which cannot be "
                "compared exactly: compare its text, as in args->>'customer' = '42'"
            )
            raise ConfigError(name, message=message)


def _typed(kind: Any) -> Any:
    """A type for DuckDB: text where values have several types, or where some name cannot be selected."""
    if isinstance(kind, dict):
        named = {name: _typed(item) for name, item in _named(kind).items()}
        return named if named and len(named) == len(kind) else "VARCHAR"
    if isinstance(kind, list):
        return [_typed(item) for item in kind]
    return "VARCHAR" if kind in ("JSON", "NULL") else kind


def _named(kinds: dict[str, Any]) -> dict[str, Any]:
    """Without the empty name, and without names that differ only in case, which DuckDB cannot distinguish."""
    times = Counter(name.lower() for name in kinds)
    return {name: kind for name, kind in kinds.items() if name and times[name.lower()] == 1}


def _with_stored(known: pa.Table, ask: Ask) -> pa.Table:
    """Keys and texts, with texts from the store where the lake has none."""
    rows = known.to_pylist()
    missing = [row for row in rows if row["args"] is None]
    found = _records(ask, {JobRef(row["queue"], row["job_id"]) for row in missing})
    for row in missing:
        record = found.get(JobRef(row["queue"], row["job_id"]))
        if record is not None and record.enqueued_ms == row["enqueued_ms"]:
            row["args"] = Payloads((), 1 << 30).of_record(record)["args"]
    import pyarrow as pa

    texts = pa.array([row["args"] for row in rows], pa.string())
    return known.set_column(len(_KEYS), "args", texts)
