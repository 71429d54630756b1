"""The recipes are what the installation writes, and every link of the built site leads somewhere."""

import json
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml
from support.tables import each

from mcp_context_proxy.config.host_profiles import SERVER
from mcp_context_proxy.installation import HOST_PLACES, HostPlace

ROOT = Path(__file__).parents[2]
COMMAND = ["/full/path/to/mcp-context-proxy", "serve"]
READ = {"json": json.loads, "toml": tomllib.loads, "yaml": yaml.safe_load}


def recipes() -> dict[str, str]:
    text = (ROOT / "docs" / "recipes.md").read_text(encoding="utf-8")
    _, *sections = re.split(r"^## ", text, flags=re.MULTILINE)
    return {title: body for title, _, body in (section.partition("\n") for section in sections)}


def test_every_host_has_a_recipe() -> None:
    assert list(recipes()) == [*(host.title for host in HOST_PLACES.values()), "Any other host"]


@each("host", HOST_PLACES.values())
def test_a_recipe_has_the_hosts_files_and_the_entry_that_install_writes(host: HostPlace) -> None:
    recipe = recipes()[host.title]
    (block,) = re.findall(rf"^```{host.form}\n(.*?)^```", recipe, re.MULTILINE | re.DOTALL)
    found = READ[host.form](block)
    for key in host.place:
        found = found[key]
    (entry,) = found if isinstance(found, list) else found.values()
    expected = host.entry_for(COMMAND)

    assert f"\nmcp-context-proxy install {host.name}\n" in recipe
    assert entry == ({"name": SERVER, **expected} if isinstance(found, list) else expected)
    assert isinstance(found, list) or list(found) == [SERVER]
    for files in (host.files, *host.files_on.values()):
        for file in files:
            usual = re.sub(r"\$\{\w+:-(.*?)\}", r"\1", file.replace("{xdg}", "~/.config"))
            assert f"`{usual.replace('{config}', 'CONFIG')}`" in recipe


def test_the_site_is_built_without_a_broken_link(tmp_path: Path) -> None:
    if not (Path(sys.executable).parent / "mkdocs").exists() and shutil.which("mkdocs") is None:
        pytest.skip("MkDocs is not installed: pip install -e '.[docs]'")
    built = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", tmp_path / "site"],
        cwd=ROOT,
        env={"NO_MKDOCS_2_WARNING": "1", "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )

    assert built.returncode == 0, built.stderr
    index = json.loads((tmp_path / "site" / "search" / "search_index.json").read_text(encoding="utf-8"))
    assert any(one["location"].startswith("troubleshooting/") for one in index["docs"])
    for page in (tmp_path / "site").rglob("*.html"):
        loaded = re.findall(r'(?:src|<link[^>]*href)="(https?://[^"]+)"', page.read_text(encoding="utf-8"))
        assert [one for one in loaded if "localhost" not in one] == [], f"{page.name} loads from elsewhere"
