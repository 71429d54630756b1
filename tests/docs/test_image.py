"""The Dockerfile, which CI carries out step by step: facts that only reading it can tell."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import dockerfile
import pytest
import yaml
from support.proxies import http_proxy
from support.replicas import until_ready

from mcp_context_proxy.bridge import CONFIG_VARIABLE
from mcp_context_proxy.config import Limits
from mcp_context_proxy.trust.tokens import TOKEN_VARIABLE

ROOT = Path(__file__).parents[2]
DEBIAN_USERS = re.compile(
    "root|daemon|bin|sys|sync|games|man|lp|mail|news|uucp|proxy|www-data|backup|list|irc|_apt|nobody"
)
"""Those that every image of Debian has: a user of such a name cannot be added."""


@pytest.fixture
def stages():
    return dockerfile.stages((ROOT / "Dockerfile").read_text(encoding="utf-8"))


@pytest.fixture
def image(stages):
    return stages[1]


@pytest.fixture
def runners(stages):
    return stages[2]


def test_the_image_is_built_in_one_stage_and_shipped_in_another(stages):
    builder, image, runners, last = stages

    assert builder.image == image.image
    assert re.fullmatch(r"python:3\.12-slim@sha256:[0-9a-f]{64}", image.image)
    assert image.all("COPY") == ["--from=build /opt/venv /opt/venv"]
    assert runners.image == last.image == image.name
    assert last.instructions == [], "what is built without a target"


def test_a_target_adds_node_and_uv_and_runs_as_the_same_user(image, runners):
    distribution, uv = runners.all("RUN")

    assert runners.name == "runners"
    assert "apt-get install --yes --no-install-recommends nodejs npm &&" in distribution
    assert "--require-hashes" in uv
    assert runners.all("COPY") == [f"requirements/runners.txt {uv.split()[-1]}"]
    assert runners.all("USER") == ["0:0", image.only("USER")]


def test_the_image_installs_only_packages_whose_hashes_are_known(stages):
    builder, _, runners, _ = stages

    for command in (*builder.all("RUN"), *runners.all("RUN")):
        if "/pip " in command:
            assert "--require-hashes" in command or "--no-deps" in command, command
        assert "pip wheel" not in command or "--no-build-isolation" in command


def test_the_image_serves_http_on_all_interfaces(image, understood):
    program, *arguments = image.command

    assert program == "mcp-context-proxy"
    assert arguments == ["serve", "--http", "--host", "0.0.0.0", "--port", image.only("EXPOSE")]
    understood(arguments)


def health_checks(image):
    """The commands by which Docker and Compose ask whether a proxy is well."""
    compose = yaml.safe_load((ROOT / "deploy" / "compose.yaml").read_text(encoding="utf-8"))
    return image.health_check, compose["services"]["replica1"]["healthcheck"]["test"][1:]


def test_the_health_checks_find_a_proxy_under_another_name_and_beside_a_network_proxy(image, workshop):
    config = workshop.config(http={"allowed_hosts": ["proxy.example.com"]})
    told = {**os.environ, "http_proxy": "http://127.0.0.1:1"}
    with http_proxy(config, "--host", "0.0.0.0", auth=True) as proxy:
        until_ready(proxy.base)
        port = proxy.base.rpartition(":")[2]
        commands = [
            [part.replace(image.only("EXPOSE"), port).replace("python", sys.executable) for part in check]
            for check in health_checks(image)
        ]
        for command in commands:
            assert port in command[-1]
            subprocess.run(command, env=told, check=True)
    for command in commands:
        assert subprocess.run(command, env=told, check=False, capture_output=True).returncode != 0


def test_the_image_runs_as_a_user_who_owns_only_the_data_folder(image):
    user, group = image.owner
    (data,) = json.loads(image.only("VOLUME"))

    name = image.all("RUN")[0].split()[-1]

    assert user > 0
    assert DEBIAN_USERS.fullmatch(name) is None
    assert image.all("RUN") == [
        f"useradd --uid {user} --home-dir {data} --no-create-home {name}",
        f"install --directory --owner={user} --group={group} --mode=0700 {data}",
    ]
    assert image.environment["HOME"] == image.environment["XDG_DATA_HOME"] == data


def test_the_image_reads_the_mounted_configuration(image):
    assert image.environment[CONFIG_VARIABLE] == "/config/config.toml"


def test_the_image_stops_with_a_signal_that_the_proxy_handles(image):
    assert image.only("STOPSIGNAL") == "SIGTERM"


def test_every_instruction_is_carried_out_by_ci_or_checked_here(stages):
    prepared = {"RUN", "COPY", "ENV", "USER", "WORKDIR", "VOLUME", "EXPOSE"}
    run = {"ENTRYPOINT", "CMD", "HEALTHCHECK", "STOPSIGNAL"}

    assert stages
    for stage in stages:
        assert {keyword for keyword, _ in stage.instructions} <= prepared | run


def test_ci_builds_the_image():
    assert re.search(r"python \.ci/image\.py ", (ROOT / ".ci" / "run").read_text(encoding="utf-8"))


def test_the_build_context_has_only_the_files_of_the_wheel_and_the_locked_packages():
    let_through = dockerfile.let_through((ROOT / ".dockerignore").read_text(encoding="utf-8"))

    assert sorted(let_through) == [
        "LICENSE",
        "README.md",
        "mcp_context_proxy",
        "pyproject.toml",
        "requirements",
    ]


def test_compose_runs_the_image_with_a_token_of_the_user_and_volumes(stages, image):
    compose = yaml.safe_load((ROOT / "compose.yaml").read_text(encoding="utf-8"))
    (service,) = compose["services"].values()
    port, (data,) = image.only("EXPOSE"), json.loads(image.only("VOLUME"))
    config = Path(image.environment[CONFIG_VARIABLE])

    assert service["build"]["target"] in {stage.name for stage in stages}
    assert service["ports"] == [f"127.0.0.1:{port}:{port}"]
    assert re.fullmatch(r"\$\{MCP_CONTEXT_PROXY_TOKEN:\?.+\}", service["environment"][TOKEN_VARIABLE])
    assert service["volumes"] == [f"./config:{config.parent}:ro", f"data:{data}"]
    assert list(compose["volumes"]) == ["data"]
    assert service["init"] is True
    assert int(service["stop_grace_period"].removesuffix("s")) > Limits().drain_seconds
