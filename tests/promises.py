"""What the proxy promises, as data: each sentence stands in SECURITY.md, each has tests that prove it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Promise:
    """One sentence, and where it is proved."""

    sentence: str
    proofs: tuple[str, ...]
    """``file::test``, from the folder of the tests."""


MODES = "faults/test_every_mode.py::test_a_fault_costs_its_own_call_and_nothing_else"
SOAK = "faults/test_soak.py::test_nothing_is_lost_doubled_repeated_or_left_behind"
HTTP = "front/test_http.py::"
LISTENING = "front/test_listening.py::"
SESSIONS = "front/test_sessions.py::"
PAGE = "web/test_page.py::"
STOPPING = "faults/test_stopping.py::"
DEFINITIONS = "faults/test_definitions.py::"
MEMORY = "faults/test_memory.py::"
SURROUNDINGS = "faults/test_surroundings.py::"

PROMISES = (
    Promise(
        "Every request gets exactly one response, whatever the server behind it does.",
        (MODES, SOAK, STOPPING + "test_a_call_that_outlasts_the_drain_is_told_and_cancelled"),
    ),
    Promise(
        "No call is sent twice, except one that a server rejected because its session had expired, and "
        "only if the server then rejects a ping for the same reason. If the connection is lost during a "
        "call, the caller is told that the call may or may not have run.",
        (
            MODES,
            SOAK,
            "downstream/test_urls.py::test_calls_whose_session_has_expired_are_each_run_once_in_the_next",
            "downstream/test_streams.py::"
            "test_a_refused_call_is_not_sent_again_where_the_session_is_known_still",
            "downstream/test_calls.py::test_a_crash_during_a_call_is_told_and_the_call_is_never_sent_again",
        ),
    ),
    Promise(
        "A server that fails, hangs, floods or lies does not disturb calls to other servers.",
        (MODES, SOAK, "downstream/test_calls.py::test_a_server_that_reads_nothing_more_holds_up_only_itself"),
    ),
    Promise(
        "A failure is reported as a result that names the server, the cause and what happened to the call.",
        (MODES, "downstream/test_life.py::test_a_server_that_exits_at_start_is_told_with_its_last_words"),
    ),
    Promise(
        "A request without a response ends at its deadline, and the server is told to cancel it.",
        (
            "faults/test_every_mode.py::test_a_call_that_was_given_up_is_cancelled_at_the_server",
            "downstream/test_calls.py::test_a_call_without_answer_ends_at_its_deadline_and_is_cancelled",
            STOPPING + "test_a_host_that_goes_cancels_what_it_asked_for",
        ),
    ),
    Promise(
        "A server that keeps failing without having answered anything, or keeps exiting on its own soon "
        "after its start, is left alone and retried once a minute.",
        (
            "downstream/test_restarts.py::test_after_five_failures_it_is_left_alone_and_tried_once_a_minute",
            "downstream/test_life.py::test_one_that_soon_leaves_each_time_is_left_alone_though_it_answers",
        ),
    ),
    Promise(
        "Messages, lists, definitions, results, queues and waits are bounded (`[limits]`); anything "
        "over a bound is refused with an explanation and never buffered.",
        (
            "wire/test_framing.py::test_a_line_that_never_ends_is_not_kept",
            "downstream/test_answers.py::test_an_answer_over_the_limit_is_told_with_its_size_and_the_limit",
            "downstream/test_calls.py::test_what_a_server_does_not_read_is_bounded_in_bytes",
            "downstream/test_calls.py::test_a_server_that_asks_without_reading_leaves_no_tasks_behind",
            MEMORY + "test_an_endless_line_takes_no_memory_and_ends_its_connection",
            MEMORY + "test_a_result_as_large_as_may_be_is_held_twice_at_most",
            DEFINITIONS + "test_tools_over_the_limit_of_all_are_withheld_and_told",
            DEFINITIONS + "test_pages_without_end_are_ended",
            "downstream/test_stderr.py::test_a_flood_without_a_line_end_takes_no_more_than_twice_its_bound",
        ),
    ),
    Promise(
        "No schema of a server is validated, resolved or compiled, and no link or `$ref` is ever followed.",
        (
            DEFINITIONS + "test_schemas_that_explode_are_never_expanded_and_what_they_name_is_never_fetched",
            DEFINITIONS + "test_links_in_a_result_are_passed_on_and_never_followed",
        ),
    ),
    Promise(
        "A bad entry in a list is withheld on its own; the rest of the list stays.",
        (
            DEFINITIONS + "test_entries_that_are_no_tools_cost_no_tool",
            DEFINITIONS + "test_a_schema_that_is_too_deep_costs_its_own_tool_only",
        ),
    ),
    Promise(
        "Texts that models and terminals see hide nothing: no terminal escapes, no invisible or "
        "reordering characters. Fields that a call depends on are not changed; a tool that hides "
        "something there is withheld.",
        (
            DEFINITIONS + "test_no_text_of_a_list_hides_anything",
            "catalog/test_definitions.py::test_no_text_of_a_definition_that_passes_hides_anything",
            "catalog/test_definitions.py::test_what_a_call_depends_on_is_not_changed_so_its_tool_is_withheld",
        ),
    ),
    Promise(
        "Two tools never share a name, and a name leads to the server that has the tool.",
        (
            "catalog/test_naming.py::test_two_arbitrary_tools_never_share_a_name",
            "catalog/test_naming.py::test_a_name_leads_back_to_its_server_and_tool",
            DEFINITIONS + "test_servers_with_each_others_names_are_told_apart",
        ),
    ),
    Promise(
        "Secrets from the configuration and from logins never appear in logs, errors or a server's last "
        "output, not even in encoded form.",
        (
            MODES,
            "authorization/test_proxy.py::test_a_token_that_its_server_tells_is_in_no_error_and_no_log",
            "config/test_redaction.py::test_any_secret_is_found_however_it_is_written",
            "config/test_redaction.py::test_a_traceback_in_the_log_is_redacted",
            "config/test_secrets.py::test_arguments_that_are_named_like_secrets_and_passwords_of_urls_are_secrets",
            "downstream/test_calls.py::test_the_progress_of_a_call_tells_no_secret",
            "downstream/test_stderr.py::test_a_secret_is_redacted_also_where_it_came_in_pieces_or_encoded",
        ),
    ),
    Promise(
        "A server inherits HOME, LOGNAME, PATH, SHELL, TERM, USER and the variables in its own entry; "
        "no file descriptor except its three standard streams; and its arguments as they are, never "
        "through a shell.",
        (
            "faults/test_every_mode.py::test_what_a_child_inherits_is_a_short_list_and_its_own_settings",
            "downstream/test_processes.py::test_arguments_are_passed_as_they_are_and_never_to_a_shell",
        ),
    ),
    Promise(
        "No process that the proxy started outlives it, even if the proxy is killed: a server ends with "
        "everything it left behind in its process group.",
        (
            STOPPING + "test_when_it_is_killed_also_servers_that_are_deaf_end_with_all_they_started",
            STOPPING + "test_the_guardian_of_the_servers_is_replaced_when_it_was_killed",
            SOAK,
            "downstream/test_processes.py::"
            "test_children_are_gone_when_the_proxy_stops_also_those_that_ignore_the_end",
            STOPPING + "test_a_second_signal_ends_everything_at_once",
        ),
    ),
    Promise(
        "On SIGTERM new requests are refused, running ones finish or get an error, and the proxy exits "
        "with code 0; a second signal ends it at once.",
        (
            STOPPING + "test_calls_under_way_are_finished_before_it_stops",
            STOPPING + "test_what_comes_after_the_signal_is_refused_and_does_not_run",
            STOPPING + "test_a_second_signal_ends_everything_at_once",
        ),
    ),
    Promise(
        "A host that stops reading does not fill the memory of the proxy, and is disconnected after 30 "
        "seconds.",
        (
            STOPPING + "test_a_host_that_reads_nothing_is_left_and_nothing_with_it",
            "front/test_stdio_streams.py::test_a_host_that_reads_late_gets_every_answer_and_servers_wait_meanwhile",
            "downstream/test_flow.py::test_a_pipe_behind_a_closed_gate_is_read_when_it_opens",
        ),
    ),
    Promise(
        "Over HTTP every request except `/healthz` and the files of the page needs the bearer token, "
        "which only its owner can read; without a token the proxy listens on the loopback address only, "
        "and says so.",
        (
            LISTENING + "test_it_asks_for_a_token_that_only_its_owner_can_read",
            LISTENING + "test_without_a_token_it_never_listens_beyond_this_machine",
            LISTENING + "test_without_a_token_it_says_so_at_its_start",
            "web/test_api.py::test_nothing_is_told_without_the_token",
        ),
    ),
    Promise(
        "Web pages reach nothing: Host and Origin are checked on every route.",
        (
            HTTP + "test_a_web_page_reaches_nothing",
            "front/test_guard.py::test_other_hosts_are_misdirected",
        ),
    ),
    Promise(
        "The page shows the text of others as text that cannot become part of the page, loads nothing "
        "from elsewhere, and keeps the token in its tab.",
        (
            PAGE + "test_a_hostile_description_stays_text",
            PAGE + "test_no_text_can_become_markup_even_by_a_mistake_of_the_page",
            PAGE + "test_nothing_is_loaded_from_elsewhere",
            PAGE + "test_the_token_leaves_the_address_at_once_and_stays_in_the_tab",
        ),
    ),
    Promise(
        "Slow headers, slow bodies and unread responses end their connection, and a crowd of such "
        "connections keeps nobody out.",
        (
            "front/test_slow_clients.py::test_who_does_not_go_on_is_disconnected",
            "front/test_slow_clients.py::test_who_sends_a_byte_now_and_then_is_disconnected_all_the_same",
            "front/test_slow_clients.py::test_who_reads_nothing_of_a_large_answer_is_disconnected",
            "front/test_slow_clients.py::test_a_session_that_reads_nothing_keeps_no_other_from_hearing",
            "front/test_slow_clients.py::test_a_crowd_that_asks_for_nothing_keeps_nobody_out",
            SESSIONS + "test_slow_bodies_take_no_session_and_leave_no_traceback",
            SESSIONS + "test_when_all_places_are_taken_the_session_that_was_idle_for_longest_makes_room",
        ),
    ),
    Promise(
        "Sessions never see each other's responses, cancellations or tokens, and no server sees a "
        "client's token. A client that guesses session ids is refused, and no log contains them.",
        (
            HTTP + "test_two_clients_with_the_same_ids_never_get_each_others_answers",
            HTTP + "test_cancelling_in_one_session_leaves_the_same_id_in_another",
            "downstream/test_urls.py::test_configured_headers_are_sent_and_nothing_of_the_clients",
            SESSIONS + "test_who_guesses_sessions_is_soon_refused_and_those_who_have_one_are_not",
            SESSIONS + "test_the_log_has_neither_sessions_nor_what_they_said",
        ),
    ),
    Promise(
        "A damaged, locked, full or missing store and an unusable model cost remembered data or search "
        "quality, never a call.",
        (
            "store/test_damage.py::test_with_any_of_2000_bits_flipped_it_serves",
            "store/test_damage.py::test_truncated_at_any_page_it_serves",
            "store/test_damage.py::test_with_any_page_zeroed_it_serves",
            "store/test_damage.py::test_with_a_file_missing_or_of_another_store_it_serves",
            "store/test_kills.py::"
            "test_500_kills_while_another_writes_leave_a_sound_store_with_all_that_was_acknowledged",
            SURROUNDINGS + "test_a_disk_that_is_full_or_read_only_costs_nothing_but_memory",
            SURROUNDINGS
            + "test_what_happens_while_the_disk_is_full_is_told_once_and_kept_once_there_is_room",
            SURROUNDINGS + "test_without_a_home_it_serves",
            SURROUNDINGS + "test_two_proxies_on_one_store_never_hinder_each_other",
            SURROUNDINGS + "test_a_model_that_cannot_be_used_leaves_search_by_words",
            SURROUNDINGS + "test_without_descriptors_left_servers_fail_in_words_and_the_rest_is_served",
            SURROUNDINGS + "test_without_descriptors_for_hosts_they_wait_and_the_log_stays_short",
            SURROUNDINGS + "test_where_no_process_can_be_started_what_runs_is_served_and_the_rest_waits",
        ),
    ),
    Promise(
        "Nothing leaves the machine through the proxy itself unless a server or a model service is "
        "configured.",
        ("embedding/test_privacy.py::test_using_the_model_leaves_nothing_behind",),
    ),
    Promise(
        "A server cannot direct a login to an address nearer to this machine than its own, or to one "
        "that gives a machine its credentials, no matter what a name resolves to at any moment.",
        (
            "authorization/test_reach.py::test_a_server_elsewhere_never_leads_to_this_machine",
            "authorization/test_reach.py::test_nobody_leads_to_what_tells_a_machine_its_credentials",
            "authorization/test_reach.py::test_what_a_name_stands_for_is_looked_up_once_and_connected_to",
            "authorization/test_reach.py::test_a_renewal_goes_no_nearer_than_the_login_went",
        ),
    ),
    Promise(
        "A model that is asked to rerank decides only the order of five tools; it can neither delay a "
        "search beyond `limits.rerank_seconds` nor make it fail.",
        (
            "rerank/test_order.py::test_any_answer_gives_an_order",
            "rerank/test_prompt.py::test_each_candidate_is_one_line_of_data_and_none_can_pose_as_another",
            "rerank/test_endpoint.py::test_what_cannot_be_used_leaves_the_order_as_it_was",
            "rerank/test_endpoint.py::test_an_answer_that_never_comes_is_waited_for_no_longer_than_the_limit",
            "rerank/test_endpoint.py::test_an_answer_that_trickles_in_is_late_too",
        ),
    ),
)
