"""Read a page."""

from __future__ import annotations

import re
from html.parser import HTMLParser

VOID = {"meta", "br", "img", "hr", "link", "input"}


class Page(HTMLParser):
    """Checks that tags are closed in order; collects text, tags and what the page refers to."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.source = text
        self.open: list[str] = []
        self.tags: list[str] = []
        self.ids: list[str] = []
        self.links: list[str] = []
        self.text = ""
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        if tag not in VOID:
            self.open.append(tag)
        for name, value in attrs:
            if name in ("href", "xlink:href", "src", "action", "data", "srcset"):
                self.links.append(value or "")
            if name == "id":
                self.ids.append(value or "")
            self.links += re.findall(r"url\(([^)]*)\)", value or "")

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if "script" not in self.open and "style" not in self.open:
            self.text += data

    def check_stands_alone(self) -> None:
        """Nothing is loaded from elsewhere."""
        assert self.source.startswith("<!doctype html>")
        assert not {"link", "img", "iframe", "object", "base"} & set(self.tags)
        assert all(link.startswith("#") for link in self.links), self.links
        assert "@import" not in self.source
        assert not re.findall(r"https?://[^\s\"'<>]+", self.source)
