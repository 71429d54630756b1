"""The promises of SECURITY.md about clients, questions, logins, results and documents."""

from promises.promise import Promise

HTTP = "front/test_http.py::"
EVENT_LOOP = "trust/test_event_loop.py::"
LISTENING = "front/test_listening.py::"
SESSIONS = "front/test_sessions.py::"
PAGE = "web/test_page.py::"
CONNECTIONS = "proxy/test_connections.py::"
OWNERS = "server/test_resource_owners.py::"
QUESTIONS = "server/test_questions.py::"
MARKERS = "server/test_markers.py::"
CONSENT = "server/test_consent.py::"
SKILLS = "server/test_skills.py::"
OWN_SKILLS = "server/test_own_skills.py::"
READING = "results/test_reading.py::"
LARGE = "server/test_large_results.py::"
PERMISSIONS = "server/test_permissions.py::"
TURNED_OFF = "server/test_turned_off.py::"
HOST_FILES = "config/test_hosts.py::"
SURROUNDINGS = "faults/test_surroundings.py::"

CLIENTS = (
    Promise(
        "Over HTTP every request except `/healthz`, the probes `/livez` and `/readyz`, with "
        '`auth.mode = "jwt"` the metadata that names the issuer, the files of the pages and `/`, which leads '
        "to them, needs a bearer token; only its owner can read the proxy's own, and without one the proxy "
        "listens on the loopback address only, and says so. Without the token `/healthz` says that the proxy "
        "is up, and nothing else; the probes name no server, path or person.",
        "front/test_probes.py::test_a_probe_is_answered_under_any_host_without_a_token",
        "proxy/test_reload.py::test_without_the_token_nobody_learns_what_is_wrong_with_the_configuration",
        LISTENING + "test_a_token_is_required_and_only_its_owner_can_read_it",
        LISTENING + "test_without_a_token_only_loopback_addresses_are_allowed",
        LISTENING + "test_serving_without_authentication_is_warned_about",
        "web/test_api.py::test_every_operation_needs_the_token",
    ),
    Promise(
        "Web pages of other origins reach nothing, with or without a token: Host, Origin and "
        "Sec-Fetch-Site are checked on every route; only the probes are answered under any Host, "
        "and not to a browser. Where the proxy listens for other machines and `allowed_hosts` is "
        "empty, every Host is served, and a page under a name that was made to lead here finds what "
        "anybody finds without the token. A link to the page `/ui` works.",
        "front/test_web_pages.py::test_nothing_is_loaded_into_a_page_of_another_origin",
        "front/test_web_pages.py::test_a_link_of_another_page_leads_to_the_pages_and_nowhere_else",
        "front/test_web_pages.py::test_a_real_page_of_another_origin_leaves_no_trace_in_a_proxy_without_a_token",
        HTTP + "test_requests_of_a_foreign_web_page_are_refused",
        "front/test_guard.py::test_other_host_names_are_answered_with_misdirected_request",
        "front/test_guard.py::test_where_every_host_is_served_a_name_that_leads_here_finds_nothing_without_the_token",
    ),
    Promise(
        "The page shows the text of others as text that cannot become part of the page, loads nothing "
        "from elsewhere, and keeps the token in its tab.",
        "web/test_strangers.py::test_no_page_runs_links_or_hides_what_strangers_say",
        "web/test_strangers.py::test_no_answer_can_be_taken_for_a_page",
        PAGE + "test_html_in_a_description_is_shown_as_text",
        PAGE + "test_the_page_cannot_insert_text_as_markup",
        "web/test_servers_page.py::test_nothing_is_loaded_from_elsewhere",
        PAGE + "test_the_token_leaves_the_address_at_once_and_stays_in_the_tab",
    ),
    Promise(
        "Slow headers, slow bodies and unread responses end their connection, and a crowd of such "
        "connections, or of idle ones, keeps nobody out.",
        "front/test_slow_clients.py::test_a_client_that_stops_sending_is_disconnected",
        "front/test_slow_clients.py::test_a_client_that_sends_single_bytes_slowly_is_disconnected",
        "front/test_slow_clients.py::test_a_client_that_does_not_read_a_large_answer_is_disconnected",
        "front/test_slow_clients.py::test_a_session_that_does_not_read_delays_no_other",
        "front/test_slow_clients.py::test_a_crowd_of_connections_keeps_nobody_out",
        "front/test_slow_clients.py::test_a_crowd_ends_no_request_that_is_under_way",
        SESSIONS + "test_slow_request_bodies_open_no_session_and_log_no_traceback",
        SESSIONS + "test_at_the_limit_the_session_that_was_idle_longest_is_closed",
    ),
    Promise(
        "Sessions never see each other's responses, cancellations or tokens, and no server sees a "
        "client's token. A client that guesses session ids is refused, and no log contains them. A "
        "session, a context, a parked call and a request id are usable only by the principal that "
        "opened them, and `context://requests` has only the queries of the principal that reads it. "
        "No principal ends the sessions of another by opening many, or takes all the connections, all the "
        "room for large requests, or all that a server has for the requests, questions, sessions and kept "
        "results of everybody, or keeps the searches and reads of others waiting behind many; whoever has "
        "clients of several profiles is one person in all of these bounds.",
        "server/test_bounds.py::test_the_searches_of_one_person_leave_a_thread_for_those_of_others",
        "server/test_bounds.py::test_the_reads_of_one_person_wait_for_one_another_as_searches_do",
        "server/test_bounds.py::test_the_requests_of_one_person_leave_room_at_a_server_for_those_of_others",
        "server/test_bounds.py::"
        "test_the_calls_of_one_person_that_wait_for_an_answer_leave_room_for_those_of_others",
        "server/test_bounds.py::"
        "test_the_sessions_of_one_person_end_no_connection_that_another_has_to_a_server",
        "server/test_large_results.py::test_nobody_loses_kept_results_for_those_of_another",
        f"{LARGE}test_many_results_at_once_are_kept_in_the_same_bounded_number",
        "front/test_principals.py::test_many_sessions_and_guesses_of_one_principal_harm_no_other",
        "front/test_principals.py::test_whoever_has_streams_open_in_all_of_their_sessions_ends_none_of_another",
        "trust/test_tokens.py::test_the_streams_of_one_principal_leave_room_for_those_of_others",
        "front/test_bodies.py::test_the_bodies_of_one_principal_leave_room_for_those_of_another",
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
        "front/test_quota.py::test_neither_a_profile_nor_the_api_gives_anybody_more_calls",
        "front/test_principals.py::test_many_sessions_and_guesses_of_a_person_harm_no_other_whatever_the_profile",
    ),
    Promise(
        "A damaged, locked, full or missing store and an unusable model cost remembered data or search "
        "quality, never a call. With a clock that is years ahead at a start, what is remembered ages by a "
        "week at most with each day of use.",
        "proxy/test_clock.py::test_a_start_with_a_clock_that_is_years_ahead_deletes_nothing_of_the_time_before",
        "store/test_damage.py::test_with_any_of_many_bits_flipped_the_store_works",
        "store/test_damage.py::test_truncated_at_any_page_the_store_works",
        "store/test_damage.py::test_with_any_page_zeroed_the_store_works",
        "store/test_damage.py::test_with_a_file_missing_or_of_another_store_the_store_works",
        "store/test_kills.py::test_kills_while_another_writes_leave_a_sound_store_with_all_that_was_acknowledged",
        SURROUNDINGS + "test_on_a_full_or_read_only_disk_the_proxy_serves_from_memory",
        SURROUNDINGS + "test_a_full_disk_is_reported_once_and_pending_writes_are_kept_for_later",
        SURROUNDINGS + "test_the_proxy_serves_without_a_home_folder",
        SURROUNDINGS + "test_two_proxies_on_one_store_do_not_block_each_other",
        SURROUNDINGS + "test_without_a_usable_model_search_is_lexical",
        SURROUNDINGS + "test_without_free_descriptors_servers_fail_with_a_reason_and_others_go_on",
        SURROUNDINGS + "test_without_free_descriptors_connections_wait_and_the_log_stays_short",
        SURROUNDINGS + "test_if_no_process_can_be_started_running_servers_serve_and_others_wait",
    ),
    Promise(
        "Nothing leaves the machine through the proxy itself unless a server, a model service, an "
        "issuer of tokens, a database, other replicas or an exporter of traces is configured.",
        CONNECTIONS + "test_the_proxy_connects_to_nothing_but_its_configured_servers",
        CONNECTIONS + "test_its_libraries_in_machine_code_connect_to_nothing_either",
        "embedding/test_privacy.py::test_using_the_model_writes_no_files",
    ),
    Promise(
        "A server cannot direct a login to an address nearer to this machine than its own, or to "
        "one that gives a machine its credentials, no matter what a name resolves to at any moment. "
        "Behind a network proxy, which resolves names itself, that goes for addresses in whatever "
        "spelling, and not for names.",
        "oauth/test_ssrf_guard.py::test_a_remote_server_cannot_redirect_a_login_to_this_machine",
        "oauth/test_ssrf_guard.py::test_no_server_leads_to_a_metadata_service_with_credentials",
        "oauth/test_ssrf_guard.py::test_a_name_is_resolved_once_and_the_checked_address_is_connected_to",
        "oauth/test_ssrf_guard.py::test_a_renewal_connects_to_no_nearer_address_than_the_login",
        "oauth/test_ssrf_guard.py::test_behind_a_network_proxy_addresses_that_are_written_out_are_still_checked",
    ),
    Promise(
        "A server that asks a person or a model through the client (elicitation, sampling) is named in "
        "the request. What it asks hides nothing, opens only `https` pages at the host that is shown, for "
        "a server on the internet none of this machine, has no field for a password, token, key or card "
        "number, and is bounded in number and tokens.",
        QUESTIONS + "test_an_elicitation_says_which_server_asks_and_hides_nothing",
        QUESTIONS + "test_a_sampling_request_says_which_server_asks_and_takes_no_other_context",
        QUESTIONS + "test_an_error_that_sends_a_person_to_a_url_says_which_server_does",
        QUESTIONS + "test_an_error_that_sends_a_person_to_an_unsafe_url_loses_it",
        QUESTIONS + "test_nobody_is_sent_to_an_unsafe_url",
        QUESTIONS + "test_no_server_of_the_internet_sends_a_person_to_a_page_of_this_machine",
        QUESTIONS + "test_a_question_of_a_server_of_the_internet_leads_to_no_page_of_this_machine",
        QUESTIONS + "test_a_url_that_is_not_safe_to_open_is_refused_with_a_reason",
        QUESTIONS + "test_a_value_that_hides_its_end_behind_a_run_of_spaces_reaches_nobody",
        QUESTIONS + "test_a_form_that_asks_for_a_secret_reaches_nobody",
        QUESTIONS + "test_a_refused_question_counts_so_that_a_server_cannot_try_words_without_end",
    ),
    Promise(
        "A model that is asked to rerank decides only the order of five tools; it can neither delay a search "
        "beyond `limits.rerank_seconds` nor make it fail.",
        "rerank/test_order.py::test_any_answer_gives_a_complete_order",
        "rerank/test_prompt.py::test_each_candidate_is_one_line_of_data_and_none_can_pose_as_another",
        "rerank/test_endpoint.py::test_an_unusable_answer_leaves_the_order_unchanged",
        "rerank/test_endpoint.py::test_a_missing_answer_is_waited_for_no_longer_than_the_limit",
        "rerank/test_endpoint.py::test_a_slow_answer_is_waited_for_no_longer_than_the_limit",
    ),
    Promise(
        "A bearer token has at least 16 characters. Wrong ones are counted for each address and for "
        "all together, and after too many each token waits for a second before it is looked at; one "
        "on a connection that has sent the right one never waits. What begins as a token of an "
        "issuer does is no guess: its signature decides.",
        "front/test_token.py::test_a_weak_token_in_the_environment_is_refused_with_a_remedy",
        "front/test_token.py::test_a_short_token_in_a_file_is_refused_with_its_length_and_not_shown",
        "front/test_guesses.py::test_no_more_than_a_few_tokens_a_second_are_looked_at",
        "front/test_guesses.py::test_the_right_token_is_served_at_once_from_elsewhere_and_a_second_later_from_there",
        "front/test_identity.py::test_what_begins_with_no_header_is_a_token_of_the_proxy_and_wrong_ones_are_guesses",
    ),
    Promise(
        "A login goes on only at an authorization server that says it supports PKCE, unless "
        "`oauth.assume_pkce` is set, and never with broken metadata of the server, or an authorization "
        "server whose name or page has a user name in it. Each answer has 15 s. The person is told first "
        "where it leads and what it asks for, what has changed since the last one, and whether the "
        "page is that of another than who gets its answer. A result without the state of the login is "
        "ignored.",
        "oauth/test_login.py::test_without_a_word_about_pkce_the_login_is_refused_before_anything_is_registered",
        "oauth/test_login.py::test_broken_metadata_of_the_server_ends_the_login_with_the_reason",
        "oauth/test_login.py::test_no_name_of_an_authorization_server_passes_for_that_of_another",
        "oauth/test_login.py::test_a_person_is_sent_to_no_page_that_is_unencrypted_or_hides_its_host",
        "oauth/test_ssrf_guard.py::test_a_server_that_sends_one_byte_after_the_other_delays_nobody_for_longer_than_the_timeout",
        "oauth/test_commands.py::test_a_login_tells_first_where_it_leads_what_it_asks_for_and_what_has_changed",
        "oauth/test_commands.py::test_a_login_whose_page_is_that_of_another_is_warned_about_and_not_opened",
        "oauth/test_loopback.py::test_a_result_without_the_state_of_the_login_is_ignored_and_its_text_appears_nowhere",
    ),
    Promise(
        "A URI, and each subscription to it, leads to the server that lists it, else to the server of the "
        "template with the longest literal beginning that matches it, or nowhere; that of a page (`ui:`) "
        "which two servers list, or name in their tools, leads nowhere. One that no server has is read from "
        "the server that linked to it in the result of a call, by the session (without one, the principal) "
        "that got the result, and nobody else; one that two servers linked to leads nowhere. `rule:`, "
        "`reference:` and `context:` never lead to a server, and every listed resource of a server names it.",
        OWNERS + "test_a_page_that_two_servers_have_is_that_of_neither",
        OWNERS + "test_no_tool_is_shown_on_the_page_of_another_server",
        "server/test_changing_owners.py::test_a_uri_and_its_subscriptions_belong_to_their_owner_at_every_moment",
        OWNERS + "test_no_server_gets_the_schemes_of_the_proxy",
        OWNERS + "test_a_catch_all_of_an_earlier_server_takes_nothing_from_a_later_one",
        OWNERS + "test_a_uri_of_two_servers_stays_with_the_first_and_is_reported_with_both",
        OWNERS + "test_only_the_owner_of_a_resource_announces_its_updates",
        OWNERS + "test_a_listed_resource_names_its_server_whatever_the_server_claims",
        OWNERS + "test_a_resource_that_no_server_lists_is_read_where_a_result_has_linked_to_it",
        OWNERS + "test_no_server_answers_for_a_resource_that_another_one_has_linked_to",
    ),
    Promise(
        "Nothing that a server writes into a URI or a template makes a lookup stall the proxy.",
        OWNERS + "test_templates_over_the_bound_of_a_server_are_withheld",
        "catalog/test_uri_owners.py::test_no_permitted_templates_of_a_server_stall_the_proxy",
    ),
    Promise(
        "A listed tool has its hints and its `_meta` as its server sent them, but for hints that "
        "wait for approval and keys of the proxy. `call_read_only_tool` calls no tool that does not "
        "say it is read-only, and `call_tool` is marked destructive.",
        MARKERS + "test_a_listed_tool_has_every_marker_as_its_server_sent_it",
        MARKERS + "test_call_read_only_tool_runs_only_what_says_that_it_is_read_only",
        MARKERS + "test_call_read_only_tool_calls_those_of_the_proxys_own_tools_that_only_read",
        MARKERS + "test_the_call_tools_say_what_they_may_do",
    ),
    Promise(
        "A tool that demands that its user is asked is never called under another name than its listed "
        "one, unless the person has accepted that very call.",
        MARKERS + "test_call_tool_runs_every_tool_but_asks_where_the_tool_demands_its_user",
        MARKERS + "test_call_read_only_tool_runs_only_what_says_that_it_is_read_only",
        "server/test_permissions.py::test_every_way_of_calling_has_the_same_rule",
        CONSENT + "test_a_tool_that_demands_its_user_is_asked_about_through_a_call_tool",
        CONSENT + "test_a_tool_that_demands_its_user_is_listed_for_a_client_that_cannot_be_asked",
    ),
    Promise(
        'With `"ask"` for a tool or its class, no call of such a tool is sent unless a person has '
        "accepted it, and the tool is still what they were asked about. The question names server and "
        "tool and shows the arguments without secrets and hidden characters; a call that was declined, "
        "cancelled or not answered does not run, and says so; nobody is asked twice for one call. "
        "Arguments that name anything twice, of "
        "which a server might take the value that was not shown, are neither asked about nor sent.",
        PERMISSIONS + "test_every_way_of_calling_has_the_same_rule",
        CONSENT + "test_a_confirmed_call_names_server_tool_and_arguments_and_runs_once",
        CONSENT + "test_a_call_runs_only_if_the_tool_is_still_what_the_person_was_asked_about",
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
        "server/test_consent.py::test_arguments_that_servers_read_in_two_ways_are_not_asked_about_and_not_sent",
        "server/test_consent.py::test_no_second_value_comes_in_with_the_answer_to_a_question_of_the_server",
    ),
    Promise(
        "A result is shortened only if every byte of it can still be read. The whole is kept for the "
        "session or the principal whose call it was, to all others its id is unknown, and it is forgotten "
        "with the session. What is not in memory is in files without a name that only you can read, which "
        "the system deletes with the process, even if it is killed. Very long lists of tools are in such "
        "files, too.",
        "results/test_every_byte.py::test_the_pages_of_a_shortened_text_joined_are_the_text",
        "results/test_every_byte.py::test_the_pages_of_shortened_json_joined_are_the_json_and_what_is_shown_is_json",
        LARGE + "test_a_result_that_cannot_be_kept_is_not_shortened",
        LARGE + "test_the_result_of_another_session_is_unknown",
        LARGE + "test_results_are_forgotten_with_their_session",
        LARGE + "test_what_does_not_fit_in_memory_is_in_files_without_a_name_that_only_the_user_can_read",
        "downstream/test_listing.py::test_a_very_large_list_takes_little_memory_and_leaves_no_file",
    ),
    Promise(
        "Nothing in a result and no path or pattern makes reading a shortened result slow.",
        EVENT_LOOP + "test_reading_a_large_result_by_pages_patterns_and_paths_delays_nobody",
        READING + "test_hostile_text_is_read_in_time_in_proportion_to_its_length",
        READING + "test_a_pattern_that_millions_of_short_lines_begin_to_match_is_searched_at_once",
        READING + "test_a_field_that_a_path_names_often_is_taken_once",
        READING + "test_a_path_that_goes_through_a_large_result_over_and_over_is_refused",
    ),
    Promise(
        'A tool that `allow`, `deny`, `enabled = false` or `"never"` turns off is not listed, not found '
        "and not called, whatever name or way is tried; the refusal names the setting. The same holds "
        "for tools and servers that the file of a host turns off.",
        PERMISSIONS + "test_every_way_of_calling_has_the_same_rule",
        PERMISSIONS + "test_a_refusal_names_the_rule_with_its_file_and_line",
        PERMISSIONS + "test_a_class_that_is_never_allowed_is_in_no_list_and_the_refusal_says_why",
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
    Promise(
        "Of the folders of documents, only visible regular files are read, through no symbolic link and "
        "never outside of the folder. No link in a project leads its documents out of it. `read_document` "
        "reads documents and the files in the folder of a skill, and nothing else; what models see of them "
        "hides nothing.",
        "catalog/test_documents_confinement.py::test_a_project_leads_out_of_itself_by_no_link",
        "catalog/test_documents_confinement.py::test_symbolic_links_are_reported_and_not_followed",
        OWN_SKILLS + "test_nothing_but_visible_text_files_of_a_skill_is_read",
        OWN_SKILLS + "test_what_a_skills_file_says_hides_nothing",
    ),
    Promise(
        "A skill of a server stands under the name of that server, and no URI of another server passes "
        "for it or for a skill of the user. A file of a skill with a manifest is given on only if it is "
        "listed there with its size and digest; one that differs becomes a finding. No file of a skill is "
        "fetched before somebody reads it, and nothing outside of the folder of one of the user's own is "
        "read.",
        SKILLS + "test_skills_of_two_servers_with_one_uri_stay_two_skills",
        SKILLS + "test_no_server_passes_for_another_or_for_the_user",
        SKILLS + "test_a_file_that_is_not_what_its_manifest_says_is_refused_with_a_finding",
        SKILLS + "test_a_file_that_the_manifest_does_not_list_never_reaches_the_server",
        SKILLS + "test_skills_of_a_server_of_either_era_are_listed_under_its_name",
        OWN_SKILLS + "test_nothing_outside_of_a_skill_is_read_from_the_disk",
    ),
)
