"""Bodies with results that no message could carry."""

from headrace import NonRetryable, task


@task("objects.make")
def make(size: int) -> dict[str, str]:
    return {"text": "x" * size}


@task("objects.measure")
async def measure(doc: dict[str, str], unit: str = "characters") -> int:
    if unit != "characters":
        raise NonRetryable(f"nobody counts {unit}")
    return len(doc["text"])
