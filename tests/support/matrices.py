"""Which tests, and which variants of one, run in `make test`; `make chaos-all` runs the others.

A variant there is another step at which a process dies, or the other kind of queue. Each takes seconds, and
what breaks one mostly breaks its neighbours.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence

import pytest

# Of each test one variant in so many stays, the last one among them.
ONE_IN = {
    "browser/test_history.py::test_a_conversation_that_is_read_twice_at_once_stands_there_once": 2,
    "browser/test_hostile.py::test_no_text_keeps_the_page_busy": 4,
    "channels/telegram/test_telegram_format.py::test_more_than_a_block_of_anything_is_rendered_soon": 4,
    "channels/telegram/test_telegram_format.py::test_twice_the_text_is_about_twice_the_work": 4,
    "disk/test_mounted.py::test_whatever_the_disk_refuses_is_told_as_such": 2,
    "gateway/app/test_shut_folders.py::test_what_a_command_shut_goes_with_its_chat": 2,
    "gateway/backup/test_backup.py::test_a_backup_that_is_damaged_or_foreign_restores_nothing": 3,
    "gateway/backup/test_shut_files.py::test_a_folder_that_a_command_shut_is_in_it": 3,
    "gateway/cli/test_cli_parked_media.py::test_of_a_broker_the_parked_letters_are_asked": 2,
    "gateway/doctor/test_repair_kill.py::test_a_repair_that_dies_anywhere_is_ended_by_the_next": 2,
    "gateway/queue/test_bytes.py::test_a_kill_while_letters_are_declined_keeps_each_key_in_order": 2,
    "gateway/queue/test_bytes.py::test_no_more_than_the_bound_is_held_and_all_come_in_order": 2,
    "gateway/queue/test_deleted_exchanges.py::test_what_is_told_is_heard_again": 2,
    "gateway/queue/test_prefetch.py::test_hundreds_of_messages_hide_no_neighbour_on_rabbitmq": 2,
    "gateway/queue/test_rabbit_odd_letters.py::test_an_odd_letter_is_taken_like_any_other": 4,
    "gateway/queue/test_rabbitmq_faults.py::test_channel_closed_for_an_old_letter": 2,
    "gateway/queue/test_prefetch.py::test_each_key_keeps_its_order_over_a_kill_and_two_more_processes": 2,
    "gateway/service/test_small_files_kill.py::test_a_change_is_there_whole_or_not_at_all": 2,
    "gateway/dispatch/test_caps_served.py::test_a_cap_is_told_once_and_ends_nobody_elses_messages": 3,
    "gateway/dispatch/test_modes_kill.py::test_a_kill_at_any_step_loses_and_repeats_none": 3,
    "session/background/test_jobs.py::test_kill_after_new": 4,
    "session/compaction/test_compaction.py::test_three_compactions_in_a_row_lose_nothing": 3,
    "session/mcp/test_server.py::test_a_server_that_cannot_be_used_is_told_without_its_secrets": 3,
    "session/memory/test_session_titles.py::test_a_kill_costs_at_most_one_more_request": 3,
    "session/store/test_big.py::test_an_index_of_what_is_no_longer_there_is_not_believed": 4,
    "session/store/test_big.py::test_what_is_read_in_parts_is_what_is_read_as_a_whole": 3,
    "session/store/test_cache.py::test_a_conversation_is_counted_with_what_it_takes": 4,
    "session/store/test_cleared_count.py::test_wherever_it_dies_the_count_goes_on": 2,
    "session/store/test_disk_refuses.py::test_full_disk_leaves_nothing_half_written": 4,
    "session/transcript/test_grown_meanwhile.py::test_so_is_who_reads_what_is_not_in_memory": 3,
    "session/transcript/test_grown_meanwhile.py::test_who_reads_meanwhile_is_told_of_one_moment": 4,
    "session/transcript/test_loading.py::test_short_lines_cost_a_small_multiple_of_the_file": 2,
    "test_install_packages.py::test_uv_installs_the_locked_packages": 2,
    "system/test_agents_jobs.py::test_a_kill_while_a_run_is_handed_on_answers_it_once": 2,
    "system/test_agents_kill.py::test_a_change_that_waits_behind_a_turn_stays_behind_it": 2,
    "system/test_approvals_kill.py::test_a_kill_at_any_step_runs_it_once": 6,
    "system/test_approvals_telegram.py::test_a_pressed_button_lets_the_call_run_once": 2,
    "system/test_compaction.py::test_a_daemon_that_ends_in_a_summary_leaves_nothing_half_done": 2,
    "system/test_compaction.py::test_a_long_chat_goes_on_and_forgets_nothing": 2,
    "system/test_crash.py::test_a_consolidation_that_dies_is_done_once": 12,
    "system/test_crash.py::test_a_new_that_dies_ends_one_session_and_begins_one": 12,
    "system/test_crash.py::test_a_kill_loses_and_repeats_nothing": 6,
    "system/test_crash.py::test_going_back_that_dies_happens_once": 3,
    "system/test_crash.py::test_tools_and_model_calls_survive_with_one_bill": 12,
    "system/test_daemon.py::test_no_secret_shows_in_output_errors_or_files": 2,
    "system/test_erasing.py::test_a_daemon_that_is_killed_in_the_midst_ends_it_at_its_next_start": 2,
    "system/test_faults.py::test_a_broker_killed_while_200_letters_flow_loses_none": 2,
    "system/test_faults.py::test_a_connection_cut_between_reply_and_ack_repeats_nothing": 2,
    "system/test_http_idle.py::test_half_sent_bodies_cost_little_memory": 3,
    "system/test_mcp.py::test_a_call_that_a_kill_interrupts_is_made_once": 2,
    "system/test_metrics.py::test_all_in_one": 2,
    "system/test_no_model.py::test_what_the_provider_refuses_tells_the_operator_why": 2,
    "system/test_openai.py::test_a_repeat_is_not_asked_twice": 2,
    "system/test_openai.py::test_who_breaks_off_stops_the_turn": 2,
    "system/test_parts.py::test_an_adapter_killed_between_two_parts_still_asks_once": 2,
    "system/test_schedules.py::test_a_kill_in_a_run_answers_it_once": 3,
    "system/test_schedules.py::test_a_kill_while_a_job_is_made_makes_it_at_most_once": 2,
    "system/test_send_file.py::test_a_file_goes_out_once_with_its_answer": 3,
    "system/test_sessions.py::test_a_boundary_over_a_kill_is_drawn_and_told_once": 3,
    "system/test_sessions.py::test_a_session_ends_for_silence_is_summed_up_and_taken_back": 2,
    "system/test_strays.py::test_nothing_of_a_scope_is_seen_in_another": 2,
    "system/test_subagents.py::test_a_result_comes_back_and_nothing_of_the_subagent_stays": 2,
    "system/test_subagents.py::test_it_ends_with_the_conversation_that_started_it": 3,
    "system/test_subagents.py::test_what_works_is_shown_and_ended_by_stop": 2,
    "system/test_subagents_kill.py::test_a_kill_where_it_is_handed_over_loses_and_repeats_nothing": 6,
    "system/test_workers_takeover.py::test_all_turns_of_a_killed_worker_go_on_side_by_side": 2,
    "system/test_telegram.py::test_a_process_killed_while_300_messages_come_loses_none": 2,
    "system/test_trace.py::test_from_accepted_to_sent": 2,
    "system/test_trace.py::test_together_parked_and_lost": 2,
    "system/test_trace.py::test_what_waits_and_what_asks": 2,
}
# Whole tests that only `make chaos-all` runs: each takes ten seconds or more. The one named behind it stays,
# and fails for most of what would break it.
_LATER = """\
browser/test_outbox.py::test_where_the_browser_stores_nothing_a_view_opened_again_has_what_waits
    browser/test_outbox.py::test_a_view_that_was_left_hands_in_what_waits_and_keeps_the_order
