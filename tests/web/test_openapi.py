"""The API and the document that describes it agree, whatever is asked."""

import re
import subprocess
import sys
from pathlib import Path

import httpx2
import pytest
from support.proxies import HttpProxy
from support.shop import TOKEN

AUTHORIZED = {"authorization": f"Bearer {TOKEN}"}

PHASES = [
    pytest.param("fuzzing,stateful", 2, marks=pytest.mark.smaller),
    pytest.param("coverage,fuzzing,stateful", 15, marks=pytest.mark.full_cross),
]
"""Kinds of requests, and the random ones for each operation. `coverage` has the bounds of every parameter."""

OPTIONS = ["--seed", "1", "--generation-database", "none", "--no-color", "--exclude-checks", "ignored_auth"]
OPTIONS += ["--request-timeout", "60"]
"""Who sends many wrong tokens is told to wait, which that check does not know. A call waits for a server that
was restarted."""


@pytest.mark.slow
@pytest.mark.parametrize(("phases", "cases"), PHASES)
def test_every_answer_matches_the_openapi_document(
    proxy: HttpProxy, tmp_path: Path, phases: str, cases: int
) -> None:
    """Valid, invalid and hostile requests, alone and one after the other."""
    url = f"{proxy.base}/api/v1/openapi.json"
    # It would end the proxy in the middle; the tests of the shared proxy have it.
    options = ["--phases", phases, "--max-examples", str(cases), "--exclude-path", "/stop", *OPTIONS]
    token = ["--header", f"Authorization: {AUTHORIZED['authorization']}"]
    command = [str(Path(sys.executable).with_name("schemathesis")), "run", url, *token, *options]
    run = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)

    assert run.returncode == 0, run.stdout + run.stderr
    assert "Tested: 42" in run.stdout


def test_every_operation_needs_the_token(proxy: HttpProxy) -> None:
    base = f"{proxy.base}/api/v1"
    described = httpx2.get(f"{base}/openapi.json", headers=AUTHORIZED).json()["paths"]
    assert described
    with httpx2.Client() as client:
        for path, methods in described.items():
            for method in methods:
                answer = client.request(method, base + re.sub(r"{\w+}", "x", path))
                assert answer.status_code == 401, f"{method} {path}"


def test_items_of_lists_are_no_boolean_which_generators_of_clients_refuse(proxy: HttpProxy) -> None:
    described = httpx2.get(f"{proxy.base}/api/v1/openapi.json", headers=AUTHORIZED).text

    assert "prefixItems" in described
    assert not re.findall(r'"items":\s*(?:true|false)', described)


def test_the_documentation_lists_every_operation(proxy: HttpProxy) -> None:
    described = httpx2.get(f"{proxy.base}/api/v1/openapi.json", headers=AUTHORIZED).json()["paths"]
    page = (Path(__file__).parents[2] / "docs" / "api.md").read_text(encoding="utf-8")
    listed = re.findall(r"^\| `([A-Z]+ /\S+)` \|", page, re.MULTILINE)

    operations = [f"{method.upper()} {path}" for path, methods in described.items() for method in methods]
    assert len(listed) == 43
    assert sorted(listed) == sorted(operations)
