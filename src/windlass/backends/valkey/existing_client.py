"""Make a URL from a redis-py client that the application already has.

Windlass opens its own connections, since some of them block and all have its own timeouts. It only takes
addresses, credentials and TLS settings from the client.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast
from urllib.parse import quote, urlencode

from redis import RedisCluster
from redis.asyncio import RedisCluster as AsyncRedisCluster

from windlass.errors import ConfigError

_VERIFY = {"none": "none", "optional": "ca", "required": "full"}
#: Options of a client -> options of a URL.
_FILES = {"ssl_ca_certs": "ca", "ssl_certfile": "cert", "ssl_keyfile": "key"}


def url_of(client: Any, *, namespace: str | None = None) -> str:
    """The URL for ``Windlass`` of the server that ``client`` connects to; it contains the client's password.

    ``client`` is a ``Redis`` or ``RedisCluster`` of redis-py, blocking or asyncio.
    """
    settings = _settings_of(client)
    if isinstance(client, (RedisCluster, AsyncRedisCluster)):
        nodes = client.nodes_manager.startup_nodes.values()
        hosts, path, kind = ",".join(_host(node.host, node.port) for node in nodes), "", "+cluster"
    elif "host" in settings:
        hosts, path, kind = _host(settings["host"], settings["port"]), f"/{settings.get('db') or 0}", ""
    else:
        raise ConfigError(
            "client",
            "a Redis or RedisCluster of redis-py that connects by host and port",
            type(client).__name__,
        )
    if settings.get("credential_provider") is not None:
        raise ConfigError(
            "client",
            message="a client with a credential provider cannot be used: give it a username and a password, "
            "or write the URL yourself",
        )
    tls = _is_tls(client, settings)
    options = {"namespace": namespace} if namespace else {}
    if tls:
        options |= {name: settings[key] for key, name in _FILES.items() if settings.get(key)}
        options["verify"] = _verify(settings)
    query = f"?{urlencode(options)}" if options else ""
    return f"redis{'s' if tls else ''}{kind}://{_login(settings)}{hosts}{path}{query}"


def _settings_of(client: Any) -> Mapping[str, Any]:
    if isinstance(client, (RedisCluster, AsyncRedisCluster)):
        return cast("Mapping[str, Any]", client.get_connection_kwargs())
    return getattr(getattr(client, "connection_pool", None), "connection_kwargs", None) or {}


def _is_tls(client: Any, settings: Mapping[str, Any]) -> bool:
    """Whether the client uses TLS: by the class of its connections, or by the settings of a cluster."""
    pool = getattr(client, "connection_pool", None)
    used = settings.get("connection_class") or getattr(pool, "connection_class", None)
    return bool(settings.get("ssl")) or "SSL" in getattr(used, "__name__", "")


def _verify(settings: Mapping[str, Any]) -> str:
    required = str(settings.get("ssl_cert_reqs") or "required").lower().rpartition("_")[2]
    verify = _VERIFY.get(required, "full")
    return "ca" if verify == "full" and settings.get("ssl_check_hostname") is False else verify


def _host(host: str, port: object) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _login(settings: Mapping[str, Any]) -> str:
    password = settings.get("password")
    if not password:
        return ""
    return f"{quote(settings.get('username') or '', safe='')}:{quote(password, safe='')}@"
