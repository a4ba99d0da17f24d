"""How many letters of a queue may be out: few at first, more while all are, within a bound of bytes. Pure.

A quorum queue hands what came back out before anything else, in the order of its return. Where a smaller
window follows a larger one, the end of the larger one passes what the smaller one held: 10 after 40 letters,
each ended by a kill, then hands out 10 to 39 before 0 to 9. There the window is the same on every daemon,
for ever. A classic queue keeps the order of publication whatever the windows are.
"""

from __future__ import annotations

from gateway.queue.held import BYTES_MAX

FIRST_WINDOW = 1_000
GROWTH = 4
# Below this many further letters, growing is not worth the broker's answer.
LEAST_GROWTH = 250
# More than limits.flood_per_chat lets one chat have waiting, so that its neighbours' letters are among them.
FIXED_WINDOW = 10_000
# The protocol has two bytes for it.
WINDOW_MAX = 65_535
# A short letter's objects take more than its body.
LETTER_BYTES = 1024


def cost_of(body: bytes) -> int:
    """Count what a letter takes of the bound, in bytes."""
    return max(len(body), LETTER_BYTES)


def next_window(window: int, cost: int, all_cost: int) -> int:
    """Return the window after one that is full; the same if the bound allows no more.

    Args:
        window: how many letters may be out now, and are.
        cost: bytes that the letters of this window take; further ones are taken to be as large.
        all_cost: bytes that the letters of all windows of the process take.
    """
    mean = max(cost // max(window, 1), LETTER_BYTES)
    growth = min(max(BYTES_MAX - all_cost, 0) // mean, WINDOW_MAX - window)
    return min(window * GROWTH, window + growth) if growth >= LEAST_GROWTH else window
