"""``windlass dashboard``: a provider, a proxy, roles and rules, from options, the environment and a file."""

from __future__ import annotations

import re
from pathlib import Path

import httpx
import pytest
from click.testing import CliRunner

from tests.http.support import CSRF
from windlass.cli import dashboard
from windlass.cli.dashboard import make
from windlass.cli.dashboard_options import DashboardOptions
from windlass.dashboard import OpenID, Roles, Rule, TrustedProxy
from windlass.dashboard.guard import Guard
from windlass.dashboard.settings import DashboardSettings
from windlass.errors import ConfigError

backend_name = "memory"
DOCS = Path(__file__).resolve().parents[2] / "docs"
OPENID = ("--openid-issuer", "https://login.example", "--openid-client-id", "windlass")
PUBLIC = ("--public-url", "https://jobs.example")
PROXY = ("--trusted-proxy", "10.0.0.5")
USER = ("--proxy-user-header", "X-User")
ADA = "[roles]\nreader_users = ['ada']"
SECRET = "shared with the proxy alone"


def served(*arguments: str) -> Guard:
    """The application that a command line and the environment mean."""
    context = dashboard.command.make_context("dashboard", ["--url", "memory://command", *arguments])
    made = make(
        DashboardOptions(**{k: v for k, v in context.params.items() if k not in ("as_json", "debug")})
    )
    assert isinstance(made, Guard)
    return made


def settings(*arguments: str) -> DashboardSettings:
    return served(*arguments).settings


