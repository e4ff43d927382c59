"""The bodies of `flights_etl`: extract → validate → one transform per carrier, in parallel → load → report.

336,776 real flights go through it. Tasks hand on paths of files and never rows: a payload is bounded, a file is not.
Every file appears by one rename, so that an attempt that died has left nothing that a later one could take for whole.
"""

import csv
import json
import os
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from pydantic import BaseModel

from headrace import Context, NonRetryable, task

sys.path.insert(0, str(Path(__file__).parents[1]))  # so that this file runs alone, and together with the others
from flights_etl.source import Row, flights_file, open_flights, read_airlines
from flights_etl.warehouse import Flight, Totals, Warehouse

FAULTS_SHOWN = 5
HEARTBEAT_ROWS = 10_000
CARRIER = Row._fields.index("carrier")
UNKNOWN = "NA"


class Extracted(BaseModel):
    rows: int
    parts: dict[str, str]
    """Carrier to the path of its flights."""


class Transformed(BaseModel):
    path: str
    flights: int
    cancelled: int


class Loaded(BaseModel):
    database: str
    """`postgres`, or the path of an SQLite file."""
    rows: int


class Report(BaseModel):
    flights: int
    carriers: dict[str, Totals]
    path: str


# == extract and validate ==============================================================================================
@task("flights.extract", queue="slow")
def extract(ctx: Context, folder: Path) -> Extracted:
    """Unpack the data, one file for each carrier. What an earlier attempt has finished is not done again."""
    parts, manifest = folder / "parts", folder / "parts" / "manifest.json"
    if not manifest.exists():
        made = folder / f"parts.{ctx.token}.new"
        made.mkdir(parents=True, exist_ok=True)
        rows = _split(ctx, made)
        (made / manifest.name).write_text(json.dumps({"source": flights_file().name, "rows": rows}))
        try:
            made.rename(parts)
        except OSError:
            if not manifest.exists():
                raise
            # An attempt that was given up on was faster, and has the same.
    rows = json.loads(manifest.read_text())["rows"]
    return Extracted(rows=sum(rows.values()), parts={carrier: str(parts / f"{carrier}.csv") for carrier in rows})


def _split(ctx: Context, folder: Path) -> dict[str, int]:
    """Write each line to the file of its carrier; return the rows of each. The data quote nothing, so no parser is
    needed here; `validate` reads every field.
    """
    lines: dict[str, list[bytes]] = {}
    with open_flights() as flights:
        header = next(flights)
        for number, line in enumerate(flights):
            if not number % HEARTBEAT_ROWS:
                ctx.heartbeat({"rows": number})
            lines.setdefault(line.split(b",", CARRIER + 1)[CARRIER].decode(), []).append(line)
    for carrier, of_carrier in lines.items():
        (folder / f"{carrier}.csv").write_bytes(header + b"".join(of_carrier))
    return {carrier: len(of_carrier) for carrier, of_carrier in sorted(lines.items())}


@task("flights.validate", queue="slow")
def validate(ctx: Context, parts: dict[str, Path], carriers: list[str]) -> dict[str, int]:
    """Look at every field of every flight. Other data need another graph, so nothing is tried again."""
    if set(parts) != set(carriers):
        raise NonRetryable(f"the data have carriers {sorted(parts)}, and the graph was built for {sorted(carriers)}")
    faults: list[str] = []
    seen: Counter[str] = Counter()
    for carrier, path in parts.items():
        for number, row in enumerate(_read(path), start=2):
            if not number % HEARTBEAT_ROWS:
                ctx.heartbeat({"carrier": carrier, "line": number})
            seen["cancelled" if row.dep_time == UNKNOWN else "departed"] += 1
            if fault := _fault(row, carrier):
                faults.append(f"{path.name}:{number}: {fault}")
    if faults:
        raise NonRetryable(f"{len(faults)} flights are wrong: {'; '.join(faults[:FAULTS_SHOWN])}")
    return {"rows": seen.total(), **seen}


