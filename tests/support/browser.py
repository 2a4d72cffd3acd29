"""A headless Chromium that opens pages, and is asked over its debugging port: standard library only."""

from __future__ import annotations

import base64
import json
import os
import shutil
import socket
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome")
ABSENT = "no chromium on this machine: the pages are NOT driven here. `make setup-browser` says what to install."


def browser_path() -> str | None:
    return next((path for name in NAMES if (path := shutil.which(name))), None)


class Browser:
    """One tab. What pages write to their console as errors is collected in ``errors``."""

    def __init__(self, folder: Path) -> None:
        path = browser_path()
        assert path is not None, ABSENT
        flags = "--headless --no-sandbox --disable-gpu --hide-scrollbars --remote-debugging-port=0".split()
        command = [path, *flags, f"--user-data-dir={folder}", "about:blank"]
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.errors: list[str] = []
        self.number = 0
        self.socket = self._connected(folder / "DevToolsActivePort")
        for domain in ("Page", "Runtime", "Log"):
            self.ask(f"{domain}.enable")

    def _connected(self, port_file: Path) -> socket.socket:
        for _ in range(300):
            if port_file.is_file() and port_file.read_text().count("\n"):
                break
            time.sleep(0.1)
        port = int(port_file.read_text().split()[0])
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/json") as answer:
            tab = next(t for t in json.load(answer) if t["type"] == "page")
        place = tab["webSocketDebuggerUrl"].removeprefix(f"ws://127.0.0.1:{port}")
        connection = socket.create_connection(("127.0.0.1", port), timeout=60)
        key = base64.b64encode(os.urandom(16)).decode()
        connection.sendall(
            f"GET {place} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            f"Sec-WebSocket-Key: {key}\r\nSec-WebSocket-Version: 13\r\n\r\n".encode()
        )
        self.stream = connection.makefile("rb")
        while self.stream.readline() not in (b"\r\n", b""):
            pass
        return connection

    def ask(self, method: str, **parameters: Any) -> dict[str, Any]:
        """One command of the protocol, and its answer."""
        self.number += 1
        self._send(json.dumps({"id": self.number, "method": method, "params": parameters}).encode())
        while True:
            message = self._received()
            self._hear(message)
            if message.get("id") == self.number:
                assert "error" not in message, message
                return dict(message["result"])

    def _send(self, data: bytes) -> None:
        mask, size = os.urandom(4), len(data)
        head = bytes([0x81])
        if size < 126:
            head += bytes([0x80 | size])
        else:
            head += b"\xfe" + size.to_bytes(2, "big") if size < 1 << 16 else b"\xff" + size.to_bytes(8, "big")
        veil = (mask * (size // 4 + 1))[:size]  # as two long numbers: byte by byte, half a megabyte takes a while
        masked = int.from_bytes(data, "big") ^ int.from_bytes(veil, "big")
        self.socket.sendall(head + mask + masked.to_bytes(size, "big"))

    def _received(self) -> dict[str, Any]:
        data, last = b"", False
        while not last:
            first, second = self.stream.read(2)
            size = second & 0x7F
            if size > 125:
                size = int.from_bytes(self.stream.read(2 if size == 126 else 8), "big")
            data += self.stream.read(size)
            last = bool(first & 0x80)
        return dict(json.loads(data))

    def _hear(self, message: dict[str, Any]) -> None:
        if message.get("method") == "Runtime.exceptionThrown":
            self.errors.append(str(message["params"]["exceptionDetails"]))
        entry = message.get("params", {}).get("entry", {})
        if entry.get("level") == "error" or message.get("params", {}).get("type") == "error":
            self.errors.append(str(message["params"]))

    def open(
        self, page: Path | str, width: int = 1300, height: int = 900, dark: bool = False, scripts: bool = True
    ) -> None:
        """A file, or an address."""
        scheme = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self.errors.clear()
        self.ask("Emulation.setEmulatedMedia", features=scheme)
        self.ask("Emulation.setScriptExecutionDisabled", value=not scripts)
        how = {"deviceScaleFactor": 1, "mobile": False}
        self.ask("Emulation.setDeviceMetricsOverride", width=width, height=height, **how)
        self.ask("Page.navigate", url=page if isinstance(page, str) else page.resolve().as_uri())
        for _ in range(200):
            if self.does("document.readyState") == "complete":
                break
            time.sleep(0.05)

    def does(self, expression: str) -> Any:
        """The value of some JavaScript on the page; promises are waited for."""
        answer = self.ask("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def text(self, selector: str) -> str:
        """The words of the first element that fits."""
        return str(self.does(f"document.querySelector({json.dumps(selector)}).textContent"))

    def texts(self, selector: str) -> list[str]:
        """The words of every element that fits."""
        return list(self.does(f"[...document.querySelectorAll({json.dumps(selector)})].map(e => e.textContent)"))

    def point(self, selector: str, click: bool = False) -> None:
        """The mouse over the first element that fits."""
        x, y = self.does(
            f"(() => {{ const e = document.querySelector({json.dumps(selector)});"
            "e.scrollIntoView({block: 'center'}); const b = e.getBoundingClientRect();"
            "return [b.left + b.width / 2, b.top + b.height / 2]; })()"
        )
        self.ask("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)
        for kind in ("mousePressed", "mouseReleased") if click else ():
            self.ask("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def press(self, key: str) -> None:
        for kind in ("keyDown", "keyUp"):
            self.ask("Input.dispatchKeyEvent", type=kind, key=key, code=key)

    def __enter__(self) -> Browser:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.stream.close()
        self.socket.close()
        self.process.terminate()
        self.process.wait(timeout=20)


@pytest.fixture(scope="session")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """One browser for all tests that open pages; imported by the conftest of their folder."""
    if browser_path() is None:
        pytest.skip(ABSENT)
    with Browser(tmp_path_factory.mktemp("browser")) as browser:
        yield browser
