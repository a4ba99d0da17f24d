"""What was put in longest ago goes first."""

from __future__ import annotations

from durable import BoundedDict


def test_beyond_its_size_the_oldest_item_goes() -> None:
    """Three items in a dict of two: the first is gone."""
    items: BoundedDict[str, int] = BoundedDict(2)

    items["a"], items["b"], items["c"] = 1, 2, 3

    assert dict(items) == {"b": 2, "c": 3}


def test_an_item_that_is_put_in_anew_is_the_youngest() -> None:
    """It changes its value and its age."""
    items: BoundedDict[str, int] = BoundedDict(2)
    items["a"], items["b"] = 1, 2

    items["a"] = 3
    items["c"] = 4

    assert dict(items) == {"a": 3, "c": 4}


def test_a_look_changes_no_age_and_a_use_does() -> None:
    """``get`` leaves an item where it is, ``use`` makes it the youngest."""
    looked_at: BoundedDict[str, int] = BoundedDict(2)
    used: BoundedDict[str, int] = BoundedDict(2)
    for items in (looked_at, used):
        items["a"], items["b"] = 1, 2

    assert (looked_at.get("a"), used.use("a"), used.use("z")) == (1, 1, None)
    looked_at["c"] = used["c"] = 3

    assert (list(looked_at), list(used)) == (["b", "c"], ["a", "c"])
