"""Pages as a browser reads them."""

from __future__ import annotations

from html.parser import HTMLParser


class Reading(HTMLParser):
    """Tags with their attributes, comments among them, and the text."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, list[tuple[str, str | None]]]] = []
        self.text = ""
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, attrs))

    def handle_comment(self, data: str) -> None:
        self.tags.append(("comment", []))

    def handle_data(self, data: str) -> None:
        self.text += data

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [dict(attributes) for name, attributes in self.tags if name == tag]
