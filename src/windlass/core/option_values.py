"""Values of options (durations, priorities, backoff, retention, unique keys), and how they are checked."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from itertools import chain
from typing import Any, Literal

import msgspec

from windlass.core.backoff import BUILT_IN, DEFAULT_BACKOFF, MAX_DELAY_MS, Backoff
from windlass.core.ids import content_id, is_text
from windlass.core.text import clean_text
from windlass.errors import ConfigError

Duration = int | float | timedelta

PRIORITY_MIN, PRIORITY_MAX = -(2**20), 2**20 - 1
#: Results of jobs without ``result_ttl`` are kept this long, within the count of ``keep_completed``.
DEFAULT_RESULT_TTL_MS = 3_600_000
#: How long a call waits for a job by default, in seconds.
WAIT_S = 30
#: A finished record is kept at least this long, so that callers that wait for it can read it.
GRACE_MS = 60_000
_MAX_SECONDS = MAX_DELAY_MS // 1000


class Priority:
    """Names for common priorities. Higher runs first. Whole numbers from -2^20 to 2^20-1 are allowed."""

    CRITICAL = 1_000_000
    HIGH = 100_000
    NORMAL = 0
    LOW = -100_000


class Keep(msgspec.Struct, frozen=True, omit_defaults=True):
    """How long finished records stay: at most ``age_ms``, and at most ``count`` records. None: no bound."""

    age_ms: int | None = None
    count: int | None = None


KEEP_COMPLETED = Keep(86_400_000, 10_000)
KEEP_FAILED = Keep(180 * 86_400_000, 10_000)


class UniqueMode(StrEnum):
    """How long a job holds its unique key, and what an add with the same key does in that time.

    * ``until_done``: while the holder is not finished, adding the key again is a ``duplicate``;
    * ``until_start``: the same until the holder first starts;
    * ``throttle``: the same until ``ttl`` after the holder was added, even if the holder has finished;
    * ``debounce``: the holder runs ``ttl`` after the *last* add; each add before it starts replaces its data;
    * ``keep_last``: an add replaces the data of a holder that has not started; while the holder runs, one
      more job is kept behind it, with the newest data.
    """

    UNTIL_DONE = "until_done"
    UNTIL_START = "until_start"
    THROTTLE = "throttle"
    DEBOUNCE = "debounce"
    KEEP_LAST = "keep_last"


_MAX_FALLBACK_BYTES, _FALLBACK_LEVELS = 16_384, 100
#: The maximum length of an unknown name in an error message.
_SHOWN_CHARS = 200
#: Enough for all tracing headers and some other context.
_MAX_TRACE_CHARS = 65_536
_NEEDS_TTL = (UniqueMode.THROTTLE, UniqueMode.DEBOUNCE)
_REPLACES = (UniqueMode.DEBOUNCE, UniqueMode.KEEP_LAST)


class StoredUnique(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A unique key as it is stored with a job. Keys are scoped to a queue."""

    key: str
    mode: UniqueMode = UniqueMode.UNTIL_DONE
    ttl_ms: int | None = None
    #: Whether an add that is answered as a duplicate restarts the ``ttl``.
    extend: bool = False


def seconds_to_ms(value: object, option: str, *, minimum: float = 0) -> int:
    """A duration option in milliseconds, or ``ConfigError``. A positive duration is at least 1 ms."""
    seconds = value.total_seconds() if isinstance(value, timedelta) else value
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)) or seconds != seconds:  # NaN
        raise ConfigError(option, "a number of seconds or a timedelta", value)
    if not minimum <= seconds <= _MAX_SECONDS:
        raise ConfigError(option, f"between {minimum:g} seconds and 100 years", value)
    return max(round(seconds * 1000), int(seconds > 0))


def instant_to_ms(value: object, option: str) -> int:
    """A point in time (aware ``datetime`` or seconds since 1970) in milliseconds."""
    if isinstance(value, datetime):
        if value.tzinfo is None:
            raise ConfigError(
                option, "a datetime with a timezone (for example datetime.now(UTC) + ...)", value
            )
        return round(value.astimezone(UTC).timestamp() * 1000)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < 1e11:
        raise ConfigError(option, "an aware datetime, or seconds since 1970", value)
    return round(value * 1000)


def check_key(key: object) -> str:
    """Return a unique key, or raise ``ConfigError``."""
    if not isinstance(key, str) or not 1 <= len(key) <= 256 or not is_text(key):
        raise ConfigError("unique.key", "a text of 1 to 256 characters", key)
    return key


