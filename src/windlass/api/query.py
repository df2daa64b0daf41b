"""The query language for jobs: ``task:charge_card error:Payment* args.customer.id:42``.

A query is a list of terms separated by spaces; a job must match all of them. A term is ``field:value``, or a
word (or ``"some words"``) that must occur in the job's id, task, tags, group, last error or arguments.
``FIELDS`` lists the fields. An unknown field is refused, with a suggestion.

The API, the command line and the dashboard use this module. ``Query.search`` is the part that a store can
answer; ``Query.fits`` checks the rest, record by record.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from windlass.api.search import Search, are_equal
from windlass.backend import requests as rq
from windlass.core.job import ErrorInfo, JobRecord
from windlass.core.option_values import check_known
from windlass.core.patterns import matches
from windlass.core.states import JobState
from windlass.errors import ConfigError
from windlass.jobs.payload import read_call

if TYPE_CHECKING:
    from windlass.serde.codecs import Codecs

#: The maximum length of a query, and the maximum number of its terms.
MAX_CHARS = 2_000
MAX_TERMS = 32


class Reader(Protocol):
    """Gives access to the values of a job that the caller may see."""

    def call(self, record: JobRecord) -> tuple[list[Any], dict[str, Any]]:
        """Return its positional and keyword arguments."""
        ...

    def text(self, value: str) -> str:
        """Return the message of an error as the caller may see it."""
        ...


class PlainReader:
    """A reader without restrictions."""

    def __init__(self, codecs: Codecs) -> None:
        self._codecs = codecs

    def call(self, record: JobRecord) -> tuple[list[Any], dict[str, Any]]:
        """Return its arguments; empty when the stored bytes cannot be decoded."""
        try:
            call = read_call(self._codecs, record)
        except (ValueError, TypeError, ConfigError):
            return [], {}
        return call.args, call.kwargs

    def text(self, value: str) -> str:
        """Return ``value`` unchanged."""
        return value


Test = Callable[[JobRecord, Reader, int], bool]

_TERM = re.compile(r'(?:(?P<field>[A-Za-z_][\w.\-]*):)?(?P<value>"(?:[^"\\]|\\.)*"|\S*)')
_NO_NAME = "lacks the name of an argument: write args.NAME:VALUE"
_COMPARED = re.compile(r"(<=|>=|<|>|=)?(.+)", re.DOTALL)
_SPAN = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d|w)")
_UNITS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 7 * 86_400_000}
#: No job is this old; a store would refuse larger numbers.
_LONGEST_MS = 2.0**52
_COMPARISONS: dict[str, Callable[[Any, Any], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "=": operator.eq,
}
_TIMES = {
    "added": "enqueued_ms",
    "due": "due_ms",
    "started": "started_ms",
    "finished": "finished_ms",
}
_NUMBERS = ("attempts", "priority", "deliveries")
#: Every field with its meaning, for the CLI and the documentation.
FIELDS: dict[str, str] = {
    "id": "the job's id",
    "queue": "its queue",
    "task": "the task's name",
    "state": "its state, or several with commas",
    "tag": "one of its tags",
    "group": "its group",
    "worker": "the worker that runs or ran it",
    "schedule": "the schedule that made it",
    "error": "the class of its last error, or words of its message",
    "fingerprint": "the fingerprint of its last error",
    "reason": "why it failed or was cancelled",
    "args": "an argument by name or number: args.customer.id:42, args.0:kim",
    "added": "when it was added: <1h, >2d, >=2026-01-31",
    "due": "when it is due: <1h is within the next hour",
    "started": "when its last run began",
    "finished": "when it ended",
    "took": "how long its last run took: >5s",
    "attempts": "failed runs: >2",
    "priority": "its priority: >=5",
    "deliveries": "how often it was claimed",
}


@dataclass(frozen=True, slots=True)
class Term:
    """One ``field:value``; a bare word has the field ``""``."""

    field: str
    value: str


@dataclass(frozen=True, slots=True)
class Query:
    """A parsed query."""

    terms: tuple[Term, ...] = ()
    #: The conditions that the store checks.
    search: Search = field(default_factory=Search)
    #: The queues that it names; empty for all.
    queues: tuple[str, ...] = ()
    #: The ids that it names, without wildcards; empty for any.
    ids: tuple[str, ...] = ()
    tests: tuple[Test, ...] = ()

    def narrowed(self, now_ms: int, usable: Callable[[str], bool] = lambda text: True) -> Search:
        """Return ``search`` with further conditions by which a store can skip jobs that do not match.

        ``usable`` says whether a text can be compared with the stored values. A reader that masks values must
        refuse texts that occur in masks.
        """
        return replace(self.search, **_narrowing(self.terms, now_ms, usable))

    @property
    def words(self) -> list[str]:
        """The bare words."""
        return [term.value for term in self.terms if not term.field]

    @property
    def arguments(self) -> list[list[str]]:
        """The paths of the arguments that it names."""
        return [term.field.split(".")[1:] for term in self.terms if term.field.startswith("args.")]

    def fits(self, record: JobRecord, reader: Reader, now_ms: int) -> bool:
        """Whether a job matches, by the values that the caller may see."""
        return all(test(record, reader, now_ms) for test in self.tests)


def parse(text: str) -> Query:
    """Parse a query. Raises ``ConfigError`` that says what is wrong with it."""
    if not isinstance(text, str) or len(text) > MAX_CHARS:
        raise ConfigError("search", f"a query of at most {MAX_CHARS:,} characters")
    terms = _terms(text)
    if len(terms) > MAX_TERMS:
        raise ConfigError("search", f"a query of at most {MAX_TERMS} terms")
    states = [JobState(name) for term in terms if term.field == "state" for name in _states(term.value)]
    task = next((term.value for term in terms if term.field == "task"), None)
    tag = next((term.value for term in terms if term.field == "tag" and not _wild(term.value)), None)
    return Query(
        terms=tuple(terms),
        search=Search(name=task, state=states, tag=tag),
        queues=tuple(term.value for term in terms if term.field == "queue"),
        ids=tuple(term.value for term in terms if term.field == "id" and not _wild(term.value)),
        tests=tuple(_test(term) for term in terms if term.field != "queue"),
    )


def for_words(words: str) -> Query:
    """Return a query for jobs that contain ``words`` literally."""
    term = Term("", words)
    return Query(terms=(term,), tests=(_test(term),))


def _terms(text: str) -> list[Term]:
    found: list[Term] = []
    at = 0
    while at < len(text):
        if text[at].isspace():
            at += 1
            continue
        match = _TERM.match(text, at)
        assert match is not None  # the value may be empty
        at = max(match.end(), at + 1)
        found.append(_term(match["field"] or "", match["value"]))
    return found


def _bad_field(field: str, why: str) -> ConfigError:
    return ConfigError(field, message=f"search field {field!r} {why}")


def _term(field: str, given: str) -> Term:
    quoted = len(given) > 1 and given.startswith('"') and given.endswith('"')
    value = re.sub(r"\\(.)", r"\1", given[1:-1]) if quoted else given
    name = field.partition(".")[0]
    if field:
        check_known([name], FIELDS, "field of a search")
        if (name == "args") != ("." in field):
            raise _bad_field(field, _NO_NAME if name == "args" else f"has no parts: write {name}:VALUE")
    if not value:
        if field:
            raise _bad_field(field, f"has no value: write {field}:VALUE")
        raise ConfigError("search", message="the search has an empty term")
    return Term(field, value)


def _states(value: str) -> list[str]:
    names = value.split(",")
    check_known(names, [state.value for state in JobState], "job state")
    return names


def _wild(value: str) -> bool:
    return "*" in value or "?" in value


def _test(term: Term) -> Test:
    """Return the condition of one term."""
    field, value = term.field, term.value
    if not field:
        return _contains(value.lower())
    if field.startswith("args."):
        return _argument(field.split(".")[1:], value)
    if field in _TIMES:
        return _time(field, _TIMES[field], value)
    if field == "took":
        return _took(value)
    if field in _NUMBERS:
        return _number(field, value)
    return _TEXTS[field](value)


def _same(text: str | None, value: str) -> bool:
    return text is not None and (matches(text, value) if _wild(value) else text == value)


def _last(record: JobRecord) -> ErrorInfo | None:
    return record.errors[-1] if record.errors else None


def _said(error: ErrorInfo, reader: Reader) -> str:
    return f"{error.error_class}: {reader.text(error.message)}".lower()


def _error(value: str) -> Test:
    words = value.lower()

    def fits(record: JobRecord, reader: Reader, now_ms: int) -> bool:
        last = _last(record)
        if last is None:
            return False
        return _same(last.error_class, value) or words in _said(last, reader)

    return fits


def _text(read: Callable[[JobRecord], str | None]) -> Callable[[str], Test]:
    return lambda value: lambda record, reader, now_ms: _same(read(record), value)


def _fingerprint(record: JobRecord) -> str | None:
    last = _last(record)
    return None if last is None else last.fingerprint


_TEXTS: dict[str, Callable[[str], Test]] = {
    "state": lambda value: lambda record, reader, now_ms: record.state in value.split(","),
    "id": _text(lambda record: record.id),
    "task": _text(lambda record: record.task),
    "tag": lambda value: lambda record, reader, now_ms: any(_same(tag, value) for tag in record.options.tags),
    "group": _text(lambda record: record.options.group),
    "worker": _text(lambda record: record.worker),
    "schedule": _text(lambda record: record.options.schedule),
    "reason": _text(lambda record: record.reason),
    "error": _error,
    "fingerprint": _text(_fingerprint),
}


def _contains(words: str) -> Test:
    def fits(record: JobRecord, reader: Reader, now_ms: int) -> bool:
        last = _last(record)
        said = [record.id, record.task, record.reason, record.options.group or "", *record.options.tags]
        if any(words in one.lower() for one in said) or (last is not None and words in _said(last, reader)):
            return True
        return words in msgspec.json.encode(reader.call(record), enc_hook=str).decode().lower()

    return fits


# --- conditions for the store ----------------------------------------------------------------------

#: Characters that every JSON writer writes unescaped.
_PLAIN_TEXT = re.compile(r"[A-Za-z0-9_.@# -]+")
#: Numbers that can be written in several ways: 1.5, 1.50, 15e-1.
_FRACTION = re.compile(r"[-\d]*[.eE][-\d.eE]*")
_LONGEST_HINT = 100


def _narrowing(terms: Sequence[Term], now_ms: int, usable: Callable[[str], bool]) -> dict[str, Any]:
    """Return conditions for the store that every job matching all terms also meets."""
    found: dict[str, Any] = {}
    hints: list[rq.Hint] = []
    for term in terms:
        if term.field in ("group", "worker", "fingerprint") and not _wild(term.value):
            found.setdefault(term.field, term.value)
        elif term.field == "finished":
            found |= _ended(term.value, now_ms, found)
        else:
            hints += [hint for hint in _hints(term) if usable(hint.text)]
    return found | {"hints": tuple(hints)}


def _hints(term: Term) -> list[rq.Hint]:
    if not term.field:
        return [rq.Hint("any", text) for text in _literal(term.value)]
    if term.field == "error":
        return [rq.Hint("error", text) for text in _literal(term.value)]
    if term.field.startswith("args."):
        path = [step for step in term.field.split(".")[1:] if not step.isdecimal()]
        return [rq.Hint("payload", text) for one in (*path, term.value) for text in _literal(one)]
    return []


def _literal(value: str) -> list[str]:
    """Return the longest part of a text that is stored literally, without wildcards."""
    runs = [run for run in _PLAIN_TEXT.findall(value) if run.strip() and not _FRACTION.fullmatch(run.strip())]
    return [max(runs, key=len)[:_LONGEST_HINT].lower()] if runs else []


def _ended(value: str, now_ms: int, known: Mapping[str, Any]) -> dict[str, int]:
    """Return the bounds of one ``finished`` term, combined with the known ones."""
    sign, text = _compared("finished", value)
    span = _span_ms(text)
    at_ms = _instant_ms(text) if span is None else now_ms - span
    assert at_ms is not None  # checked when the query was parsed
    if span is not None:  # a longer time ago is earlier
        sign = sign.replace("<", "!").replace(">", "<").replace("!", ">")
    bound = at_ms + (sign in ("<=", ">"))
    name, choose = ("finished_from_ms", max) if sign[0] == ">" else ("finished_to_ms", min)
    return {name: choose(bound, known.get(name, bound))}


# --- arguments ---------------------------------------------------------------------------------------


def _argument(path: Sequence[str], value: str) -> Test:
    if not all(path):
        raise _bad_field(".".join(["args", *path]), _NO_NAME)
    try:
        plain: Any = msgspec.json.decode(value)
    except (msgspec.MsgspecError, RecursionError, UnicodeEncodeError):
        plain = value

    def fits(record: JobRecord, reader: Reader, now_ms: int) -> bool:
        args, kwargs = reader.call(record)
        whole: Any = kwargs if path[0] in kwargs else args
        return any(_equals(found, plain, value) for found in _at(whole, path))

    return fits


def _at(value: Any, path: Sequence[str]) -> list[Any]:
    """Return a list with the value at a path of field names and item numbers; empty if there is none."""
    for step in path:
        if isinstance(value, Mapping):
            if step not in value:
                return []
            value = value[step]
        elif isinstance(value, (list, tuple)):
            if not step.isdecimal() or int(step) >= len(value):
                return []
            value = value[int(step)]
        else:
            return []
    return [value]


def _equals(found: Any, plain: Any, value: str) -> bool:
    if isinstance(found, str):
        return _same(found, value)
    return are_equal(found, plain) and isinstance(found, bool) == isinstance(plain, bool)


# --- times and numbers -------------------------------------------------------------------------------


def _compared(field: str, value: str) -> tuple[str, str]:
    match = _COMPARED.fullmatch(value)
    if match is None:
        raise _bad_field(field, f"has no value: write {field}:VALUE")
    return match[1] or "=", match[2]


def _span_ms(text: str) -> int | None:
    match = _SPAN.fullmatch(text)
    return None if match is None else round(min(float(match[1]) * _UNITS[match[2]], _LONGEST_MS))


def _instant_ms(text: str) -> int | None:
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        return None
    return round((at if at.tzinfo is not None else at.replace(tzinfo=UTC)).timestamp() * 1_000)


def _time(field: str, name: str, value: str) -> Test:
    """Return a condition such as ``<1h`` (within an hour from now) or ``>=2026-01-31`` (from that day on)."""
    sign, text = _compared(field, value)
    compare = _COMPARISONS[sign]
    span = _span_ms(text)
    instant = _instant_ms(text) if span is None else None
    if sign == "=" or (span is None and instant is None):
        raise ConfigError(field, "a time such as <1h, >2d, >=2026-01-31 or <2026-01-31T12:00", value)

    def fits(record: JobRecord, reader: Reader, now_ms: int) -> bool:
        at_ms = getattr(record, name)
        if at_ms is None:
            return False
        if span is None:
            return compare(at_ms, instant)
        return compare(at_ms - now_ms if field == "due" else now_ms - at_ms, span)

    return fits


def _took(value: str) -> Test:
    sign, text = _compared("took", value)
    span, compare = _span_ms(text), _COMPARISONS[sign]
    if span is None:
        raise ConfigError("took", "a duration such as >5s or <200ms", value)

    def fits(record: JobRecord, reader: Reader, now_ms: int) -> bool:
        if record.started_ms is None or record.finished_ms is None:
            return False
        return compare(record.finished_ms - record.started_ms, span)

    return fits


def _number(field: str, value: str) -> Test:
    sign, text = _compared(field, value)
    try:
        wanted = int(text)
    except ValueError:
        raise ConfigError(field, "a whole number, such as >2", value) from None
    compare = _COMPARISONS[sign]
    return lambda record, reader, now_ms: compare(getattr(record, field), wanted)
