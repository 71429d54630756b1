"""The promises of SECURITY.md and README.md as data: each sentence with the tests that prove it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Promise:
    """A passage of a page, and the tests that prove it."""

    sentence: str
    proofs: tuple[str, ...]
    """``file::test``, from the folder of the tests."""


MODES = "faults/test_every_mode.py::test_a_fault_costs_its_own_call_and_nothing_else"
SOAK = "faults/test_soak.py::test_nothing_is_lost_doubled_repeated_or_left_behind"
FLOODS = "faults/test_floods.py::test_a_flood_of_one_kind_of_message_fills_no_memory_and_disturbs_nobody"
BOUNDS = "server/test_bounds.py::"
HTTP = "front/test_http.py::"
LISTENING = "front/test_listening.py::"
SESSIONS = "front/test_sessions.py::"
PAGE = "web/test_page.py::"
STOPPING = "faults/test_stopping.py::"
DEFINITIONS = "faults/test_definitions.py::"
MEMORY = "faults/test_memory.py::"
STRANGERS = "server/test_strangers.py::"
CONNECTIONS = "proxy/test_connections.py::"
OWNERS = "server/test_resource_owners.py::"
FOLDER = "downstream/test_working_folder.py::"
QUESTIONS = "server/test_questions.py::"
MARKERS = "server/test_markers.py::"
CONSENT = "server/test_consent.py::"
SKILLS = "server/test_skills.py::"
OWN_SKILLS = "server/test_own_skills.py::"
ADVERSARIAL = "trust/test_adversarial_text.py::"
EVENT_LOOP = "trust/test_event_loop.py::"
STANDING = "server/test_standing_list.py::"
ANSWERS = "server/test_answers.py::"
READING = "results/test_reading.py::"
UNFINISHED = "retrieval/test_unfinished.py::"
LARGE = "server/test_large_results.py::"
TURNED_OFF = "server/test_turned_off.py::"
HOST_FILES = "config/test_hosts.py::"
DOCUMENTS = "server/test_documents.py::"
SURROUNDINGS = "faults/test_surroundings.py::"

SECURITY = (
    Promise(
        "Every request gets exactly one response, whatever the server behind it does.",
        (MODES, SOAK, STOPPING + "test_a_call_that_outlasts_the_drain_timeout_fails_and_is_cancelled"),
    ),
    Promise(
        "No call is sent twice, except one that a server rejected because its session had expired, and "
        "only if the server then rejects a ping for the same reason. If the connection is lost during a "
        "call, the caller is told that the call may or may not have run.",
        (
            MODES,
            SOAK,
            "downstream/test_urls.py::test_calls_with_an_expired_session_each_run_once_in_a_new_one",
            "downstream/test_streams.py::test_a_refused_call_is_not_sent_again_if_the_session_is_still_known",
            "downstream/test_calls.py::test_a_crash_during_a_call_is_reported_and_the_call_is_never_sent_again",
        ),
    ),
    Promise(
        "A server that fails, hangs, floods or lies does not disturb calls to other servers.",
        (
            MODES,
            SOAK,
            FLOODS,
            "downstream/test_calls.py::test_a_server_that_stops_reading_delays_only_its_own_calls",
            ADVERSARIAL + "test_time_grows_with_the_length_of_a_text_and_not_with_its_square",
            EVENT_LOOP + "test_the_largest_lists_of_hostile_texts_delay_neither_the_loop_nor_a_search",
            EVENT_LOOP + "test_several_lists_of_the_largest_size_delay_neither_the_loop_nor_a_search",
            UNFINISHED + "test_a_large_list_is_read_in_batches_after_the_small_ones",
            UNFINISHED + "test_a_large_server_is_embedded_after_the_first_tools_of_every_other",
            EVENT_LOOP + "test_no_message_of_a_client_delays_the_others",
            EVENT_LOOP + "test_no_message_of_a_server_delays_the_others",
            EVENT_LOOP + "test_no_flood_of_a_server_delays_the_others",
        ),
    ),
    Promise(
        "A failure is reported as a result that names the server, the cause and what happened to the call.",
        (
            MODES,
            "downstream/test_lifecycle.py::test_a_server_that_exits_at_start_is_reported_with_its_last_output",
        ),
    ),
    Promise(
        "A request without a response ends at its deadline, and the server is told to cancel it.",
        (
            "faults/test_every_mode.py::test_a_call_that_times_out_is_cancelled_at_the_server",
            "downstream/test_calls.py::test_a_call_without_a_response_ends_at_its_timeout_and_is_cancelled",
            STOPPING + "test_calls_of_a_host_that_disconnects_are_cancelled",
        ),
    ),
    Promise(
        "A server that keeps failing without having answered anything, or keeps exiting on its own soon "
        "after its start, is left alone and retried once a minute.",
        (
            "downstream/test_backoff.py::test_after_five_failures_a_server_is_tried_once_a_minute",
            "downstream/test_lifecycle.py::test_a_server_that_soon_exits_each_time_is_tried_rarely_although_it_answers",
        ),
    ),
    Promise(
        "Messages, lists, definitions, results, queues and waits are bounded by number, bytes and rate "
        "([docs/bounds.md](docs/bounds.md), `[limits]`). Anything over a bound is never buffered: it is "
        "refused with an explanation, or dropped if it is a notification. What was compressed more than once "
        "is refused.",
        (
            "protocol/test_framing.py::test_an_endless_line_is_not_buffered",
            "downstream/test_answers.py::test_a_response_over_the_limit_is_reported_with_its_size_and_the_limit",
            "downstream/test_calls.py::test_requests_that_a_server_does_not_read_are_bounded_in_bytes",
            "downstream/test_calls.py::test_a_server_that_asks_but_does_not_read_leaves_no_tasks_behind",
            MEMORY + "test_an_endless_line_is_not_buffered_and_closes_its_connection",
            MEMORY + "test_a_result_of_the_largest_size_is_held_in_memory_three_times_at_most",
            DEFINITIONS + "test_tools_over_the_limit_are_withheld_with_a_warning",
            DEFINITIONS + "test_an_endless_list_of_pages_is_cut",
            "downstream/test_stderr.py::test_a_line_without_an_end_is_bounded",
            FLOODS,
            "docs/test_bounds.py::test_each_figure_is_that_of_its_bound",
            "downstream/test_streams.py::test_an_answer_that_is_compressed_twice_is_refused_unread",
            BOUNDS + "test_an_update_of_a_resource_that_nobody_subscribed_to_at_its_server_is_not_kept",
            BOUNDS + "test_more_updates_than_a_server_may_send_at_once_arrive_later_and_each_once",
            BOUNDS + "test_the_elicitations_that_are_remembered_are_bounded_and_end_with_their_session",
            BOUNDS + "test_questions_of_a_server_are_refused_while_too_many_bytes_of_them_are_open",
            BOUNDS + "test_a_session_is_refused_more_subscriptions_than_it_may_have",
            EVENT_LOOP + "test_a_page_of_millions_of_entries_is_not_taken_apart",
        ),
    ),
    Promise(
        "No schema of a server is validated, resolved or compiled, and no link or `$ref` is ever followed.",
        (
            DEFINITIONS + "test_recursive_schemas_are_never_expanded_and_references_never_fetched",
            DEFINITIONS + "test_links_in_a_result_are_passed_on_and_never_followed",
        ),
    ),
    Promise(
        "A bad entry in a list is withheld on its own; the rest of the list stays.",
        (
            DEFINITIONS + "test_invalid_entries_do_not_affect_valid_tools",
            DEFINITIONS + "test_a_schema_that_is_too_deep_withholds_its_own_tool_only",
            "trust/test_relatives.py::test_an_entry_of_any_depth_costs_only_itself_and_no_result_is_cut",
            "downstream/test_listing.py::test_a_header_of_a_tool_that_cannot_be_read_costs_only_that_tool",
        ),
    ),
    Promise(
        "Texts that models and terminals see hide nothing: no terminal escapes, no invisible, private or "
        "reordering characters, no runs of empty lines. That goes for definitions, instructions, errors, "
        "failed results, progress, log messages, logins, stored queries, commands and the page. An error "
        "and a log message name their server, and no server can write the mark of another: `[server 'x'` "
        "becomes `(server 'x'`. Fields that a call depends on are not changed; a tool that hides something "
        "there is withheld.",
        (
            "protocol/test_strangers.py::test_no_words_of_a_server_pass_for_those_of_another",
            "trust/test_relatives.py::"
            "test_no_description_and_no_error_of_a_server_passes_for_the_words_of_another",
            "protocol/test_text.py::test_every_code_point_is_visible_or_a_space_or_removed",
            "protocol/test_strangers.py::test_no_run_of_blanks_pushes_text_out_of_sight",
            STRANGERS + "test_an_error_hides_nothing_in_its_message_and_its_data",
            STRANGERS + "test_an_endless_error_is_cut_and_says_so",
            STRANGERS + "test_progress_and_log_messages_hide_nothing_and_cannot_pose_as_another_server",
            STRANGERS + "test_a_failed_result_hides_nothing_and_a_successful_one_keeps_its_bytes",
            STRANGERS + "test_the_cause_of_a_failed_start_hides_nothing",
            "web/test_strangers.py::test_no_route_shows_what_is_hidden_or_secret",
            "web/test_strangers.py::test_a_query_that_an_older_version_quoted_as_a_reason_is_shown_to_nobody",
            "cli/test_strangers.py::test_words_of_an_old_store_are_printed_without_what_hides_in_them",
            DEFINITIONS + "test_no_listed_text_has_invisible_characters",
            STANDING + "test_instructions_of_servers_come_a_line_each_after_our_own",
            "catalog/test_definitions.py::test_no_accepted_definition_has_invisible_characters_in_its_texts",
            "catalog/test_definitions.py::test_a_tool_with_invisible_characters_in_names_or_values_is_withheld",
        ),
    ),
    Promise(
        "Two tools never share a name, and a name of a tool or prompt that states its server leads to that "
        "server or nowhere, whether it is connected, slow, failed, off or removed. An own name without a "
        "server leads nowhere while an enabled server is not known, and never to two servers in one session.",
        (
            "server/test_names.py::test_a_full_name_never_leads_to_another_server",
            "server/test_names.py::test_an_own_name_leads_nowhere_while_a_server_is_not_known",
            "server/test_names.py::test_a_session_refuses_an_own_name_that_would_go_to_another_server",
            "catalog/test_names.py::test_a_name_leads_to_the_server_that_it_names_or_nowhere",
            "catalog/test_naming.py::test_two_arbitrary_tools_never_share_a_name",
            "catalog/test_naming.py::test_a_name_leads_back_to_its_server_and_tool",
            "server/test_names.py::test_a_name_that_was_listed_under_another_length_still_leads_to_its_tool",
            DEFINITIONS + "test_tools_of_servers_with_confusable_names_stay_distinct",
        ),
    ),
    Promise(
        "Secrets from the configuration and from logins never appear in logs, errors or a server's last "
        "output, not even in encoded form. What commands and the page show about servers is redacted, too, "
        "even a name that a server took from its secret.",
        (
            "cli/test_strangers.py::test_no_command_prints_a_secret_that_a_server_uses_as_a_name",
            MODES,
            "oauth/test_proxy.py::test_a_token_that_its_server_reveals_is_in_no_error_and_no_log",
            "config/test_redaction.py::test_any_secret_is_found_however_it_is_written",
            "config/test_redaction.py::test_a_traceback_in_the_log_is_redacted",
            "config/test_secrets.py::test_arguments_that_are_named_like_secrets_and_passwords_of_urls_are_secrets",
            "downstream/test_calls.py::test_the_progress_of_a_call_reveals_no_secret",
            "downstream/test_stderr.py::test_a_secret_is_redacted_even_if_it_came_in_pieces_or_encoded",
        ),
    ),
    Promise(
        "A server inherits the variables for the user, folders, language, certificates and network proxies "
        "([docs/configuration.md](docs/configuration.md#environment-of-servers) lists them), those that "
        "`inherit` names, and those of `env`; no file descriptor except its three standard streams; and its "
        "arguments as they are, never through a shell. The password in the URL of a network proxy reaches "
        "servers, which need it, and no log.",
        (
            "config/test_environment.py::test_a_server_inherits_what_programs_need_here_and_no_secret",
            "config/test_environment.py::test_the_password_of_a_network_proxy_is_a_secret_of_each_server",
            "faults/test_every_mode.py::test_a_server_inherits_only_a_few_variables_and_its_configured_ones",
            "downstream/test_processes.py::test_arguments_are_passed_as_they_are_and_never_to_a_shell",
        ),
    ),
    Promise(
        "On Linux, no server can read the environment, the memory or the open files of the proxy, "
        "although it runs as the same user.",
        ("faults/test_spying.py::test_a_server_reads_neither_environment_nor_memory_nor_files_of_the_proxy",),
    ),
    Promise(
        "A repository in which the proxy is started decides nothing about the programs that run: no file "
        'of it is read, and servers start in the folder of the configuration. `cwd = "launch"` changes '
        "that for one server.",
        (
            FOLDER + "test_the_proxy_opens_nothing_in_the_folder_where_it_is_started",
            FOLDER + "test_a_server_starts_in_the_folder_of_the_configuration",
            FOLDER + "test_npx_does_not_read_the_settings_of_the_opened_repository",
            FOLDER + "test_python_does_not_import_modules_of_the_opened_repository",
            FOLDER + "test_a_relative_command_counts_from_the_configuration",
            FOLDER + "test_a_relative_folder_on_the_path_counts_from_the_configuration",
            "proxy/test_lazy.py::test_what_a_server_listed_in_one_repository_is_not_remembered_in_another",
        ),
    ),
    Promise(
        "No process that the proxy started outlives it, even if the proxy is killed: a server ends with "
        "everything it left behind in its process group.",
        (
            STOPPING + "test_servers_that_ignore_the_end_of_input_end_with_a_killed_proxy",
            STOPPING + "test_a_killed_guardian_is_replaced",
            SOAK,
            "downstream/test_processes.py::"
            "test_children_are_gone_when_the_proxy_stops_even_those_that_ignore_the_end_of_input",
            STOPPING + "test_a_second_stop_signal_ends_everything_at_once",
            "proxy/test_refreshing.py::test_a_stop_does_not_wait_for_a_large_list",
        ),
    ),
    Promise(
        "On SIGTERM new requests are refused, running ones finish or get an error, and the proxy exits "
        "with code 0; a second signal ends it at once.",
        (
            "front/test_sse.py::test_a_subscription_whose_client_has_left_does_not_delay_the_stop",
            "front/test_sse.py::test_an_open_response_at_the_stop_leaves_no_traceback_in_the_log",
            STOPPING + "test_pending_calls_are_finished_before_the_proxy_stops",
            STOPPING + "test_calls_after_the_stop_signal_are_refused_and_do_not_run",
            STOPPING + "test_a_second_stop_signal_ends_everything_at_once",
        ),
    ),
    Promise(
        "A host that stops reading does not fill the memory of the proxy, and is disconnected after 30 "
        "seconds.",
        (
            STOPPING + "test_a_host_that_stops_reading_is_dropped_and_nothing_is_left_behind",
            "front/test_stdio_streams.py::test_a_host_that_reads_late_gets_every_answer_and_servers_are_paused_meanwhile",
            "downstream/test_backpressure.py::test_a_paused_pipe_is_read_again_after_backpressure_ends",
        ),
    ),
    Promise(
        "Over HTTP every request except `/healthz` and the files of the page needs the bearer token, "
        "which only its owner can read; without a token the proxy listens on the loopback address only, "
        "and says so. Without the token `/healthz` says that the proxy is up, and nothing else.",
        (
            "proxy/test_reload.py::test_without_the_token_nobody_learns_what_is_wrong_with_the_configuration",
            LISTENING + "test_a_token_is_required_and_only_its_owner_can_read_it",
            LISTENING + "test_without_a_token_only_loopback_addresses_are_allowed",
            LISTENING + "test_serving_without_authentication_is_warned_about",
            "web/test_api.py::test_every_operation_needs_the_token",
        ),
    ),
    Promise(
        "Web pages of other origins reach nothing, with or without a token: Host, Origin and "
        "Sec-Fetch-Site are checked on every route. A link to the page `/ui` works.",
        (
            "front/test_web_pages.py::test_nothing_is_loaded_into_a_page_of_another_origin",
            "front/test_web_pages.py::test_a_link_of_another_page_leads_to_the_pages_and_nowhere_else",
            "front/test_web_pages.py::"
            "test_a_real_page_of_another_origin_leaves_no_trace_in_a_proxy_without_a_token",
            HTTP + "test_requests_of_a_foreign_web_page_are_refused",
            "front/test_guard.py::test_other_host_names_are_answered_with_misdirected_request",
        ),
    ),
    Promise(
        "The page shows the text of others as text that cannot become part of the page, loads nothing "
        "from elsewhere, and keeps the token in its tab.",
        (
            "web/test_strangers.py::test_no_page_runs_links_or_hides_what_strangers_say",
            "web/test_strangers.py::test_no_answer_can_be_taken_for_a_page",
            PAGE + "test_html_in_a_description_is_shown_as_text",
            PAGE + "test_the_page_cannot_insert_text_as_markup",
            PAGE + "test_nothing_is_loaded_from_elsewhere",
            PAGE + "test_the_token_leaves_the_address_at_once_and_stays_in_the_tab",
        ),
    ),
    Promise(
        "Slow headers, slow bodies and unread responses end their connection, and a crowd of such "
        "connections keeps nobody out.",
        (
            "front/test_slow_clients.py::test_a_client_that_stops_sending_is_disconnected",
            "front/test_slow_clients.py::test_a_client_that_sends_single_bytes_slowly_is_disconnected",
            "front/test_slow_clients.py::test_a_client_that_does_not_read_a_large_answer_is_disconnected",
            "front/test_slow_clients.py::test_a_session_that_does_not_read_delays_no_other",
            "front/test_slow_clients.py::test_idle_connections_do_not_keep_new_clients_out",
            SESSIONS + "test_slow_request_bodies_open_no_session_and_log_no_traceback",
            SESSIONS + "test_at_the_limit_the_session_that_was_idle_longest_is_closed",
        ),
    ),
    Promise(
        "Sessions never see each other's responses, cancellations or tokens, and no server sees a "
        "client's token. A client that guesses session ids is refused, and no log contains them. A "
        "session, a context, a parked call and a request id are usable only by the principal that opened "
        "them, and `context://requests` has only the queries of the principal that reads it.",
        (
            "front/test_principals.py::test_what_one_principal_searched_is_read_by_no_other",
            "front/test_principals.py::test_a_session_does_not_exist_for_another_principal",
            "front/test_principals.py::test_an_event_stream_takes_no_messages_of_another_principal",
            "front/test_principals.py::test_a_context_does_not_exist_for_another_principal",
            "front/test_principals.py::test_another_principal_can_neither_cancel_a_call_nor_take_its_id",
            "server/test_parked.py::test_a_continuation_handle_works_only_for_the_same_call_and_client",
            HTTP + "test_two_clients_with_the_same_ids_never_get_each_others_answers",
            HTTP + "test_cancelling_a_request_does_not_affect_the_same_id_in_another_session",
            "downstream/test_urls.py::test_configured_headers_are_sent_and_none_of_the_client",
            SESSIONS + "test_guessing_session_ids_is_rate_limited_without_affecting_real_sessions",
            SESSIONS + "test_the_log_has_no_session_ids_and_no_contents",
        ),
    ),
    Promise(
        "A damaged, locked, full or missing store and an unusable model cost remembered data or search "
        "quality, never a call.",
        (
            "store/test_damage.py::test_with_any_of_many_bits_flipped_the_store_works",
            "store/test_damage.py::test_truncated_at_any_page_the_store_works",
            "store/test_damage.py::test_with_any_page_zeroed_the_store_works",
            "store/test_damage.py::test_with_a_file_missing_or_of_another_store_the_store_works",
            "store/test_kills.py::"
            "test_kills_while_another_writes_leave_a_sound_store_with_all_that_was_acknowledged",
            SURROUNDINGS + "test_on_a_full_or_read_only_disk_the_proxy_serves_from_memory",
            SURROUNDINGS + "test_a_full_disk_is_reported_once_and_pending_writes_are_kept_for_later",
            SURROUNDINGS + "test_the_proxy_serves_without_a_home_folder",
            SURROUNDINGS + "test_two_proxies_on_one_store_do_not_block_each_other",
            SURROUNDINGS + "test_without_a_usable_model_search_is_lexical",
            SURROUNDINGS + "test_without_free_descriptors_servers_fail_with_a_reason_and_others_go_on",
            SURROUNDINGS + "test_without_free_descriptors_connections_wait_and_the_log_stays_short",
            SURROUNDINGS + "test_if_no_process_can_be_started_running_servers_serve_and_others_wait",
        ),
    ),
    Promise(
        "Nothing leaves the machine through the proxy itself unless a server or a model service is "
        "configured.",
        (
            CONNECTIONS + "test_the_proxy_connects_to_nothing_but_its_configured_servers",
            CONNECTIONS + "test_its_libraries_in_machine_code_connect_to_nothing_either",
            "embedding/test_privacy.py::test_using_the_model_writes_no_files",
        ),
    ),
    Promise(
        "A server cannot direct a login to an address nearer to this machine than its own, or to one "
        "that gives a machine its credentials, no matter what a name resolves to at any moment.",
        (
            "oauth/test_ssrf_guard.py::test_a_remote_server_cannot_redirect_a_login_to_this_machine",
            "oauth/test_ssrf_guard.py::test_no_server_leads_to_a_metadata_service_with_credentials",
            "oauth/test_ssrf_guard.py::test_a_name_is_resolved_once_and_the_checked_address_is_connected_to",
            "oauth/test_ssrf_guard.py::test_a_renewal_connects_to_no_nearer_address_than_the_login",
        ),
    ),
    Promise(
        "A server that asks a person or a model through the client (elicitation, sampling) is named in "
        "the request. What it asks hides nothing, opens only `https` pages, has no field for a password, "
        "token, key or card number, and is bounded in number and tokens.",
        (
            QUESTIONS + "test_an_elicitation_says_which_server_asks_and_hides_nothing",
            QUESTIONS + "test_a_sampling_request_says_which_server_asks_and_takes_no_other_context",
            QUESTIONS + "test_an_error_that_sends_a_person_to_a_url_says_which_server_does",
            QUESTIONS + "test_an_error_that_sends_a_person_to_an_unsafe_url_loses_it",
            QUESTIONS + "test_nobody_is_sent_to_an_unsafe_url",
            QUESTIONS + "test_a_form_that_asks_for_a_secret_reaches_nobody",
            QUESTIONS + "test_a_refused_question_counts_so_that_a_server_cannot_try_words_without_end",
        ),
    ),
    Promise(
        "A model that is asked to rerank decides only the order of five tools; it can neither delay a "
        "search beyond `limits.rerank_seconds` nor make it fail.",
        (
            "rerank/test_order.py::test_any_answer_gives_a_complete_order",
            "rerank/test_prompt.py::test_each_candidate_is_one_line_of_data_and_none_can_pose_as_another",
            "rerank/test_endpoint.py::test_an_unusable_answer_leaves_the_order_unchanged",
            "rerank/test_endpoint.py::test_a_missing_answer_is_waited_for_no_longer_than_the_limit",
            "rerank/test_endpoint.py::test_a_slow_answer_is_waited_for_no_longer_than_the_limit",
        ),
    ),
    Promise(
        "A bearer token has at least 16 characters. Wrong ones are counted for each address and for all "
        "together, and after too many each token waits for a second before it is looked at; one on a "
        "connection that has sent the right one never waits.",
        (
            "front/test_token.py::test_a_weak_token_in_the_environment_is_refused_with_a_remedy",
            "front/test_token.py::test_a_short_token_in_a_file_is_refused_with_its_length_and_not_shown",
            "front/test_guesses.py::test_no_more_than_a_few_tokens_a_second_are_looked_at",
            "front/test_guesses.py::"
            "test_the_right_token_is_served_at_once_from_elsewhere_and_a_second_later_from_there",
        ),
    ),
    Promise(
        "A login goes on only at an authorization server that says it supports PKCE, unless "
        "`oauth.assume_pkce` is set, and never with broken metadata of the server. The person is told "
        "first where it leads and what it asks for, and what has changed since the last one. A result "
        "without the state of the login is ignored.",
        (
            "oauth/test_login.py::"
            "test_without_a_word_about_pkce_the_login_is_refused_before_anything_is_registered",
            "oauth/test_login.py::test_broken_metadata_of_the_server_ends_the_login_with_the_reason",
            "oauth/test_commands.py::"
            "test_a_login_tells_first_where_it_leads_what_it_asks_for_and_what_has_changed",
            "oauth/test_loopback.py::"
            "test_a_result_without_the_state_of_the_login_is_ignored_and_its_text_appears_nowhere",
        ),
    ),
    Promise(
        "A URI, and each subscription to it, leads to the server that lists it, else to the server of the "
        "template with the longest literal beginning that matches it, or nowhere. `rule:`, `reference:` and "
        "`context:` never lead to a server, and every listed resource of a server names it.",
        (
            "server/test_changing_owners.py::"
            "test_a_uri_and_its_subscriptions_belong_to_their_owner_at_every_moment",
            OWNERS + "test_no_server_gets_the_schemes_of_the_proxy",
            OWNERS + "test_a_catch_all_of_an_earlier_server_takes_nothing_from_a_later_one",
            OWNERS + "test_a_uri_of_two_servers_stays_with_the_first_and_is_reported_with_both",
            OWNERS + "test_only_the_owner_of_a_resource_announces_its_updates",
            OWNERS + "test_a_listed_resource_names_its_server_whatever_the_server_claims",
        ),
    ),
    Promise(
        "Nothing that a server writes into a URI or a template makes a lookup stall the proxy.",
        (
            OWNERS + "test_a_template_of_many_expressions_delays_nobody",
            OWNERS + "test_templates_over_the_bound_of_a_server_are_withheld",
            "catalog/test_uri_owners.py::test_no_permitted_templates_of_a_server_stall_the_proxy",
        ),
    ),
    Promise(
        "A listed tool has its hints and its `_meta` as its server sent them. `call_read_only_tool` calls no "
        "tool that does not say it is read-only, and `call_tool` is marked destructive.",
        (
            MARKERS + "test_a_listed_tool_has_every_marker_as_its_server_sent_it",
            MARKERS + "test_call_read_only_tool_runs_only_what_says_that_it_is_read_only",
            MARKERS + "test_call_read_only_tool_calls_those_of_the_proxys_own_tools_that_only_read",
            MARKERS + "test_the_call_tools_say_what_they_may_do",
        ),
    ),
    Promise(
        "A tool that demands that its user is asked is never called under another name than its listed one, "
        "unless the person has accepted that very call.",
        (
            MARKERS + "test_call_tool_runs_every_tool_but_asks_where_the_tool_demands_its_user",
            MARKERS + "test_call_read_only_tool_runs_only_what_says_that_it_is_read_only",
            MARKERS + "test_a_call_by_a_name_that_is_not_listed_asks_as_call_tool_does",
            CONSENT + "test_a_tool_that_demands_its_user_is_asked_about_through_a_call_tool",
            CONSENT + "test_a_tool_that_demands_its_user_is_listed_for_a_client_that_cannot_be_asked",
        ),
    ),
    Promise(
        "With `confirm`, no call of such a tool is sent unless a person has accepted it. The question names "
        "server and tool and shows the arguments without secrets and hidden characters; a call that was "
        "declined, cancelled or not answered does not run, and says so; nobody is asked twice for one call.",
        (
            CONSENT + "test_a_confirmed_call_names_server_tool_and_arguments_and_runs_once",
            CONSENT + "test_a_client_that_cannot_be_asked_is_refused_and_told_how_to_go_on",
            CONSENT + "test_a_made_up_state_is_no_consent",
            CONSENT + "test_an_answer_counts_for_the_call_that_was_asked_about",
            CONSENT + "test_configured_secrets_are_not_shown_in_a_question",
            CONSENT + "test_values_under_names_of_secrets_are_hidden_at_any_depth",
            CONSENT + "test_arguments_hide_nothing_and_cannot_forge_a_line",
            CONSENT + "test_a_call_that_is_not_accepted_does_not_run_and_says_so",
            CONSENT + "test_a_call_that_is_cancelled_while_the_person_is_asked_does_not_run",
            CONSENT + "test_a_question_that_nobody_answers_ends_and_the_call_does_not_run",
            CONSENT + "test_an_answer_that_comes_too_late_is_told_that_the_call_did_not_run",
            CONSENT + "test_nobody_is_asked_twice_for_a_call_whose_server_asks_for_input",
        ),
    ),
    Promise(
        "A result is shortened only if every byte of it can still be read. The whole is kept for the session "
        "or the principal whose call it was, to all others its id is unknown, and it is forgotten with the "
        "session. What is not in memory is in files without a name that only you can read, which the system "
        "deletes with the process, even if it is killed.",
        (
            "results/test_every_byte.py::test_the_pages_of_a_shortened_text_joined_are_the_text",
            "results/test_every_byte.py::"
            "test_the_pages_of_shortened_json_joined_are_the_json_and_what_is_shown_is_json",
            LARGE + "test_a_result_that_cannot_be_kept_is_not_shortened",
            LARGE + "test_the_result_of_another_session_is_unknown",
            LARGE + "test_results_are_forgotten_with_their_session",
            LARGE + "test_what_does_not_fit_in_memory_is_in_files_without_a_name_that_only_the_user_can_read",
        ),
    ),
    Promise(
        "Nothing in a result and no path or pattern makes reading a shortened result slow.",
        (
            READING + "test_hostile_text_is_read_in_time_in_proportion_to_its_length",
            READING + "test_a_pattern_that_millions_of_short_lines_begin_to_match_is_searched_at_once",
            READING + "test_a_field_that_a_path_names_often_is_taken_once",
            READING + "test_a_path_whose_steps_go_through_a_large_result_over_and_over_is_refused",
        ),
    ),
    Promise(
        "A tool that `allow`, `deny` or `enabled = false` turns off is not listed, not found and not called, "
        "whatever name or way is tried; the refusal names the setting. The same holds for tools and servers "
        "that the file of a host turns off.",
        (
            "catalog/test_turned_off.py::test_any_setting_turns_a_tool_off_and_none_turns_it_on_again",
            TURNED_OFF + "test_a_tool_that_is_turned_off_is_in_no_list_and_no_search",
            TURNED_OFF + "test_a_call_says_that_the_tool_is_turned_off_and_in_which_line",
            TURNED_OFF + "test_a_name_that_was_listed_before_the_tool_was_turned_off_says_so_too",
            TURNED_OFF + "test_nothing_adds_it_to_a_session",
            TURNED_OFF + "test_what_was_learned_of_it_does_not_bring_it_back",
            TURNED_OFF + "test_a_tool_is_off_at_once_although_its_server_is_still_being_replaced",
            TURNED_OFF + "test_a_call_to_a_server_that_is_off_names_the_line",
            "web/test_api.py::test_a_tool_that_is_turned_off_is_neither_found_nor_added",
            HOST_FILES + "test_the_tools_that_a_host_leaves_out_are_carried_over",
            HOST_FILES + "test_each_carried_over_setting_keeps_its_place_in_the_file_of_the_host",
            HOST_FILES + "test_a_list_of_tools_that_cannot_be_read_is_a_mistake_and_not_ignored",
            HOST_FILES + "test_a_list_of_tools_that_cannot_be_read_switches_off_its_server_alone",
        ),
    ),
    Promise(
        "Of the folders of documents, only visible regular files are read, through no link and never outside "
        "of the folder. `read_document` reads documents and the files in the folder of a skill, and nothing "
        "else; what models see of them hides nothing.",
        (
            "catalog/test_documents_confinement.py::test_symbolic_links_are_reported_and_not_followed",
            DOCUMENTS + "test_nothing_but_visible_text_files_of_a_skill_is_read",
            DOCUMENTS + "test_what_a_skills_file_says_hides_nothing",
        ),
    ),
    Promise(
        "A skill of a server stands under the name of that server, and no URI of another server passes "
        "for it or for a skill of the user. A file of a skill with a manifest is given on only if it is "
        "listed there with its size and digest; one that differs becomes a finding. No file of a skill is "
        "fetched before somebody reads it, and nothing outside of the folder of one of the user's own is "
        "read.",
        (
            SKILLS + "test_skills_of_two_servers_with_one_uri_stay_two_skills",
            SKILLS + "test_no_server_passes_for_another_or_for_the_user",
            SKILLS + "test_a_file_that_is_not_what_its_manifest_says_is_refused_with_a_finding",
            SKILLS + "test_a_file_that_the_manifest_does_not_list_never_reaches_the_server",
            SKILLS + "test_skills_of_a_server_of_either_era_are_listed_under_its_name",
            OWN_SKILLS + "test_nothing_outside_of_a_skill_is_read_from_the_disk",
        ),
    ),
)
"""Promises of SECURITY.md, in the order of their numbers."""

FORMATS = "catalog/test_documents_formats.py::"
TOOL_LIST = "server/test_tool_list.py::"
API = "web/test_api.py::"

README_SECTIONS = (
    "Environment variables",
    "What a model sees",
    "Rules and references",
    "Over HTTP",
    "What was selected, and why",
    "Privacy",
)
"""Sections of README.md in which every sentence is a promise below or one of `README_REMARKS`."""

README = (
    Promise(
        "Hosts that know skills get those of folders and of servers whole.",
        (
            OWN_SKILLS + "test_skills_of_the_users_folders_are_served_with_all_their_files",
            SKILLS + "test_a_file_that_is_what_its_manifest_says_is_passed_on_unchanged",
        ),
    ),
    Promise(
        "Search runs on your machine with a small embedding model that ships in the package: no external "
        "service, no API key, no network.",
        (
            CONNECTIONS + "test_the_proxy_connects_to_nothing_but_its_configured_servers",
            CONNECTIONS + "test_its_libraries_in_machine_code_connect_to_nothing_either",
            "embedding/test_privacy.py::test_using_the_model_writes_no_files",
        ),
    ),
    Promise(
        "Both `mcpServers` (Claude Desktop, Claude Code, Cursor) and `servers` (VS Code) are understood. An "
        "entry that starts this proxy is skipped. Tools and servers that the host has turned off stay off.",
        (
            HOST_FILES + "test_the_tools_that_a_host_leaves_out_are_carried_over",
            HOST_FILES + "test_a_server_that_the_host_has_disabled_stays_so_with_its_place",
            "config/test_hosts.py::test_the_servers_of_a_real_host_file_are_taken_over",
            "config/test_hosts.py::test_the_proxy_itself_is_skipped_with_a_warning",
            "docs/test_readme.py::test_a_host_file_that_starts_the_proxy_can_be_its_configuration",
        ),
    ),
    Promise(
        "Servers behind the proxy inherit only the variables for the user, folders, language, certificates "
        "and network proxies. Put any other variable a server needs (`GITHUB_TOKEN`, ...) into its `env`, or "
        "name it in `inherit`.",
        (
            "faults/test_every_mode.py::test_a_server_inherits_only_a_few_variables_and_its_configured_ones",
            "config/test_environment.py::test_a_server_inherits_what_programs_need_here_and_no_secret",
            "config/test_environment.py::test_further_variables_are_inherited_by_name_or_pattern",
            "downstream/test_processes.py::"
            "test_a_child_gets_a_short_environment_and_its_configured_variables",
        ),
    ),
    Promise(
        "`${NAME}` in the configuration is replaced by that variable of the proxy's own environment.",
        ("config/test_expand.py::test_a_variable_reference_is_replaced_by_its_value",),
    ),
    Promise(
        "The list is stable. `tools/list` is short and the same for every client: these tools, the tools "
        'that you marked `include = "always"`, and, if you turn that on, the ones used regularly. The '
        "conversation does not change this list, so the provider's prompt cache stays valid.",
        (
            TOOL_LIST + "test_by_default_the_list_has_the_proxys_own_and_always_included_tools",
            TOOL_LIST + "test_the_proxys_own_definitions_depend_only_on_the_configuration",
            TOOL_LIST + "test_no_search_changes_the_list_of_a_modern_client",
            "proxy/test_real_tools.py::test_a_default_list_is_short_whatever_is_behind_it",
            "server/test_working_set.py::test_tools_used_in_several_sessions_are_listed_after_a_restart",
            "server/test_working_set.py::test_by_default_there_is_no_working_set",
        ),
    ),
    Promise(
        "A small catalog (under `expose.list_all_below`, 3000 estimated tokens) is listed in full, because "
        "hiding it would save nothing. Then the tools above are left out, so that the list is no longer than "
        "without the proxy; they can still be called, and come back as soon as something is hidden.",
        (
            TOOL_LIST + "test_a_small_catalog_is_listed_completely",
            STANDING + "test_a_small_catalog_costs_no_more_than_without_the_proxy",
            STANDING + "test_the_proxys_own_tools_can_be_called_where_they_are_not_listed",
            STANDING + "test_a_catalog_that_grows_over_the_threshold_brings_the_search_and_announces_it",
            STANDING + "test_documents_bring_the_search_into_the_list_of_a_small_catalog",
        ),
    ),
    Promise(
        "Relevance is in the answer. The tools that fit a query are returned as the result of a search.",
        ("server/test_search.py::test_a_found_tool_comes_with_everything_needed_to_call_it",),
    ),
    Promise(
        "The answer is short text: over 33 real servers it costs 254 tokens on average, and shows what the "
        "first tools require.",
        (
            "server/test_search.py::test_a_search_is_answered_with_text_alone_and_with_data_on_request",
            ANSWERS + "test_answers_over_real_tools_cost_400_tokens_on_average_and_700_at_most",
            ANSWERS + "test_the_first_three_tools_show_every_required_parameter_with_type_and_values",
            ANSWERS + "test_more_tools_than_there_is_room_for_are_named",
        ),
    ),
    Promise(
        "Every known tool can be called, listed or not, as `server__tool` or through `call_tool`.",
        (
            TOOL_LIST + "test_every_tool_can_be_called_without_being_listed",
            TOOL_LIST + "test_a_manual_tool_is_never_found_but_can_be_called",
            "server/test_search.py::test_call_tool_answers_what_the_tool_itself_answers",
        ),
    ),
    Promise(
        'Tools that only read have a call tool of their own, so that "always allow" in a host can mean '
        "reading. `confirm` makes the proxy itself ask a person before calls that write or destroy.",
        (
            MARKERS + "test_the_call_tools_say_what_they_may_do",
            MARKERS + "test_call_read_only_tool_runs_only_what_says_that_it_is_read_only",
            CONSENT + "test_confirm_says_from_which_class_on_a_person_is_asked",
        ),
    ),
    Promise(
        "A tool that you turn off (`allow`, `deny`, `enabled = false`) is neither listed, nor found, nor "
        "callable.",
        (
            TURNED_OFF + "test_a_tool_that_is_turned_off_is_in_no_list_and_no_search",
            TURNED_OFF + "test_a_call_says_that_the_tool_is_turned_off_and_in_which_line",
            TURNED_OFF + "test_a_tool_outside_of_the_allowed_ones_is_turned_off",
        ),
    ),
    Promise(
        "Where the protocol allows a query, the list is filtered by it. A client can send a query in the "
        "`_meta` of `tools/list` as `io.github.mcp-context-proxy/query`, or the `context_id` returned by "
        "`set_context` as `io.github.mcp-context-proxy/context`.",
        (
            TOOL_LIST + "test_a_query_in_the_request_adds_fitting_tools",
            TOOL_LIST + "test_set_context_returns_a_handle_that_selects_the_same_tools_in_any_request",
        ),
    ),
    Promise(
        "In a session of protocol 2025-11-25 or earlier, a search also appends the tools it found to the "
        "list of that session and notifies the client; nothing is removed from the list later.",
        (
            TOOL_LIST + "test_the_list_of_a_handshake_session_grows_with_its_searches",
            TOOL_LIST + "test_one_session_does_not_see_what_another_searched",
            "proxy/test_starting.py::test_a_search_in_a_session_adds_to_its_list_with_one_notification",
        ),
    ),
    Promise(
        "Definitions, arguments and results are relayed without being rebuilt, so fields unknown to the "
        "proxy are kept.",
        (
            "every_front/test_lists.py::test_unknown_fields_of_a_definition_reach_the_client",
            "proxy/test_real_tools.py::test_every_definition_reaches_a_client_over_stdio_unchanged",
            "front/test_stdio.py::test_a_result_arrives_byte_for_byte",
            "front/test_stdio.py::test_arguments_pass_byte_for_byte",
            "every_front/test_calls.py::test_structured_content_arrives_byte_for_byte",
            "every_front/test_calls.py::test_arguments_arrive_byte_for_byte",
        ),
    ),
    Promise(
        "Only a result too large for a model is shortened; `read_result` reads the rest.",
        (
            LARGE + "test_a_long_text_is_shortened_at_line_ends_and_every_byte_can_be_read",
            "every_front/test_calls.py::test_structured_content_arrives_byte_for_byte",
        ),
    ),
    Promise(
        "Both protocol eras (up to 2025-11-25, and 2026-07-28) work on either side, in any combination.",
        (
            "every_front/test_calls.py::test_a_call_reaches_its_server_under_the_servers_own_name",
            "every_front/test_calls.py::"
            "test_unknown_params_and_the_clients_meta_reach_the_server_but_the_proxys_own_meta_does_not",
            "every_front/test_messages_of_servers.py::"
            "test_a_servers_request_reaches_the_client_and_the_answer_reaches_the_server",
        ),
    ),
    Promise(
        "Folders of markdown can be searched together with the tools, and are served as resources "
        "(`rule://name`, `reference://name`). A file is read again as soon as it changes.",
        (
            "server/test_search.py::test_documents_are_found_beside_tools_and_alone",
            "proxy/test_documents.py::test_documents_are_listed_and_read_beside_the_resources_of_servers",
            "proxy/test_documents.py::test_a_changed_document_is_served_anew_and_announced_to_subscribers",
        ),
    ),
    Promise(
        "Found documents are part of the answer, whole or as an outline from which `read_document` reads on, "
        "also the files of a skill. `always` rules are given to the model once in a session.",
        (
            DOCUMENTS + "test_a_found_document_is_given_whole",
            DOCUMENTS + "test_a_long_document_comes_as_an_outline_that_leads_to_its_sections",
            DOCUMENTS + "test_the_files_of_a_skill_are_read_by_its_name_and_their_path",
            DOCUMENTS + "test_the_rules_of_a_session_are_in_its_first_answer_and_in_no_other",
            "proxy/test_documents.py::test_the_rules_of_a_session_are_in_the_instructions_and_in_no_answer",
        ),
    ),
    Promise(
        "Cursor rules (`.mdc`), Agent Skills (`SKILL.md`), `AGENTS.md` and `CLAUDE.md` are read in their own "
        "format and do not need a `kind`.",
        (
            FORMATS + "test_a_cursor_rule_says_when_it_applies",
            FORMATS + "test_a_skill_is_a_reference_with_its_name_and_description",
            FORMATS + "test_the_sections_of_an_agents_file_are_references",
        ),
    ),
    Promise(
        "Front matter is optional: `name`, `description`, `tags`, `priority` (0 to 999) and `include` "
        "(`agent`: found by search; `always`: part of every context; `manual`: never found by search).",
        (
            "catalog/test_documents.py::test_front_matter_says_everything_about_a_document",
            "catalog/test_documents.py::test_a_file_without_front_matter_takes_its_name_from_its_path",
            "context/test_engine.py::test_a_request_context_has_the_items_of_the_session_and_of_the_query",
            "retrieval/test_search.py::test_an_item_included_by_hand_only_is_never_found",
        ),
    ),
    Promise(
        "This serves streamable HTTP at `http://127.0.0.1:8765/mcp`, HTTP+SSE at `/sse`, the REST API at "
        "`/api/v1`, the page at `/ui`, and `/healthz`.",
        (
            HTTP + "test_healthz_answers_ok",
            "proxy/test_sdk_client.py::test_the_sdk_client_works_over_streamable_http",
            "every_front/test_calls.py::test_a_result_arrives_unchanged",
            API + "test_a_query_is_answered_with_the_context_for_a_model",
            PAGE + "test_a_request_is_shown_in_three_columns_in_a_stable_order",
        ),
    ),
    Promise(
        "Every request except `/healthz` and the files of the page needs `Authorization: Bearer TOKEN`.",
        (
            LISTENING + "test_a_token_is_required_and_only_its_owner_can_read_it",
            "front/test_guard.py::test_health_needs_no_token",
            API + "test_every_operation_needs_the_token",
            PAGE + "test_the_files_are_served_without_a_token_and_with_a_strict_policy",
        ),
    ),
    Promise(
        "The token comes from the environment variable `MCP_CONTEXT_PROXY_TOKEN`, or else from the file "
        "`http.token_file` (by default in your data folder). The proxy creates that file at its first start "
        "and prints its path at every start.",
        (
            LISTENING + "test_a_token_is_required_and_only_its_owner_can_read_it",
            LISTENING + "test_a_configured_token_is_required_on_loopback_too_and_is_not_replaced",
            LISTENING + "test_with_a_token_the_address_is_printed_without_a_warning",
        ),
    ),
    Promise(
        "With `--no-auth` there is no token, and the proxy listens on the loopback address only.",
        (
            LISTENING + "test_without_a_token_only_loopback_addresses_are_allowed",
            LISTENING + "test_serving_without_authentication_is_warned_about",
        ),
    ),
    Promise(
        "Requests from web pages are refused in either case.",
        (
            HTTP + "test_requests_of_a_foreign_web_page_are_refused",
            API + "test_requests_of_a_foreign_web_page_are_refused",
        ),
    ),
    Promise(
        "prints the address of a page that shows the context of each request: its rules, references and "
        "tools, the reason for each, its score and cost, and the tokens saved. It also ranks any query as "
        "you type.",
        (
            "cli/test_ui.py::test_ui_prints_the_address_with_the_token_in_the_fragment",
            PAGE + "test_a_request_is_shown_in_three_columns_in_a_stable_order",
            PAGE + "test_the_size_of_the_whole_catalog_is_shown_once_it_is_counted",
            PAGE + "test_a_query_is_ranked_while_it_is_typed_and_not_recorded",
        ),
    ),
    Promise(
        "A second page, and `mcp-context-proxy stats` in a terminal, show how tools and searches performed, "
        "the tokens saved, and the tools that were never called.",
        (
            "web/test_usage_page.py::test_usage_and_savings_are_summed_up",
            "web/test_usage_page.py::test_unused_tools_are_named_with_their_cost",
            "cli/test_stats.py::test_tools_and_searches_are_shown_as_tables",
            "cli/test_stats.py::test_tools_that_were_never_called_are_listed_with_their_cost",
        ),
    ),
    Promise(
        "The pages are part of the HTTP front; beside stdio, start them with `serve --api-port 8766`. Both "
        "serve `/metrics` for Prometheus, too.",
        (
            "web/test_beside_stdio.py::test_the_hosts_context_is_shown_with_the_token",
            "web/test_beside_stdio.py::test_the_hosts_calls_are_counted_and_shown_with_the_token",
            "web/test_usage.py::test_metrics_need_the_token",
        ),
    ),
    Promise(
        "The proxy itself sends nothing from your machine: no telemetry, no downloads, no model service.",
        (
            CONNECTIONS + "test_the_proxy_connects_to_nothing_but_its_configured_servers",
            CONNECTIONS + "test_its_libraries_in_machine_code_connect_to_nothing_either",
            "embedding/test_privacy.py::test_using_the_model_writes_no_files",
        ),
    ),
    Promise(
        "It connects only to the servers you configure, and to the authorization servers they name when you "
        "log in.",
        (
            CONNECTIONS + "test_the_proxy_connects_to_nothing_but_its_configured_servers",
            "oauth/test_login.py::test_a_login_discovers_registers_and_gives_tokens_for_this_server",
            "downstream/test_urls.py::test_a_redirect_to_another_origin_is_not_followed",
            DEFINITIONS + "test_links_in_a_result_are_passed_on_and_never_followed",
        ),
    ),
    Promise(
        "The store (`store.sqlite3` in your data folder, readable only by you) holds: vectors of tool "
        "descriptions and documents, under a hash of their text; the lists of servers, as last seen; "
        "the last 1,000 queries of a week, with what was selected for each; which tools were used for which "
        "queries, and in which sessions; how often tools were used, and how well they did.",
        (
            "store/test_store.py::test_without_a_path_the_store_is_in_the_users_data_folder",
            "store/test_store.py::test_only_the_owner_may_read_the_store",
            "embedding/test_cache.py::test_after_a_restart_nothing_is_embedded_again",
            "proxy/test_lazy.py::test_remembered_tools_are_listed_and_found_without_starting_the_server",
            "proxy/test_waiting.py::test_what_is_remembered_of_a_server_is_listed_and_found_at_once_and_marked",
            "context/test_records.py::test_only_the_latest_requests_are_kept",
            "context/test_records.py::test_old_requests_are_deleted",
            "proxy/test_learning.py::test_pairs_survive_a_restart_and_end_with_the_store",
            "proxy/test_statistics.py::test_counts_go_on_after_a_restart_and_over_two_proxies_on_one_store",
        ),
    ),
    Promise(
        "Call arguments and messages are kept only if you turn on the memory of interactions.",
        ("proxy/test_interactions.py::test_nothing_is_remembered_by_default",),
    ),
    Promise(
        "With `context.keep_requests = false` and `learning.store_queries = false` no queries are kept; with "
        '`store.path = "memory"` there is no store file at all.',
        (
            "context/test_records.py::test_requests_are_not_stored_if_that_is_off",
            "proxy/test_learning.py::test_queries_can_be_stored_without_their_text",
            "proxy/test_statistics.py::test_searches_can_be_stored_without_their_text",
            "store/test_store.py::test_a_store_in_memory_writes_no_files",
        ),
    ),
    Promise(
        "PROVENANCE.md lists its hashes and the steps to rebuild it.",
        ("embedding/test_model_files.py::test_the_provenance_names_exactly_the_packaged_files",),
    ),
    Promise(
        "Queries in other languages are matched by shared words and names, and otherwise poorly. Another "
        "model, in a folder or behind an endpoint such as Ollama, understands them.",
        (
            "retrieval/test_languages.py::test_a_query_in_any_language_finds_the_tool_with_its_words",
            "proxy/test_other_models.py::"
            "test_search_with_a_multilingual_model_finds_tools_in_another_language",
            "proxy/test_other_models.py::test_a_folder_of_another_model_is_searched_with",
        ),
    ),
    Promise(
        "When several tools score close together, another model can order the best five: a chat model such "
        "as one in Ollama, a cross-encoder in a folder, or the client's own model.",
        (
            "rerank/test_doubt.py::test_auto_asks_only_if_the_scores_are_close",
            "rerank/test_endpoint.py::test_the_model_decides_the_order_and_the_answer_says_so",
            "rerank/test_cross_encoder.py::test_tools_are_ordered_by_the_scores",
            "proxy/test_reranking.py::test_a_search_has_the_order_of_the_clients_model",
        ),
    ),
    Promise(
        "This is off by default.",
        ("server/test_rerank.py::test_by_default_no_model_is_asked",),
    ),
)
"""Promises of README.md, as plain text: without emphasis, and links without their targets."""

README_REMARKS = (
    "Put the servers back into the host's file, remove this proxy from it, and run `pip uninstall "
    "mcp-context-proxy`.",
    "What it kept is in the folders `mcp-context-proxy` of your configuration folder and your data folder: "
    "delete them.",
    "A host started from the desktop may not have the variables of your shell: set them for the proxy in the "
    'host\'s `"env"`.',
    "docs/how-it-works.md explains the rest.",
    "Every user and program on the machine can then use your servers.",
    "If other machines connect, put a reverse proxy with TLS in front.",
    "docs/docker.md describes running it in a container.",
    "docs/api.md describes the same data as JSON, for hooks and scripts.",
    "The embedding model is all-MiniLM-L6-v2 (Apache License 2.0), quantised to 8 bits, 23 MB.",
    "It is an English model.",
    "With an endpoint, queries and descriptions are sent there.",
    "All except the cross-encoder receive the query and those five tools.",
)
"""Sentences of those sections that advise, warn or refer to another page, and promise nothing."""
