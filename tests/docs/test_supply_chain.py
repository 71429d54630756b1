"""The parts of the image and of a release are locked: packages by hash, images and actions by digest."""

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement
from support.tables import each

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
LOCKED = re.compile(
    r"^([a-z0-9.-]+)==(\S+)( ; [^\\]+)? \\\n((?: +--hash=sha256:[0-9a-f]{64}(?: \\)?\n)+)", re.MULTILINE
)


def locked(name: str) -> dict[str, str]:
    """Versions of the packages of a lock, each of which has hashes."""
    text = (ROOT / "requirements" / f"{name}.txt").read_text(encoding="utf-8")
    assert LOCKED.sub("", text).replace("# ", "").split("\n")[2:] == [""], "a line that locks nothing"
    return {match[1]: match[2] for match in LOCKED.finditer(text)}


@each(
    ("name", "needed"),
    [
        ("proxy", PROJECT["project"]["dependencies"]),
        ("build", PROJECT["build-system"]["requires"]),
        ("tools", ["pip-audit", "cyclonedx-bom"]),
        ("runners", ["uv"]),
        ("docs", PROJECT["project"]["optional-dependencies"]["docs"]),
    ],
)
def test_every_dependency_is_locked_with_hashes_at_a_version_that_is_allowed(
    name: str, needed: list[str]
) -> None:
    versions = locked(name)
    assert needed
    for requirement in map(Requirement, needed):
        assert requirement.specifier.contains(versions[requirement.name.lower()]), requirement


WORKFLOWS = ROOT / ".github" / "workflows"


def workflow(name: str) -> dict[str, Any]:
    return dict(yaml.safe_load((WORKFLOWS / f"{name}.yml").read_text(encoding="utf-8")))


def steps_of(name: str) -> list[dict[str, Any]]:
    return [step for job in workflow(name)["jobs"].values() for step in job["steps"]]


@pytest.mark.parametrize("name", [path.stem for path in sorted(WORKFLOWS.iterdir())])
def test_a_workflow_uses_actions_by_digest_and_has_no_rights_that_it_does_not_name(name: str) -> None:
    assert workflow(name)["permissions"] == {}
    used = [step["uses"] for step in steps_of(name) if "uses" in step]
    assert used
    for one in used:
        assert re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40}", one), one


def test_the_release_installs_by_hash_and_states_its_origin_and_its_contents() -> None:
    used = {step["uses"].partition("@")[0] for step in steps_of("release") if "uses" in step}

    assert used >= {"actions/attest-build-provenance", "actions/attest-sbom"}
    for step in steps_of("release"):
        for line in step.get("run", "").splitlines():
            assert "pip install" not in line or "--require-hashes" in line or "--no-deps" in line, line


def test_each_night_runs_the_documented_commands_that_a_change_need_not_wait_for() -> None:
    page = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    commands = [step["run"] for step in steps_of("nightly") if "run" in step]

    assert any("--hypothesis-profile thorough" in command for command in commands)
    for command in commands[1:]:
        assert f"`{command}` |" in page


def test_ci_checks_licences_and_known_vulnerabilities() -> None:
    ci = (ROOT / ".ci" / "run").read_text(encoding="utf-8")

    assert "python .ci/licences.py" in ci
    assert "bash .ci/audit " in ci
