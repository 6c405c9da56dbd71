"""A headless Chromium over its DevTools pipe: open a page, ask it, press keys, and hear what it complains about."""

import base64
import json
import os
import shutil
import subprocess
from pathlib import Path

from waiting import wait_until

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
FLAGS = ("--headless=new", "--no-sandbox", "--disable-gpu", "--remote-debugging-pipe", "--disable-dev-shm-usage")
FLAGS += ("--no-first-run", "--disable-background-networking", "--disable-component-update", "--hide-scrollbars")


class Browser:
    """One tab. `complaints`: errors and warnings of the console; `requests`: every address that was asked for."""

    def __init__(self, folder: Path):
        commands, answers = os.pipe(), os.pipe()
        moved = f'exec 3<&{commands[0]} 4>&{answers[1]} && exec "$@"'
        call = ["bash", "-c", moved, "bash", CHROMIUM, *FLAGS, f"--user-data-dir={folder}", "about:blank"]
        self.process = subprocess.Popen(call, pass_fds=(commands[0], answers[1]), stderr=subprocess.DEVNULL)
        os.close(commands[0]), os.close(answers[1])
        self.out, self.back = os.fdopen(commands[1], "wb", buffering=0), os.fdopen(answers[0], "rb")
        self.number, self.rest, self.session, self.events = 0, b"", None, []
        self.complaints, self.requests = [], []
        tab = next(t for t in self.ask("Target.getTargets")["targetInfos"] if t["type"] == "page")
        self.session = self.ask("Target.attachToTarget", targetId=tab["targetId"], flatten=True)["sessionId"]
        for part in ("Page", "Runtime", "Log", "Network"):
            self.ask(f"{part}.enable")

    def close(self) -> None:
        self.out.close(), self.back.close()
        self.process.kill()
        self.process.wait()

    def _message(self) -> dict:
        while b"\0" not in self.rest:
            found = os.read(self.back.fileno(), 1 << 20)
            if not found:
                raise EOFError("the browser has ended")
            self.rest += found
        text, self.rest = self.rest.split(b"\0", 1)
        return json.loads(text)

    def ask(self, method: str, **more) -> dict:
        self.number += 1
        own = {"sessionId": self.session} if self.session else {}
        self.out.write(json.dumps({"id": self.number, "method": method, "params": more, **own}).encode() + b"\0")
        while (message := self._message()).get("id") != self.number:
            self._note(message)
        if "error" in message:
            raise RuntimeError(f"{method}: {message['error']['message']}")
        return message["result"]

    def _note(self, message: dict) -> None:
        kind, said = message.get("method"), message.get("params", {})
        if kind == "Runtime.exceptionThrown":
            self.complaints.append(said["exceptionDetails"].get("exception", {}).get("description", "an error"))
        elif kind == "Log.entryAdded" and said["entry"]["level"] in ("error", "warning"):
            self.complaints.append(said["entry"]["text"])
        elif kind == "Runtime.consoleAPICalled" and said["type"] in ("error", "warning"):
            self.complaints.append(str(said["args"]))
        elif kind == "Network.requestWillBeSent":
            self.requests.append(said["request"]["url"])

    def run(self, code: str):
        """The value of an expression of the page, awaited if it is a promise."""
        found = self.ask("Runtime.evaluate", expression=code, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in found:
            raise RuntimeError(found["exceptionDetails"]["exception"].get("description"))
        return found["result"].get("value")

    def size(self, width: int, height: int = 900, dark: bool = False) -> None:
        self.ask("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.ask("Emulation.setEmulatedMedia", features=[scheme])

    def open(self, address: str, ready: str = "document.documentElement?.dataset.ready") -> None:
        """Load an address and wait until it is drawn: until `ready`, an expression of the page, is true."""
        self.run("window.before = true")
        self.ask("Page.navigate", url="about:blank")  # else a new hash alone would not load the page again
        self.ask("Page.navigate", url=address)
        try:
            wait_until(lambda: self.run(f"!window.before && !!({ready})"), 300)
        except TimeoutError:
            raise TimeoutError(f"{address} is not drawn after 300 s; complaints: {self.complaints}") from None

    def key(self, key: str, code: int) -> None:
        for kind in ("keyDown", "keyUp"):
            text = {"text": "\r"} if key == "Enter" and kind == "keyDown" else {}
            self.ask("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code, **text)

    def picture(self, file: Path, height: int | None = None) -> None:
        clip = {"captureBeyondViewport": True} if height is None else {}
        file.write_bytes(base64.b64decode(self.ask("Page.captureScreenshot", **clip)["data"]))
