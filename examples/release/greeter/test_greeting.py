"""The greeter's own tests, run by the `test` task with the standard library's unittest."""

import unittest

from greeting import greet


class Greeting(unittest.TestCase):
    def test_greets_by_name(self) -> None:
        self.assertEqual(greet(" Ada "), "Hello, Ada!")  # noqa: PT009  # it runs without pytest

    def test_refuses_nobody(self) -> None:
        with self.assertRaises(ValueError):  # noqa: PT027
            greet("  ")
