"""The promises of README.md."""

from promises.promise import Promise

INSTALL = "cli/test_install.py::"
HOSTS = "installation/test_hosts.py::"
HTTP = "front/test_http.py::"
LISTENING = "front/test_listening.py::"
ASKED = "front/test_asked_page.py::"
PAGE = "web/test_page.py::"
SERVERS_PAGE = "web/test_servers_page.py::"
DEFINITIONS = "faults/test_definitions.py::"
TOKENS = "trust/test_tokens.py::"
LIMITED = "trust/test_limited_principals.py::"
CONNECTIONS = "proxy/test_connections.py::"
MARKERS = "server/test_markers.py::"
CONSENT = "server/test_consent.py::"
SKILLS = "server/test_skills.py::"
OWN_SKILLS = "server/test_own_skills.py::"
STANDING = "server/test_standing_list.py::"
ANSWERS = "server/test_answers.py::"
LARGE = "server/test_large_results.py::"
TURNED_OFF = "server/test_turned_off.py::"
HOST_FILES = "config/test_hosts.py::"
DOCUMENTS = "server/test_documents.py::"
FORMATS = "catalog/test_documents_formats.py::"
TOOL_LIST = "server/test_tool_list.py::"
API = "web/test_api.py::"

README_SECTIONS = (
    "Environment variables",
    "Uninstalling",
    "What a model sees",
    "Rules and references",
    "Over HTTP",
    "What was selected, and why",
    "Privacy",
)
"""Sections of README.md and two pages in which every sentence is a promise or one of `README_REMARKS`."""

