import unittest

from tally import tally


class Tally(unittest.TestCase):
    def test_empty(self):
        self.assertEqual(tally(""), {})
