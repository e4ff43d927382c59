"""Labels: which are refused, and with what to write instead."""

import pytest

from headrace.label import LABELS_MAX, VALUE_MAX, faults_of_labels, is_label_name


@pytest.mark.parametrize("name", ["a", "customer", "customer.id", "a1_b-c.d", "a" * 63])
def test_a_name_is_of_small_letters_and_may_have_parts(name: str) -> None:
    assert is_label_name(name)


@pytest.mark.parametrize("name", ["", "A", "1a", ".a", "-a", "a b", "a:b", "a\n", "kunde.ä", "a" * 64])
def test_what_cannot_be_written_in_a_filter_names_no_label(name: str) -> None:
    assert not is_label_name(name)
    (fault,) = faults_of_labels({name: "x"})
    assert (fault.path, "such as customer.id" in fault.message) == (f"labels.{name[:80]}", True)


def test_any_text_up_to_its_length_is_a_value() -> None:
    assert not list(faults_of_labels({"a": "", "b": "x" * VALUE_MAX, "c": '50 % *, "ä" \\', "d": "😀" * VALUE_MAX}))


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("x" * (VALUE_MAX + 1), "has 201 characters, and at most 200 are kept; shorten it"),
        ("a\0b", "control character"),
        ("a\nb", "control character"),
        (7, "is a text; put it in quotes"),
        (None, "is a text"),
    ],
)
def test_what_is_no_value_is_said_with_its_place(value: object, said: str) -> None:
    (fault,) = faults_of_labels({"ok": "x", "customer": value})
    assert fault.path == "labels.customer"
    assert said in fault.message


def test_every_fault_is_said_and_how_many_there_may_be() -> None:
    many = {f"l{n}": "x" for n in range(LABELS_MAX)}
    assert not list(faults_of_labels(many))
    faults = list(faults_of_labels({**many, "Bad": "x"}))
    assert [fault.path for fault in faults] == ["labels", "labels.Bad"]
    assert "at most 16 labels, and these are 17" in faults[0].message
