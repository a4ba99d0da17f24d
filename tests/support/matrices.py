"""Which variants of a test run in `make test`: some of the long matrices, `make chaos` the others.

A variant there is another step at which a process dies, or the other kind of queue. Each takes seconds, and
what breaks one mostly breaks its neighbours.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence

import pytest

# Of each test one variant in so many stays, the last one among them.
ONE_IN = {
    "system/test_agents_kill.py::test_a_kill_in_the_middle_of_a_change_changes_once": 3,
    "system/test_approvals_kill.py::test_a_kill_at_any_step_runs_it_once": 3,
    "system/test_crash.py::test_a_consolidation_that_dies_is_done_once": 3,
    "system/test_crash.py::test_a_new_that_dies_ends_one_session_and_begins_one": 3,
    "system/test_crash.py::test_going_back_that_dies_happens_once": 3,
    "system/test_crash.py::test_rabbitmq_loses_and_repeats_nothing": 3,
    "system/test_crash.py::test_tools_and_model_calls_survive_with_one_bill": 3,
    "system/test_subagents_kill.py::test_a_kill_where_it_is_handed_over_loses_and_repeats_nothing": 3,
    "disk/test_injected.py::test_a_gateway_whose_disk_failed_loses_and_repeats_nothing": 3,
    "gateway/queue/test_rabbitmq_faults.py::test_broker_killed_under_load": 2,
    "gateway/queue/test_repartition.py::test_a_kill_between_two_letters_keeps_their_order": 2,
    "session/store/test_fence.py::test_frozen_writer_wakes_fenced": 2,
    "system/test_faults.py::test_a_broker_killed_while_200_letters_flow_loses_none": 2,
    "system/test_sessions.py::test_a_boundary_over_a_kill_is_drawn_and_told_once": 2,
    "system/test_takeover.py::test_all_turns_of_a_killed_daemon_go_on_side_by_side": 2,
}


def left_to_chaos(items: Iterable[pytest.Item]) -> Iterator[pytest.Item]:
    """Yield the variants that `make test` leaves out; each test keeps at least one."""
    for name, variants in _variants(items).items():
        for number, item in enumerate(reversed(variants)):
            if number % ONE_IN[name]:
                yield item


def _variants(items: Iterable[pytest.Item]) -> dict[str, Sequence[pytest.Item]]:
    found: defaultdict[str, list[pytest.Item]] = defaultdict(list)
    for item in items:
        name = item.nodeid.partition("[")[0].removeprefix("tests/")
        if name in ONE_IN:
            found[name].append(item)
    return dict(found)
