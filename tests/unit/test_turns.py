"""Whose turn it is, against a queue that grants one slot after another."""

from collections import Counter
from datetime import UTC, datetime, timedelta
from itertools import count
from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st

from state.turns import Line, Turns, Waiter, share

BEGAN = datetime(2024, 1, 1, tzinfo=UTC)


def line_of(key: str, held: int) -> Line:
    return Line(
        namespace="default", pool="db", key=key, held=held, turned_at=BEGAN, is_known=True, is_shared=True
    )  # fmt: skip


def waiters(most: int) -> list[Waiter]:
    return [Waiter(UUID(int=number), 0, 1, BEGAN + timedelta(seconds=number)) for number in range(most)]


def one_by_one(held: list[int], slots: int, waiting: list[float]) -> list[int]:
    """To whom each slot goes: who holds fewest, then whose turn was longest ago; at first, those in front."""
    held, waiting, turns, clock = list(held), list(waiting), list(range(len(held))), count(len(held))
    order = []
    for _ in range(slots):
        open_places = [place for place in range(len(held)) if waiting[place] > 0]
        if not open_places:
            break
        place = min(open_places, key=lambda place: (held[place], turns[place]))
        held[place], waiting[place], turns[place] = held[place] + 1, waiting[place] - 1, next(clock)
        order.append(place)
    return order


@given(st.lists(st.integers(0, 9), min_size=1, max_size=7), st.integers(0, 40))
def test_a_share_of_many_slots_is_what_one_after_another_gives(held: list[int], slots: int):
    expected = Counter(one_by_one(held, slots, [float("inf")] * len(held)))
    assert share([(each, 0) for each in held], slots) == [expected[place] for place in range(len(held))]


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 9)), min_size=1, max_size=6), st.integers(1, 25))
def test_lines_that_end_leave_their_share_to_the_others_and_nobody_else_is_claimed(
    drawn: list[tuple[int, int]], slots: int
):
    drawn.sort(key=lambda one: one[0])  # who holds fewer has its turn before
    lines = [line_of(f"k{place}", held) for place, (held, _) in enumerate(drawn)]
    left = {line.key: waiters(most) for line, (_, most) in zip(lines, drawn, strict=True)}
    turns, rounds = Turns(slots, lines), 0
    while wanted := turns.next_lines():
        rounds += 1
        assert sum(most for _, most in wanted) == slots - sum(len(line.claimed) for line in lines)
        for line, most in wanted:
            line.claimed += left[line.key][:most]
            line.is_spent = len(left[line.key]) < most
            left[line.key] = left[line.key][most:]
    expected = one_by_one([held for held, _ in drawn], slots, [float(most) for _, most in drawn])
    assert [line.key for line, _ in turns.in_turn()] == [f"k{place}" for place in expected]
    assert rounds <= len(lines) + 1


def test_a_share_costs_by_the_lines_and_not_by_the_slots():
    assert share([(0, 0), (10**9, 0)], 10**12) == [10**12 // 2 + 10**9 // 2, 10**12 // 2 - 10**9 // 2]
