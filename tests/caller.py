"""What a call of the tests carries so that the API of a test knows it."""

from typing import Final

TOKEN: Final = "hr_the-local-token-of-every-api-that-a-test-builds-itself"  # of no other API
"""In HEADRACE_API_LOCAL_TOKEN while tests run. A `Stack` has a token of its own, and `stack.headers`."""
HEADERS: Final = {"Authorization": f"Bearer {TOKEN}"}
