"""The files in deploy/ fit each other and the proxy; .ci/deploy renders the chart, too."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from mcp_context_proxy.config import load

DEPLOY = Path(__file__).parents[2] / "deploy"
VARIABLES = {
    "DATABASE_URL": "postgresql://proxy:secret@database/proxy",
    "CLUSTER_KEY": 32 * "k",
    "MCP_CONTEXT_PROXY_TOKEN": 16 * "t",
}


@pytest.fixture(scope="module")
def services() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]
    return found


def test_each_replica_of_compose_loads_the_configuration_under_its_own_name(
    services: dict[str, Any], tmp_path: Path
) -> None:
    file = tmp_path / "config.toml"
    shutil.copy(DEPLOY / "config" / "config.toml", file)
    file.chmod(0o600)
    names = []
    for name, service in services.items():
        if "REPLICA" not in service.get("environment", ()):
            continue
        config = load(file, {**service["environment"], **VARIABLES})
        assert config.cluster.enabled
        assert config.cluster.replica == name
        assert config.cluster.advertise == f"http://{name}:8765"
        assert config.store.migrate == "check"
        names.append(name)
    assert names == ["replica1", "replica2", "replica3", "migrate"]


def test_the_balancer_knows_each_replica_and_sends_its_sessions_there(services: dict[str, Any]) -> None:
    text = (DEPLOY / "haproxy.cfg").read_text()
    replicas = {name for name in services if name.startswith("replica")}
    assert dict(re.findall(r"^ *server (\S+) (\S+)$", text, re.M)) == {
        name: f"{name}:8765" for name in replicas
    }
    assert set(
        re.findall(r"^ *use-server (\S+) if \{ req\.hdr\(mcp-session-id\) -m beg \1\. \}$", text, re.M)
    ) == (replicas)
    assert set(services["balancer"]["depends_on"]) == replicas


def test_compose_gives_a_replica_the_time_that_its_drain_takes(
    services: dict[str, Any], tmp_path: Path
) -> None:
    file = tmp_path / "config.toml"
    shutil.copy(DEPLOY / "config" / "config.toml", file)
    file.chmod(0o600)
    config = load(file, {**services["replica1"]["environment"], **VARIABLES})
    needed = config.http.drain_grace_seconds + config.limits.drain_seconds + 4
    assert int(services["replica1"]["stop_grace_period"].removesuffix("s")) > needed
    # Two probes of the balancer have to fail meanwhile.
    assert config.http.drain_grace_seconds >= 2


def test_secrets_have_no_default(services: dict[str, Any]) -> None:
    for name in ("CLUSTER_KEY", "MCP_CONTEXT_PROXY_TOKEN"):
        assert services["replica1"]["environment"][name].startswith("${" + name + ":?")
    assert services["database"]["environment"]["POSTGRES_PASSWORD"].startswith("${DATABASE_PASSWORD:?")
