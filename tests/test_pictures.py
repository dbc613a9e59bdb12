"""The pictures of the documentation are what docs/make_pictures.py makes, and each is shown by a page."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path

from tests import page_makers

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "docs" / "pictures"


def test_the_pictures_are_what_their_maker_makes() -> None:
    made = dict(page_makers.load("make_pictures").pictures())
    assert made == {path.name: path.read_text() for path in FOLDER.iterdir()}, (
        "run: python docs/make_pictures.py"
    )


def test_each_picture_is_well_formed_has_a_title_and_no_text_outside_itself() -> None:
    svg = "{http://www.w3.org/2000/svg}"
    for path in FOLDER.iterdir():
        root = ElementTree.parse(path).getroot()
        title = root.find(f"{svg}title")
        assert title is not None and title.text
        width, height = int(root.attrib["width"]), int(root.attrib["height"])
        for text in root.iter(f"{svg}text"):
            assert 0 < int(text.attrib["x"]) < width and 0 < int(text.attrib["y"]) < height, (
                f"{path.name}: {text.text}"
            )


def test_each_picture_is_shown_by_a_page_with_a_text_in_its_place() -> None:
    pages = [ROOT / "README.md", *(ROOT / "docs").glob("*.md"), ROOT / "CONTRIBUTING.md"]
    shown = {
        name: text
        for page in pages
        for text, name in re.findall(r"!\[([^\]]*)\]\((?:docs/)?pictures/([\w-]+\.svg)\)", page.read_text())
    }
    assert set(shown) == {path.name for path in FOLDER.iterdir()}
    assert all(shown.values())
