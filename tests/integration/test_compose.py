"""compose/: what its files say, and that the very commands of its services, with their settings, make a working whole.

There need not be a container engine: each service of ours is started as a plain process, with the test's own Postgres
and Kafka in the place of the containers'.
"""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Generator, Mapping
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from headrace.client import Client
from headrace.embedded.kafka import VERSION, ApacheKafka
from headrace.embedded.process import free_port

ROOT = Path(__file__).parents[2]
COMPOSE = ROOT / "compose"
FACT_SECONDS = 120.0
STOP_SECONDS = 40.0
GIVEN = {"POSTGRES_PASSWORD": "a-password", "HEADRACE_SECRET": "a-secret-of-more-than-sixteen"}
_VARIABLE = re.compile(r"\$\{(\w+)(?::([-?])([^}]*))?\}")


def interpolate(text: str, variables: Mapping[str, str]) -> str:
    """`${A}`, `${A:-default}` and `${A:?message}`, as Compose reads them."""

    def value(found: re.Match[str]) -> str:
        name, how, rest = found.groups()
        if variables.get(name):
            return variables[name]
        assert how == "-", f"{name} is not set: {rest}"
        return str(rest)

    return _VARIABLE.sub(value, text)


@pytest.fixture(scope="module")
def services() -> dict[str, Any]:
    document = yaml.safe_load(interpolate((COMPOSE / "compose.yaml").read_text(), GIVEN))
    found: dict[str, Any] = document["services"]
    return found


def of_ours(services: dict[str, Any]) -> dict[str, Any]:
    return {name: service for name, service in services.items() if service["image"] == "headrace"}


# == what the files say ================================================================================================
def test_all_parts_are_there_and_foreign_images_have_a_name_and_a_version_alone(services: dict[str, Any]) -> None:
    assert set(services) == {
        "postgres", "kafka", "migrate", "first-token", "streams", "relay", "api", "worker", "prometheus"
    }  # fmt: skip
    foreign = {service["image"] for service in services.values()} - {"headrace"}
    for image in foreign:
        assert re.fullmatch(r"[a-z]+(/[a-z]+)?:v?[0-9.]+", image), image
    assert f"apache/kafka:{VERSION}" in foreign, "the broker that the tests run on"


def test_no_secret_has_a_value_of_its_own_and_none_is_given_to_a_worker(services: dict[str, Any]) -> None:
    text = (COMPOSE / "compose.yaml").read_text()
    for name in GIVEN:
        assert all(part.startswith(":?") for part in re.findall(rf"\$\{{{name}([^}}]*)", text))
    with pytest.raises(AssertionError, match="POSTGRES_PASSWORD"):
        interpolate(text, {})
    assert set(services["worker"]["environment"]) == {"HEADRACE_KAFKA"}


def test_our_containers_may_little_and_are_published_on_the_loopback(services: dict[str, Any]) -> None:
    for service in of_ours(services).values():
        assert service["read_only"] is True
        assert service["cap_drop"] == ["ALL"]
        assert service["security_opt"] == ["no-new-privileges:true"]
    for service in services.values():
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", ()))
    assert re.search(r"^USER headrace$", (COMPOSE / "Dockerfile").read_text(), re.MULTILINE)


def test_every_file_that_is_mounted_or_copied_exists(services: dict[str, Any]) -> None:
    mounted = [volume.split(":")[0] for service in services.values() for volume in service.get("volumes", ())]
    for source in mounted:
        if source.startswith("."):
            assert (COMPOSE / source).exists(), source
    copied = re.findall(r"^COPY (?!--from)(.+) \S+$", (COMPOSE / "Dockerfile").read_text(), re.MULTILINE)
    for source in " ".join(copied).split():
        assert (ROOT / source).exists(), source


def test_prometheus_asks_the_api_by_a_name_that_it_answers_to_with_its_own_token(services: dict[str, Any]) -> None:
    document = yaml.safe_load((COMPOSE / "prometheus.yml").read_text())
    (job,) = document["scrape_configs"]
    (target,) = job["static_configs"][0]["targets"]
    name, port = target.split(":")
    settings = services["api"]["environment"]
    assert name in settings["HEADRACE_API_NAMES"].split(",")
    assert port == str(settings["HEADRACE_API_PORT"])
    assert job["authorization"]["credentials_file"] == f"{settings_of_tokens(services)}/prometheus"


def settings_of_tokens(services: dict[str, Any]) -> str:
    return str(services["first-token"]["environment"]["HEADRACE_TOKENS"])


