"""The promises of SECURITY.md about clients and programs that run: approval, the audit and named tokens."""

from promises.promise import Promise

APPROVAL = "trust/test_approval.py::"
SIGNS = "trust/test_signs_of_attack.py::"
APPROVING = "trust/test_approval_running.py::"
PERMISSIONS = "server/test_permissions.py::"
GUARD = "server/test_guard.py::"
AUDIT = "trust/test_audit.py::"
AUDIT_FILES = "trust/test_audit_files.py::"
TOKENS = "trust/test_tokens.py::"
IDENTITY = "front/test_identity.py::"
ISSUED = "front/test_issued_tokens.py::"
LIMITED = "trust/test_limited_principals.py::"

TRUST = (
    Promise(
        "A tool, a prompt or a resource template is listed, found and called only as it was "
        "approved: by `[approval] mode` when it came, or by a person. One that changes while its "
        "server runs, or over a restart in the same version or over the same connection, is "
        "withheld in every mode, whichever part of it changed that models see, but for dates and times, and "
        "the order of a default of words between commas; so is one that hides characters or has another sign "
        "of an attack, in whatever letters it is drawn. Resources, "
        "skills and instructions are not approved, and are left out if they have such a sign. That holds "
        "over restarts, on lists that are remembered, for several proxies on one store, and where the store "
        "can be read and not written. A proxy whose database is away serves nothing of a server whose "
        "decisions it has not read before.",
        "cluster/test_lost_store.py::"
        "test_nothing_is_served_whose_decision_cannot_be_read_until_the_database_is_there",
        "faults/test_surroundings.py::test_what_a_person_has_rejected_is_not_served_from_a_full_or_read_only_disk",
        "store/test_store.py::test_what_a_store_has_that_cannot_be_written_is_used_from_memory",
        "trust/test_approval_running.py::test_a_request_that_is_sent_again_in_a_new_session_is_judged_again",
        APPROVAL + "test_a_changed_tool_is_withheld_until_a_person_approves_it",
        APPROVAL + "test_a_definition_that_tells_the_time_stays_approved_and_is_current",
        APPROVAL + "test_the_order_of_what_a_server_keeps_in_sets_is_no_change",
        APPROVAL + "test_a_changed_prompt_or_template_is_withheld",
        SIGNS + "test_a_definition_with_a_sign_of_an_attack_is_held_however_it_came",
        "trust/test_approval_stores.py::test_two_proxies_on_one_store_never_approve_two_first_definitions",
        APPROVING + "test_what_the_store_remembers_of_a_server_is_judged_before_it_is_connected",
        APPROVING + "test_a_tool_that_changed_over_a_restart_is_nowhere_until_a_person_approves_it",
        APPROVING + "test_a_call_that_waits_for_a_server_runs_only_if_the_tool_is_still_what_it_was",
        APPROVING + "test_a_request_that_wakes_a_server_is_sent_only_if_its_tool_or_prompt_is_what_it_was",
        "trust/test_relatives.py::test_a_sign_of_an_attack_counts_in_whatever_letters_it_is_drawn",
        "trust/test_relatives.py::test_a_sign_of_an_attack_counts_in_whatever_a_server_has_models_read",
    ),
    Promise(
        "Nothing that a model can reach approves a definition, and models get neither its new text "
        "nor its old one while it waits, nor does anybody below the role `view` in a past request. "
        "A person approves by the hash of what they were shown, which nobody finds two definitions with, "
        "on the command line or with the bearer token; without a token nobody can over HTTP.",
        APPROVAL + "test_nobody_finds_two_definitions_with_one_hash",
        APPROVAL + "test_a_person_approves_only_what_they_have_seen",
        "cli/test_approval.py::test_what_is_not_shown_whole_cannot_be_approved_by_its_hash",
        "web/test_approvals.py::test_what_the_page_does_not_show_whole_has_no_hash_there",
        APPROVING + "test_no_method_of_the_protocol_and_no_tool_decides",
        "web/test_approvals.py::test_without_a_token_nobody_sees_or_approves_definitions",
        "trust/test_limited_principals.py::test_a_former_definition_is_rendered_for_nobody_below_view",
    ),
    Promise(
        "With a new version a tool does not lose its hints by itself: one that was destructive or "
        "demanded its user stays so until a person approves. What had to be approved begins "
        "without learned pairs. In a search, a copy from a server that came later does not pass "
        "the tool that it copies by a few words more.",
        APPROVAL + "test_hints_that_promise_less_harm_wait_for_a_person",
        APPROVAL + "test_a_tool_that_no_longer_demands_to_ask_is_restrained_too",
        APPROVING + "test_what_had_to_be_approved_begins_anew",
        "retrieval/test_copies.py::test_a_copy_comes_after_the_tool_of_the_older_server",
    ),
    Promise(
        "The audit has every call of a tool, every call that was refused with the rule, every question "
        "of a server with its answer, every login, changed configuration and refused token, and no value "
        "of an argument or result and no query. Its files are readable by their owner alone and bounded "
        "in size and number, and nobody can push out the entries of others, or their own of another tool "
        "or day, by many calls, and no server by many changes.",
        AUDIT + "test_no_number_of_changes_that_a_server_makes_at_once_pushes_out_a_call",
        AUDIT_FILES + "test_no_flood_of_calls_pushes_out_what_others_or_its_caller_did_before",
        AUDIT + "test_a_call_is_recorded_with_the_facts_and_the_shape_of_its_arguments",
        AUDIT + "test_no_value_and_no_query_is_in_the_files",
        AUDIT + "test_calls_that_were_not_allowed_are_recorded_with_the_rule",
        AUDIT + "test_a_question_of_a_server_is_recorded_with_who_asked_and_how_it_was_answered",
        AUDIT + "test_a_changed_configuration_is_recorded_with_its_tables",
        AUDIT + "test_many_wrong_tokens_of_an_address_make_one_entry",
        "oauth/test_commands.py::test_the_audit_has_each_login_and_logout",
        AUDIT + "test_the_files_are_for_their_owner_alone_and_bounded_in_size_and_number",
    ),
    Promise(
        "The audit never delays or fails a call: what does not fit is counted, and a disk that is full "
        "or cannot be written is reported once. Several proxies write to one audit without losing or "
        "mixing entries.",
        AUDIT + "test_what_does_not_fit_into_the_queue_is_counted_on_a_line_of_its_own",
        AUDIT + "test_a_full_disk_costs_no_call_is_said_once_and_the_lines_follow_later",
        AUDIT + "test_nobody_pushes_out_what_waits_for_a_full_disk",
        AUDIT_FILES + "test_lines_of_several_proxies_do_not_mix_and_none_is_lost_while_files_are_rotated",
    ),
    Promise(
        "A named token is kept only as its hash, and at several replicas sealed, as logins are: whoever can "
        "read the database learns no token of either, and whoever can write it makes none, nor gives one to "
        "another server or name. It reaches the servers and classes of tools that it was given, by every way "
        "alike: what it may not reach is not listed, found, called, read or subscribed to, and no message, "
        "preset or past request tells more of it than a name that was given before.",
        "trust/test_limited_principals.py::"
        "test_a_session_whose_principal_reaches_less_since_shows_less_over_the_api",
        "oauth/test_shared_logins.py::test_the_store_holds_nothing_that_opens_anything",
        "oauth/test_shared_logins.py::test_a_row_that_was_changed_in_the_store_is_no_login",
        "trust/test_shared_tokens.py::test_whoever_can_write_the_database_makes_no_token",
        "trust/test_limited_principals.py::test_no_query_is_read_in_words_that_only_other_servers_have",
        TOKENS + "test_the_file_has_no_token_and_is_for_its_owner_alone",
        LIMITED + "test_lists_and_searches_show_its_servers_and_classes_alone",
        LIMITED + "test_a_call_of_anything_else_is_unknown_whatever_way_is_tried",
        LIMITED + "test_nothing_of_another_server_is_read",
        LIMITED + "test_a_handshake_client_cannot_subscribe_to_a_resource_of_another_server",
        LIMITED + "test_nothing_is_said_about_servers_that_are_off",
        LIMITED + "test_log_messages_of_servers_that_it_does_not_reach_now_do_not_reach_its_session",
        LIMITED + "test_the_api_shows_a_limited_principal_its_part_alone",
        "trust/test_limited_principals.py::test_what_concerns_everybody_needs_an_administrator",
        "trust/test_profiles.py::test_a_token_that_is_bound_to_a_profile_reads_no_figures_and_no_problems",
    ),
    Promise(
        "Nothing of one principal reaches another below the role `view`: no request, session, context, "
        "statistics, interaction or log, and no words of a request, over REST or MCP, nor a log message or a "
        "question of a server that may be about their calls, under way or just ended. When a named token is "
        "revoked or expires, its open requests and streams end; when a token of an issuer expires, "
        "its streams do.",
        "downstream/test_dedicated.py::test_nobody_is_asked_or_told_what_may_be_about_a_call_of_another_person_that_has_ended",
        LIMITED + "test_log_messages_reach_those_whose_calls_they_are_about_and_those_who_may_view",
        IDENTITY + "test_one_person_sees_nothing_of_another_below_view",
        IDENTITY + "test_a_role_opens_what_it_names_and_what_lower_ones_do",
        IDENTITY + "test_the_end_of_a_token_ends_its_streams_and_no_call",
        LIMITED + "test_a_search_quotes_no_request_of_another_below_view",
        IDENTITY + "test_a_revoked_token_ends_a_call_under_way_and_its_server_and_its_client_are_told",
        LIMITED + "test_no_operation_of_the_api_gives_one_principal_anything_of_another",
        LIMITED + "test_no_method_gives_one_principal_anything_of_another",
        LIMITED + "test_what_concerns_everybody_needs_an_administrator",
        TOKENS + "test_an_open_stream_ends_when_its_token_is_no_longer_accepted",
        TOKENS + "test_an_expired_token_is_refused",
    ),
    Promise(
        "The danger class of a tool is the strictest that its hints, the verb in its name, in whatever "
        "letters it is drawn, and the configuration give; a server cannot make a tool more harmless by what "
        "it says.",
        "trust/test_danger.py::test_the_strictest_witness_counts_and_none_loosens_another",
        "trust/test_danger.py::test_the_first_verb_of_a_name_counts_and_what_an_and_joins_to_it",
        "trust/test_danger.py::test_a_name_that_nobody_reads_to_its_end_is_taken_for_the_worst",
        PERMISSIONS + "test_a_tool_that_only_calls_itself_read_only_is_refused_by_the_read_only_way",
    ),
    Promise(
        "A secret of the configuration or of a login goes in no request to a server that was not "
        "given it: not in arguments of tools and prompts, URIs, completions or answers to "
        "questions, in escapes, percent-encoding, base64 and hexadecimal digits neither, also in "
        "lines, or with escapes or percent-encoding around them. The refusal names the variable, "
        "never the value. `[guards]` turns that off.",
        "trust/test_guard.py::test_a_secret_is_found_in_the_name_of_a_param_too",
        "trust/test_guard.py::test_a_refusal_names_no_server_that_its_principal_does_not_reach",
        GUARD + "test_no_form_of_a_secret_goes_to_another_server",
        GUARD + "test_neither_escapes_of_json_nor_its_place_hide_a_secret",
        GUARD + "test_prompts_resources_and_completions_tell_no_secret_either",
        GUARD + "test_the_answer_to_a_question_tells_no_secret",
        GUARD + "test_a_token_of_a_login_is_known_once_it_is_used",
        GUARD + "test_the_guard_can_be_turned_off_and_on_while_the_proxy_runs",
        "trust/test_guard.py::test_a_secret_is_found_in_whatever_text_it_stands",
        "trust/test_guard.py::test_a_secret_of_the_proxy_itself_goes_to_no_server",
        "trust/test_guard.py::test_values_that_occur_by_chance_do_not_count",
        "trust/test_guard.py::test_the_key_of_a_cluster_and_the_password_of_a_database_go_to_no_server",
    ),
    Promise(
        "Secrets in the keyring are typed without being shown or read from the standard input, and no "
        "command prints one. `${cmd:...}` runs a command only if the user's own `config.toml` allows it, "
        "without a shell and for 5 s at most; for the file of a host none runs, and neither a file nor the "
        "keyring is read.",
        "cli/test_secret.py::test_a_secret_is_typed_twice_and_not_echoed",
        "cli/test_secret.py::test_a_secret_is_read_from_the_standard_input_and_never_shown",
        "cli/test_secret.py::test_a_value_is_no_argument",
        "config/test_secret_sources.py::test_no_command_runs_unless_the_file_allows_it",
        "config/test_secret_sources.py::test_no_command_runs_for_the_file_of_a_host",
        "config/test_secret_sources.py::test_no_file_and_no_keyring_is_read_for_the_file_of_a_host",
        "config/test_secret_sources.py::test_a_command_that_gives_no_value_is_told_with_its_reason",
        "config/test_secret_sources.py::test_a_command_that_does_not_end_is_ended",
    ),
    Promise(
        "A token of an issuer is accepted only with a right signature by a key that the issuer has "
        "published, of a kind in `auth.algorithms`, for this proxy, and in its time; nothing in a token "
        "leads anywhere. `none` and signatures with a shared secret cannot be configured. A person is "
        "issuer and subject together.",
        ISSUED + "test_a_forged_or_unfit_token_is_refused_and_leads_nowhere",
        ISSUED + "test_a_key_that_does_not_fit_verifies_nothing",
        ISSUED + "test_an_issuer_that_answers_badly_lets_nobody_in_and_harms_nothing",
        ISSUED + "test_discovery_leads_to_no_address_nearer_or_unencrypted",
        ISSUED + "test_settings_that_would_let_in_anybody_are_refused",
        ISSUED + "test_a_person_is_issuer_and_subject_whatever_else_is_in_the_token",
    ),
)
