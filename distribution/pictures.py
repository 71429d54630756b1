"""Makes the pictures of the documentation anew: ``python distribution/pictures.py [FOLDER]``.

They are in ``docs/pictures``, if no folder is named.
Recordings of commands are SVG, so that their text stays text. Pictures of the pages come from a headless
Chromium, which must be on this machine. Everything runs in a home folder of its own, with example servers.
"""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.terminal_theme import MONOKAI
from rich.text import Text

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from support.browser import Page, browser, program  # noqa: E402 - of the tests, which drive the pages
from support.proxies import SERVING  # noqa: E402

COLUMNS = 100
TOKEN = "a-token-for-pictures"
EXAMPLES = ("calendar", "clock", "issues", "notes")

_ONE_UP = "\x1b[1A"
_MOVES = re.compile(r"\x1b\[[0-9]*[AK]|\x1b\[\?25[hl]")

# Without the fonts of other sites, which rich would have the picture load.
SVG = """\
<svg class="rich-terminal" viewBox="0 0 {width} {height}" xmlns="http://www.w3.org/2000/svg">
<style>
.{unique_id}-matrix {{ font-family: ui-monospace, Menlo, Consolas, monospace; font-size: {char_height}px;
  line-height: {line_height}px; font-variant-east-asian: full-width; }}
.{unique_id}-title {{ font-size: 18px; font-weight: bold; font-family: system-ui, sans-serif; }}
{styles}
</style>
<defs><clipPath id="{unique_id}-clip-terminal">
<rect x="0" y="0" width="{terminal_width}" height="{terminal_height}" /></clipPath>
{lines}</defs>
{chrome}
<g transform="translate({terminal_x}, {terminal_y})" clip-path="url(#{unique_id}-clip-terminal)">
{backgrounds}
<g class="{unique_id}-matrix">
{matrix}
</g>
</g>
</svg>
"""


@contextmanager
def home() -> Iterator[tuple[Path, dict[str, str]]]:
    """A home folder with a configuration and the file of a host, and the environment that leads there."""
    with tempfile.TemporaryDirectory(prefix="mcp") as folder:
        place = Path(folder)
        settings = place / ".config" / "mcp-context-proxy"
        settings.mkdir(parents=True, mode=0o700)
        servers = {
            name: {"command": "python", "args": ["-m", "mcp_context_proxy.examples", name]}
            for name in EXAMPLES
        }
        lines = [
            f"[servers.{name}]\ncommand = {json.dumps(one['command'])}\nargs = {json.dumps(one['args'])}\n"
            for name, one in servers.items()
        ]
        lines += [
            '[servers.github]\ncommand = "npx"\n'
            'args = ["-y", "@modelcontextprotocol/server-github@2025.4.8"]\n'
            'env = { GITHUB_PERSONAL_ACCESS_TOKEN = "${GITHUB_TOKEN}" }\n',
            "[expose]\nlist_all_below = 0\n",
        ]
        (settings / "config.toml").write_text("\n".join(lines), encoding="utf-8")
        (place / ".cursor").mkdir()
        memory = {"command": "npx", "args": ["-y", "@modelcontextprotocol/server-memory"]}
        host = json.dumps({"mcpServers": {"memory": memory}}, indent=2)
        (place / ".cursor" / "mcp.json").write_text(host + "\n", encoding="utf-8")
        environment = {
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "LANG": os.environ.get("LANG", "C.UTF-8"),
            "HOME": folder,
            "PYTHONPATH": str(ROOT),
            "COLUMNS": str(COLUMNS),
            "FORCE_COLOR": "1",
            "TERM": "xterm-256color",
            "MCP_CONTEXT_PROXY_TOKEN": TOKEN,
        }
        yield place, environment


def record(file: Path, place: Path, environment: dict[str, str], *command: str) -> None:
    """Run a command and write its output, as a terminal shows it."""
    done = subprocess.run(
        [sys.executable, "-m", "mcp_context_proxy", *command],
        cwd=place,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=300,
        check=False,
    )
    output = (
        done.stdout.decode()
        .replace(str(place), "~")
        .replace(str(Path(sys.executable).parent), "/usr/local/bin")
    )
    console = Console(record=True, width=COLUMNS, file=io.StringIO())
    still = list[str]()
    for line in output.rstrip().split("\n"):
        # What moves on a terminal, such as a bar of progress, is written over what was there before.
        del still[len(still) - line.count(_ONE_UP) :]
        still.append(_MOVES.sub("", line.rpartition("\r")[2]))
    console.print(Text.from_ansi("\n".join([f"$ mcp-context-proxy {' '.join(command)}", *still])))
    title = "mcp-context-proxy"
    svg = console.export_svg(title=title, theme=MONOKAI, code_format=SVG, unique_id=file.stem)
    file.write_text(svg, encoding="utf-8")
    print(file)


def photograph(folder: Path, place: Path, environment: dict[str, str]) -> None:
    """Take pictures of the pages."""
    log = place / "log"
    command = [sys.executable, "-m", "mcp_context_proxy", "serve", "--http", "--port", "0"]
    with log.open("w", encoding="utf-8") as stderr:
        proxy = subprocess.Popen(command, cwd=place, env=environment, stderr=stderr, text=True)
    try:
        while not (found := SERVING.search(log.read_text(encoding="utf-8"))):
            assert proxy.poll() is None, log.read_text(encoding="utf-8")
        with browser(place) as page:
            page.look(height=640)
            page.open(f"{found[1]}/#token={TOKEN}")
            ready = "document.querySelectorAll('.state.good').length"
            page.until(f"{ready} === {len(EXAMPLES)} && document.querySelector('.state.bad')")
            take(page, folder / "servers.png")
            page.open(f"{found[1]}/ui/tools")
            page.until("document.querySelector('.row')")
            page.value("document.getElementById('query').focus()")
            page.type("write down the minutes of the meeting")
            page.until("document.querySelector('.row .score')")
            take(page, folder / "tools.png")
    finally:
        proxy.terminate()
        proxy.wait(30)


def take(page: Page, file: Path) -> None:
    """Take a picture of the window."""
    page.picture(file, whole=False)
    print(file)


def main() -> None:
    """Make all pictures."""
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "docs" / "pictures"
    folder.mkdir(parents=True, exist_ok=True)
    with home() as (place, environment):
        record(folder / "demo.svg", place, environment, "demo")
        record(folder / "install.svg", place, environment, "install", "cursor", "--dry-run")
        record(folder / "check.svg", place, environment, "check")
        if program() is None:
            print("No Chromium: no pictures of the pages.")
        else:
            photograph(folder, place, environment)


if __name__ == "__main__":
    main()
