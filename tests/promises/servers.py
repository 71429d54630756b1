"""The promises of SECURITY.md about servers and processes, up to the stop of the proxy."""

from promises.promise import Promise

MODES = "faults/test_every_mode.py::test_a_fault_costs_its_own_call_and_nothing_else"
SOAK = "faults/test_soak.py::test_nothing_is_lost_doubled_repeated_or_left_behind"
FLOODS = "faults/test_floods.py::test_a_flood_of_one_kind_of_message_fills_no_memory_and_disturbs_nobody"
BOUNDS = "server/test_bounds.py::"
STOPPING = "faults/test_stopping.py::"
DEFINITIONS = "faults/test_definitions.py::"
MEMORY = "faults/test_memory.py::"
STRANGERS = "server/test_strangers.py::"
FOLDER = "downstream/test_working_folder.py::"
ADVERSARIAL = "trust/test_adversarial_text.py::"
EVENT_LOOP = "trust/test_event_loop.py::"
LARGEST_LISTS = "trust/test_largest_lists.py::"
STANDING = "server/test_standing_list.py::"
UNFINISHED = "retrieval/test_unfinished.py::"
LARGE = "server/test_large_results.py::"

SERVERS = (
    Promise(
        "Every request gets exactly one response, whatever the server behind it does and whatever "
        "is in the request. No message that passes is read as two: JSON in several lines is put on one.",
        "downstream/test_streams.py::test_an_answer_in_several_lines_is_one_message_for_a_host_on_standard_streams",
        "every_front/test_calls.py::test_arguments_in_several_lines_are_one_message_for_the_server",
        MODES,
        SOAK,
        STOPPING + "test_a_call_that_outlasts_the_drain_timeout_fails_and_is_cancelled",
        "every_front/test_invalid_requests.py::test_json_that_cannot_be_read_has_one_answer_and_ends_nothing",
        "front/test_sessions.py::test_json_that_cannot_be_read_is_answered_and_leaves_no_traceback",
    ),
    Promise(
        "No call is sent twice, except one that a server rejected because its session had expired, and "
        "only if the server then rejects a ping for the same reason, or because it runs it as a task only. "
        "If the connection is lost during a call, the caller is told that the call may or may not have run.",
        MODES,
        SOAK,
        "downstream/test_urls.py::test_calls_with_an_expired_session_each_run_once_in_a_new_one",
        "downstream/test_streams.py::test_a_refused_call_is_not_sent_again_if_the_session_is_still_known",
        "server/test_tasks.py::test_a_modern_server_that_demands_tasks_gets_a_proxy_that_takes_them",
        "downstream/test_calls.py::test_a_crash_during_a_call_is_reported_and_the_call_is_never_sent_again",
    ),
    Promise(
        "A server that fails, hangs, floods or lies does not disturb calls to other servers.",
        MODES,
        STOPPING + "test_names_whose_lookup_hangs_delay_neither_the_lookup_of_another_nor_the_end",
        "server/test_guard.py::test_no_token_that_a_server_chooses_keeps_a_call_from_another",
        SOAK,
        FLOODS,
        "downstream/test_calls.py::test_a_server_that_stops_reading_delays_only_its_own_calls",
        ADVERSARIAL + "test_time_grows_with_the_length_of_a_text_and_not_with_its_square",
        LARGEST_LISTS + "test_the_largest_lists_of_hostile_texts_delay_neither_the_loop_nor_a_search",
        LARGEST_LISTS + "test_several_lists_of_the_largest_size_delay_neither_the_loop_nor_a_search",
        UNFINISHED + "test_a_large_list_is_read_in_batches_after_the_small_ones",
        UNFINISHED + "test_a_large_server_is_embedded_after_the_first_tools_of_every_other",
        EVENT_LOOP + "test_no_message_of_a_client_delays_the_others",
        EVENT_LOOP + "test_no_message_of_the_largest_size_delays_the_others",
        EVENT_LOOP + "test_no_message_of_a_server_delays_the_others",
        EVENT_LOOP + "test_no_flood_of_a_server_delays_the_others",
    ),
    Promise(
        "A failure is reported as a result that names the server, the cause and what happened to the call.",
        MODES,
        "downstream/test_lifecycle.py::test_a_server_that_exits_at_start_is_reported_with_its_last_output",
    ),
    Promise(
        "A request without a response ends at its deadline, and the server is told to cancel it.",
        "faults/test_every_mode.py::test_a_call_that_times_out_is_cancelled_at_the_server",
        "downstream/test_calls.py::test_a_call_without_a_response_ends_at_its_timeout_and_is_cancelled",
        STOPPING + "test_calls_of_a_host_that_disconnects_are_cancelled",
    ),
    Promise(
        "A server that keeps failing without having answered anything, or keeps exiting on its own soon "
        "after its start, is left alone and retried once a minute.",
        "downstream/test_backoff.py::test_after_five_failures_a_server_is_tried_once_a_minute",
        "downstream/test_lifecycle.py::test_a_server_that_soon_exits_each_time_is_tried_rarely_although_it_answers",
    ),
    Promise(
        "Messages, lists, definitions, results, queues and waits are bounded by number, bytes and rate "
        "([docs/bounds.md](docs/bounds.md), `[limits]`). Anything over a bound is never buffered: it is "
        "refused with an explanation, or dropped if it is a notification. What was compressed more than "
        "once is refused.",
        "front/test_shared_strangers.py::test_neither_nested_nor_endless_lines_of_a_host_end_its_session_or_fill_its_bridge",
        "protocol/test_framing.py::test_an_endless_line_is_not_buffered",
        "downstream/test_answers.py::test_a_response_over_the_limit_is_reported_with_its_size_and_the_limit",
        "downstream/test_calls.py::test_requests_that_a_server_does_not_read_are_bounded_in_bytes",
        "downstream/test_calls.py::test_a_server_that_asks_but_does_not_read_leaves_no_tasks_behind",
        MEMORY + "test_an_endless_line_is_not_buffered_and_closes_its_connection",
        MEMORY + "test_a_result_of_the_largest_size_is_held_in_memory_twice_at_most",
        DEFINITIONS + "test_tools_over_the_limit_are_withheld_with_a_warning",
        DEFINITIONS + "test_an_endless_list_of_pages_is_cut",
        "downstream/test_listing.py::test_cursors_are_bounded_and_a_finding_about_them_is_short",
        "downstream/test_listing.py::test_findings_are_few_short_and_begin_with_what_waits_for_a_person",
        "downstream/test_urls.py::test_the_cookies_of_a_server_are_sent_back_and_bounded",
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
    Promise(
        "No schema of a server is validated or compiled, and no link is ever followed. A `$ref` "
        "leads a few steps within its own definition, for the signature that a search shows, and "
        "nowhere else.",
        DEFINITIONS + "test_recursive_schemas_are_never_expanded_and_references_never_fetched",
        DEFINITIONS + "test_links_in_a_result_are_passed_on_and_never_followed",
    ),
    Promise(
        "A bad entry in a list is withheld on its own; the rest of the list stays. No listed "
        "definition names a member twice or has a number that is too large to be read, for which "
        "some hosts refuse the whole list. No member that some readers take for another one of the "
        "protocol, such as `Name` or `requested_schema`, passes in a definition, a request of a client, "
        "or a question or message of a server.",
        "catalog/test_definitions.py::test_a_member_that_some_hosts_read_as_another_is_left_out",
        "server/test_names.py::test_no_other_spelling_of_a_param_tells_a_server_something_else",
        "server/test_questions.py::test_no_other_spelling_of_a_result_asks_a_client",
        "server/test_questions.py::test_a_question_that_hides_something_or_is_too_large_reaches_nobody",
        DEFINITIONS + "test_invalid_entries_do_not_affect_valid_tools",
        DEFINITIONS + "test_a_schema_that_is_too_deep_withholds_its_own_tool_only",
        "trust/test_relatives.py::test_an_entry_of_any_depth_costs_only_itself_and_no_result_is_cut",
        "downstream/test_listing.py::test_a_header_of_a_tool_that_cannot_be_read_costs_only_that_tool",
        "trust/test_relatives.py::test_no_list_has_a_name_twice_which_some_hosts_refuse_and_others_read_in_two_ways",
        "trust/test_relatives.py::test_a_number_that_some_hosts_cannot_read_costs_its_own_tool_only",
    ),
    Promise(
        "Texts that models and terminals see hide nothing: no terminal escapes, no invisible, "
        "private or reordering characters, no runs of empty lines. That goes for definitions, "
        "instructions, errors, failed results, progress, log messages, questions, completions, "
        "logins, stored queries, commands and the page. An error and a log message name their server, "
        "and no server can write the mark of another in any of these, nor in data beside them: "
        "`[server 'x'` becomes `(server 'x'`, in whatever letters and brackets it is drawn. In `_meta` "
        "beside any of these, no server has a key of the proxy, or of a hop that is not its own. A result "
        "that reports an error is bounded and shortened like any other. Fields that a call depends on are "
        "not changed; a tool that hides something there, or writes such a mark, is withheld.",
        STRANGERS + "test_no_words_beside_a_successful_result_have_the_mark_of_another_server",
        STRANGERS + "test_a_notification_hides_nothing_in_members_that_nobody_knows",
        STRANGERS + "test_nothing_beside_a_message_speaks_for_the_proxy_or_for_another_hop",
        STRANGERS + "test_a_definition_has_no_key_of_the_proxy_however_it_is_written",
        STRANGERS + "test_the_uri_of_an_updated_resource_hides_nothing",
        STRANGERS + "test_completions_are_few_short_and_hide_nothing",
        "server/test_questions.py::test_no_run_of_lines_or_spaces_pushes_the_name_of_a_server_out_of_sight",
        STRANGERS + "test_a_result_that_reports_an_error_in_any_spelling_hides_nothing",
        LARGE + "test_images_links_and_the_mark_of_an_error_stay_as_they_are",
        "protocol/test_strangers.py::test_no_words_of_a_server_pass_for_those_of_another",
        "trust/test_relatives.py::test_no_description_and_no_error_of_a_server_passes_for_the_words_of_another",
        "protocol/test_text.py::test_every_code_point_is_visible_or_a_space_or_removed",
        "protocol/test_strangers.py::test_no_run_of_blanks_pushes_text_out_of_sight",
        STRANGERS + "test_an_error_hides_nothing_in_its_message_and_its_data",
        STRANGERS + "test_an_endless_error_is_cut_and_says_so",
        STRANGERS + "test_progress_and_log_messages_hide_nothing_and_cannot_pose_as_another_server",
        STRANGERS + "test_a_result_that_reports_an_error_in_any_spelling_hides_nothing",
        STRANGERS + "test_the_cause_of_a_failed_start_hides_nothing",
        "web/test_strangers.py::test_no_route_shows_what_is_hidden_or_secret",
        "web/test_strangers.py::test_a_query_that_an_older_version_quoted_as_a_reason_is_shown_to_nobody",
        "cli/test_strangers.py::test_words_of_an_old_store_are_printed_without_what_hides_in_them",
        DEFINITIONS + "test_no_listed_text_has_invisible_characters",
        STANDING + "test_instructions_of_servers_come_a_line_each_after_our_own",
        "catalog/test_definitions.py::test_no_accepted_definition_has_invisible_characters_in_its_texts",
        "catalog/test_definitions.py::test_a_tool_with_invisible_characters_in_names_or_values_is_withheld",
        "protocol/test_strangers.py::test_no_letters_that_are_drawn_alike_make_the_mark_of_a_server",
        "trust/test_relatives.py::test_no_name_and_no_value_in_a_schema_passes_for_the_words_of_another_server",
    ),
    Promise(
        "Two tools never share a name, and a name of a tool or prompt that states its server leads to "
        "that server or nowhere, whether it is connected, slow, failed, off or removed. An own name "
        "without a server leads nowhere while an enabled server is not known, and never to two servers in "
        "one session. Without prefixes, no name looks like that of another tool or of one of the proxy's "
        "own.",
        "server/test_names.py::test_a_full_name_never_leads_to_another_server",
        "server/test_names.py::test_an_own_name_leads_nowhere_while_a_server_is_not_known",
        "server/test_names.py::test_a_session_refuses_an_own_name_that_would_go_to_another_server",
        "catalog/test_names.py::test_a_name_leads_to_the_server_that_it_names_or_nowhere",
        "catalog/test_naming.py::test_no_name_without_its_prefix_is_taken_for_that_of_another",
        "catalog/test_naming.py::test_a_name_leads_back_to_its_server_and_tool",
        "server/test_names.py::test_a_name_that_was_listed_under_another_length_still_leads_to_its_tool",
        DEFINITIONS + "test_tools_of_servers_with_confusable_names_stay_distinct",
    ),
    Promise(
        "Secrets from the configuration and from logins never appear in logs, traces, errors, failed "
        "results, questions to a person or a model, stored queries, or a server's last output, neither as "
        "they are nor in escapes, percent-encoding, base64 or hexadecimal digits. What commands and the page "
        "show about servers is redacted, too, even a name that a server took from its secret. Only to the "
        "client that has just written one itself may an error over MCP repeat it.",
        "oauth/test_tokens.py::test_a_refusal_that_repeats_the_request_tells_no_secret_of_it",
        "cli/test_install.py::test_no_change_shows_a_secret_and_a_file_that_gets_one_is_private",
        "cli/test_strangers.py::test_no_command_prints_a_secret_that_a_server_uses_as_a_name",
        "cli/test_strangers.py::test_check_prints_little_of_what_a_package_runner_says_and_no_secret_of_it",
        "server/test_guard.py::test_a_secret_in_a_query_or_a_goal_is_not_kept",
        "proxy/test_tracing.py::test_what_a_client_writes_reaches_a_collector_short_clean_and_without_secrets",
        STRANGERS + "test_a_secret_that_a_message_of_ours_quotes_is_removed_and_never_cut",
        STRANGERS + "test_a_question_holds_no_secret_of_its_server",
        MODES,
        "oauth/test_proxy.py::test_a_token_that_its_server_reveals_is_in_no_error_and_no_log",
        "config/test_redaction.py::test_any_secret_is_found_however_it_is_written",
        "config/test_redaction.py::test_a_traceback_in_the_log_is_redacted",
        "config/test_secrets.py::test_a_value_is_a_secret_by_its_variable_its_name_its_place_in_a_url_or_its_look",
        "downstream/test_calls.py::test_the_progress_of_a_call_reveals_no_secret",
        "downstream/test_stderr.py::test_a_secret_is_redacted_even_if_it_came_in_pieces_or_encoded",
    ),
    Promise(
        "A server inherits the variables for the user, folders, language, certificates and network "
        "proxies ([docs/configuration.md](docs/configuration.md#environment-of-servers) lists them), "
        "those that `inherit` names, and those of `env`; no file descriptor except its three standard "
        "streams; and its arguments as they are, never through a shell. The password in the URL of a "
        "network proxy reaches servers, which need it, and no log.",
        "config/test_environment.py::test_a_server_inherits_what_programs_need_here_and_no_secret",
        "config/test_environment.py::test_no_server_gets_what_another_was_given",
        "config/test_environment.py::test_the_password_of_a_network_proxy_is_a_secret_of_each_server",
        "faults/test_every_mode.py::test_a_server_inherits_only_a_few_variables_and_its_configured_ones",
        "downstream/test_processes.py::test_arguments_are_passed_as_they_are_and_never_to_a_shell",
    ),
    Promise(
        "On Linux, no server can read the environment, the memory or the open files of the proxy, "
        "although it runs as the same user, unless that is root.",
        "faults/test_spying.py::test_a_server_reads_neither_environment_nor_memory_nor_files_of_the_proxy",
    ),
    Promise(
        "A repository in which the proxy is started decides nothing about the programs that run: no file "
        'of it is read, and servers start in the folder of the configuration. `cwd = "launch"` changes '
        "that for one server.",
        FOLDER + "test_the_proxy_opens_nothing_in_the_folder_where_it_is_started",
        FOLDER + "test_a_server_starts_in_the_folder_of_the_configuration",
        FOLDER + "test_npx_does_not_read_the_settings_of_the_opened_repository",
        FOLDER + "test_python_does_not_import_modules_of_the_opened_repository",
        FOLDER + "test_a_relative_command_counts_from_the_configuration",
        FOLDER + "test_a_relative_folder_on_the_path_counts_from_the_configuration",
        "proxy/test_lazy.py::test_what_a_server_listed_in_one_repository_is_not_remembered_in_another",
        "front/test_shared_strangers.py::test_program_of_a_repository_that_the_host_has_opened_does_not_run",
    ),
    Promise(
        "No process that the proxy started outlives it, even if the proxy is killed: a server ends with "
        "everything it left behind in its process group.",
        STOPPING + "test_servers_that_ignore_the_end_of_input_end_with_a_killed_proxy",
        STOPPING + "test_a_killed_guardian_is_replaced",
        STOPPING + "test_a_guardian_that_is_killed_while_no_server_starts_is_replaced",
        SOAK,
        "downstream/test_processes.py::test_children_are_gone_when_the_proxy_stops_even_those_that_ignore_the_end_of_input",
        STOPPING + "test_a_second_stop_signal_ends_everything_at_once",
        "proxy/test_refreshing.py::test_a_stop_does_not_wait_for_a_large_list",
    ),
    Promise(
        "On SIGTERM new requests are refused, running ones finish or get an error, and the proxy, or the "
        "bridge to a shared one, exits with code 0; a second signal ends it at once.",
        "front/test_shared_ends.py::test_session_that_is_told_to_end_has_its_requests_answered_and_exits_with_zero",
        STOPPING + "test_a_stop_waits_neither_for_a_hostile_list_nor_for_servers_that_hang_or_flood",
        "front/test_sse.py::test_a_subscription_whose_client_has_left_does_not_delay_the_stop",
        "front/test_sse.py::test_an_open_response_at_the_stop_leaves_no_traceback_in_the_log",
        STOPPING + "test_pending_calls_are_finished_before_the_proxy_stops",
        STOPPING + "test_calls_after_the_stop_signal_are_refused_and_do_not_run",
        STOPPING + "test_a_second_stop_signal_ends_everything_at_once",
    ),
    Promise(
        "A host that stops reading does not fill the memory of the proxy, and is disconnected after 30 "
        "seconds. One that never reads the messages on stderr, or has closed it, is served all the same.",
        "front/test_stdio_streams.py::"
        "test_a_host_that_reads_no_messages_for_people_is_served_and_later_told_how_many_are_missing",
        "front/test_shared.py::test_session_whose_host_takes_no_messages_for_people_is_served",
        STOPPING + "test_a_host_that_stops_reading_is_dropped_and_nothing_is_left_behind",
        "front/test_stdio_streams.py::test_a_host_that_reads_late_gets_every_answer_and_servers_are_paused_meanwhile",
        "downstream/test_backpressure.py::test_a_paused_pipe_is_read_again_after_backpressure_ends",
    ),
)
