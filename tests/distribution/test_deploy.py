"""The files in deploy/ fit each other and the proxy; .ci/deploy renders the chart, too."""

import os
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
import yaml
from support.postgres import PostgresServer, postgres  # noqa: F401 - a fixture
from support.raw_client import PATIENCE
from support.replicas import until_ready
from support.stores import quick_folder

from mcp_context_proxy.cluster import LEFT_SECONDS
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


def test_the_balancer_tells_a_replica_at_once_that_a_client_has_left_its_call() -> None:
    assert re.search(r"^ *option abortonclose$", (DEPLOY / "haproxy.cfg").read_text(), re.M)


def test_compose_gives_a_replica_the_time_that_its_drain_takes(
    services: dict[str, Any], tmp_path: Path
) -> None:
    file = tmp_path / "config.toml"
    shutil.copy(DEPLOY / "config" / "config.toml", file)
    file.chmod(0o600)
    config = load(file, {**services["replica1"]["environment"], **VARIABLES})
    needed = config.http.drain_grace_seconds + config.limits.drain_seconds + 4 + LEFT_SECONDS
    assert int(services["replica1"]["stop_grace_period"].removesuffix("s")) > needed
    # Two probes of the balancer have to fail meanwhile.
    assert config.http.drain_grace_seconds >= 2


def test_secrets_have_no_default(services: dict[str, Any]) -> None:
    for name in ("CLUSTER_KEY", "MCP_CONTEXT_PROXY_TOKEN"):
        assert services["replica1"]["environment"][name].startswith("${" + name + ":?")
    assert services["database"]["environment"]["POSTGRES_PASSWORD"].startswith("${DATABASE_PASSWORD:?")


READ_ONLY = """
set -e
mount --make-rprivate /
mount -t tmpfs tmpfs /mnt
mkdir /mnt/python
mount --bind "$1" /mnt/python
mount -t tmpfs -o mode=755 tmpfs /root
mkdir -p "$1"
mount --bind /mnt/python "$1"
mount -t tmpfs -o mode=1777 tmpfs "$2"
mount -o remount,ro,bind /
mount -o remount,ro,bind /root
shift 2
exec setpriv --reuid=10001 --regid=10001 --clear-groups --inh-caps=-all --no-new-privs "$@"
"""
"""Runs a command as the image's user, without any rights, where nothing can be written but one folder."""


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that every user may look into."""
    with quick_folder() as made:
        made.chmod(0o755)
        yield made


@pytest.fixture
def contained(folder: Path) -> list[str]:
    """The beginning of a command line that runs so; it can write into ``data`` of `folder` alone."""
    if sys.platform != "linux" or os.geteuid() != 0 or shutil.which("unshare") is None:
        pytest.skip("needs root on Linux, to take all rights away")
    (folder / "data").mkdir()
    python = str(Path(sys.base_prefix).resolve())
    words = ["unshare", "--mount", "sh", "-c", READ_ONLY, "sh", python, str(folder / "data")]
    asked = f"{sys.executable} -c 'import mcp_context_proxy' && id -u && ! touch /written"
    tried = subprocess.run([*words, "sh", "-c", asked], check=False, capture_output=True, text=True)
    if tried.returncode != 0:
        pytest.skip(f"the image's user cannot run the proxy here: {tried.stderr.strip()[-200:]}")
    assert tried.stdout == "10001\n"
    assert "Read-only file system" in tried.stderr
    return words


@pytest.mark.cluster
def test_a_replica_needs_no_rights_and_no_file_system_that_can_be_written_and_ends_in_its_grace(
    contained: list[str],
    folder: Path,
    postgres: PostgresServer,  # noqa: F811
) -> None:
    postgres.folder.chmod(0o755)
    with socket.socket() as chosen:
        chosen.bind(("127.0.0.1", 0))
        port = chosen.getsockname()[1]
    file = folder / "config.toml"
    text = (DEPLOY / "config" / "config.toml").read_text()
    file.write_text(re.sub(r"drain_grace_seconds = \S+", "drain_grace_seconds = 3.0", text))
    file.chmod(0o644)
    environment = {
        "PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin",
        **dict.fromkeys(("HOME", "XDG_DATA_HOME", "TMPDIR"), str(folder / "data")),
        "MCP_CONTEXT_PROXY_CONFIG": str(file),
        "MCP_CONTEXT_PROXY_TRUST_CONFIG": "1",
        "MCP_CONTEXT_PROXY_OWN": "1",
        **VARIABLES,
        "DATABASE_URL": postgres.url,
        "REPLICA": "contained",
        "REPLICA_URL": f"http://127.0.0.1:{port}",
    }
    proxy = [*contained, sys.executable, "-m", "mcp_context_proxy"]
    subprocess.run([*proxy, "store", "migrate"], env=environment, check=True, capture_output=True)
    with subprocess.Popen(
        [*proxy, "serve", "--http", "--host", "0.0.0.0", "--port", str(port)],
        env=environment,
        stderr=subprocess.DEVNULL,
    ) as process:
        try:
            base = f"http://127.0.0.1:{port}"
            until_ready(base)
            status = Path(f"/proc/{process.pid}/status").read_text()
            assert re.search(r"^Uid:\s+10001\s+10001\s", status, re.M)
            assert re.search(r"^CapEff:\s+0+$", status, re.M)
            process.terminate()
            while (ready := httpx2.get(f"{base}/readyz")).status_code == 200:
                pass
            assert "stopping" in ready.text
            assert httpx2.get(f"{base}/livez", headers={"host": "10.0.0.7"}).status_code == 200
            assert process.wait(PATIENCE) == 0
        finally:
            process.kill()
