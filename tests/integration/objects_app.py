"""Bodies with results that no message could carry."""

from headrace import task


@task("objects.make")
def make(size: int) -> dict[str, str]:
    return {"text": "x" * size}


@task("objects.measure")
async def measure(doc: dict[str, str]) -> int:
    return len(doc["text"])
