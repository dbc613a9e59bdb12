"""Hooks of mkdocs: pages of the repository's top folder join the site, and links that lead out of it become
plain text.
"""

from __future__ import annotations

import os
import posixpath
import re
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
TOP = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
    "CHANGELOG.md": "changelog.md",
}
"""Page of the top folder -> its place in the site."""
_LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\((?!https?:|mailto:|#)([^)#\s]+)(#[^)\s]*)?\)")


def relinked(text: str, page: str) -> str:
    """The text of a page with each relative link as the site has it.

    Args:
        page: where the page lies in the repository, relative to its root.
    """

    def change(match: re.Match[str]) -> str:
        mark, label, target, section = match[1], match[2], match[3], match[4] or ""
        place = posixpath.normpath(posixpath.join(posixpath.dirname(page), target))
        if place in TOP:
            inside = TOP[place]
        elif place == "docs/adr":
            inside = "adr/README.md"
        elif place.startswith("docs/") and place.endswith((".md", ".svg")):
            inside = place.removeprefix("docs/")
        else:
            return label  # a source file: the site has none
        here = posixpath.dirname(TOP.get(page) or page.removeprefix("docs/"))
        return f"{mark}[{label}]({posixpath.relpath(inside, here or '.')}{section})"

    return _LINK.sub(change, text)


def on_files(files: Files, config: Any) -> Files:
    """Add the pages of the top folder."""
    for name, place in TOP.items():
        with open(os.path.join(ROOT, name), encoding="utf-8") as file:
            files.append(File.generated(config, place, content=relinked(file.read(), name)))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Rewrite the links of a page of docs/."""
    place = page.file.src_uri
    return markdown if place in TOP.values() else relinked(markdown, f"docs/{place}")
