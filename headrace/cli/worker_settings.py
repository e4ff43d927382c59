"""The environment as a worker reads it, with its faults in words."""

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from headrace.errors import ConfigurationError
from headrace.settings import WorkerSettings


def read_settings(given: Mapping[str, Any]) -> WorkerSettings:
    """The environment's, and `given` over them. Raises ConfigurationError with a line for each that is wrong."""
    try:
        return WorkerSettings(**given)
    except ValidationError as error:
        lines = [f"HEADRACE_{'_'.join(map(str, each['loc'])).upper()}: {each['msg']}" for each in error.errors()]
        raise ConfigurationError("\n".join(["a setting is wrong", *lines])) from None