class Unique(msgspec.Struct, frozen=True):
    """When two jobs of a queue count as the same job.

    Give either ``key``, any text up to 256 characters, or ``fields``, the names of the arguments that count
    together with the task's name (an empty list: all arguments). ``ttl`` is in seconds, or a ``timedelta``.
    With ``extend``, each add that is answered as a duplicate restarts the ``ttl``, so that no new job is
    added until there was no add for this long.
    """

    key: str | None = None
    mode: UniqueMode | str = UniqueMode.UNTIL_DONE
    ttl: float | timedelta | None = None
    fields: tuple[str, ...] | list[str] = ()
    extend: bool = False

    def __post_init__(self) -> None:
        modes = [mode.value for mode in UniqueMode]
        if self.mode not in modes:
            raise ConfigError("unique.mode", f"one of {', '.join(modes)}", self.mode)
        if self.key is not None:
            check_key(self.key)
        if self.key is not None and self.fields:
            raise ConfigError(
                "unique.fields", message="give unique.key or unique.fields, not both", got=self.fields
            )
        if not isinstance(self.fields, (tuple, list)) or not all(is_text(n) for n in self.fields):
            raise ConfigError("unique.fields", "a list of argument names", self.fields)
        check_flag("unique.extend", self.extend)
        if self.ttl is None and self.mode in _NEEDS_TTL:
            raise ConfigError("unique.ttl", message=f"unique mode {self.mode} needs a ttl")
        if self.extend and (self.ttl is None or self.mode in _REPLACES):
            raise ConfigError(
                "unique.extend",
                message=f"unique.extend needs a ttl, and cannot be used in mode {self.mode}"
                if self.mode in _REPLACES
                else "unique.extend needs a ttl",
                got=True,
            )
        _ = self.ttl_ms

    @classmethod
    def of(
        cls,
        *fields: str,
        mode: UniqueMode | str = UniqueMode.UNTIL_DONE,
        ttl: Any = None,
        extend: bool = False,
    ) -> Unique:
        """Unique by the task's name and these arguments (without names: all arguments)."""
        return cls(None, mode, ttl, fields, extend)

    @property
    def ttl_ms(self) -> int | None:
        return None if self.ttl is None else seconds_to_ms(self.ttl, "unique.ttl", minimum=0.001)

    def stored(self, task: str, arguments: Mapping[str, Any]) -> StoredUnique:
        """The stored form for a job of ``task`` with these ``arguments`` (by name)."""
        key = self.key if self.key is not None else self._computed(task, arguments)
        return StoredUnique(key=key, mode=UniqueMode(self.mode), ttl_ms=self.ttl_ms, extend=self.extend)

    def _computed(self, task: str, arguments: Mapping[str, Any]) -> str:
        missing = [name for name in self.fields if name not in arguments]
        if missing:
            known = ", ".join(sorted(arguments)) or "none"
            raise ConfigError(
                "unique.fields",
                message=f"unique.fields names {missing[0]!r}, but the job has no such argument (given: "
                f"{known})",
                got=missing[0],
            )
        chosen = {name: arguments[name] for name in self.fields} if self.fields else dict(arguments)
        try:
            return f"{task[:200]}:{content_id(chosen)}"
        except (TypeError, ValueError, OverflowError, RecursionError) as exc:
            raise ConfigError(
                "unique.fields", message=f"unique needs arguments that JSON can hold ({exc})"
            ) from exc


def to_unique(value: object) -> Unique | None:
    """A ``Unique`` from any accepted form: a key, True (task and all arguments), or a mapping."""
    if value is None or value is False:
        return None
    if value is True:
        return Unique()
    if isinstance(value, Unique):
        return value
    if isinstance(value, str):
        return Unique(value)
    if isinstance(value, Mapping) and set(value) <= set(Unique.__struct_fields__):
        return Unique(**value)
    raise ConfigError("unique", "a Unique, or a key as text", value)


