"""Converts the options of ``apply_async`` to job options and to one step of a flow."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from windlass.compat.celery.current import CeleryApp
from windlass.core.clock import SYSTEM_CLOCK
from windlass.core.ids import new_id
from windlass.core.option_values import check_known, seconds_to_ms
from windlass.errors import ConfigError, shown
from windlass.flows import Step
from windlass.jobs.payload import pack_call

#: Keys of ``job.trace``: which results a step receives, and its group.
PASSING: Final = "celery.passing"
ERRBACK: Final = "celery.errback"
GROUP: Final = "celery.group"
#: Whether an errback takes its own arguments only.
IMMUTABLE: Final = "celery.immutable"
#: Whether the return value is dropped; set where the call says so. KEPT: another step takes it in any case.
IGNORED: Final = "celery.ignored"
KEPT: Final = "celery.kept"
#: Seconds from the end of the previous steps until a step starts, or expires.
COUNTDOWN: Final = "celery.countdown"
EXPIRES: Final = "celery.expires"
PARENT: Final = "celery.parent"
HEADERS: Final = "celery.headers"

_USED: Final = frozenset(
    "task_id countdown eta expires queue priority link link_error headers time_limit soft_time_limit "
    "ignore_result group_id".split()
)
#: Options without effect: Windlass always retries publishing, stores JSON and acknowledges.
_NEEDLESS: Final = frozenset(
    "retry retry_policy connection producer add_to_parent compression delivery_mode shadow argsrepr "
    "kwargsrepr reply_to mandatory".split()
)
_REFUSED: Final = {
    "routing_key": "name the queue (queue=...)",
    "exchange": "name the queue (queue=...)",
    "chord": "write chord(header, body)",
    "chain": "write chain(first, second)",
    "publisher": "leave it out",
}


def check_options(options: Mapping[str, Any]) -> None:
    """Refuse options that have no meaning here, with advice."""
    for name, advice in _REFUSED.items():
        if options.get(name) is not None:
            raise ConfigError(name, message=f"{name} is not supported; {advice}", got=options[name])
    if options.get("serializer") not in (None, "json", "application/json"):
        raise ConfigError(
            "serializer",
            message=f"serializer must be json, got {shown(options['serializer'])}: a message must not choose "
            "code "
            "to run",
            got=options["serializer"],
        )
    check_known(options, _USED | _NEEDLESS | _REFUSED.keys() | {"serializer"}, "option of apply_async")


def make_step(
    app: CeleryApp,
    name: str,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    options: Mapping[str, Any],
    trace: Mapping[str, str],
    *,
    later: bool = False,
) -> Step:
    """One call as a step. Options that it does not set are left to the worker's task.

    ``later``: it follows other steps, so its countdown and expiry begin when they have ended.
    """
    check_options(options)
    task = app.tasks.get(name)
    given = {key: one for key, one in options.items() if one is not None}
    queue, priority = app.route(name, task, {**options_of(task, app), **given}, (args, kwargs))
    merged = {**options_of(task, app, priority), **given}
    texts = dict(trace)
    if later:
        texts |= _pauses(merged)
    said = job_options(app, merged)
    if getattr(task, "rate_limit", None):
        said["group"] = name
    said["job_id"] = str(merged.get("task_id") or new_id())
    if "ignore_result" in given:
        texts[IGNORED] = "yes" if given["ignore_result"] else "no"
    if merged.get("headers"):
        texts[HEADERS] = json.dumps(merged["headers"])
    if merged.get("group_id"):
        texts[GROUP] = str(merged["group_id"])
    if texts:
        said["trace"] = texts
    return Step(name, queue, pack_call(args, kwargs), said)


def _pauses(options: dict[str, Any]) -> dict[str, str]:
    """Take a countdown and a relative expiry out of ``options``; returns them for the trace of the job."""
    texts: dict[str, str] = {}
    if options.get("countdown"):
        options.pop("eta", None)  # as in Celery, the countdown counts
        texts[COUNTDOWN] = _seconds("countdown", max(options.pop("countdown"), 0))
    expires = options.get("expires")
    if expires is not None and not isinstance(expires, datetime):
        texts[EXPIRES] = _seconds("expires", max(_number(expires), 0.001))
        del options["expires"]
    return texts


def _seconds(option: str, value: float) -> str:
    return str(seconds_to_ms(value, option) / 1000)


def options_of(task: Any, app: CeleryApp, routed: int | None = None) -> dict[str, Any]:
    """The options that the task itself sets for each of its calls. ``routed``: the priority of its route."""
    found: dict[str, Any] = {"priority": app.conf.task_default_priority if routed is None else routed}
    for option in ("queue", "expires", "priority"):
        value = getattr(task, option, None)
        if value is not None:
            found[option] = value
    return found


def job_options(app: CeleryApp, options: Mapping[str, Any]) -> dict[str, Any]:
    """The job options of a call."""
    said: dict[str, Any] = {}
    if options.get("countdown"):  # as in Celery, it counts more than an eta
        said["delay"] = max(options["countdown"], 0)
    elif options.get("eta") is not None:
        said["run_at"] = aware(app, options["eta"], "eta")
    if options.get("expires") is not None:
        said["expires_total"] = max(_seconds_until(app, options["expires"]), 0.001)
    if options.get("priority") is not None:
        said["priority"] = priority_of(app, options["priority"])
    limits = [options[name] for name in ("time_limit", "soft_time_limit") if options.get(name)]
    if limits:
        said["timeout"] = min(limits)
    return said


def priority_of(app: CeleryApp, priority: int) -> int:
    """Convert Celery's priority on the same broker: on AMQP 9 runs first, elsewhere 0 does."""
    if not isinstance(priority, int) or not 0 <= priority <= 255:
        raise ConfigError("priority", "a whole number from 0 to 255", priority)
    return priority if app.windlass.url.startswith("amqp") else -priority


def aware(app: CeleryApp, moment: Any, option: str) -> datetime:
    """A date with a time zone; the app's, if it has none."""
    if not isinstance(moment, datetime):
        raise ConfigError(option, "a datetime", moment)
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=app.conf.zone())


def _seconds_until(app: CeleryApp, expires: Any) -> float:
    if isinstance(expires, datetime):
        return (aware(app, expires, "expires") - now()).total_seconds()
    return _number(expires)


def _number(expires: Any) -> float:
    if isinstance(expires, timedelta):
        return expires.total_seconds()
    if isinstance(expires, (int, float)) and not isinstance(expires, bool):
        return float(expires)
    raise ConfigError("expires", "a number of seconds, a timedelta or a datetime", expires)


def now() -> datetime:
    """The current time, with a time zone."""
    return datetime.fromtimestamp(SYSTEM_CLOCK.now_ms() / 1000, UTC)
