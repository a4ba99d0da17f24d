"""A dict of bounded size: the item that was put in longest ago goes when another comes."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, MutableMapping
from typing import TypeVar

K = TypeVar("K")
V = TypeVar("V")


class BoundedDict(MutableMapping[K, V]):
    """Holds at most ``max_items`` items, the youngest; putting one in anew makes it the youngest.

    Looking at an item leaves it at its age, except by ``use``. Not for several threads at once.
    """

    def __init__(self, max_items: int) -> None:
        self._max_items = max_items
        # A plain dict searches its removed places for its first item: slow where each put removes one.
        self._items: OrderedDict[K, V] = OrderedDict()

    def __getitem__(self, key: K) -> V:
        return self._items[key]

    def __setitem__(self, key: K, value: V) -> None:
        self._items[key] = value
        self._items.move_to_end(key)
        while len(self._items) > self._max_items:
            self._items.popitem(last=False)

    def __delitem__(self, key: K) -> None:
        del self._items[key]

    def __iter__(self) -> Iterator[K]:
        return iter(self._items)

    def __len__(self) -> int:
        return len(self._items)

    def use(self, key: K) -> V | None:
        """Return the item, which is the youngest from now on; None if there is none."""
        if key in self._items:
            self._items.move_to_end(key)
        return self._items.get(key)