README = (
    Promise(
        "If a host already has them, one command moves them behind the proxy and connects that host to it:",
        INSTALL + "test_install_moves_servers_tries_them_and_uninstall_gives_the_file_back",
    ),
    Promise(
        "It knows Claude Desktop, Claude Code, Cursor, VS Code, Windsurf, Codex, Gemini CLI, Qwen Code, Zed, "
        "opencode, Cline, Goose, LM Studio, Continue, Copilot CLI, Copilot in JetBrains IDEs, Kiro, "
        "Antigravity, Amp, Crush, Droid, Kilo Code, Roo Code and Warp",
        HOSTS + "test_install_then_uninstall_changes_nothing",
        HOSTS + "test_each_host_has_a_place_on_each_platform",
    ),
    Promise(
        "To leave the host as it is, `mcp-context-proxy import cursor` copies its servers, and "
        "`mcp-context-proxy add memory -- npx -y @modelcontextprotocol/server-memory` adds one, tries it and "
        "pins its version.",
        INSTALL + "test_import_copies_from_a_file_of_any_host",
        INSTALL + "test_server_is_added_tried_and_removed",
    ),
    Promise(
        "Several hosts, and all sessions of one, use one proxy and one copy of each server.",
        "front/test_shared.py::test_hosts_of_both_eras_use_one_proxy_and_one_copy_of_each_server",
    ),
    Promise(
        "Run `mcp-context-proxy uninstall --purge`, which also removes the store, the token and the logins, "
        "and then `pip uninstall mcp-context-proxy`. The configuration stays in the folder "
        "`mcp-context-proxy` of your configuration folder.",
        INSTALL + "test_purge_lists_and_removes_what_was_kept",
    ),
    Promise(
        "The proxy notices when a definition changes without a new version, and withholds it until you "
        "approve.",
        "trust/test_approval.py::test_a_changed_tool_is_withheld_until_a_person_approves_it",
    ),
    Promise(
        "With named tokens several people can connect, each with access to some servers and tools; with "
        "tokens of an issuer everybody of an organisation can, in the role that it gives them.",
        "front/test_identity.py::test_a_role_opens_what_it_names_and_what_lower_ones_do",
        TOKENS + "test_a_principal_is_the_name_of_its_token",
        LIMITED + "test_lists_and_searches_show_its_servers_and_classes_alone",
    ),
    Promise(
        "Hosts that know skills get those of folders and of servers whole.",
        OWN_SKILLS + "test_skills_of_the_users_folders_are_served_with_all_their_files",
        SKILLS + "test_a_file_that_is_what_its_manifest_says_is_passed_on_unchanged",
    ),
    Promise(
        "Search runs on your machine with a small embedding model that ships in the package: no external "
        "service, no API key, no network.",
        CONNECTIONS + "test_the_proxy_connects_to_nothing_but_its_configured_servers",
        CONNECTIONS + "test_its_libraries_in_machine_code_connect_to_nothing_either",
        "embedding/test_privacy.py::test_using_the_model_writes_no_files",
    ),
    Promise(
        "Both `mcpServers` (Claude Desktop, Claude Code, Cursor) and `servers` (VS Code) are understood. "
        "An entry that starts this proxy is skipped. Tools and servers that the host has turned off stay "
        "off.",
        HOST_FILES + "test_the_tools_that_a_host_leaves_out_are_carried_over",
        HOST_FILES + "test_a_server_that_the_host_has_disabled_stays_so_with_its_place",
        "config/test_hosts.py::test_the_servers_of_a_real_host_file_are_taken_over",
        "config/test_hosts.py::test_the_proxy_itself_is_skipped_with_a_warning",
        "docs/test_readme.py::test_a_host_file_that_starts_the_proxy_can_be_its_configuration",
    ),
    Promise(
        "Servers behind the proxy inherit only the variables for the user, folders, language, "
        "certificates and network proxies. Put any other variable a server needs (`GITHUB_TOKEN`, ...) "
        "into its `env`, or name it in `inherit`.",
        "faults/test_every_mode.py::test_a_server_inherits_only_a_few_variables_and_its_configured_ones",
        "config/test_environment.py::test_a_server_inherits_what_programs_need_here_and_no_secret",
        "config/test_environment.py::test_further_variables_are_inherited_by_name_or_pattern",
        "downstream/test_processes.py::test_a_child_gets_a_short_environment_and_its_configured_variables",
    ),
    Promise(
        "`${NAME}` in the configuration is replaced by that variable of the proxy's own environment.",
        "config/test_expand.py::test_a_variable_reference_is_replaced_by_its_value",
    ),
    Promise(
        "The list is stable. `tools/list` is short and the same for every client: these tools, the tools "
        'that you marked `include = "always"`, and, if you turn that on, the ones used regularly. Hosts '
        "that show MCP Apps also get the tools with a page. In protocol 2026-07-28 no search changes this "
        "list, so the provider's prompt cache stays valid; only `read_result` is added, at the end, once a "
        "result was shortened.",
        "server/test_apps.py::test_a_host_that_shows_pages_lists_the_tools_with_one_because_only_a_listed_tool_shows_it",
        TOOL_LIST + "test_by_default_the_list_has_the_proxys_own_and_always_included_tools",
        TOOL_LIST + "test_the_proxys_own_definitions_depend_only_on_the_configuration",
        TOOL_LIST + "test_no_search_changes_the_list_of_a_modern_client",
        "server/test_large_results.py::test_read_result_is_listed_once_something_was_shortened_for_the_session",
        "proxy/test_real_tools.py::test_a_default_list_is_short_whatever_is_behind_it",
        "server/test_working_set.py::test_tools_used_in_several_sessions_are_listed_from_the_next_day_on",
        "server/test_working_set.py::test_by_default_there_is_no_working_set",
    ),
    Promise(
        "A small catalog (under `expose.list_all_below`, 3000 estimated tokens) is listed in full, "
        "because hiding it would save nothing. Then the tools above are left out, so that the list is no "
        "longer than without the proxy; they can still be called, and come back as soon as something is "
        "hidden.",
        TOOL_LIST + "test_a_small_catalog_is_listed_completely",
        STANDING + "test_a_small_catalog_costs_no_more_than_without_the_proxy",
        STANDING + "test_the_proxys_own_tools_can_be_called_where_they_are_not_listed",
        STANDING + "test_a_catalog_that_grows_over_the_threshold_brings_the_search_and_announces_it",
        STANDING + "test_documents_bring_the_search_into_the_list_of_a_small_catalog",
    ),
    Promise(
        "Relevance is in the answer. The tools that fit a query are returned as the result of a search.",
        "server/test_search.py::test_a_found_tool_comes_with_everything_needed_to_call_it",
    ),
    Promise(
        "The answer is short text: over 33 real servers it costs 235 tokens on average, and shows what "
        "the first tools require.",
        "server/test_search.py::test_a_search_is_answered_with_text_alone_and_with_data_on_request",
        ANSWERS + "test_answers_over_real_tools_cost_400_tokens_on_average_and_700_at_most",
        ANSWERS + "test_the_first_three_tools_show_every_required_parameter_with_type_and_values",
        ANSWERS + "test_more_tools_than_there_is_room_for_are_named",
    ),
    Promise(
        "Every known tool can be called, listed or not, as `server__tool` or through `call_tool`.",
        TOOL_LIST + "test_every_tool_can_be_called_without_being_listed",
        TOOL_LIST + "test_a_manual_tool_is_never_found_but_can_be_called",
        "every_front/test_calls.py::test_a_direct_call_call_tool_and_the_bare_name_of_a_tool_give_the_same_result",
    ),
    Promise(
        'Tools that only read have a call tool of their own, so that "always allow" in a host can mean '
        'reading. `"ask"`, for a tool or its danger class, makes the proxy itself ask a person before calls.',
        MARKERS + "test_the_call_tools_say_what_they_may_do",
        MARKERS + "test_call_read_only_tool_runs_only_what_says_that_it_is_read_only",
        CONSENT + "test_confirm_says_from_which_class_on_a_person_is_asked",
    ),
    Promise(
        'A tool that you turn off (`allow`, `deny`, `enabled = false`, `"never"`) is neither listed, nor'
        " found, nor callable.",
        TURNED_OFF + "test_a_tool_that_is_turned_off_is_in_no_list_and_no_search",
        TURNED_OFF + "test_a_call_says_that_the_tool_is_turned_off_and_in_which_line",
        TURNED_OFF + "test_a_tool_outside_of_the_allowed_ones_is_turned_off",
    ),
    Promise(
        "Where the protocol allows a query, the list is filtered by it. A client can send a query in the "
        "`_meta` of `tools/list` as `io.github.mcp-context-proxy/query`, or the `context_id` returned by "
        "`set_context` as `io.github.mcp-context-proxy/context`.",
        TOOL_LIST + "test_a_query_in_the_request_adds_fitting_tools",
        TOOL_LIST + "test_set_context_returns_a_handle_that_selects_the_same_tools_in_any_request",
    ),
    Promise(
        "In a session of protocol 2025-11-25 or earlier, a search also appends the tools it found to the "
        "list of that session, up to `expose.found_tokens` (3000), and notifies the client; nothing is "
        "removed from the list later.",
        TOOL_LIST + "test_the_list_of_a_handshake_session_grows_with_its_searches",
        TOOL_LIST + "test_searches_add_to_a_list_only_as_many_tokens_as_are_configured",
        TOOL_LIST + "test_one_session_does_not_see_what_another_searched",
        "proxy/test_starting.py::test_a_search_in_a_session_adds_to_its_list_with_one_notification",
    ),
    Promise(
        "Definitions, arguments and results are relayed without being rebuilt, so fields unknown to the "
        "proxy are kept; only arguments that do not fit the schema of a tool are read as they are meant in "
        "a call through `call_tool`.",
        "server/test_calls_as_meant.py::test_arguments_that_can_mean_one_thing_only_are_sent_as_the_tool_takes_them",
        "server/test_calls_as_meant.py::test_arguments_that_the_schema_takes_are_sent_as_they_are",
        "every_front/test_lists.py::test_unknown_fields_of_a_definition_reach_the_client",
        "proxy/test_real_tools.py::test_every_definition_reaches_a_client_over_stdio_unchanged",
        "every_front/test_calls.py::test_structured_content_arrives_byte_for_byte",
        "every_front/test_calls.py::test_arguments_arrive_byte_for_byte",
    ),
    Promise(
        "A schema that some API of models refuses is listed in another form.",
        TOOL_LIST
        + "test_a_schema_that_an_api_of_models_refuses_is_listed_in_another_form_and_searched_as_it_is",
        "catalog/test_model_schemas.py::test_whatever_a_server_writes_is_listed_in_a_form_that_is_taken_and_stays_as_it_is_then",
    ),
    Promise(
        "Only a result too large for a model is shortened; `read_result` reads the rest.",
        LARGE + "test_a_long_text_is_shortened_at_line_ends_and_every_byte_can_be_read",
        "every_front/test_calls.py::test_structured_content_arrives_byte_for_byte",
    ),
    Promise(
        "Both protocol eras (up to 2025-11-25, and 2026-07-28) work on either side, in any combination.",
        "every_front/test_calls.py::test_a_call_reaches_its_server_under_the_servers_own_name",
        "every_front/test_calls.py::test_unknown_params_and_the_clients_meta_reach_the_server_but_the_proxys_own_meta_does_not",
        "every_front/test_messages_of_servers.py::test_a_servers_request_reaches_the_client_and_the_answer_reaches_the_server",
    ),
    Promise(
        "Folders of markdown can be searched together with the tools, and are served as resources "
        "(`rule://name`, `reference://name`). A file is read again as soon as it changes.",
        "server/test_search.py::test_documents_are_found_beside_tools_and_alone",
        "proxy/test_documents.py::test_documents_are_listed_and_read_beside_the_resources_of_servers",
        "proxy/test_documents.py::test_a_changed_document_is_served_anew_and_announced_to_subscribers",
    ),
    Promise(
        "Found documents are part of the answer, whole or as an outline from which `read_document` reads "
        "on, also the files of a skill. `always` rules are given to the model once in a session.",
        DOCUMENTS + "test_a_found_document_is_given_whole",
        DOCUMENTS + "test_a_long_document_comes_as_an_outline_that_leads_to_its_sections",
        "server/test_own_skills.py::test_the_files_of_a_skill_are_read_by_its_name_and_their_path",
        DOCUMENTS + "test_the_rules_of_a_session_are_in_its_first_answer_and_in_no_other",
        "proxy/test_documents.py::test_the_rules_of_a_session_are_in_the_instructions_and_in_no_answer",
    ),
    Promise(
        "Cursor rules (`.mdc`), Agent Skills (`SKILL.md`), `AGENTS.md` and `CLAUDE.md` are read in their "
        "own format and do not need a `kind`.",
        FORMATS + "test_a_cursor_rule_says_when_it_applies",
        FORMATS + "test_a_skill_is_a_reference_with_its_name_and_description",
        FORMATS + "test_the_sections_of_an_agents_file_are_references",
    ),
    Promise(
        "Front matter is optional: `name`, `description`, `tags`, "
        "`priority` (0 to 999, 001 first) and `include` "
        "(`agent`: found by search; `always`: part of every context; `manual`: never found by search).",
        "catalog/test_documents.py::test_front_matter_says_everything_about_a_document",
        "catalog/test_documents.py::test_a_file_without_front_matter_takes_its_name_from_its_path",
        "context/test_engine.py::test_a_request_context_has_the_items_of_the_session_and_of_the_query",
        "retrieval/test_search.py::test_an_item_included_by_hand_only_is_never_found",
    ),
    Promise(
        "This serves streamable HTTP at `http://127.0.0.1:8765/mcp`, HTTP+SSE at `/sse`, the REST API at "
        "`/api/v1`, the pages at `/ui`, and `/healthz`.",
        HTTP + "test_healthz_answers_ok",
        "proxy/test_sdk_client.py::test_the_sdk_client_works_over_streamable_http",
        "every_front/test_calls.py::test_a_result_arrives_unchanged",
        API + "test_a_query_is_answered_with_the_context_for_a_model",
        PAGE + "test_a_request_is_shown_in_three_columns_in_order_of_rank_with_the_reasons",
    ),
    Promise(
        "Every request except `/healthz`, `/livez` and `/readyz`, the files of the pages and `/`, which "
        "leads to them, needs "
        "`Authorization: Bearer TOKEN`.",
        LISTENING + "test_a_token_is_required_and_only_its_owner_can_read_it",
        "front/test_guard.py::test_health_needs_no_token",
        API + "test_every_operation_needs_the_token",
        PAGE + "test_the_files_are_served_without_a_token_and_with_a_strict_policy",
    ),
    Promise(
        "The token comes from the environment variable `MCP_CONTEXT_PROXY_TOKEN`, or else from the file "
        "`http.token_file` (by default in your data folder). The proxy creates that file at its first "
        "start and prints its path at every start.",
        LISTENING + "test_a_token_is_required_and_only_its_owner_can_read_it",
        LISTENING + "test_a_configured_token_is_required_on_loopback_too_and_is_not_replaced",
        LISTENING + "test_with_a_token_the_address_is_printed_without_a_warning",
    ),
    Promise(
        "With `--no-auth` there is no token, and the proxy listens on the loopback address only.",
        LISTENING + "test_without_a_token_only_loopback_addresses_are_allowed",
        LISTENING + "test_serving_without_authentication_is_warned_about",
    ),
    Promise(
        "Requests from web pages are refused in either case.",
        HTTP + "test_requests_of_a_foreign_web_page_are_refused",
        "front/test_guard.py::test_host_and_origin_are_checked_on_every_path",
    ),
    Promise(
        "prints the address of the pages. The first shows every server: its state, its tools and calls, why "
        "it is off, its last lines, with buttons to restart it and to turn it on or off.",
        "cli/test_ui.py::test_ui_prints_the_address_with_the_token_in_the_fragment",
        SERVERS_PAGE + "test_a_server_that_does_not_start_says_why_and_when_it_is_tried_again",
        SERVERS_PAGE + "test_the_last_lines_of_a_server_are_shown",
        SERVERS_PAGE + "test_a_server_is_turned_off_and_on_again_by_undo",
        SERVERS_PAGE + "test_a_server_is_restarted",
    ),
    Promise(
        "The others show each tool as a model reads it, with its cost and a switch; each request with its "
        "rules, references and tools in order of rank, the reason for each, its score and cost, and the "
        "tokens saved; usage, audit and approvals; and the command that connects each host.",
        SERVERS_PAGE + "test_a_tool_shows_what_a_model_reads_of_it_as_text_and_never_as_markup",
        SERVERS_PAGE + "test_a_tool_is_turned_off_and_on_with_the_keyboard_alone",
        PAGE + "test_a_request_is_shown_in_three_columns_in_order_of_rank_with_the_reasons",
        PAGE + "test_the_size_of_the_whole_catalog_is_shown_once_it_is_counted",
        SERVERS_PAGE + "test_every_host_that_can_be_installed_has_its_command",
    ),
    Promise(
        "What changes something needs the token, and what was turned off is turned on again by one click. "
        "Any query is ranked as you type.",
        SERVERS_PAGE + "test_a_server_is_turned_off_and_on_again_by_undo",
        SERVERS_PAGE + "test_tools_are_ranked_while_somebody_types_and_nothing_is_recorded",
        PAGE + "test_a_query_is_ranked_while_it_is_typed_and_not_recorded",
    ),
    Promise(
        "The page of usage, and `mcp-context-proxy stats` in a terminal, show how tools and searches "
        "performed, the tokens saved, and the tools that were not called in 30 days.",
        "web/test_usage_page.py::test_usage_and_savings_are_summed_up",
        "web/test_usage_page.py::test_unused_tools_are_named_with_their_cost",
        "cli/test_stats.py::test_tools_and_searches_are_shown_as_tables",
        "cli/test_stats.py::test_tools_that_were_not_called_in_30_days_are_listed_with_their_cost",
    ),
    Promise(
        "The pages are part of the HTTP front; beside your hosts, `ui` has the proxy that runs open them. "
        "Both serve `/metrics` for Prometheus, too.",
        ASKED + "test_ui_opens_a_page_beside_hosts_that_asks_for_a_token_of_its_own",
        ASKED + "test_the_page_that_ui_opens_is_guarded_as_every_other",
        "web/test_beside_stdio.py::test_the_hosts_context_is_shown_with_the_token",
        "web/test_beside_stdio.py::test_the_hosts_calls_are_counted_and_shown_with_the_token",
        "web/test_usage.py::test_metrics_need_the_token",
    ),
    Promise(
        "The proxy itself sends nothing from your machine: no telemetry, no downloads, no model service.",
        CONNECTIONS + "test_the_proxy_connects_to_nothing_but_its_configured_servers",
        CONNECTIONS + "test_its_libraries_in_machine_code_connect_to_nothing_either",
        "embedding/test_privacy.py::test_using_the_model_writes_no_files",
    ),
    Promise(
        "It connects only to the servers you configure, and to the authorization servers they name when "
        "you log in.",
        CONNECTIONS + "test_the_proxy_connects_to_nothing_but_its_configured_servers",
        "oauth/test_login.py::test_a_login_discovers_registers_and_gives_tokens_for_this_server",
        "downstream/test_urls.py::test_a_redirect_to_another_origin_is_not_followed",
        DEFINITIONS + "test_links_in_a_result_are_passed_on_and_never_followed",
    ),
    Promise(
        "The store (`store.sqlite3` in your data folder, readable only by you) holds: vectors of tool "
        "descriptions and documents, under a hash of their text; the lists of servers, as last seen; the "
        "last 1,000 queries of a week, with what was selected for each; which tools were used for which "
        "queries, and in which sessions; how often tools were used, and how well they did.",
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
    Promise(
        "Beside it, the audit has what was called and read, when and by whom, and no values.",
        "trust/test_audit.py::test_a_call_is_recorded_with_the_facts_and_the_shape_of_its_arguments",
        "trust/test_audit.py::test_a_read_is_recorded_with_the_name_that_the_server_lists_and_no_value",
        "trust/test_audit.py::test_no_value_and_no_query_is_in_the_files",
    ),
    Promise(
        "Call arguments and messages are kept only if you turn on the memory of interactions.",
        "proxy/test_interactions.py::test_nothing_is_remembered_by_default",
    ),
    Promise(
        "With `context.keep_requests = false` and `learning.store_queries = false` no queries are kept; "
        'with `store.path = "memory"` there is no store file at all.',
        "context/test_records.py::test_requests_are_not_stored_if_that_is_off",
        "proxy/test_learning.py::test_queries_can_be_stored_without_their_text",
        "proxy/test_statistics.py::test_searches_can_be_stored_without_their_text",
        "store/test_store.py::test_a_store_in_memory_writes_no_files",
    ),
    Promise(
        "PROVENANCE.md lists its hashes and origin. The original is in the package, too, and can be chosen.",
        "embedding/test_model_files.py::test_the_provenance_names_exactly_the_packaged_files",
        "embedding/test_model_files.py::test_the_published_model_is_chosen_by_its_name",
    ),
    Promise(
        "Queries in other languages are matched by shared words and names, simple ones of six languages "
        "also word by word, and otherwise poorly. Another model, in a folder or behind an endpoint such as "
        "Ollama, understands them.",
        "retrieval/test_languages.py::test_the_packaged_model_reads_common_words_of_some_languages",
        "retrieval/test_languages.py::test_a_query_in_any_language_finds_the_tool_with_its_words",
        "proxy/test_other_models.py::test_search_with_a_multilingual_model_finds_tools_in_another_language",
        "proxy/test_other_models.py::test_a_folder_of_another_model_is_searched_with",
    ),
    Promise(
        "When several tools score close together, another model can order the best five: a chat model "
        "such as one in Ollama, a cross-encoder in a folder, or the client's own model.",
        "rerank/test_doubt.py::test_auto_asks_only_if_the_scores_are_close",
        "rerank/test_endpoint.py::test_the_model_decides_the_order_and_the_answer_says_so",
        "rerank/test_cross_encoder.py::test_tools_are_ordered_by_the_scores",
        "proxy/test_reranking.py::test_a_search_has_the_order_of_the_clients_model",
    ),
    Promise(
        "This is off by default.",
        "server/test_rerank.py::test_by_default_no_model_is_asked",
    ),
)

"""Promises of README.md, as plain text: without emphasis, and links without their targets."""

README_REMARKS = (
    "In a host that you connected by hand, remove the entry of the proxy and put its servers back.",
    "A host started from the desktop may not have the variables of your shell: set them for the proxy in the "
    'host\'s `"env"`.',
    "docs/how-it-works.md explains the rest.",
    "A host that lists again may then send these definitions, whole, with each request.",
    "Every user and program on the machine can then use your servers.",
    "If other machines connect, put a reverse proxy with TLS in front.",
    "docs/docker.md also describes running it in a container.",
    "Operations describes the same data as JSON, for hooks and scripts.",
    "The embedding model is all-MiniLM-L6-v2 (Apache License 2.0), trained further on requests for 2,751 "
    "real tools, quantised to 8 bits, 23 MB.",
    "It is an English model.",
    "With an endpoint, queries and descriptions are sent there.",
    "All except the cross-encoder receive the query and those five tools.",
)
"""Sentences of those sections that advise, warn or refer to another page, and promise nothing."""
