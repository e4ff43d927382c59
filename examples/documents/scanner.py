"""The scanner: draws the pages of an invoice as images, the way they come out of one. Nothing is fetched: Pillow brings
the font.

python examples/documents/scanner.py .headrace/scans --blank 3      # page 3 was put in with its back up
"""

import argparse
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import NamedTuple

from PIL import Image, ImageDraw, ImageFont

SIZE = (900, 640)
MARGIN = 60
LINE = 62
TEXT = 34
"""Pixels high: what a scan at 150 dpi has of an ordinary letter, and more."""


class Position(NamedTuple):
    what: str
    cents: int


NUMBER, CUSTOMER, DATE = "INV-2041", "Lovelace and Sons", "2026-11-02"
PAGES: Sequence[Sequence[Position]] = (
    (Position("Oak desk", 31900), Position("Desk lamp", 2450)),
    (Position("Office chair", 8900), Position("Footrest", 3975)),
    (Position("Bookcase", 18600), Position("Delivery", 4200)),
    (Position("Assembly", 6500),),
)
TOTAL_CENTS = sum(position.cents for page in PAGES for position in page)


def write_lines(page: int) -> list[str]:
    """What is printed on a page, counted from 1."""
    lines = [f"Invoice {NUMBER}", f"Page {page} of {len(PAGES)}"]
    if page == 1:
        lines += [f"Customer: {CUSTOMER}", f"Date: {DATE}"]
    lines += [f"{what}: {_money(cents)} EUR" for what, cents in PAGES[page - 1]]
    return [*lines, f"Total: {_money(TOTAL_CENTS)} EUR"] if page == len(PAGES) else lines


def scan(folder: Path, *, blank: Collection[int] = ()) -> list[Path]:
    """One image a page, in order. blank: those of which only the back was seen."""
    folder.mkdir(parents=True, exist_ok=True)
    return [scan_page(folder / f"page-{page}.png", page, is_blank=page in blank) for page in range(1, len(PAGES) + 1)]


def scan_page(path: Path, page: int, *, is_blank: bool = False) -> Path:
    image = Image.new("L", SIZE, 250)
    if not is_blank:
        draw, font = ImageDraw.Draw(image), ImageFont.load_default(TEXT)
        for at, line in enumerate(write_lines(page)):
            draw.text((MARGIN, MARGIN + at * LINE), line, fill=10, font=font)
    image.save(path)
    return path


def _money(cents: int) -> str:
    return f"{cents / 100:.2f}"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Draw the pages of an invoice.")
    parser.add_argument("folder", type=Path)
    parser.add_argument(
        "--blank", type=int, action="append", default=[], help="a page that was put in with its back up"
    )
    given = parser.parse_args()
    for path in scan(given.folder, blank=given.blank):
        print(path)
