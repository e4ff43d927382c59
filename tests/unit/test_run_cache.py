"""Which runs stay in memory when there are more than there is room for."""

from streams.run_cache import Keys


def test_a_key_that_was_removed_is_drawn_no_more():
    keys = Keys()
    for number in range(100):
        keys.add(b"%d" % number)
    for number in range(0, 100, 2):
        keys.remove(b"%d" % number)
    drawn = {keys.draw() for _ in range(2_000)}
    assert drawn == {b"%d" % number for number in range(1, 100, 2)}
    for number in range(1, 100, 2):
        keys.remove(b"%d" % number)
    keys.add(b"again")
    assert keys.draw() == b"again"


def test_runs_that_come_in_turns_are_mostly_in_memory_when_there_is_room_for_most():
    keys, held, hits, room = Keys(), set[bytes](), 0, 800
    for turn in range(20):
        for key in (b"%d" % number for number in range(1_000)):
            hits += key in held and turn >= 10
            if key not in held:
                held.add(key)
                keys.add(key)
            if len(held) > room:
                keys.remove(out := keys.draw())
                held.remove(out)
    assert hits > 0.5 * 10_000  # 0 of them if the oldest had to go