deploy/test_deb.py::test_a_loop_that_is_blocked_is_started_anew_and_one_whose_model_is_slow_is_not
    system/test_notify.py::test_a_slow_model_feeds_the_watchdog_and_a_blocked_loop_does_not
deploy/test_deb.py::test_a_person_runs_it_under_a_systemd_of_their_own
    deploy/test_deb.py::test_it_is_started_by_its_installation_and_answers
deploy/test_deb.py::test_removed_it_keeps_and_purged_it_leaves_nothing
    deploy/test_deb.py::test_it_is_started_by_its_installation_and_answers
deploy/test_deb.py::test_root_leads_the_service_to_its_first_model
    system/test_onboard.py::test_from_nothing_to_the_first_answer
deploy/test_deb.py::test_the_commands_of_the_page_install_and_remove_it
    deploy/test_deb.py::test_it_is_started_by_its_installation_and_answers
deploy/test_wheel.py::test_the_version_is_that_of_the_tag
    deploy/test_wheel.py::test_the_wheel_has_all_that_is_used_and_nothing_else
disk/test_injected.py::test_a_gateway_whose_disk_failed_loses_and_repeats_nothing
    session/store/test_disk_refuses.py::test_full_disk_leaves_nothing_half_written
gateway/app/test_erasure.py::test_wherever_it_dies_the_next_start_ends_it
    system/test_erasing.py::test_a_daemon_that_is_killed_in_the_midst_ends_it_at_its_next_start
