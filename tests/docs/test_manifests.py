"""Manifests of the docs and of ``windlass new``: parsed, and compared with what the program really has.

Systemd, a container engine, Kubernetes, KEDA and Prometheus do not run here. What they read is checked
against small schemas of it, and every command, option, variable, port, path and metric against Windlass.
"""

from __future__ import annotations

import asyncio
import configparser
import json
import re
import shlex
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

import msgspec
import pytest
import yaml  # type: ignore[import-untyped]

from tests.docs.commands import check_command, known_variables
from windlass import Windlass, Worker
from windlass.cli.dashboard_options import DashboardOptions
from windlass.cli.new import write_project
from windlass.cli.values import parse_duration
from windlass.telemetry import PrometheusMetrics
from windlass.worker import WorkerOptions
from windlass.worker.health_server import HealthServer

DOCS = Path(__file__).resolve().parents[2] / "docs"
_FENCE = re.compile(r"^```(?P<kind>\w+)\n(?P<code>.*?)^```$", re.MULTILINE | re.DOTALL)
#: What a supervisor must wait for: running jobs, then cancelled ones.
STOPPING = WorkerOptions().ms("grace") / 1000 + WorkerOptions().ms("cancel_wait") / 1000


def blocks(page: str, kind: str) -> list[str]:
    return [found["code"] for found in _FENCE.finditer((DOCS / page).read_text()) if found["kind"] == kind]


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The project of ``windlass new shop``."""
    parent = tmp_path_factory.mktemp("new")
    write_project("shop", parent)
    return parent / "shop"


# --- schemas: of what our manifests use, so that a misspelt key is noticed ------------------------------


class Strict(msgspec.Struct, forbid_unknown_fields=True, rename="camel"):
    """A mapping with these keys and no others."""


class Meta(Strict):
    name: str = ""
    labels: dict[str, str] = {}


class Probe(Strict):
    http_get: dict[Literal["path", "port"], str | int]
    period_seconds: int


class KeyRef(Strict):
    name: str
    key: str


class ValueFrom(Strict):
    secret_key_ref: KeyRef


class Variable(Strict):
    name: str
    value_from: ValueFrom


class Container(Strict):
    name: str
    image: str
    args: list[str]
    liveness_probe: Probe
    readiness_probe: Probe
    env: list[Variable]


class PodSpec(Strict):
    termination_grace_period_seconds: int
    containers: list[Container]


class Pod(Strict):
    metadata: Meta
    spec: PodSpec


class Selector(Strict):
    match_labels: dict[str, str]


class DeploymentSpec(Strict):
    replicas: int
    selector: Selector
    template: Pod


class Deployment(Strict, tag_field="kind", tag="Deployment"):
    api_version: Literal["apps/v1"]
    metadata: Meta
    spec: DeploymentSpec


class Named(Strict):
    name: str


class TriggerFacts(Strict):
    url: str
    format: Literal["json", "prometheus"]
    value_location: str
    target_value: str
    auth_mode: Literal["bearer"]


class Trigger(Strict):
    type: Literal["metrics-api"]
    metadata: TriggerFacts
    authentication_ref: Named


class ScaledSpec(Strict):
    scale_target_ref: Named
    min_replica_count: int
    max_replica_count: int
    cooldown_period: int
    triggers: list[Trigger]


class ScaledObject(Strict, tag_field="kind", tag="ScaledObject"):
    api_version: Literal["keda.sh/v1alpha1"]
    metadata: Meta
    spec: ScaledSpec


class SecretTarget(Strict):
    parameter: Literal["token"]
    name: str
    key: str


class AuthenticationSpec(Strict):
    secret_target_ref: list[SecretTarget]


class TriggerAuthentication(Strict, tag_field="kind", tag="TriggerAuthentication"):
    api_version: Literal["keda.sh/v1alpha1"]
    metadata: Meta
    spec: AuthenticationSpec


Resource = Deployment | ScaledObject | TriggerAuthentication


class Healthcheck(msgspec.Struct, forbid_unknown_fields=True):
    test: list[str]
    interval: str


class Build(msgspec.Struct, forbid_unknown_fields=True):
    context: str
    dockerfile: str


class Service(msgspec.Struct, forbid_unknown_fields=True):
    image: str | None = None
    build: Build | None = None
    command: list[str] = []
    environment: dict[str, str] = {}
    depends_on: dict[str, dict[Literal["condition"], Literal["service_healthy"]]] = {}
    volumes: list[str] = []
    ports: list[str] = []
    healthcheck: Healthcheck | None = None
    stop_grace_period: str | None = None
    deploy: dict[Literal["replicas"], int] = {}


class Compose(msgspec.Struct, forbid_unknown_fields=True):
    services: dict[str, Service]
    volumes: dict[str, None]


class Scrape(msgspec.Struct, forbid_unknown_fields=True):
    job_name: str
    static_configs: list[dict[Literal["targets"], list[str]]]
    authorization: dict[Literal["credentials_file"], str] = {}


class ScrapeConfigs(msgspec.Struct, forbid_unknown_fields=True):
    scrape_configs: list[Scrape]


Span = Annotated[str, msgspec.Meta(pattern=r"^\d+[smhd]$")]


class Rule(msgspec.Struct, forbid_unknown_fields=True, rename={"for_": "for"}):
    alert: str
    expr: str
    labels: dict[Literal["severity"], Literal["critical", "warning", "info"]]
    annotations: dict[Literal["summary", "description"], str]
    for_: Span = "0s"


class RuleGroup(msgspec.Struct, forbid_unknown_fields=True):
    name: str
    rules: list[Rule]


class Rules(msgspec.Struct, forbid_unknown_fields=True):
    groups: list[RuleGroup]


def resources() -> list[Resource]:
    found = [one for text in blocks("deployment.md", "yaml") for one in yaml.safe_load_all(text)]
    return [msgspec.convert(one, Resource) for one in found if "apiVersion" in one]


def only(kind: type[Any]) -> Any:
    (found,) = [one for one in resources() if isinstance(one, kind)]
    return found


def compose() -> Compose:
    (found,) = [
        one
        for text in blocks("deployment.md", "yaml")
        for one in yaml.safe_load_all(text)
        if "services" in one
    ]
    return msgspec.convert({key: found[key] for key in found if not key.startswith("x-")}, Compose)


# --- commands, variables, times ------------------------------


def option(command: list[str], name: str) -> str:
    """The value of an option on a command line."""
    for number, word in enumerate(command):
        if word == name:
            return command[number + 1]
        if word.startswith(f"{name}="):
            return word.partition("=")[2]
    raise AssertionError(f"{name} is not given: {command}")


def test_a_pod_is_probed_where_its_worker_answers_and_has_time_to_stop() -> None:
    deployment: Deployment = only(Deployment)
    (container,) = deployment.spec.template.spec.containers
    check_command(container.args)
    port = int(option(container.args, "--health-port"))
    assert option(container.args, "--health-host") == "0.0.0.0"  # probes come from outside of the pod
    for probe, path in ((container.liveness_probe, "/live"), (container.readiness_probe, "/ready")):
        assert probe.http_get == {"path": path, "port": port}
    assert deployment.spec.template.spec.termination_grace_period_seconds > STOPPING
    assert deployment.spec.selector.match_labels == deployment.spec.template.metadata.labels
    assert {variable.name for variable in container.env} <= known_variables()


def test_the_scaler_names_the_deployment_its_secret_and_a_metric_that_is_served() -> None:
    deployment: Deployment = only(Deployment)
    scaled: ScaledObject = only(ScaledObject)
    secret: TriggerAuthentication = only(TriggerAuthentication)
    assert scaled.spec.scale_target_ref.name == deployment.metadata.name
    assert 1 <= scaled.spec.min_replica_count < scaled.spec.max_replica_count
    (trigger,) = scaled.spec.triggers
    assert trigger.authentication_ref.name == secret.metadata.name
    url = urlsplit(trigger.metadata.url)
    assert (url.port, url.path) == (DashboardOptions().port, "/metrics")
    assert float(trigger.metadata.target_value) > 0


def test_the_services_of_the_compose_file_hang_together(project: Path) -> None:
    found = compose()
    for name, service in found.services.items():
        if service.command[0] == "windlass":
            check_command(service.command)
        assert set(service.depends_on) <= found.services.keys(), name
        assert {volume.partition(":")[0] for volume in service.volumes} <= found.volumes.keys(), name
        ours = {variable for variable in service.environment if variable.startswith("WINDLASS")}
        assert ours <= known_variables(), name
        if service.build is not None:
            assert (project / service.build.dockerfile).is_file()  # what ``windlass new`` writes
    store = urlsplit(found.services["worker"].environment["WINDLASS_URL"])
    assert store.hostname in found.services
    assert found.services[store.hostname or ""].healthcheck is not None
    assert parse_duration(found.services["worker"].stop_grace_period or "") > STOPPING
    (published,) = found.services["dashboard"].ports
    assert published.split(":")[-1] == str(DashboardOptions().port)


#: Directives of systemd that our units use; ``man systemd.directives`` has them all.
DIRECTIVES = {
    "Unit": {"Description", "After", "Wants"},
    "Service": {
        *("Type", "User", "WorkingDirectory", "Environment", "StateDirectory", "ExecStart", "KillMode"),
        *("TimeoutStopSec", "Restart", "RestartSec", "NoNewPrivileges", "ProtectSystem", "ProtectHome"),
        "PrivateTmp",
    },
    "Install": {"WantedBy"},
}


def units(project: Path) -> Iterator[configparser.ConfigParser]:
    texts = [*blocks("deployment.md", "ini"), (project / "deploy" / "shop-worker.service").read_text()]
    for text in texts:
        unit = configparser.ConfigParser(interpolation=None, strict=True)
        unit.optionxform = str  # type: ignore[assignment,method-assign] # directives are as they are written
        unit.read_string(text)
        yield unit


def test_a_systemd_unit_starts_a_worker_and_waits_for_it(project: Path) -> None:
    found = list(units(project))
    assert len(found) == 2
    for unit in found:
        assert set(unit.sections()) == DIRECTIVES.keys()
        for section in unit.sections():
            assert set(unit[section]) <= DIRECTIVES[section]
        service = unit["Service"]
        program, *words = shlex.split(service["ExecStart"])
        assert program.endswith("/.venv/bin/windlass")
        check_command(["windlass", *words])
        assert float(service["TimeoutStopSec"]) > STOPPING
        variable, _, value = service["Environment"].partition("=")
        assert variable in known_variables()
        assert value.startswith(f"sqlite:////var/lib/{service['StateDirectory']}/")


INSTRUCTIONS = {"FROM", "RUN", "WORKDIR", "COPY", "USER", "STOPSIGNAL", "HEALTHCHECK", "CMD"}


def test_a_container_runs_the_worker_and_asks_where_it_answers(project: Path) -> None:
    for text in [*blocks("deployment.md", "dockerfile"), (project / "Containerfile").read_text()]:
        lines = [line.split(" ", 1) for line in text.splitlines() if line and not line.startswith("#")]
        assert {word for word, _ in lines} <= INSTRUCTIONS
        said = dict(lines)
        command = json.loads(said["CMD"])
        check_command(command)
        port = option(command, "--health-port")
        if "HEALTHCHECK" in said:
            assert f"http://127.0.0.1:{port}/ready" in said["HEALTHCHECK"]
        version = re.fullmatch(r"docker\.io/library/python:(\d\.\d+)-slim", said["FROM"])
        assert version
        assert f"| {version[1]} | the whole suite" in (DOCS / "platforms.md").read_text()


def test_prometheus_scrapes_the_ports_of_the_dashboard_and_of_the_workers() -> None:
    (text,) = blocks("monitoring.md", "yaml")
    dashboard, workers = msgspec.convert(yaml.safe_load(text), ScrapeConfigs).scrape_configs
    assert dashboard.authorization  # it refuses a scrape without a token
    ports = [
        {target.split(":")[1] for one in scrape.static_configs for target in one["targets"]}
        for scrape in (dashboard, workers)
    ]
    (shown,) = set(re.findall(r"windlass worker --health-port (\d+)", (DOCS / "monitoring.md").read_text()))
    assert ports == [{str(DashboardOptions().port)}, {shown}]


def test_the_alert_rules_have_the_form_of_rules_and_name_commands_that_exist() -> None:
    rules = msgspec.convert(yaml.safe_load(_shipped("alerts.yml")), Rules).groups[0].rules
    for rule in rules:
        balanced = re.sub(r"[^(){}\[\]]", "", rule.expr)
        while (less := re.sub(r"\(\)|\{\}|\[\]", "", balanced)) != balanced:
            balanced = less
        assert balanced == "", rule.expr
        for words in re.findall(r"'(windlass [^']+)'", rule.annotations["description"]):
            check_command(words.replace("{{ $labels.queue }}", "mail").split(), whole=False)
    table = re.findall(r"^\| `(Windlass\w+)` \|", (DOCS / "monitoring.md").read_text(), re.MULTILINE)
    assert table == [rule.alert for rule in rules]


def _shipped(name: str) -> str:
    from importlib.resources import files

    return files("windlass.telemetry").joinpath("monitoring", name).read_text("utf-8")


async def test_the_paths_that_manifests_ask_for_are_answered() -> None:
    """``/live`` and ``/ready`` of probes, ``/metrics`` of scrapes, by a worker as the command starts it."""
    app = Windlass("memory://probed")
    app.use(PrometheusMetrics())
    async with app, Worker("mail", url_or_app=app) as worker:
        server = HealthServer(worker, 0)
        await server.start()
        try:
            for path in ("/live", "/ready", "/metrics"):
                url = f"http://127.0.0.1:{server.port}{path}"
                with await asyncio.to_thread(urllib.request.urlopen, url, timeout=10) as answer:
                    assert answer.status == 200
        finally:
            await server.stop()
