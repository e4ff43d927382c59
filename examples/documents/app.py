"""The bodies of `documents`: upload → read each page → validate → enrich → store.

What is large stays in files, named after what is in them; tasks hand on their names. So an attempt that is made twice
writes the same file, and a page that was read is not read again when another one is replayed.
"""

import json
import re
import sys
import threading
from collections.abc import Sequence
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from headrace import Context, NonRetryable, task

sys.path.insert(0, str(Path(__file__).parents[1]))  # so that this file runs alone, and together with the others

CUSTOMERS = {"lovelace and sons": "C-1042"}
"""Stands for the system that knows customers."""
PNG = b"\x89PNG\r\n\x1a\n"

_one_at_a_time = threading.Lock()
"""The engine is one object with a state of its own, and sync bodies run in threads."""


class Scan(BaseModel):
    """A page as it was taken in."""

    number: int
    image: Path


class Page(BaseModel):
    """A page that was read."""

    number: int
    text: Path
    lines: int


class Invoice(BaseModel):
    number: str
    customer: str
    date: str
    positions: list[tuple[str, int]]
    """What, and cents."""
    total_cents: int


@task("documents.upload")
def upload(scans: Path, folder: Path, document: str) -> dict[str, list[Scan]]:
    """Take the images in, each under the name of its content. The scanner may do with its folder what it likes then."""
    images = sorted(scans.glob("*.png"))
    if not images:
        raise NonRetryable(f"document {document}: no page in {scans}")
    pages = []
    for number, image in enumerate(images, 1):
        content = image.read_bytes()
        if not content.startswith(PNG):
            raise NonRetryable(f"document {document}: {image.name} is no PNG")
        pages.append(Scan(number=number, image=_keep(folder / "images", content, ".png")))
    return {"pages": pages}


@task("documents.read", queue="slow")
def read(ctx: Context, number: int, image: Path) -> Page:
    """Read one page. What nobody can read now nobody can read in a minute: a person looks for a better image."""
    lines = recognize(image)
    if not lines:
        raise NonRetryable(f"page {number}: there is nothing to read in {image.name}; scan it again")
    ctx.log.info("read", page=number, lines=len(lines))
    text = _keep(image.parent.parent / "texts", "\n".join(lines).encode(), ".txt")
    return Page(number=number, text=text, lines=len(lines))


@task("documents.validate")
def validate(pages: list[Page]) -> Invoice:
    """All pages of one invoice, and amounts that add up: a page that was read wrongly is found here."""
    texts = [page.text.read_text().splitlines() for page in pages]
    for page, lines in zip(pages, texts, strict=True):
        if not any(_plain(line) == f"page{page.number}of{len(pages)}" for line in lines):
            raise NonRetryable(f"page {page.number} of {len(pages)} does not say so: {lines}")
    lines = [line for text in texts for line in text]
    numbers = set(_all(r"invoice\s*([A-Z]+-?\d+)", lines))
    if len(numbers) != 1:
        raise NonRetryable(f"the pages are of {len(numbers)} invoices: {sorted(numbers)}")
    amounts = [(what.strip(), _cents(sum_)) for what, sum_ in _all(r"(.+?)\s*:\s*(\d+[.,]\d\d)\s*EUR", lines)]
    totals = [cents for what, cents in amounts if what.casefold() == "total"]
    positions = [(what, cents) for what, cents in amounts if what.casefold() != "total"]
    if totals != [sum(cents for _, cents in positions)]:
        raise NonRetryable(f"the amounts do not add up: {positions} and a total of {totals}")
    (customer,), (date,) = _all(r"customer\s*:\s*(.+)", lines), _all(r"date\s*:\s*(\S+)", lines)
    return Invoice(number=numbers.pop(), customer=customer, date=date, positions=positions, total_cents=totals[0])


@task("documents.enrich")
def enrich(invoice: Invoice) -> dict[str, Any]:
    """What the paper does not say."""
    known = CUSTOMERS.get(" ".join(invoice.customer.casefold().split()))
    if known is None:
        raise NonRetryable(f"nobody knows the customer {invoice.customer!r}: enter it, then replay")
    return {**invoice.model_dump(), "customer_id": known, "tax_cents": round(invoice.total_cents * 19 / 119)}


@task("documents.store", queue="io")
def store(ctx: Context, document: str, folder: Path, record: dict[str, Any], pages: list[Page]) -> dict[str, str]:
    """One file for each document, whoever writes it and how often."""
    file = folder / f"{document}.json"
    text = "\n\n".join(page.text.read_text() for page in pages)
    _write(file, json.dumps({**record, "text": text, "effect_key": ctx.effect_key}, indent=1).encode())
    return {"file": str(file)}


# == the engine ========================================================================================================
@cache
def _engine() -> Any:
    """Its models come with it: nothing is fetched. Loading takes a second; only who reads pages does it."""
    from rapidocr import RapidOCR

    settings = {
        "Global.log_level": "error",
        "Global.use_cls": False,  # no line of these pages stands on its head
        "Det.limit_type": "max",
        "Det.limit_side_len": 480,  # letters are large here: this finds the lines, at a third of the cost
        "EngineConfig.onnxruntime.intra_op_num_threads": 1,  # the worker has other tasks
    }
    return RapidOCR(params=settings)


def recognize(image: Path) -> list[str]:
    """The lines of an image, from top to bottom; none when nothing can be read."""
    with _one_at_a_time:
        found = _engine()(str(image))
    return list(found.txts or ())


# == files =============================================================================================================
def _keep(folder: Path, content: bytes, suffix: str) -> Path:
    """Under a name that is its content's, so that it is written once however often it is kept."""
    path = folder / f"{sha256(content).hexdigest()[:16]}{suffix}"
    if not path.exists():
        _write(path, content)
    return path


def _write(path: Path, content: bytes) -> None:
    """It appears whole, by one rename."""
    path.parent.mkdir(parents=True, exist_ok=True)
    scratch = path.with_suffix(f".{threading.get_ident()}")
    scratch.write_bytes(content)
    scratch.rename(path)


# == text ==============================================================================================================
def _all(pattern: str, lines: Sequence[str]) -> list[Any]:
    return [found for line in lines for found in re.findall(pattern, line, re.IGNORECASE)]


def _plain(line: str) -> str:
    """What is left when the engine has seen a space too many or too few."""
    return re.sub(r"\W", "", line).casefold()


def _cents(text: str) -> int:
    return int(re.sub(r"\D", "", text))
