"""Tables on screen."""

import itertools

from nnunet_labelset.io.text import aligned, variants

ROWS = [["label", "Dice", "NSD"], ["liver", "90.0", "9"], ["spleen", "1.0", "100"]]


def test_columns_are_aligned():
    assert aligned(ROWS, names=1) == ["label   Dice  NSD", "liver   90.0    9", "spleen   1.0  100"]


def test_a_wide_table_continues_below_with_its_first_column():
    lines = aligned(ROWS, names=1, width=12)
    assert max(map(len, lines)) <= 12
    assert lines[:3] == ["label   Dice", "liver   90.0", "spleen   1.0"]
    assert lines[3] == ""
    assert lines[4:] == ["label   NSD", "liver     9", "spleen  100"]


def test_a_column_that_is_too_wide_is_shown_all_the_same():
    assert aligned([["a", "much too wide"]], names=1, width=5) == ["a  much too wide"]


def test_taken_names_are_numbered():
    assert list(itertools.islice(variants("a"), 3)) == ["a", "a (2)", "a (3)"]