# == the whole =========================================================================================================
class Host:
    """Runs services as processes of this machine."""

    def __init__(self, services: dict[str, Any], folder: Path, database: str, kafka: str, prefix: str) -> None:
        self.services, self.folder = services, folder
        self.port = free_port()
        self._instead = {
            "HEADRACE_POSTGRES": database,
            "HEADRACE_KAFKA": kafka,
            "HEADRACE_TOKENS": str(folder),
            "HEADRACE_API_HOST": "127.0.0.1",
            "HEADRACE_API_PORT": str(self.port),
        }
        self._own = {"HEADRACE_PREFIX": prefix, "HEADRACE_SLOT": prefix, "HEADRACE_LEASE_SECONDS": "10"}
        self.running: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, name: str) -> "subprocess.Popen[bytes]":
        service = self.services[name]
        asked = {key: str(value) for key, value in service.get("environment", {}).items()}
        # Only where a thing is differs from the container; what a service is not told it is not told here either.
        told = {key: self._instead.get(key, value) for key, value in asked.items()}
        environment = {
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT),
            "PYTHONSAFEPATH": "1",
            "PYTHONUNBUFFERED": "1",
            **told,
            **self._own,
        }
        with (self.folder / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(self._command(service), env=environment, stdout=log, stderr=log, cwd=self.folder)
        self.running[name] = process
        return process

    def _command(self, service: dict[str, Any]) -> list[str]:
        """Its own, with files where they are here."""
        volumes: list[list[str]] = [volume.split(":") for volume in service.get("volumes", ())]
        mounts = {volume[1]: volume[0] for volume in volumes if volume[0].startswith(".")}

        def here(part: str) -> str:
            for inside, outside in mounts.items():
                if part == inside or part.startswith(f"{inside}/"):
                    return str((COMPOSE / outside).resolve()) + part.removeprefix(inside)
            return part

        return [here(part) for part in service["command"]]

    def finish(self, name: str) -> None:
        code = self.start(name).wait(FACT_SECONDS)
        self.running.pop(name)
        assert code == 0, self.log(name)

    def log(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text()

    def wait(self, fact: Callable[[], object], what: str) -> Any:
        give_up_at = time.monotonic() + FACT_SECONDS
        while not (found := fact()):
            for name, process in self.running.items():
                assert process.poll() is None, f"{name} ended: {self.log(name)}"
            assert time.monotonic() < give_up_at, f"{what}: {[self.log(name)[-2000:] for name in self.running]}"
            time.sleep(0.1)
        return found

    def stop(self) -> dict[str, int]:
        """SIGTERM to all, as `docker compose down` does; how each ended."""
        for process in self.running.values():
            process.send_signal(signal.SIGTERM)
        codes = {name: process.wait(STOP_SECONDS) for name, process in self.running.items()}
        self.running.clear()
        return codes

    def kill(self) -> None:
        for process in self.running.values():
            process.kill()
            process.wait()


@pytest.fixture
def host(
    services: dict[str, Any], tmp_path: Path, empty_database: str, kafka: ApacheKafka, topic_prefix: str
) -> Generator[Host]:
    made = Host(services, tmp_path, empty_database, kafka.bootstrap, topic_prefix)
    yield made
    made.kill()


@pytest.mark.slow
def test_the_services_own_commands_complete_a_run_that_the_first_token_started(host: Host) -> None:
    order = ["migrate", "first-token", "streams", "relay", "api", "worker"]
    assert set(order) == set(of_ours(host.services))
    for name in order:
        needs = host.services[name].get("depends_on", {})
        assert all(need in order[: order.index(name)] for need in needs if need in order), "in the order of their needs"
        if host.services[name]["restart"] == "on-failure":
            host.finish(name)
        else:
            host.start(name)
    url = f"http://127.0.0.1:{host.port}"
    host.wait(lambda: _answers(url), "the API answers")
    root = host.folder / "root"
    assert root.stat().st_mode & 0o777 == 0o600
    assert httpx.get(f"{url}/runs").status_code == 401
    with Client(url, root.read_text()) as client:
        client.publish((ROOT / "headrace" / "cli" / "template" / "workflow.yaml").read_text())
        run = client.start("greet", {"name": "Ada"})
        host.wait(lambda: client.run(run.run_id).status == "completed", "the run completes")
        assert client.run(run.run_id).outputs["send"]["sent"] == "Guten Tag, Ada!"

    prometheus = {"Authorization": f"Bearer {(host.folder / 'prometheus').read_text()}", "Host": "api:8400"}
    page = httpx.get(f"{url}/metrics", headers=prometheus)
    assert page.status_code == 200
    assert "headrace_postgres_up 1.0" in page.text
    refused = httpx.post(
        f"{url}/workflows/greet/runs", json={}, headers={**prometheus, "Host": f"localhost:{host.port}"}
    )
    assert refused.status_code == 403, "it may look and nothing else"

    before = root.read_text()
    host.finish("first-token")
    assert root.read_text() == before, "a second start makes no second token"
    assert host.stop() == dict.fromkeys(("streams", "relay", "api", "worker"), 0)


def _answers(url: str) -> bool:
    try:
        return httpx.get(f"{url}/health", timeout=2).status_code == httpx.codes.OK
    except httpx.HTTPError:
        return False
