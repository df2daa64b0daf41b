"""The URL of a server that the application has a client for."""

from __future__ import annotations

from typing import Any

import pytest
import redis
import redis.asyncio
from redis.asyncio.cluster import ClusterNode

from tests.backends.valkey.servers import cluster_servers, valkey_server
from tests.backends.valkey.support import add, claim, complete, new, opened
from windlass.backend.urls import parse_url
from windlass.backends.valkey import url_of
from windlass.backends.valkey.settings import parse
from windlass.core.outcome import Settled
from windlass.errors import ConfigError

backend_name = "valkey"
pytestmark = [pytest.mark.service("valkey"), pytest.mark.feature("L7")]


@pytest.mark.parametrize("kind", ["blocking", "asyncio", "cluster"])
async def test_jobs_run_on_the_server_of_a_client_that_the_application_has(kind: str) -> None:
    host, port = "127.0.0.1", (cluster_servers().servers[0] if kind == "cluster" else valkey_server()).port
    client: Any
    if kind == "cluster":
        client = redis.asyncio.RedisCluster(startup_nodes=[ClusterNode(host, port)])
    else:
        client = (redis if kind == "blocking" else redis.asyncio).Redis(host=host, port=port)
    async with opened(url_of(client)) as store:
        await add(store, new())
        assert await complete(store, *await claim(store)) == [Settled.OK]


@pytest.mark.parametrize("module", [redis, redis.asyncio])
def test_login_database_and_certificates_are_taken_over(module: Any, tmp_path: Any) -> None:
    ca = tmp_path / "ca.pem"
    ca.write_text("")
    client = module.Redis(
        host="::1",
        port=6380,
        db=3,
        username="ann",
        password="s3cret/with:odd@signs",
        ssl=True,
        ssl_ca_certs=str(ca),
        ssl_check_hostname=False,
    )
    settings = parse(parse_url(url_of(client, namespace="shop")))
    assert settings.addresses == (("::1", 6380),) and settings.db == 3 and settings.namespace == "shop"
    assert (settings.username, settings.password) == ("ann", "s3cret/with:odd@signs")
    assert settings.tls is not None and (settings.tls.ca, settings.tls.verify) == (str(ca), "ca")


@pytest.mark.parametrize(
    "client",
    [
        object(),
        redis.Redis(unix_socket_path="/run/valkey.sock"),
        redis.Redis(credential_provider=redis.UsernamePasswordCredentialProvider("ann", "x")),
    ],
    ids=["not a client", "a socket", "passwords that change"],
)
def test_a_client_that_no_url_can_describe_is_refused(client: Any) -> None:
    with pytest.raises(ConfigError, match="client"):
        url_of(client)
