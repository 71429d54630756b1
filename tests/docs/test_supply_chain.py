"""The parts of the image and of a release are locked: packages by hash, images and actions by digest."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement

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


@pytest.mark.parametrize(
    ("name", "needed"),
    [
        ("proxy", PROJECT["project"]["dependencies"]),
        ("build", PROJECT["build-system"]["requires"]),
        ("tools", ["pip-audit", "cyclonedx-bom"]),
    ],
)
def test_every_dependency_is_locked_with_hashes_at_a_version_that_is_allowed(
    name: str, needed: list[str]
) -> None:
    versions = locked(name)
    for requirement in map(Requirement, needed):
        assert requirement.specifier.contains(versions[requirement.name.lower()]), requirement


def test_the_release_uses_actions_by_digest_and_has_no_rights_that_it_does_not_name() -> None:
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "release.yml").read_text(encoding="utf-8"))
    steps = [step for job in workflow["jobs"].values() for step in job["steps"]]
    used = [step["uses"] for step in steps if "uses" in step]

    assert workflow["permissions"] == {}
    assert {one.partition("@")[0] for one in used} >= {
        "actions/attest-build-provenance",
        "actions/attest-sbom",
    }
    for one in used:
        assert re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40}", one), one
    for step in steps:
        for line in step.get("run", "").splitlines():
            assert "pip install" not in line or "--require-hashes" in line or "--no-deps" in line, line


def test_ci_checks_licences_and_known_vulnerabilities() -> None:
    ci = (ROOT / ".ci" / "run").read_text(encoding="utf-8")

    assert "python .ci/licences.py" in ci
    assert "bash .ci/audit " in ci
