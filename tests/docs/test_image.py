"""The Dockerfile, which CI carries out step by step: facts that only reading it can tell."""

from __future__ import annotations

import json
import re
from pathlib import Path

import dockerfile
import pytest

from mcp_context_proxy.config.load import VARIABLE

ROOT = Path(__file__).parents[2]


@pytest.fixture
def stages():
    return dockerfile.stages((ROOT / "Dockerfile").read_text(encoding="utf-8"))


@pytest.fixture
def image(stages):
    return stages[1]


def test_the_image_is_built_in_one_stage_and_shipped_in_another(stages):
    builder, image = stages

    assert builder.image == image.image
    assert re.fullmatch(r"python:3\.12-slim@sha256:[0-9a-f]{64}", image.image)
    assert image.all("COPY") == ["--from=build /opt/venv /opt/venv"]


def test_the_image_installs_only_packages_whose_hashes_are_known(stages):
    builder, _ = stages

    for command in builder.all("RUN"):
        if "/pip " in command:
            assert "--require-hashes" in command or "--no-deps" in command, command
        assert "pip wheel" not in command or "--no-build-isolation" in command


def test_the_image_serves_http_on_all_interfaces(image, understood):
    program, *arguments = image.command

    assert program == "mcp-context-proxy"
    assert arguments == ["serve", "--http", "--host", "0.0.0.0", "--port", image.only("EXPOSE")]
    understood(arguments)


def test_the_health_check_asks_the_port_that_is_served(image):
    code = image.health_check[-1]

    compile(code, "HEALTHCHECK", "exec")
    assert f"http://127.0.0.1:{image.only('EXPOSE')}/healthz" in code


def test_the_image_runs_as_a_user_who_owns_only_the_data_folder(image):
    user, group = image.owner
    (data,) = json.loads(image.only("VOLUME"))

    assert user > 0
    assert image.all("RUN") == [
        f"useradd --uid {user} --home-dir {data} --no-create-home proxy",
        f"install --directory --owner={user} --group={group} --mode=0700 {data}",
    ]
    assert image.environment["HOME"] == image.environment["XDG_DATA_HOME"] == data


def test_the_image_reads_the_mounted_configuration(image):
    assert image.environment[VARIABLE] == "/config/config.toml"


def test_the_image_stops_with_a_signal_that_the_proxy_handles(image):
    assert image.only("STOPSIGNAL") == "SIGTERM"


def test_every_instruction_is_carried_out_by_ci_or_checked_here(stages):
    prepared = {"RUN", "COPY", "ENV", "USER", "WORKDIR", "VOLUME", "EXPOSE"}
    run = {"ENTRYPOINT", "CMD", "HEALTHCHECK", "STOPSIGNAL"}

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
