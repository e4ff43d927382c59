"""All three examples in one worker: what `make demo` runs."""

from flights_etl import app as flights_etl
from orders import app as orders
from release import app as release

__all__ = ["flights_etl", "orders", "release"]