gateway/backup/test_odd_files.py::test_any_number_of_links_has_room
    gateway/backup/test_odd_files.py::test_a_link_to_an_empty_folder_stays_and_leads_to_the_workspace
gateway/inbound/test_held_back.py::test_what_holds_arrivals_back_turns_their_channel_down
    gateway/inbound/test_held_back.py::test_a_transcript_that_cannot_be_read_turns_its_channel_down
gateway/queue/test_arbitrary_letters.py::test_no_body_and_no_property_ends_a_loop_over_rabbitmq
    gateway/queue/test_rabbit_odd_letters.py::test_an_odd_letter_is_taken_like_any_other
gateway/queue/test_queue_limit.py::test_a_queue_that_was_not_made_holds_up_nothing
    gateway/queue/test_queue_limit.py::test_a_limit_is_told_as_such_and_waited_for
gateway/queue/test_rabbitmq_faults.py::test_a_broker_that_falls_silent_is_given_up
    gateway/queue/test_rabbitmq_faults.py::test_cut_of_a_connection
gateway/queue/test_rabbitmq_faults.py::test_young_queues_survive_a_kill
    gateway/queue/test_rabbitmq.py::test_new_queues_are_left_alone_first
gateway/dispatch/test_flood.py::test_one_that_cannot_even_be_parked_is_left_to_come_again
    gateway/dispatch/test_flood.py::test_one_whose_refusal_breaks_is_parked_and_the_others_end
gateway/dispatch/test_outages.py::test_a_daemon_that_is_started_again_in_an_outage_tells_nobody_twice
    gateway/dispatch/test_outages.py::test_a_chat_that_cannot_be_told_keeps_no_other_from_being_told
gateway/dispatch/test_subagents_kill.py::test_a_kill_at_any_step_of_its_end_brings_no_result
    system/test_subagents_kill.py::test_a_kill_where_it_is_handed_over_loses_and_repeats_nothing
gateway/dispatch/test_subagents_kill.py::test_a_kill_at_any_step_starts_and_tells_nothing_twice
    system/test_subagents_kill.py::test_a_kill_where_it_is_handed_over_loses_and_repeats_nothing
system/test_agents_jobs.py::test_a_job_stays_with_the_agent_that_made_it
    system/test_agents_jobs.py::test_a_kill_while_a_run_is_handed_on_answers_it_once