#: Names that other systems use for our options and settings.
_FOREIGN = {
    "countdown": "delay",
    "eta": "run_at",
    "expires": "expires_in",
    "retries": "max_attempts",
    "max_retries": "max_attempts",
    "attempts": "max_attempts",
    "time_limit": "timeout",
    "soft_time_limit": "timeout",
    "task_id": "job_id",
    "retry_backoff": "backoff",
    "retry_delay": "backoff",
    "default_retry_delay": "backoff",
    "threads": "concurrency",
    "prefetch": "concurrency",
    "app": "url_or_app",
    "connection": "url_or_app",
    "broker": "url_or_app",
    "url": "url_or_app",
}


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The name in ``known`` that the caller probably meant, if any."""
    words = [str(item) for item in known]
    foreign = _FOREIGN.get(name)
    if foreign in words:
        return foreign
    return next(iter(difflib.get_close_matches(name, words, 1)), None)


def check_known(given: Iterable[str], known: Iterable[str], what: str) -> None:
    """Raise ``ConfigError`` for a name that is not in ``known``, with the nearest known name."""
    for name in given:
        if name not in known:
            called = clean_text(name, _SHOWN_CHARS)
            near = nearest(called, known)
            hint = f" (did you mean {near!r}?)" if near else f" (known: {', '.join(sorted(map(str, known)))})"
            raise ConfigError(called, f"a known {what}", message=f"unknown {what}: {called!r}{hint}")


def to_backoff(value: object) -> Backoff:
    """A ``Backoff`` from any accepted form."""
    if isinstance(value, Backoff):
        return value if value is DEFAULT_BACKOFF else _checked_backoff(value)
    if isinstance(value, str):
        return _named_backoff({"type": value})
    if isinstance(value, Mapping):
        return _named_backoff(value)
    return Backoff(type="fixed", delay_ms=seconds_to_ms(value, "backoff"), jitter=0.0)


def check_spelling(policy: Backoff, registered: Iterable[str]) -> None:
    """Raise if the name of a strategy is unknown to the app and looks like a misspelt built-in one.

    Other unknown names are accepted, because workers may have strategies of their own. Workers check the
    names when they start (``check_registered``).
    """
    if policy.type not in BUILT_IN and policy.type not in registered:
        starts = [name for name in BUILT_IN if name.startswith(policy.type[:4])]
        near = starts or difflib.get_close_matches(policy.type, BUILT_IN, 1, 0.6)
        if near:
            raise ConfigError(
                "backoff",
                message=f"unknown backoff strategy {policy.type!r} (did you mean {near[0]!r}?); pass one of "
                "your own as backoff_strategies= to the app",
                got=policy.type,
            )


def check_registered(policy: Backoff, registered: Iterable[str], task: str) -> None:
    """Raise if the worker that runs a task does not have the task's backoff strategy."""
    known = [*sorted(BUILT_IN), *sorted(registered)]
    if policy.type not in known:
        near = difflib.get_close_matches(policy.type, known, 1)
        hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(known)}"
        raise ConfigError(
            f"backoff of task {task!r}",
            message=f"unknown backoff strategy {policy.type!r} of task {task!r} ({hint}); pass it as "
            "backoff_strategies= to the app or the worker",
            got=policy.type,
        )


def _named_backoff(value: Mapping[str, Any]) -> Backoff:
    check_known(value, {"type", "delay", "cap", "jitter"}, "backoff setting")
    kind = value.get("type", "exponential")
    if not isinstance(kind, str) or not 1 <= len(kind) <= 128 or not is_text(kind):
        raise ConfigError("backoff.type", f"one of {', '.join(sorted(BUILT_IN))} or a registered name", kind)
    jitter = value.get("jitter", 0.2)
    if isinstance(jitter, bool):
        jitter = 0.1 if jitter else 0.0
    if not isinstance(jitter, (int, float)) or not 0 <= jitter <= 1:
        raise ConfigError("backoff.jitter", "between 0 and 1", jitter)
    return Backoff(
        type=kind,
        delay_ms=seconds_to_ms(value.get("delay", 2), "backoff.delay"),
        cap_ms=seconds_to_ms(value.get("cap", 3600), "backoff.cap"),
        jitter=float(jitter),
    )


def _checked_backoff(value: Backoff) -> Backoff:
    """A ``Backoff`` that a caller created, checked like the other accepted forms."""
    for name in ("delay_ms", "cap_ms"):
        check_int(f"backoff.{name}", getattr(value, name), 0, MAX_DELAY_MS)
    return _named_backoff(
        {
            "type": value.type,
            "delay": value.delay_ms / 1000,
            "cap": value.cap_ms / 1000,
            "jitter": value.jitter,
        }
    )


