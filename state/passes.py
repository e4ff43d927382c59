"""What is told of the passes of sweeps, in `sweep_pass`: how long after its last one a sweep is late."""

from typing import Final

SLOW_SWEEPS: Final = {"retention": 900.0, "objects": 3 * 3600.0}
"""Seconds, of those that have pauses of minutes between their passes; all others pass within seconds."""
