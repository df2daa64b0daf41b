"""The options of ``windlass dashboard``."""

from __future__ import annotations

from dataclasses import dataclass, field

from windlass.cli.store_commands import StoreOptions


@dataclass(frozen=True, kw_only=True)
class DashboardOptions(StoreOptions):
    """Where to listen, who may sign in, what to show."""

    stores: tuple[str, ...] = field(default=(), repr=False)
    host: str = "127.0.0.1"
    port: int = 8080
    operator_token: str | None = None
    reader_token: str | None = None
    users: tuple[str, ...] = ()
    readers: tuple[str, ...] = ()
    access: str | None = None
    operator_roles: tuple[str, ...] = ()
    reader_roles: tuple[str, ...] = ()
    openid_issuer: str | None = None
    openid_client_id: str | None = None
    public_url: str | None = None
    trusted_proxies: tuple[str, ...] = ()
    proxy_user_header: str | None = None
    proxy_groups_header: str | None = None
    read_only: bool = False
    mask: tuple[str, ...] = ()
    queues: tuple[str, ...] = ()
    prefix: str = ""
    lake: str | None = None
    audit_file: str | None = None
    trace_url: str = ""