def to_keep(value: object, option: str) -> Keep:
    """A ``Keep`` from any accepted form."""
    if isinstance(value, Keep):
        for name, bound in (("age_ms", value.age_ms), ("count", value.count)):
            if bound is not None:
                check_int(f"{option}.{name}", bound, 0, 10**13)
        return value
    if value is True:
        return Keep()
    if value is False:
        return Keep(0, 0)
    if isinstance(value, int):
        check_int(option, value, 0, 10**12)
        return Keep(None, value)
    if isinstance(value, timedelta):
        return Keep(seconds_to_ms(value, option), None)
    if isinstance(value, Mapping):
        check_known(value, {"age", "count"}, f"{option} setting")
        count = value.get("count")
        if count is not None:
            check_int(f"{option}.count", count, 0, 10**12)
        return Keep(optional_ms(value.get("age"), f"{option}.age"), count)
    raise ConfigError(option, "True, False, a count, a timedelta, or {'age': ..., 'count': ...}", value)


def optional_ms(value: object, option: str, *, minimum: float = 0) -> int | None:
    return None if value is None else seconds_to_ms(value, option, minimum=minimum)


def check_int(option: str, value: object, low: int, high: int) -> None:
    """Raise unless ``value`` is a whole number from ``low`` to ``high``."""
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise ConfigError(option, f"a whole number from {low} to {high}", value)


def check_after(value: object) -> None:
    """Raise unless ``value`` may be the id of an event or of a chunk of output, or 0."""
    check_int("after", value, 0, 2**53)


def check_flag(option: str, value: object) -> None:
    """Raise unless ``value`` is True or False."""
    if not isinstance(value, bool):
        raise ConfigError(option, "True or False", value)


def to_options(option: str, value: object) -> dict[str, Any]:
    """Options by name as a new dict; none for None. Raises ``ConfigError`` unless they are a mapping."""
    if value is None:
        return {}
    if not isinstance(value, Mapping) or not all(isinstance(name, str) for name in value):
        raise ConfigError(option, "an object with options by name", value)
    return dict(value)


def check_tags(tags: object) -> None:
    if not isinstance(tags, (tuple, list)) or len(tags) > 32:
        raise ConfigError("tags", "a list of at most 32 texts", tags)
    for tag in tags:
        if not isinstance(tag, str) or not 1 <= len(tag) <= 128 or not is_text(tag):
            raise ConfigError("tags", "texts of 1 to 128 characters", tag)


def check_trace(trace: object) -> None:
    """Raise unless ``trace`` is None or a small mapping of text to text."""
    if trace is None:
        return
    if not isinstance(trace, dict) or not all(
        is_text(key) and is_text(value) for key, value in trace.items()
    ):
        raise ConfigError("trace", "a mapping of text to text", trace)
    if sum(len(key) + len(value) for key, value in trace.items()) > _MAX_TRACE_CHARS:
        raise ConfigError("trace", f"at most {_MAX_TRACE_CHARS} characters in all")


def copied(value: Any) -> Any:
    """A deep copy of a fallback, also of one that an earlier release nested without a bound."""
    return msgspec.msgpack.decode(msgspec.msgpack.encode(value))


def check_fallbacks(fallbacks: object) -> None:
    if not fallbacks and isinstance(fallbacks, (tuple, list)):
        return
    if not isinstance(fallbacks, (tuple, list)) or len(fallbacks) > 32:
        raise ConfigError("fallbacks", "a list of at most 32 JSON values", fallbacks)
    try:
        encoded = msgspec.json.encode(fallbacks)
        msgspec.msgpack.encode(fallbacks)  # some stores write options so: it has no endless whole numbers
        fits = len(encoded) <= _MAX_FALLBACK_BYTES and msgspec.json.decode(encoded) == list(fallbacks)
        fits = fits and _is_nested_up_to(_FALLBACK_LEVELS, fallbacks)
    except (TypeError, ValueError, OverflowError, RecursionError):
        fits = False
    if not fits:
        most = f"at most {_MAX_FALLBACK_BYTES} bytes in all, nested in at most {_FALLBACK_LEVELS} levels"
        raise ConfigError("fallbacks", f"JSON values, {most}", fallbacks)


def _is_nested_up_to(levels: int, values: Iterable[Any]) -> bool:
    """Whether no value has more than ``levels`` levels of lists and objects."""
    for _ in range(levels + 1):
        inner = [value.values() if isinstance(value, dict) else value for value in values if _holds(value)]
        if not inner:
            return True
        values = chain.from_iterable(inner)
    return False


def _holds(value: object) -> bool:
    return isinstance(value, (dict, list, tuple))


Isolation = Literal["auto", "thread", "process"]
