"""Hooks of MkDocs: the navigation follows docs/README.md, and pages outside of docs/ join the site.

Markdown files have the links that work in a checkout. On the site, a link to a page is rewritten to the
place where the site has it. A link to a folder or to a file that is not a page becomes plain text.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parent.parent
OUTSIDE = {
    "README.md": "project/readme.md",
    "CONTRIBUTING.md": "project/contributing.md",
    "CHANGELOG.md": "project/changelog.md",
    **{
        path.relative_to(ROOT).as_posix(): f"fields/{path.parent.name}.md"
        for path in sorted(ROOT.glob("seqmlm/domains/*/README.md"))
    },
}
"""Pages outside of docs/ by path in the repository: their paths on the site."""

_FENCE = re.compile(r"(^ *```.*?^ *```)", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\((?!\w+:|#)([^)#\s]+)(#[^)\s]+)?\)")


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Build the navigation: a section for each heading of docs/README.md, with the first link of each row."""
    nav: list[Any] = [{"Overview": "README.md"}]
    index = (ROOT / "docs" / "README.md").read_text(encoding="utf-8")
    for section in index.split("\n## ")[1:]:
        title, _, text = section.partition("\n")
        rows = [line for line in text.splitlines() if line.startswith("| [")]
        links = [match for row in rows if (match := _LINK.search(row))]
        pages = [{link[2]: site_path("docs/README.md", link[3])} for link in links]
        if pages:
            nav.append({title: pages})
    config.nav = nav
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages outside of docs/."""
    for source, target in OUTSIDE.items():
        files.append(File.generated(config, target, abs_src_path=str(ROOT / source)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Rewrite the links of a page."""
    sources = {target: source for source, target in OUTSIDE.items()}
    here = page.file.src_uri
    source = sources.get(here, f"docs/{here}")

    def rewritten(match: re.Match[str]) -> str:
        target = site_path(source, match[3])
        if target is None:
            return match[2]
        return (
            f"{match[1]}[{match[2]}]({os.path.relpath(target, os.path.dirname(here) or '.')}{match[4] or ''})"
        )

    parts = _FENCE.split(markdown)
    return "".join(part if index % 2 else _LINK.sub(rewritten, part) for index, part in enumerate(parts))


def site_path(source: str, link: str) -> str | None:
    """The path on the site that a link leads to, None if the site does not have it.

    Raises:
        FileNotFoundError: the repository does not have it either.
    """
    path = os.path.normpath(os.path.join(os.path.dirname(source), link))
    if not (ROOT / path).exists():
        raise FileNotFoundError(f"{source}: the link to {link} is broken")
    if path in OUTSIDE:
        return OUTSIDE[path]
    inside = path.startswith("docs/") and (ROOT / path).is_file()
    return path.removeprefix("docs/") if inside else None