system/test_agents_kill.py::test_a_kill_in_the_middle_of_a_change_changes_once
    system/test_agents_kill.py::test_a_change_that_waits_behind_a_turn_stays_behind_it
system/test_agents_strays.py::test_nothing_of_a_pair_is_seen_by_another
    system/test_strays.py::test_nothing_of_a_scope_is_seen_in_another
system/test_broker_rights.py::test_a_gateway_in_roles_works_under_them
    system/test_broker_tls.py::test_a_gateway_works_over_tls_in_roles
system/test_broker_rights.py::test_an_adapter_makes_the_queue_of_its_replies
    system/test_broker_rights.py::test_each_role_does_its_work_and_no_more
system/test_broker_rights.py::test_who_may_take_no_messages_says_so_once
    gateway/queue/test_rabbit_refusals.py::test_a_right_that_is_missing
system/test_chaos.py::test_a_few_kills_are_survived_and_told
    system/test_crash.py::test_a_kill_loses_and_repeats_nothing
system/test_discord.py::test_an_adapter_killed_while_300_messages_come_loses_none
    channels/discord/test_discord.py::test_a_killed_process_loses_nothing
system/test_erasing.py::test_no_byte_of_a_person_stays
    system/test_erasing.py::test_no_byte_of_a_chat_stays_beside_a_broker
system/test_erasing.py::test_no_byte_of_a_person_stays_whose_chats_are_answered_by_two_workers
    system/test_erasing.py::test_no_byte_of_a_chat_stays_beside_a_broker
system/test_mcp.py::test_a_server_from_a_registry_serves_a_turn
    system/test_mcp.py::test_changed_tools_are_shown_and_offered_once_approved
system/test_no_model.py::test_doctor_does_not_blame_the_model_for_a_slow_machine
    system/test_no_model.py::test_doctor_fails_with_the_cure
system/test_onboard.py::test_it_goes_on_where_ctrl_c_stopped_it
    system/test_onboard.py::test_from_nothing_to_the_first_answer
system/test_openai.py::test_a_model_names_an_agent
    system/test_openai.py::test_a_repeat_is_not_asked_twice
system/test_openai.py::test_what_the_client_can_do
    system/test_openai.py::test_a_repeat_is_not_asked_twice
system/test_rolling.py::test_all_processes_are_restarted_in_turn
    system/test_workers.py::test_workers_that_die_or_stand_still_are_replaced
system/test_trace.py::test_a_run_of_the_clock_and_a_subagent
    system/test_trace.py::test_from_accepted_to_sent
system/test_workers_replaced.py::test_a_worker_that_dies_again_and_again_is_waited_for_longer
    system/test_workers.py::test_workers_that_die_or_stand_still_are_replaced
system/test_workers_replaced.py::test_a_worker_whose_loop_is_blocked_is_replaced_and_says_where_it_stood
    system/test_workers.py::test_workers_that_die_or_stand_still_are_replaced
"""
_LINES = _LATER.split()
LATER = dict(zip(_LINES[::2], _LINES[1::2], strict=True))


def left_to_chaos(items: Iterable[pytest.Item]) -> Iterator[pytest.Item]:
    """Yield what `make test` leaves out: the tests of ``LATER``, and variants; each other test keeps one."""
    items = list(items)
    yield from (item for item in items if _name(item) in LATER)
    for name, variants in _variants(items).items():
        for number, item in enumerate(reversed(variants)):
            if number % ONE_IN[name]:
                yield item


def _variants(items: Iterable[pytest.Item]) -> dict[str, Sequence[pytest.Item]]:
    found: defaultdict[str, list[pytest.Item]] = defaultdict(list)
    for item in items:
        if (name := _name(item)) in ONE_IN:
            found[name].append(item)
    return dict(found)


def _name(item: pytest.Item) -> str:
    return item.nodeid.partition("[")[0].removeprefix("tests/")
