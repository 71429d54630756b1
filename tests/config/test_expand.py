"""Environment variables in values."""

from pathlib import Path

from support.tables import each

from mcp_context_proxy.config.variables import expand

ENVIRON = {"TOKEN": "t0ken", "EMPTY": "", "userHome": "mine", "NESTED": "${TOKEN}"}


@each(
    ("text", "expected"),
    [
        ("Bearer ${TOKEN}", "Bearer t0ken"),
        ("${TOKEN}${TOKEN}", "t0kent0ken"),
        ("${env:TOKEN}", "t0ken"),
        ("${TOKEN:-other}", "t0ken"),
        ("${GONE:-other}", "other"),
        ("${env:GONE:-other}", "other"),
        ("${EMPTY:-other}", "other"),
        ("${EMPTY}", ""),
        ("${GONE:-}", ""),
        ("${GONE:-http://a:b/c-d}", "http://a:b/c-d"),
        ("$${TOKEN}", "${TOKEN}"),
        ("pa$$word $TOKEN 5$ {TOKEN}", "pa$$word $TOKEN 5$ {TOKEN}"),
        ("${NESTED}", "${TOKEN}"),
        ("${userHome}", "mine"),
    ],
)
def test_a_variable_reference_is_replaced_by_its_value(text, expected):
    result = expand(text, ENVIRON)

    assert (result.text, result.problems) == (expected, ())


@each(
    ("text", "expected"),
    [
        ("${GONE}", "GONE is not set; set this environment variable, or write ${GONE:-default}"),
        ("${TOKEN", "'${' has no matching '}'; write '$${' for a literal '${'"),
        ("${a b}", "'${...}' must hold the name of an environment variable; write '$${' for a literal '${'"),
        ("${}", "'${...}' must hold the name of an environment variable; write '$${' for a literal '${'"),
        (
            "${workspaceFolder}",
            "only the editor knows ${workspaceFolder}; write the value, or use an environment variable",
        ),
        (
            "${input:key}",
            "${input:key} asks the user in VS Code, which is not possible here; "
            "put the value in an environment variable and write ${env:NAME}",
        ),
    ],
)
def test_a_reference_to_an_unset_variable_is_a_problem(text, expected):
    (problem,) = expand(text, ENVIRON).problems

    assert "; ".join(filter(None, (problem.message, problem.remedy))) == expected


def test_variables_of_editors_that_mean_the_same_everywhere_are_replaced():
    text = "${userHome}${pathSeparator}projects${/}one"

    result = expand(text, {})

    assert (result.text, result.problems) == (str(Path.home() / "projects" / "one"), ())


def test_only_expanded_variables_are_listed():
    assert expand("${TOKEN} ${GONE:-x}", ENVIRON).variables == (("TOKEN", "t0ken"),)
