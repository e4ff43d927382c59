"""All examples in one worker: what `make demo` runs."""

from demo_follow_up import app as demo_follow_up
from documents import app as documents
from flights_etl import app as flights_etl
from orders import app as orders
from release import app as release
from settlement import app as settlement

__all__ = ["demo_follow_up", "documents", "flights_etl", "orders", "release", "settlement"]
