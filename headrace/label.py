"""Labels of a run: how whoever starts it calls it, to find it again. They change nothing that it does."""

import re
from collections.abc import Iterator, Mapping
from typing import Final

from headrace.errors import Fault

LABELS_MAX: Final = 16
"""Of one run: each has two entries in indexes, written with its start."""
VALUE_MAX: Final = 200
_NAME: Final = re.compile(r"[a-z][a-z0-9_.-]{0,62}")
_VALUE: Final = re.compile(rf"[^\x00-\x1f\x7f]{{0,{VALUE_MAX}}}")


def is_label_name(name: str) -> bool:
    return _NAME.fullmatch(name) is not None


def faults_of_labels(labels: Mapping[str, object]) -> Iterator[Fault]:
    """What is wrong with them, each with its place and what to write instead."""
    if len(labels) > LABELS_MAX:
        yield Fault("labels", f"a run has at most {LABELS_MAX} labels, and these are {len(labels)}; leave some out")
    for name, value in labels.items():
        if not is_label_name(name):
            yield Fault(
                f"labels.{name[:80]}",
                f"{name[:80]!r} cannot name a label; write small letters, digits, `_`, `.` and `-`, a letter first, "
                "63 at most, such as customer.id",
            )
        elif not isinstance(value, str):
            yield Fault(f"labels.{name}", 'the value of a label is a text; put it in quotes, such as "7"')
        elif len(value) > VALUE_MAX:
            yield Fault(f"labels.{name}", f"has {len(value)} characters, and at most {VALUE_MAX} are kept; shorten it")
        elif _VALUE.fullmatch(value) is None:
            yield Fault(f"labels.{name}", "has a control character, such as a line break; leave it out")
