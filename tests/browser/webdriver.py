"""A client of chromedriver: the few commands of the WebDriver protocol that the tests need."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.request import ProxyHandler, Request, build_opener

ELEMENT = "element-6066-11e4-a52e-4f735466cecf"  # the protocol's key of an element's id
ARGUMENTS = [
    "--headless=new",
    "--no-sandbox",  # root cannot have one
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--window-size=1000,1400",
    "--host-resolver-rules=MAP * ~NOTFOUND",  # no network
]
OPENER = build_opener(ProxyHandler({}))  # the driver is on this machine


class Browser:
    """A session of a real browser."""

    def __init__(self, session: str) -> None:
        self.session = session

    def get(self, path: str) -> Any:
        return _send("GET", f"{self.session}/{path}")

    def post(self, path: str, **body: Any) -> Any:
        return _send("POST", f"{self.session}/{path}", body)

    def open(self, address: str) -> None:
        self.post("url", url=address)

    def find(self, selector: str) -> list[str]:
        """The elements that match a CSS selector."""
        found = self.post("elements", using="css selector", value=selector)
        return [element[ELEMENT] for element in found]

    def one(self, selector: str) -> str:
        (element,) = self.find(selector)
        return element

    def click(self, selector: str) -> None:
        """Click as a mouse does: fails where another element covers it or nothing is seen."""
        self.post(f"element/{self.one(selector)}/click")

    def shown(self, selector: str) -> list[bool]:
        """Whether each of the matching elements is displayed."""
        return [self.get(f"element/{element}/displayed") for element in self.find(selector)]

    def text(self, selector: str) -> str:
        return str(self.get(f"element/{self.one(selector)}/text"))

    def run(self, script: str) -> Any:
        """The value of a JavaScript expression."""
        return self.post("execute/sync", script=f"return {script}", args=[])

    def errors(self) -> list[str]:
        """What the page and its script have complained about."""
        return [row["message"] for row in self.post("se/log", type="browser")]


@contextmanager
def browser(**options: Any) -> Iterator[Browser]:
    """Start chromedriver and Chromium, with further `goog:chromeOptions`."""
    command = ["chromedriver", "--port=0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as driver:
        assert driver.stdout is not None
        try:
            lines = iter(driver.stdout.readline, "")
            port = next(
                m[1]
                for line in lines
                if (m := re.search(r"started successfully on port (\d+)", line))
            )
            wanted = {
                "browserName": "chrome",
                "goog:chromeOptions": {
                    "args": ARGUMENTS,
                    "binary": shutil.which("chromium"),  # the one that run.sh has found
                    **options,
                },
                "goog:loggingPrefs": {"browser": "ALL"},
            }
            address = f"http://127.0.0.1:{port}/session"
            made = _send("POST", address, {"capabilities": {"alwaysMatch": wanted}})
            session = f"{address}/{made['sessionId']}"
            try:
                yield Browser(session)
            finally:
                _send("DELETE", session)
        finally:
            driver.terminate()


def _send(method: str, address: str, body: dict[str, Any] | None = None) -> Any:
    data = None if body is None else json.dumps(body).encode()
    request = Request(address, data, {"Content-Type": "application/json"}, method=method)
    with OPENER.open(request, timeout=120) as answer:
        return json.load(answer)["value"]
