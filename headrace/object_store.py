"""Large results, apart from the messages: a claim check.

A result above a threshold is put into an object store by the worker that made it, under the run's id and its own
SHA-256; messages and rows carry a reference, and the worker of a task that is given it puts the value back before the
body sees its input. So Kafka and Postgres hold bytes by the hundred where bodies return megabytes.

    {"$object":{"sha256":"9f86d0…","bytes":1048576}}

- A reference is written by this module only, always in this form: bytes are enough to find it, and what a body or a
  caller sends may not look like one. It names no run, so it can be followed only inside the run it stands in.
- What is read is compared with its hash, and an object is never overwritten by another value: the same key is the same
  value. A result that an attempt could not report leaves an object without a reference, which goes with its run.
- Expressions read JSON, not references: a task whose output some expression looks into says `inline` in its command,
  and its result travels as it is. One that is handed on whole (`${{ tasks.a.output }}`) may be a reference.
"""

import hashlib
import re
from collections.abc import Iterator
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from headrace.errors import ConfigurationError, MissingObjectError, PayloadError, UnavailableError

if TYPE_CHECKING:
    from obstore.store import ObjectStore as Backend

OBJECT_BYTES_MAX: Final = 16 * 1024 * 1024
"""Largest result, in bytes of JSON, where there is a store for it; and most that one input may become."""
ABOVE_BYTES: Final = 64 * 1024
"""Results that are larger go to the store."""
MARK: Final = b'{"$object":{"sha256":'
_REFERENCE: Final = re.compile(rb'\{"\$object":\{"sha256":"([0-9a-f]{64})","bytes":(\d{1,10})\}\}')
_RETRIES: Final[dict[str, Any]] = {"max_retries": 4, "retry_timeout": timedelta(seconds=10)}


is_hash: Final = re.compile("[0-9a-f]{64}").fullmatch


class Reference(NamedTuple):
    sha256: str
    size: int
    """Bytes of JSON."""


def references(raw: bytes) -> Iterator[Reference]:
    """Those in a value, from left to right. Inside of a JSON string every quote is escaped, so text is never one."""
    if MARK in raw:
        for found in _REFERENCE.finditer(raw):
            yield Reference(found[1].decode(), int(found[2]))


def refuse_references(raw: bytes, reason: str = "BAD_RESULT") -> None:
    """Raises PayloadError for what would be taken for a reference. raw: as msgspec or pydantic writes JSON, compact."""
    if MARK in raw:
        raise PayloadError('{"$object": {"sha256": …}} is how a large value is referred to: use another key', reason)


class ObjectStore:
    """For any number of threads. Methods raise UnavailableError when the store cannot be asked."""

    def __init__(self, url: str, above: int = ABOVE_BYTES) -> None:
        """url: `file:///folder`, `s3://bucket/prefix` and what else obstore knows, credentials from the environment.

        Raises ConfigurationError.
        """
        try:
            import obstore
            from obstore.store import from_url
        except ImportError:
            raise ConfigurationError("HEADRACE_OBJECTS needs obstore: install headrace[objects]") from None
        self.above = above
        self._obstore = obstore
        try:
            if url.startswith("file:"):
                self._backend: Backend = from_url(url, mkdir=True)
            else:
                self._backend = from_url(url, retry_config=_RETRIES)  # type: ignore[call-overload]
        except Exception as e:  # obstore has an error for each backend
            raise ConfigurationError(f"HEADRACE_OBJECTS={url}: {e}") from None

    # == by a worker ===================================================================================================
    def put(self, run_id: str, raw: bytes) -> bytes:
        """Keep a value; answers its reference."""
        sha256 = hashlib.sha256(raw).hexdigest()
        try:
            self._obstore.put(self._backend, _path(run_id, sha256), raw)
        except Exception as e:
            raise _unavailable(e) from e
        return b'{"$object":{"sha256":"%b","bytes":%d}}' % (sha256.encode(), len(raw))

    def fill(self, run_id: str, raw: bytes) -> bytes:
        """The value with every reference replaced by what it stands for.

        Raises MissingObjectError, PayloadError(INPUT_TOO_LARGE).
        """
        sizes = sum(reference.size for reference in references(raw))
        if sizes > OBJECT_BYTES_MAX:
            message = f"the input would be {sizes} bytes with what it refers to, and {OBJECT_BYTES_MAX} are allowed"
            raise PayloadError(message, reason="INPUT_TOO_LARGE")
        return _REFERENCE.sub(lambda found: self.get(run_id, found[1].decode()), raw)

    # == by the API and the sweep ======================================================================================
    def get(self, run_id: str, sha256: str) -> bytes:
        """A value by its hash. Raises MissingObjectError, also when what is there is another value."""
        try:
            raw = bytes(self._obstore.get(self._backend, _path(run_id, sha256)).bytes())
        except FileNotFoundError:
            raise MissingObjectError(f"object {sha256} of run {run_id} is not there", run_id=run_id) from None
        except Exception as e:
            raise _unavailable(e) from e
        if hashlib.sha256(raw).hexdigest() != sha256:
            raise MissingObjectError(f"object {sha256} of run {run_id} was changed", run_id=run_id)
        return raw

    def pages(self) -> Iterator[dict[str, list[str]]]:
        """All that is kept: run id -> paths, up to a thousand objects a page, in the order of their paths."""
        try:
            for page in self._obstore.list(self._backend, prefix=_FOLDER, chunk_size=1000):
                of_runs: dict[str, list[str]] = {}
                for entry in page:
                    of_runs.setdefault(entry["path"].removeprefix(_FOLDER).split("/", 1)[0], []).append(entry["path"])
                yield of_runs
        except Exception as e:
            raise _unavailable(e) from e

    def remove(self, paths: list[str]) -> None:
        """One that is gone already is no error."""
        try:
            self._obstore.delete(self._backend, paths)
        except FileNotFoundError:
            for path in paths:
                self._remove_one(path)
        except Exception as e:
            raise _unavailable(e) from e

    def _remove_one(self, path: str) -> None:
        try:
            self._obstore.delete(self._backend, path)
        except FileNotFoundError:
            pass
        except Exception as e:
            raise _unavailable(e) from e


_FOLDER: Final = "runs/"


def _path(run_id: str, sha256: str) -> str:
    return f"{_FOLDER}{run_id}/{sha256}.json"


def _unavailable(error: Exception) -> UnavailableError:
    return UnavailableError(f"the object store: {error}")