def _fault(row: Row, carrier: str) -> str:
    """What is wrong with one flight; empty when nothing is."""
    if row.carrier != carrier:
        return f"carrier {row.carrier!r}"
    if row.origin not in ("EWR", "JFK", "LGA") or len(row.dest) != 3:
        return f"{row.origin!r} to {row.dest!r}"
    try:
        dated = int(row.year) == 2013 and 1 <= int(row.month) <= 12 and 1 <= int(row.day) <= 31
        delays = [int(text) for text in (row.dep_delay, row.arr_delay, row.air_time) if text != UNKNOWN]
        return "" if dated and int(row.distance) > 0 and all(abs(delay) < 2_000 for delay in delays) else "out of range"
    except ValueError as error:
        return str(error)


# == transform =========================================================================================================
@task("flights.transform", queue="slow")
def transform(ctx: Context, part: Path) -> Transformed:
    """Bring one carrier's flights into the shape of the table."""
    path = part.parents[1] / "flights" / part.name
    flights = cancelled = 0
    with _replacing(path, ctx.token) as file:
        writer = csv.writer(file)
        for row in _read(part):
            if not flights % HEARTBEAT_ROWS:
                ctx.heartbeat({"flights": flights})
            writer.writerow(_flight(row))
            flights += 1
            cancelled += row.dep_time == UNKNOWN
    return Transformed(path=str(path), flights=flights, cancelled=cancelled)


def _flight(row: Row) -> Flight:
    return Flight(
        row.carrier,
        f"{row.year}-{row.month:0>2}-{row.day:0>2}",
        row.origin,
        row.dest,
        "1" if row.dep_time == UNKNOWN else "0",
        "" if row.dep_delay == UNKNOWN else row.dep_delay,
        "" if row.arr_delay == UNKNOWN else row.arr_delay,
        "" if row.air_time == UNKNOWN else row.air_time,
        row.distance,
    )


# == load and report ===================================================================================================
@task("flights.load", queue="slow")
def load(ctx: Context, folder: Path, parts: list[Path]) -> Loaded:
    """All flights into one table, in one transaction that first takes out what an earlier attempt of this run left."""
    warehouse = Warehouse(os.environ.get("FLIGHTS_POSTGRES"), folder / "flights.sqlite")
    rows = warehouse.replace(str(ctx.run_id), _flights(ctx, parts))
    return Loaded(database=warehouse.name, rows=rows)


def _flights(ctx: Context, parts: list[Path]) -> Iterator[Flight]:
    for part in parts:
        ctx.heartbeat({"part": part.name})
        with part.open(newline="") as file:
            yield from map(Flight._make, csv.reader(file))


@task("flights.report", queue="slow")
def report(ctx: Context, folder: Path) -> Report:
    """What the table says, by carrier; also as a file."""
    warehouse = Warehouse(os.environ.get("FLIGHTS_POSTGRES"), folder / "flights.sqlite")
    totals = warehouse.totals(str(ctx.run_id))
    path = folder / "report.csv"
    names = read_airlines()
    with _replacing(path, ctx.token) as file:
        writer = csv.writer(file)
        writer.writerow(["carrier", "airline", *Totals.__annotations__])
        writer.writerows([carrier, names[carrier], *of_carrier.values()] for carrier, of_carrier in totals.items())
    return Report(flights=sum(each["flights"] for each in totals.values()), carriers=totals, path=str(path))


# == files =============================================================================================================
def _read(path: Path) -> Iterator[Row]:
    with path.open(newline="") as file:
        rows = csv.reader(file)
        if tuple(header := next(rows)) != Row._fields:
            raise NonRetryable(f"{path.name} has other columns: {header}")
        try:
            yield from map(Row._make, rows)
        except TypeError as error:
            raise NonRetryable(f"{path.name}:{rows.line_num}: {error}") from None


@contextmanager
def _replacing(path: Path, token: int) -> Iterator[TextIO]:
    """A file that takes the place of `path` when it is whole. The token keeps attempts that overlap apart."""
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_name(f"{path.name}.{token}.new")
    with new.open("w", newline="") as file:
        yield file
    new.replace(path)
