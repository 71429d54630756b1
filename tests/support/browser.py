"""A headless Chromium, driven through pipes by the DevTools protocol, as far as tests need it."""

import base64
import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

PROGRAMS = ("chromium", "chromium-browser", "google-chrome")
WAIT_MS = 20_000
"""For a page to come to what is awaited."""

FLAGS = (
    "--headless",
    "--no-sandbox",  # a container's root has no other way; it only ever sees our own pages
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
)

CONTRASTS = Path(__file__).with_name("contrasts.js").read_text(encoding="utf-8")
"""Returns the texts of a page with their contrasts."""

_UNTIL = """new Promise((met, failed) => {
  const deadline = Date.now() + %d;
  const look = () => {
    let found = null;
    try { found = (%s); } catch (error) { found = null; }
    if (found) met(found);
    else if (Date.now() > deadline) failed(new Error("never came true, in: " + document.body.innerText));
    else requestAnimationFrame(look);
  };
  look();
})"""


def program() -> str | None:
    """The browser of this machine, if it has one."""
    return next((found for name in PROGRAMS if (found := shutil.which(name))), None)


class Page:
    """One tab."""

    def __init__(self, process: subprocess.Popen[bytes], reader: int, writer: int) -> None:
        self._process = process
        self._reader = os.fdopen(reader, "rb")
        self._writer = os.fdopen(writer, "wb")
        self._number, self._session = 0, None
        target = self.command("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.command("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        self.errors: list[str] = []
        """Exceptions and messages of the console, refusals by the content security policy among them."""
        for domain in ("Page", "Runtime", "Log"):
            self.command(f"{domain}.enable")

    def command(self, method: str, **params: Any) -> Any:
        """Give a command, and return its result."""
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": params}
        if self._session is not None:
            message["sessionId"] = self._session
        self._writer.write(json.dumps(message).encode() + b"\0")
        self._writer.flush()
        while True:
            answer = self._read()
            if answer.get("id") == self._number:
                assert "error" not in answer, (method, answer)
                return answer["result"]

    def _read(self) -> dict[str, Any]:
        """The next message; an event that tells of an error is kept."""
        message = bytearray()
        while (byte := self._reader.read(1)) != b"\0":
            assert byte, "the browser has ended"
            message += byte
        decoded: dict[str, Any] = json.loads(message)
        params = decoded.get("params", {})
        if decoded.get("method") == "Runtime.exceptionThrown":
            self.errors.append(params["exceptionDetails"].get("exception", {}).get("description", ""))
        if decoded.get("method") == "Log.entryAdded" and params["entry"]["level"] == "error":
            self.errors.append(params["entry"]["text"])
        return decoded

    def open(self, url: str) -> None:
        """Go to an address."""
        self.command("Page.navigate", url=url)
        self.until("document.readyState === 'complete'")

    def value(self, expression: str) -> Any:
        """Return the value of an expression, or of the promise that it is."""
        answer = self.command(
            "Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True
        )
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def until(self, expression: str) -> Any:
        """Wait until an expression is true, and return it; the page may go elsewhere meanwhile."""
        try:
            return self.value(_UNTIL % (WAIT_MS, expression))
        except AssertionError as error:
            if "navigated" not in str(error):
                raise
            return self.value(_UNTIL % (WAIT_MS, expression))

    def come_back(self) -> None:
        """Look at the page again after another tab, which makes the page ask for new data at once."""
        self.value("document.dispatchEvent(new Event('visibilitychange')) && null")

    def type(self, text: str) -> None:
        """Type into the element that has the focus."""
        for character in text:
            self.command("Input.dispatchKeyEvent", type="keyDown", text=character)
            self.command("Input.dispatchKeyEvent", type="keyUp")

    def press(self, key: str, shift: bool = False) -> None:
        """Press a key that writes nothing."""
        code = {"Tab": 9, "Enter": 13, "Space": 32, "ArrowDown": 40, "ArrowRight": 39}[key]
        text = {"Enter": "\r", "Space": " "}.get(key, "")
        event = {
            "key": " " if key == "Space" else key,
            "code": key,
            "windowsVirtualKeyCode": code,
            "modifiers": 8 if shift else 0,
        }
        self.command("Input.dispatchKeyEvent", type="keyDown" if text else "rawKeyDown", text=text, **event)
        self.command("Input.dispatchKeyEvent", type="keyUp", **event)

    def look(self, *, dark: bool = False, width: int = 1280, height: int = 900) -> None:
        """Be in the light or the dark, and so wide."""
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.command("Emulation.setEmulatedMedia", features=[scheme])
        self.command(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )

    def open_details(self) -> None:
        """Show all that is hidden until somebody asks for it."""
        self.value("document.querySelectorAll('details').forEach((details) => { details.open = true; })")

    def unreadable(self, texts: int) -> list[Any]:
        """Return those of more than so many texts that have a contrast below 4.5 to 1 (WCAG 2.2, AA)."""
        found = self.value(CONTRASTS)
        assert len(found) > texts
        return [pair for pair in found if pair[1] < 4.5]

    def fits(self, width: int, *, dark: bool = False) -> bool:
        """Return whether nothing is wider than a window of this width."""
        self.look(dark=dark, width=width)
        return bool(self.value("document.documentElement.scrollWidth") <= width)

    def picture(self, file: Path, whole: bool = True) -> None:
        """Take a picture of all of the page, or of the window alone."""
        shot = self.command("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        file.write_bytes(base64.b64decode(shot["data"]))


@contextmanager
def browser(folder: Path) -> Iterator[Page]:
    """A browser with an empty profile, and its one tab."""
    found = program()
    assert found is not None
    to_read, write = os.pipe()
    read, to_write = os.pipe()
    # It reads commands from descriptor 3 and writes answers to 4.
    shell = f'exec "$0" "$@" 3<&{to_read} 4>&{to_write}'
    arguments = [*FLAGS, "--remote-debugging-pipe", f"--user-data-dir={folder / 'profile'}", "about:blank"]
    with (
        (folder / "browser.log").open("wb") as log,
        subprocess.Popen(
            ["/bin/bash", "-c", shell, found, *arguments],
            pass_fds=(to_read, to_write),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        ) as process,
    ):
        os.close(to_read)
        os.close(to_write)
        page = Page(process, read, write)
        try:
            yield page
            page._session = None
            page.command("Browser.close")
        finally:
            page._reader.close()
            page._writer.close()
            try:
                process.wait(10)
            finally:
                process.kill()