def test_a_provider_by_options(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WINDLASS_OPENID_CLIENT_SECRET", "from the provider")
    roles = ("--operator-role", "@ops", "--operator-role", "ada", "--reader-role", "@eng-*")
    found = settings("--host", "0.0.0.0", *OPENID, *PUBLIC, *roles)
    assert found.methods == ["openid"]
    assert found.openid == OpenID(
        issuer="https://login.example",
        client_id="windlass",
        public_url="https://jobs.example",
        client_secret="from the provider",
        roles=Roles(
            operator_users=["ada"], operator_groups=["ops"], reader_users=[], reader_groups=["eng-*"]
        ),
    )
    assert (found.proxy, found.rules) == (None, None)


def test_everything_comes_from_the_environment_as_well(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "access.toml"
    file.write_text("rules = []")
    for name, value in {
        "ACCESS": str(file),
        "OPENID_ISSUER": "https://login.example",
        "OPENID_CLIENT_ID": "windlass",
        "PUBLIC_URL": "https://jobs.example",
        "TRUSTED_PROXY": "10.0.0.5 10.1.0.0/16",
        "PROXY_USER_HEADER": "X-User",
        "PROXY_GROUPS_HEADER": "X-Groups",
        "PROXY_SECRET": SECRET,
        "OPERATOR_ROLE": "ada @ops",
        "READER_ROLE": "bob",
    }.items():
        monkeypatch.setenv(f"WINDLASS_{name}", value)
    found = settings("--host", "0.0.0.0")
    roles = Roles(operator_users=["ada"], operator_groups=["ops"], reader_users=["bob"], reader_groups=[])
    assert found.methods == ["openid", "proxy"]
    assert found.openid is not None
    assert found.openid.roles == roles
    assert found.openid.client_secret is None
    assert found.proxy == TrustedProxy(
        addresses=["10.0.0.5", "10.1.0.0/16"],
        user_header="X-User",
        groups_header="X-Groups",
        secret=SECRET,
        roles=roles,
    )
    assert found.rules == (), "no one may do anything"


async def test_the_users_of_a_proxy_come_in_and_meet_the_rules(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("WINDLASS_PROXY_SECRET", SECRET)
    file = tmp_path / "access.toml"
    file.write_text('[[rules]]\nuser = "ada"\nqueues = ["mail"]\nactions = ["read", "pause"]\n')
    guard = served(*PROXY, *USER, "--operator-role", "ada", "--access", str(file))

    async def pause(peer: str, user: str, queue: str, secret: str = SECRET) -> int:
        headers = {"X-User": user, "X-Windlass-Proxy-Secret": secret, "X-Forwarded-Groups": "ops", **CSRF}
        transport = httpx.ASGITransport(guard, client=(peer, 1))
        async with httpx.AsyncClient(transport=transport, base_url="http://jobs.example") as client:
            answer = await client.post(f"/api/job-queues/{queue}/pause", headers=headers)
        return answer.status_code

    async with guard.store_view.app as app:
        await app.queue("mail").add("send")
        await app.queue("shop").add("send")
        assert await pause("10.0.0.5", "ada", "mail") == 204
        assert await pause("10.0.0.5", "ada", "shop") == 404
        assert await pause("10.0.0.5", "eve", "mail") == 401
        assert await pause("10.0.0.6", "ada", "mail") == 401
        assert await pause("10.0.0.5", "ada", "mail", "guessed by a neighbour") == 401


def test_a_proxy_names_users_only_in_a_header_that_was_named() -> None:
    """A proxy that does not know such a header passes on what a client wrote there."""
    found = settings(*PROXY)
    assert found.proxy == TrustedProxy(addresses=["10.0.0.5"], user_header=None, groups_header=None)
    assert found.methods == []
    with pytest.raises(ConfigError, match="sign-in"):
        settings("--host", "0.0.0.0", *PROXY)
    beside = settings("--host", "0.0.0.0", *PROXY, *OPENID, *PUBLIC, "--operator-role", "*")
    assert beside.methods == ["openid"]


def test_the_file_of_the_guide_means_what_it_says(tmp_path: Path) -> None:
    [example] = re.findall(r"```toml\n(# access\.toml\n.*?)```", (DOCS / "http.md").read_text(), re.DOTALL)
    file = tmp_path / "access.toml"
    file.write_text(example)
    found = settings("--host", "0.0.0.0", "--access", str(file))
    assert found.methods == ["openid"]
    assert found.openid is not None
    assert found.openid.roles == Roles(
        operator_groups=["ops"], reader_users=["ada"], reader_groups=["engineering"]
    )
    assert found.proxy is not None
    assert (found.proxy.addresses, found.proxy.user_header) == (["10.0.0.5"], None)
    assert found.rules == (
        Rule(group="ops", actions=["*"]),
        Rule(group="engineering", queues=["mail", "shop-*"], actions=["read", "retry"]),
        Rule(user="ada"),
    )
    other = settings("--access", str(file), "--openid-client-id", "other", "--operator-role", "eve").openid
    assert other is not None
    assert (other.client_id, other.issuer) == ("other", found.openid.issuer), "options replace the file"
    assert (other.roles.operator_users, other.roles.operator_groups) == (["eve"], [])
    assert other.roles.reader_users == ["ada"]


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("[rolls]", r"unknown table of .*access\.toml: 'rolls' \(did you mean 'roles'\?\)"),
        (
            "[[rules]]\nuser = 'ada'\nqueue = ['mail']",
            r"unknown key of \[rules\] in .*: 'queue' \(did you mean 'queues'\?\)",
        ),
        ("[roles]\noperater_users = ['ada']", r"did you mean 'operator_users'"),
        ("[openid]\nroles = {}", r"unknown key of \[openid\] in .*access\.toml: 'roles'"),
        ("[openid]\nclient_secret = 'kestrel'", r"is a secret: .* set \$WINDLASS_OPENID_CLIENT_SECRET"),
        ("[proxy]\nsecret = 'kestrel'", r"is a secret: .* set \$WINDLASS_PROXY_SECRET"),
        ("[[rules]]\nactions = ['fly']", r"rules\.actions must be some of .*got \['fly'\]"),
        ("[[rules]]\nactions = 'read'", r"rule 1 has a value of a wrong type: Expected `array`"),
        ("[[rules]]\n[[rules]]\nuser = 7", r"rule 2 has a value of a wrong type: Expected `str`, got `int`"),
        ("[[rules]]\nqueues = []", r"rules\.queues"),
        ("[rules]\nuser = 'ada'", r"written as \[\[rules\]\]"),
        ("rules = ['ada']", r"written as \[\[rules\]\]"),
        ("openid = 'https://login.example'", r"written as \[openid\]"),
        ("[[roles]]", r"written as \[roles\]"),
        (
            f"[openid]\nissuer = 'https://login.example'\n{ADA}",
            r"\[openid\] is incomplete: give --openid-client-id",
        ),
        (f"[proxy]\nuser_header = 'X-User'\n{ADA}", r"\[proxy\] is incomplete: give --trusted-proxy"),
        ("[proxy]\naddresses = ['x']", r"addresses or networks"),
        ("[proxy]\naddresses = ['10.0.0.5']\nuser_header = 'X-User'", r"--operator-role"),
        (ADA, r"roles need a sign-in that names users: give --openid-issuer"),
        ("[roles\n", r"is not valid TOML: .*line 1"),
    ],
)
def test_a_file_that_cannot_be_meant_is_refused(tmp_path: Path, text: str, error: str) -> None:
    file = tmp_path / "access.toml"
    file.write_text(text)
    with pytest.raises(ConfigError, match=error) as told:
        settings("--access", str(file))
    assert "kestrel" not in str(told.value)


def test_a_file_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"cannot read --access .*nowhere\.toml: No such file"):
        settings("--access", str(tmp_path / "nowhere.toml"))
    (tmp_path / "odd.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match="is not valid TOML"):
        settings("--access", str(tmp_path / "odd.toml"))


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (OPENID, "no user would have a role: give --operator-role"),
        ((*OPENID, "--reader-role", "*"), "give --public-url"),
        ((*OPENID, "--public-url", "http://jobs.example", "--reader-role", "*"), "https://"),
        ((*PROXY, *USER), "--operator-role"),
        ((*USER, "--reader-role", "*"), "give --trusted-proxy"),
        ((*PROXY, "--proxy-groups-header", "X-Groups"), "--proxy-groups-header needs --proxy-user-header"),
        (("--reader-role", "*"), "--openid-issuer"),
        ((*PROXY, "--reader-role", "*"), "--proxy-user-header"),
    ],
)
def test_options_that_lead_nowhere_are_refused(arguments: tuple[str, ...], error: str) -> None:
    with pytest.raises(ConfigError, match=error):
        settings(*arguments)
    done = CliRunner().invoke(dashboard.command, ["--url", "memory://command", *arguments])
    assert done.exit_code == 1
    assert error in " ".join(done.output.split())


def test_a_short_secret_of_a_proxy_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WINDLASS_PROXY_SECRET", "kestrel")
    with pytest.raises(ConfigError, match=r"proxy\.secret") as told:
        settings(*PROXY)
    assert "kestrel" not in str(told.value)


def test_no_secret_of_a_provider_or_a_proxy_is_an_option() -> None:
    names = [name for option in dashboard.command.params for name in option.opts]
    assert [name for name in names if "secret" in name] == []
    shown = CliRunner().invoke(dashboard.command, ["--help"]).output
    assert {"$WINDLASS_OPENID_CLIENT_SECRET", "$WINDLASS_PROXY_SECRET"} <= set(re.findall(r"\$\w+", shown))
