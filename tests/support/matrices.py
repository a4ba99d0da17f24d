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
    "disk/test_injected.py::test_a_gateway_whose_disk_failed_loses_and_repeats_nothing": 3,
    "gateway/doctor/test_repair_kill.py::test_a_repair_that_dies_anywhere_is_ended_by_the_next": 2,
    "gateway/queue/test_queue_limit.py::test_a_queue_that_was_not_made_holds_up_no_other": 2,
    "gateway/queue/test_queue_limit.py::test_a_queue_that_was_not_made_lets_the_connection_come_up_again": 2,
    "gateway/queue/test_rabbitmq_faults.py::test_broker_killed_under_load": 2,
    "gateway/queue/test_repartition.py::test_a_channel_that_is_closed_in_the_middle_ends_the_move": 2,
    "gateway/queue/test_repartition.py::test_a_kill_between_two_letters_keeps_their_order": 2,
    "gateway/queue/test_repartition.py::test_letters_that_are_on_their_way_are_waited_for": 2,
    "gateway/queue/test_repartition.py::test_what_waits_goes_before_what_comes": 2,
    "gateway/service/test_small_files_kill.py::test_a_change_is_there_whole_or_not_at_all": 2,
    "gateway/turns/test_modes_kill.py::test_a_kill_at_any_step_loses_and_repeats_none": 3,
    "gateway/turns/test_subagents_kill.py::test_a_kill_at_any_step_starts_and_tells_nothing_twice": 2,
    "session/store/test_fence.py::test_frozen_writer_wakes_fenced": 2,
    "system/test_agents_jobs.py::test_a_job_stays_with_the_agent_that_made_it": 2,
    "system/test_agents_kill.py::test_a_kill_in_the_middle_of_a_change_changes_once": 3,
    "system/test_approvals_kill.py::test_a_kill_at_any_step_runs_it_once": 3,
    "system/test_compaction.py::test_a_daemon_that_ends_in_a_summary_leaves_nothing_half_done": 2,
    "system/test_crash.py::test_a_consolidation_that_dies_is_done_once": 6,
    "system/test_crash.py::test_a_new_that_dies_ends_one_session_and_begins_one": 6,
    "system/test_crash.py::test_embedded_loses_and_repeats_nothing": 3,
    "system/test_crash.py::test_going_back_that_dies_happens_once": 3,
    "system/test_crash.py::test_rabbitmq_loses_and_repeats_nothing": 6,
    "system/test_crash.py::test_tools_and_model_calls_survive_with_one_bill": 6,
    "system/test_erasing.py::test_a_daemon_that_is_killed_in_the_midst_ends_it_at_its_next_start": 2,
    "system/test_faults.py::test_a_broker_killed_while_200_letters_flow_loses_none": 2,
    "system/test_faults.py::test_a_connection_cut_between_reply_and_ack_repeats_nothing": 2,
    "system/test_http_idle.py::test_half_sent_headers_keep_nobody_from_being_served": 3,
    "system/test_lanes_apart.py::test_each_daemon_tells_the_lanes_of_all": 2,
    "system/test_mcp.py::test_a_call_that_a_kill_interrupts_is_made_once": 2,
    "system/test_openai.py::test_a_model_names_an_agent": 2,
    "system/test_openai.py::test_a_repeat_is_not_asked_twice": 2,
    "system/test_openai.py::test_what_the_client_can_do": 2,
    "system/test_rolling.py::test_all_processes_are_restarted_in_turn": 2,
    "system/test_schedules.py::test_a_kill_in_a_run_answers_it_once": 2,
    "system/test_schedules.py::test_a_kill_while_a_job_is_made_makes_it_at_most_once": 2,
    "system/test_send_file.py::test_a_file_goes_out_once_with_its_answer": 2,
    "system/test_sessions.py::test_a_boundary_over_a_kill_is_drawn_and_told_once": 2,
    "system/test_subagents.py::test_it_ends_with_the_conversation_that_started_it": 3,
    "system/test_subagents.py::test_what_works_is_shown_and_ended_by_stop": 2,
    "system/test_subagents_kill.py::test_a_kill_where_it_is_handed_over_loses_and_repeats_nothing": 3,
    "system/test_takeover.py::test_all_turns_of_a_killed_daemon_go_on_side_by_side": 2,
    "system/test_trace.py::test_a_run_of_the_clock_and_a_subagent": 2,
    "system/test_trace.py::test_from_accepted_to_sent": 2,
    "system/test_trace.py::test_together_parked_and_lost": 2,
    "system/test_versions.py::test_a_daemon_killed_between_version_and_notes_keeps_each_text_once": 2,
    "system/test_wiring.py::test_the_numbers_of_the_history_are_those_of_the_turns": 3,
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
