"""URLs of stores: what cannot be read is refused and never shown, whatever the password looks like."""

from __future__ import annotations

import traceback
from urllib.parse import quote

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from windlass import ConfigError, Windlass
from windlass.backend import open_backend
from windlass.backend.urls import hide_secrets, parse_url
from windlass.cli.store_commands import StoreOptions, shown_url

#: Long enough that it cannot be part of a message by chance.
_WORD = "P4SSw0rdX"


def _whole_story(error: BaseException) -> str:
    return "".join(traceback.format_exception(error)) + repr(error) + str(error)


def _told(url: str) -> str:
    """Everything that we say about a URL, whether it can be used or not."""
    told = hide_secrets(url) + shown_url(url) + repr(StoreOptions(url=url))
    try:
        told += repr(parse_url(url)) + parse_url(url).shown
        backend = open_backend(url)
        told += repr(backend) + repr(Windlass(url)) + repr(getattr(backend, "settings", ""))
    except ConfigError as error:
        told += _whole_story(error)
    return told


@pytest.mark.parametrize(
    "mark", ["/", "#", "?", "@", "%", "[", "]", ":", "?x=", "&", "é", "\n", "\x00", " ", "\\"]
)
@pytest.mark.parametrize(
    "scheme", ["valkey", "rediss+cluster", "valkey+sentinel", "amqp", "amqps", "nothing"]
)
@pytest.mark.parametrize(
    "form", ["{s}://u:{p}@host", "{s}://:{p}@host:1/0", "{s}://u:{p}", "{s}:/u:{p}@host"]
)
def test_no_mark_in_a_password_lets_it_be_shown(scheme: str, mark: str, form: str) -> None:
    rest = _WORD if "@host" in form else "x"  # behind an @ stands a host
    assert _WORD not in _told(form.format(s=scheme, p=f"{_WORD}{mark}{rest}"))


@given(
    st.sampled_from(["valkey", "redis+sentinel", "amqp", "other"]),
    st.text(max_size=6),
    st.text(max_size=6),
    st.sampled_from(["@host", "@host:99999/0", "@[::1]:1", "@", "", "@h1,h2/main?timeout=x", "?timeout=1@h"]),
)
@example("valkey", "", "/W0RD", "@host")
@example("valkey", "/", "", "")
def test_no_password_is_ever_shown(scheme: str, before: str, after: str, rest: str) -> None:
    assert _WORD not in _told(f"{scheme}://user:{before}{_WORD}{after}{rest}")


@given(st.text(min_size=1).filter(lambda text: text.isprintable()))
def test_an_encoded_password_is_read_as_it_is(password: str) -> None:
    try:
        parsed = parse_url(f"valkey://user:{quote(password, safe='')}@host:6379/0")
    except ConfigError:
        assert not password.isascii()  # marks that turn the direction of writing are refused
        return
    assert (parsed.username, parsed.password, parsed.host) == ("user", password, "host:6379")


@pytest.mark.parametrize(
    "url", ["valkey://u:P4SS/W0RD@host", "valkey://u:P4SS#W0RD@host", "valkey://u:P4SS?W0RD@host"]
)
def test_a_password_with_a_mark_of_urls_is_refused_with_advice(url: str) -> None:
    with pytest.raises(ConfigError, match=r"/ is %2F") as caught:
        open_backend(url)
    assert "P4SS" not in _whole_story(caught.value)
    assert "W0RD" not in _whole_story(caught.value)


@pytest.mark.parametrize("url", ["amqp://user@127.0.0.1:1", "amqp://:secret@127.0.0.1:1", "amqp://127.0.0.1"])
def test_a_user_of_a_broker_may_come_without_a_password(url: str) -> None:
    from windlass.backends.amqp.backend import _parameters

    login = _parameters(parse_url(url)).credentials
    assert (login.username, login.password) in {("user", ""), ("", "secret"), ("guest", "guest")}


@pytest.mark.parametrize(
    ("path", "vhost"),
    [("", "/"), ("/", "/"), ("//", "/"), ("/%2F", "/"), ("/shop", "shop"), ("//?heartbeat=5", "/")],
)
def test_the_virtual_host_of_a_broker_may_be_written_as_other_programs_do(path: str, vhost: str) -> None:
    from windlass.backends.amqp.backend import _parameters

    assert _parameters(parse_url(f"amqp://127.0.0.1{path}")).virtual_host == vhost


def test_ports_out_of_range_and_broken_addresses_are_refused() -> None:
    for host in ("h:0", "h:65536", "h:port", "[::1", "::1", "a:1,b:x"):
        with pytest.raises(ConfigError):
            parse_url(f"valkey://{host}/0")
    assert parse_url("valkey://[::1]:6379/0").host == "[::1]:6379"


def test_files_may_have_any_name() -> None:
    assert hide_secrets("sqlite:///a@b.db") == "sqlite:///a@b.db"
    assert parse_url("file:///tmp/a@b").path == "/tmp/a@b"


def test_an_empty_variable_does_not_select_a_local_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WINDLASS_URL", "")
    with pytest.raises(ConfigError, match="WINDLASS_URL is empty"):
        Windlass()
    with pytest.raises(ConfigError, match="url must begin with the kind of store"):
        Windlass("")
    assert Windlass("memory://").url == "memory://"
    monkeypatch.setenv("WINDLASS_URL", "memory://named")
    assert Windlass().url == "memory://named"
    monkeypatch.delenv("WINDLASS_URL")
    assert Windlass().url == "sqlite:///windlass.db"
