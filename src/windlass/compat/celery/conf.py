"""``app.conf``: Celery's settings by their lower-case names.

A setting is used, ignored (if Windlass always does what it asks for), or refused with advice.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Mapping
from datetime import UTC, timedelta
from typing import Any, Final
from zoneinfo import ZoneInfo

from windlass.core.option_values import nearest
from windlass.errors import ConfigError, shown

_DEFAULTS: Final[dict[str, Any]] = {
    "broker_url": None,
    "result_backend": None,
    "beat_schedule": {},
    "imports": (),
    "include": (),
    "result_expires": timedelta(days=1),
    "task_always_eager": False,
    "task_eager_propagates": False,
    "task_default_queue": "celery",
    "task_default_priority": None,
    "task_default_rate_limit": None,
    "task_ignore_result": False,
    "task_routes": None,
    "task_queues": (),
    "task_time_limit": None,
    "task_soft_time_limit": None,
    "task_track_started": False,
    "task_serializer": "json",
    "result_serializer": "json",
    "accept_content": ("json",),
    "timezone": None,
    "enable_utc": True,
}
#: Settings without effect: Windlass has nothing that they could tune, or always does this.
_NEEDLESS: Final = frozenset(
    """
    broker_connection_retry broker_connection_retry_on_startup broker_connection_max_retries
    broker_connection_timeout broker_heartbeat broker_pool_limit broker_transport_options
    result_accept_content result_backend_transport_options result_cache_max result_compression
    result_extended result_persistent redis_max_connections redis_socket_timeout
    redis_socket_connect_timeout redis_retry_on_timeout redis_socket_keepalive beat_max_loop_interval
    beat_schedule_filename beat_scheduler beat_sync_every event_queue_expires event_queue_ttl
    task_acks_late task_acks_on_failure_or_timeout task_compression task_create_missing_queues
    task_default_delivery_mode task_default_exchange task_default_exchange_type
    task_default_routing_key task_eager_serialization task_inherit_parent_priority task_protocol
    task_publish_retry task_publish_retry_policy task_queue_max_priority task_reject_on_worker_lost
    task_remote_tracebacks task_send_sent_event task_store_eager_result
    task_store_errors_even_if_ignored visibility_timeout worker_cancel_long_running_tasks_on_connection_loss
    worker_concurrency worker_disable_rate_limits worker_enable_remote_control
    worker_hijack_root_logger worker_log_color worker_log_format worker_lost_wait
    worker_max_memory_per_child worker_max_tasks_per_child worker_pool worker_prefetch_multiplier
    worker_proc_alive_timeout worker_redirect_stdouts worker_redirect_stdouts_level
    worker_send_task_events worker_state_db worker_task_log_format worker_timer_precision
    """.split()
)
_ADVICE: Final = {
    "task_annotations": "give the options to the tasks themselves, in @app.task",
    "task_cls": "give base= to @app.task",
    "task_always_eager_propagates": "use task_eager_propagates",
}
_NO_CODE: Final = "a message must not choose code to run"
_JSON: Final = ("json", "application/json")


class Settings:
    """Settings as attributes and items. ``update`` and ``config_from_object`` set several."""

    def __init__(self, given: Mapping[str, Any] | None = None) -> None:
        object.__setattr__(self, "_values", dict(_DEFAULTS))
        self.update(given or {})

    def __getattr__(self, name: str) -> Any:
        values: dict[str, Any] = object.__getattribute__(self, "_values")
        if name in values:
            return values[name]
        if name in _NEEDLESS:
            return None
        raise AttributeError(f"there is no setting {name!r}{_did_you_mean(name)}")

    def __setattr__(self, name: str, value: Any) -> None:
        _check(name, value)
        self._values[name] = value

    def __getitem__(self, name: str) -> Any:
        try:
            return getattr(self, name)
        except AttributeError as exc:
            raise KeyError(str(exc)) from None

    __setitem__ = __setattr__

    def __contains__(self, name: object) -> bool:
        return name in self._values

    def get(self, name: str, default: Any = None) -> Any:
        """The value of a setting, or ``default`` if it is not set."""
        return self._values.get(name, default)

    def update(self, *mappings: Mapping[str, Any], **given: Any) -> None:
        """Set several settings."""
        for mapping in (*mappings, given):
            for name, value in mapping.items():
                setattr(self, name, value)

    def zone(self) -> Any:
        """The time zone of crontabs, and of dates without one."""
        name = self.timezone
        if name is None:
            return UTC
        return ZoneInfo(name) if isinstance(name, str) else name

    def zone_name(self) -> str:
        """The name of the time zone, for schedules."""
        zone = self.zone()
        return "UTC" if zone is UTC else str(getattr(zone, "key", None) or self.timezone)


def settings_of(source: Any, namespace: str | None) -> dict[str, Any]:
    """The settings in what ``config_from_object`` takes: a mapping, module, module name, class or object.

    With ``namespace``, only names with this prefix are used (``CELERY_TASK_ROUTES`` is ``task_routes``).
    """
    if isinstance(source, str):
        source = importlib.import_module(source)
    found = source if isinstance(source, Mapping) else {name: getattr(source, name) for name in dir(source)}
    start = f"{namespace}_" if namespace else ""
    if start:
        names: Iterable[str] = (name for name in found if name.startswith(start) and name != start)
    else:
        names = (
            name for name in found if isinstance(source, Mapping) or name in _DEFAULTS or name in _NEEDLESS
        )
    return {name.removeprefix(start).lower(): found[name] for name in names}


def _check(name: str, value: Any) -> None:
    if name in _NEEDLESS:
        return
    if name not in _DEFAULTS:
        advice = f"; {_ADVICE[name]}" if name in _ADVICE else _did_you_mean(name)
        raise ConfigError(f"setting {name}", message=f"setting {name} is not supported{advice}", got=value)
    if name in ("task_serializer", "result_serializer") and value not in _JSON:
        raise ConfigError(
            f"setting {name}",
            message=f"setting {name} must be json, got {shown(value)}: {_NO_CODE}",
            got=value,
        )
    if name == "accept_content" and not set(value) <= set(_JSON):
        raise ConfigError(
            f"setting {name}",
            message=f"setting {name} must be ['json'], got {shown(value)}: {_NO_CODE}",
            got=value,
        )


def _did_you_mean(name: str) -> str:
    near = nearest(name, [*_DEFAULTS, *_NEEDLESS])
    return f"; did you mean {near!r}?" if near else ""
