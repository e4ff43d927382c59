"""The greeter's one idea."""

VERSION = "0.0.0"
"""Replaced by the build."""


def greet(name: str) -> str:
    if not name.strip():
        raise ValueError("nobody to greet")
    return f"Hello, {name.strip()}!"
