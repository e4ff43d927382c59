"""All examples in one worker: what `make demo` runs."""

from demo_follow_up import app as demo_follow_up
from flights_etl import app as flights_etl
from orders import app as orders
from release import app as release

__all__ = ["demo_follow_up", "flights_etl", "orders", "release"]
