"""The sign-in settings of ``windlass dashboard``, from options, the environment and a TOML file.

Options override the file. Secrets are read only from the environment.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict, TypeVar

import msgspec

from windlass.core.option_values import check_known
from windlass.dashboard import OpenID, Roles, Rule, TrustedProxy
from windlass.errors import ConfigError

if TYPE_CHECKING:
    from windlass.cli.dashboard_options import DashboardOptions

T = TypeVar("T")
Table = dict[str, Any]

#: Keys that are not allowed in a file, with the environment variable for each.
_SECRETS = {"client_secret": "WINDLASS_OPENID_CLIENT_SECRET", "secret": "WINDLASS_PROXY_SECRET"}
_KINDS: dict[str, type[Any]] = {"openid": OpenID, "proxy": TrustedProxy, "roles": Roles, "rules": Rule}
_NEEDED = {
    "issuer": "--openid-issuer",
    "client_id": "--openid-client-id",
    "public_url": "--public-url",
    "addresses": "--trusted-proxy",
}


class SignInOptions(TypedDict):
    """The sign-in arguments of ``create_app``."""

    openid: OpenID | None
    proxy: TrustedProxy | None
    rules: list[Rule] | None


def sign_in_options(options: DashboardOptions) -> SignInOptions:
    """Build the provider, the proxy and the rules from the options and their file."""
    file = _read(options.access)
    openid = {**file.get("openid", {}), **_given(options, "issuer", "client_id", "public_url")}
    proxy = {**file.get("proxy", {}), **_given(options, "addresses", "user_header", "groups_header")}
    roles = _make(Roles, "roles", {**file.get("roles", {}), **_roles(options)})
    _check_roles(roles, bool(openid), proxy)
    rules = file.get("rules")
    return {
        "openid": _openid(openid, roles) if openid else None,
        "proxy": _proxy(proxy, roles) if proxy else None,
        "rules": None
        if rules is None
        else [_make(Rule, f"rule {number}", rule) for number, rule in enumerate(rules, 1)],
    }


def _openid(values: Table, roles: Roles) -> OpenID:
    _check_needed("openid", values, "issuer", "client_id", "public_url")
    secret = os.environ.get(_SECRETS["client_secret"]) or None
    return replace(_make(OpenID, "openid", {**values, "client_secret": secret}), roles=roles)


def _proxy(values: Table, roles: Roles) -> TrustedProxy:
    """Trust only the named headers: a proxy passes on client headers that it does not know."""
    _check_needed("proxy", values, "addresses")
    secret = os.environ.get(_SECRETS["secret"]) or None
    headers = {"user_header": None, "groups_header": None}
    return replace(_make(TrustedProxy, "proxy", {**headers, **values, "secret": secret}), roles=roles)


# --- options ---------------------------------------------------------------------------------------


def _given(options: DashboardOptions, *names: str) -> Table:
    values = {
        "issuer": options.openid_issuer,
        "client_id": options.openid_client_id,
        "public_url": options.public_url,
        "addresses": list(options.trusted_proxies),
        "user_header": options.proxy_user_header,
        "groups_header": options.proxy_groups_header,
    }
    return {name: values[name] for name in names if values[name]}


def _roles(options: DashboardOptions) -> Table:
    """Names of users, and names of groups after an @."""
    found: Table = {}
    for role, given in (("operator", options.operator_roles), ("reader", options.reader_roles)):
        if given:
            found[f"{role}_users"] = [name for name in given if not name.startswith("@")]
            found[f"{role}_groups"] = [name[1:] for name in given if name.startswith("@")]
    return found


def _check_roles(roles: Roles, openid: bool, proxy: Table) -> None:
    """Refuse roles that no user can get, and sign-in methods that give no role."""
    any_role = any(getattr(roles, field.name) for field in fields(roles))
    names_users = openid or bool(proxy.get("user_header"))
    if any_role and not names_users:
        raise ConfigError(
            "roles",
            message="roles need a sign-in that names users: give --openid-issuer, or --trusted-proxy and "
            "--proxy-user-header",
        )
    if names_users and not any_role:
        raise ConfigError("roles", message="no user would have a role: give --operator-role or --reader-role")
    if proxy.get("groups_header") and not proxy.get("user_header"):
        raise ConfigError("--proxy-groups-header", message="--proxy-groups-header needs --proxy-user-header")


def _check_needed(table: str, values: Table, *names: str) -> None:
    for name in names:
        if not values.get(name):
            raise ConfigError(
                table,
                message=f"[{table}] is incomplete: give {_NEEDED[name]}, or {name} in [{table}] of --access",
            )


# --- the file --------------------------------------------------------------------------------------


def _read(path: str | None) -> Table:
    """The tables of a file, with validated key names."""
    if path is None:
        return {}
    try:
        found = tomllib.loads(Path(path).read_text("utf-8"))
    except OSError as exc:
        raise ConfigError(
            "--access", message=f"cannot read --access {path}: {exc.strerror}", got=path
        ) from None
    except ValueError as exc:  # invalid TOML or UTF-8
        raise ConfigError(f"--access {path}", message=f"--access {path} is not valid TOML: {exc}") from None
    check_known(found, _KINDS, f"table of {path}")
    for name, value in found.items():
        listed = name == "rules"
        tables = value if listed and isinstance(value, list) else [value]
        for table in tables:
            if not isinstance(table, dict) or (listed and table is value):
                raise ConfigError(
                    f"{name} of {path}",
                    message=f"{name} of {path} must be written as {'[[rules]]' if listed else f'[{name}]'}",
                )
            _check_keys(name, table, path)
    return found


def _check_keys(name: str, table: Mapping[str, Any], path: str) -> None:
    for key in table:
        if key in _SECRETS and name in ("openid", "proxy"):
            raise ConfigError(
                f"{key} of [{name}]",
                message=f"{key} of [{name}] is a secret: take it out of {path} and set ${_SECRETS[key]}",
            )
    known = {field.name for field in fields(_KINDS[name])} - {"roles", *_SECRETS}
    check_known(table, known, f"key of [{name}] in {path}")


def _make(kind: type[T], name: str, values: Table) -> T:
    """Check the types. The class itself checks the values."""
    try:
        return msgspec.convert(values, kind)
    except msgspec.ValidationError as exc:
        if isinstance(exc.__cause__, ConfigError):
            raise exc.__cause__ from None
        raise ConfigError(name, message=f"{name} has a value of a wrong type: {exc}") from None
