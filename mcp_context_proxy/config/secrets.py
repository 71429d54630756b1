"""Secrets: where they stand in a configuration, and their redaction in logs, errors and what servers write.

A known value is replaced wherever it stands, also encoded, by the name of the variable that it came from.
Text that only looks like a credential is replaced, too.
"""

from __future__ import annotations

import base64
import json
import logging
import re
import string
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import pairwise
from operator import itemgetter
from typing import TYPE_CHECKING, AnyStr, Final, Generic, TypeVar
from urllib.parse import quote, quote_plus, unquote, unquote_plus

from mcp_context_proxy.system import drop_of_largest
from mcp_context_proxy.system.later import html, pattern

if TYPE_CHECKING:
    from mcp_context_proxy.config.settings import Config, ServerConfig

SHORTEST: Final = 6
"""Shortest value that is redacted; shorter ones occur in innocent text."""

FORMS_KEPT, LONG_FORMS_KEPT, LONG_CHARACTERS = 1_000, 64, 4_096
"""Secrets whose forms are not made anew when another one becomes known, those among them that are long, and
the length from which one is: to make its forms takes up to 20 ms, and to keep them a megabyte."""

LEARNED: Final = 32
"""Number of secrets learned at run time, such as tokens, that are kept; see `LatestSecrets`."""

KEPT_OF_EACH: Final = 6
"""Those of one server that are kept in any case: two tokens and a client's secret, and those before them."""

_SPARED_IN_URLS: Final = ("", "/", "!'()*", ";,/?:@&=+$#!'()*")
"""Characters that Python's and JavaScript's functions for URL encoding leave unchanged."""
_INVALID_IN_NAME: Final = pattern(r"[^a-zA-Z0-9_-]")
_PERCENT: Final = pattern("%[0-9A-F]{2}")

_LOOKS_SECRET: Final = pattern(
    r"\b(?:(?:gh[opsur]_|github_pat_|gl(?:pat|rt|dt|cbt)-|sk-|AIza|GOCSPX-|hvs\.|pypi-AgE)[\w-]{20,}"
    r"|(?:npm|hf|whsec|glsa|ntn|lin_api|dop_v1|shp(?:at|ca|pa|ss)|[prs]k_(?:live|test))_[A-Za-z0-9]{20,}"
    r"|xox[abeoprs]-[\w-]{10,}|A[KS]IA[0-9A-Z]{16})|(?<=Bearer )[\w.~+/=-]{16,}"
    r"|(?<=://)[^\s/:@?#\"'<>\\]*:(?!\d{1,5}[?#,;'|)\]}])[^\s/@\"<>\\]+(?=@)"
    r"|-----BEGIN [A-Z ]*PRIVATE KEY(?: BLOCK)?-----"
    r"(?:(?:[^-]|-(?!----))*+-----END [A-Z ]+-----|(?:(?:\s|\\+[nr])*+[A-Za-z0-9+/=]{20,}+)+)"
)
"""Tokens of well-known services, bearer tokens, names with passwords in URLs, and private keys, whole or cut.
A port is no password, though an address may follow it: ``http://host:80","mail":"me@host"``."""
_JSON_WEB_TOKEN: Final = pattern(
    r"(?<![\w-])(?=[\w-]++\.[\w-]{10,}+\.[\w-])((?:(?!\beyJ[\w-]{10})[\w-])*+)eyJ[\w-]++\.[\w-]++\.[\w-]++"
)
"""A token, with the text before it in the same run of characters as the group. Each run is read once, from
its beginning: from each ``eyJ`` in it, it would take time in the square of its length."""

V = TypeVar("V")

Secret = tuple[str, str]
"""A name, which may be shown, and a secret value."""

RANDOM_PAIRS: Final = 5
"""Pairs of neighbours that no word has, from which a token occurs nowhere by chance; honest ones have ten."""

RANDOM_SHARE: Final = 0.4
"""Their share of all pairs of a token."""

RANDOM_BEGINNING: Final = 256
"""Characters of a token that are looked at."""

_NO_TOKEN: Final = pattern(r"[^!-~]|[\"'`{}\[\],\\]")
"""Characters that no token has, and that stand between the values of JSON."""

_OF_WORDS: Final = (
    "abacadagaialamanaparasatauavaybabeblbocacechcickclcocrctcudadddedidodseaecedeeefegeielemenepeqereset"
    "evewexfafefffifogeghgigrguhahehihohtiaicidieifigiliminioipirisitivjekekslaldlelilllolsltlulymambmemi"
    "mmmompmunancndnenfngninlnnnonsntnuocodolomonoooporosotouovowpapdpepiplpoppprptpuqurarcrdrergrirkrmrn"
    "rorrrsrtrurvrysascseshsisospssstsutatctethtitltotrtstttutyubucudueuiulumunupurusutvaveviwewhwiwoxtyp"
)
_PAIRS_OF_WORDS: Final = frozenset(_OF_WORDS[at : at + 2] for at in range(0, len(_OF_WORDS), 2))
"""The 200 pairs of letters that are most frequent in tools of published servers: 92 % of all of theirs."""


def is_random(value: str) -> bool:
    """Return whether a value occurs nowhere by chance.

    A server chooses its tokens, and must not choose words in the calls of others: ``{"query":``, or the
    name of an argument. These would be refused, and removed from logs and results. So the neighbours in a
    value are looked at: a letter beside a digit, and two letters that words seldom have side by side, count
    as random. Two digits, and the small and the capital letter of ``pullRequest``, say nothing.
    """
    if _NO_TOKEN.search(value):
        return False
    told = [
        one + other
        for one, other in pairwise(value[:RANDOM_BEGINNING])
        if one.isalnum() and other.isalnum() and not (one.isdigit() and other.isdigit())
        if not (one.islower() and other.isupper())
    ]
    random = sum(pair.lower() not in _PAIRS_OF_WORDS for pair in told)
    return random >= max(RANDOM_PAIRS, RANDOM_SHARE * len(told))


class LatestSecrets:
    """Secrets of limited life, such as tokens: the latest of each server.

    Room is made by the server that has most, so that one whose tokens are often renewed pushes out none of
    another.
    """

    def __init__(self, most: int = LEARNED) -> None:
        """Keep `most` secrets; more only where servers have no more than `KEPT_OF_EACH`."""
        self._most = most
        self._kept: dict[tuple[str, Secret], None] = {}

    def __iter__(self) -> Iterator[tuple[str, Secret]]:
        return iter(self._kept)

    def add(self, server: str, secrets: Iterable[Secret]) -> bool:
        """Add the secrets that a server has now, as its latest; return whether any of them is new."""
        new = False
        for secret in secrets:
            new |= (server, secret) not in self._kept
            self._kept.pop((server, secret), None)
            self._kept[server, secret] = None
        drop_of_largest(self._kept, self._most, itemgetter(0), KEPT_OF_EACH)
        return new


class Redactor:
    """Replaces secrets in text."""

    def __init__(self, secrets: Iterable[Secret], learned: int = LEARNED, server: str = "") -> None:
        """Redact `secrets`, and the latest of those given to `learn`, which are secrets of `server`."""
        self.on_learned: Callable[[Iterable[Secret]], None] | None = None
        """Takes the secrets that are learned, where somebody else needs to know them as well."""
        self._secrets, self._server = dict.fromkeys(secrets), server
        self._learned = LatestSecrets(learned)
        self._forms: _Forms[str] | None = None
        self._forms_in_json: _Forms[bytes] | None = None

    def know(self, secrets: Iterable[Secret]) -> None:
        self._secrets |= dict.fromkeys(secrets)
        self._forms = self._forms_in_json = None

    def learn(self, secrets: Iterable[Secret]) -> None:
        """Add all secrets of limited life that its server has now to this redactor and to the logs.

        Whoever issues them chooses them freely. So texts of others are redacted only of `is_random` ones.
        """
        latest = list(secrets)
        self.remember(self._server, latest)
        random = [secret for secret in latest if is_random(secret[1])]
        if self.on_learned is not None:
            self.on_learned(random)
        for known in _log_filters():
            known.redact.remember(self._server, random)

    def remember(self, server: str, secrets: Iterable[Secret]) -> None:
        if self._learned.add(server, secrets):
            self._forms = self._forms_in_json = None

    def __call__(self, text: str) -> str:
        for form, shown in self._replacements().that_may_be_in(text):
            if form in text:
                text = text.replace(form, shown)
        text = _JSON_WEB_TOKEN.sub(r"\1[redacted]", text) if "eyJ" in text else text
        return _LOOKS_SECRET.sub("[redacted]", text)

    def json(self, data: bytes) -> bytes:
        """Return encoded JSON with the known secrets replaced."""
        for form, shown in self._replacements_in_json().that_may_be_in(data):
            if form in data:
                data = data.replace(form, shown)
        return data

    def _replacements(self) -> _Forms[str]:
        """Return each form of a secret with its replacement; computed at first use."""
        if self._forms is None:
            found = {
                (form, f"[redacted {name}]")
                for name, value in (*self._secrets, *(secret for _, secret in self._learned))
                for form in _forms(value)
            }
            self._forms = _Forms(found)
        return self._forms

    def _replacements_in_json(self) -> _Forms[bytes]:
        """Return the forms within the strings of encoded JSON."""
        if self._forms_in_json is None:
            found = {
                (_bytes(written), json.dumps(shown).encode()[1:-1])
                for form, shown in self._replacements().all
                for written in (form, *in_json(form))
            }
            self._forms_in_json = _Forms(found)
        return self._forms_in_json


class _Forms(Generic[AnyStr]):
    """Forms of secrets with their replacements, longest first."""

    def __init__(self, found: Iterable[tuple[AnyStr, AnyStr]]) -> None:
        self.all: list[tuple[AnyStr, AnyStr]] = sorted(found, key=lambda pair: (-len(pair[0]), pair))
        self._without_run: list[tuple[AnyStr, AnyStr]] = [pair for pair in self.all if not has_run(pair[0])]

    def that_may_be_in(self, text: AnyStr) -> list[tuple[AnyStr, AnyStr]]:
        """Return those forms that are worth looking for: few texts have a long run, and most forms do."""
        return self.all if has_run(text) else self._without_run


_OF_RUNS: Final = frozenset(f"{string.ascii_letters}{string.digits}_+/=%.~-".encode())
_MARKS: Final = bytes(ord("x") if byte in _OF_RUNS else ord(" ") for byte in range(256))
_RUN: Final = b"x" * 20
"""A long run of characters without a space, as keys and everything in base64 have; words are shorter."""


def has_run(text: str | bytes) -> bool:
    """Return whether a text has a long run of characters without a space."""
    # Two passes in C; a regular expression takes ten times as long.
    data = text if isinstance(text, bytes) else text.encode("utf-8", "surrogatepass")
    return _RUN in data.translate(_MARKS)


def cached_forms(function: Callable[[str], V]) -> Callable[[str], V]:
    """Return a function of a secret that remembers its values, of long secrets only the latest ones."""
    short, long = lru_cache(FORMS_KEPT)(function), lru_cache(LONG_FORMS_KEPT)(function)

    def of(value: str) -> V:
        return (long if len(value) > LONG_CHARACTERS else short)(value)

    return of


@cached_forms
def _forms(value: str) -> frozenset[str]:
    """Return the ways a value can stand in a text: plain, quoted, encoded, or line by line."""
    return frozenset(form for form in _all_forms(value) if len(form) >= SHORTEST)


def _all_forms(value: str) -> Iterator[str]:
    lines = [line for line in value.splitlines() if line.strip() != value.strip()]
    for plain in (value, *lines):
        yield plain
        # A tool that is named like a secret gets a name of valid characters.
        yield _INVALID_IN_NAME.sub("_", plain)
        # Invisible characters are removed from many texts before their secrets are.
        yield "".join(filter(str.isprintable, plain))
        yield from in_urls(plain)
        for quoted in in_json(plain):
            yield from (quoted, *in_json(quoted))
        for literal in (repr(plain), ascii(plain), repr(_bytes(plain))[1:]):
            yield literal[1:-1]
        escaped = html.escape(plain)
        yield from (escaped, html.escape(plain, quote=False), escaped.replace("x27", "39"))
    data = _bytes(value)
    yield from (data.hex(), data.hex().upper())
    yield from in_base64(data)


def _bytes(text: str) -> bytes:
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:  # half a character, as JSON can write one
        return text.encode("utf-8", "surrogatepass")


def in_urls(plain: str) -> Iterator[str]:
    for quoted in (quote_plus(_bytes(plain)), *(quote(_bytes(plain), safe) for safe in _SPARED_IN_URLS)):
        yield quoted
        yield _PERCENT.sub(lambda found: found[0].lower(), quoted)


def in_json(plain: str) -> tuple[str, str]:
    """Return a value as it stands in the strings of JSON, in ASCII or not."""
    return json.dumps(plain)[1:-1], json.dumps(plain, ensure_ascii=False)[1:-1]


def in_base64(data: bytes) -> Iterator[str]:
    """Yield a value in base64 by itself and as a part, such as the password in basic authentication."""
    for encode in (base64.b64encode, base64.urlsafe_b64encode):
        yield encode(data).decode().rstrip("=")
        for before in range(3):
            whole = encode(bytes(before) + data).decode().rstrip("=")
            # Drop the characters that also depend on the bytes before and after the value.
            first, last = -(-before * 8 // 6), (before + len(data)) * 8 // 6
            yield whole[first:last]


class RedactingFilter(logging.Filter):
    """Redacts every log message."""

    def __init__(self) -> None:
        super().__init__()
        self.redact = Redactor((), 4 * LEARNED)

    def filter(self, record: logging.LogRecord) -> bool:
        """Redact the message and its traceback; every record passes."""
        message = record.getMessage()
        redacted = self.redact(message)
        if redacted != message:
            record.msg, record.args = redacted, ()
        if record.exc_info and not record.exc_text:
            # A formatter uses this text; otherwise it would render the exception unredacted.
            record.exc_text = logging.Formatter().formatException(record.exc_info)
        if record.exc_text:
            record.exc_text = self.redact(record.exc_text)
        return True


def redact_logs(secrets: Iterable[Secret]) -> None:
    """Redact secrets in all logs for good, because a later message may repeat them."""
    known = tuple(secrets)
    for handler in logging.getLogger().handlers:
        if not any(isinstance(one, RedactingFilter) for one in handler.filters):
            handler.addFilter(RedactingFilter())
    for one in _log_filters():
        one.redact.know(known)


def _log_filters() -> list[RedactingFilter]:
    handlers = logging.getLogger().handlers
    return [known for handler in handlers for known in handler.filters if isinstance(known, RedactingFilter)]


_TELLING: Final = pattern(r"token|secret|key|passw|pwd|credential|auth|cookie", re.IGNORECASE)
"""Names of variables, headers and parameters of URLs whose literal values are secrets."""

_SECRET_WORD: Final = pattern(
    r"token|secret|passw|pwd|credential|auth|api[-_]?key|access[-_]?key", re.IGNORECASE
)
"""Part of the names of secret arguments; ``--key`` alone is as often the key of an entry."""
_FLAG: Final = pattern(r"-[\w-]+")
_FLAG_AND_VALUE: Final = pattern(r"([\w-]+)[=:]\s*(.+)", re.DOTALL)

_SCHEME: Final = pattern(r"^(?:bearer|basic|token)\s+", re.IGNORECASE)
_USER_INFO: Final = pattern(r"(?<=://)([^/?#\s@:]*)(?::([^/?#\s]*))?@")
_PARAMETER: Final = pattern(r"[?&]([^=&#\s]+)=([^&#\s]+)")


def secret_arguments(arguments: Sequence[str]) -> Iterator[tuple[int, str, str]]:
    """Yield position, name and value of each argument that has a secret name, or follows one."""
    before = ""
    for position, argument in enumerate(arguments):
        found = _FLAG_AND_VALUE.fullmatch(argument)
        if found and _SECRET_WORD.search(found[1]):
            yield position, found[1], found[2]
        elif _FLAG.fullmatch(before) and _SECRET_WORD.search(before) and not argument.startswith("-"):
            yield position, before, argument
        before = argument


def names_secret(name: str) -> bool:
    return _TELLING.search(name) is not None


def secrets_in_url(text: str) -> Iterator[Secret]:
    """Yield passwords and secret parameters of a URL, as written and decoded."""
    for user, password in _USER_INFO.findall(text):
        # A user without a password is a token of some services.
        yield "password", password or user
        yield "password", unquote(password or user)
    for name, value in _PARAMETER.findall(text) if "://" in text else ():
        if names_secret(name):
            yield name, value
            yield name, unquote_plus(value)


_PART: Final = pattern(r"[^\s=:;,\"'?&#]{16,}")
_OF_FILE: Final = ("/", ".", "~")
_HOST: Final = pattern(r"[\w./-]+\.[a-z]{2,24}")


def random_parts(text: str) -> Iterator[str]:
    """Yield the parts of a literal value that look like keys, as the paths of some URLs have one.

    The name of a host or a file is none, nor is a part of a path or a digest by which a program is pinned.
    """
    _, in_url, after = text.partition("://")
    if in_url:
        text = after.partition("/")[2].replace("/", " ")
    elif text.startswith(_OF_FILE) or "@" in text:
        return
    for part in _PART.findall(text):
        is_name = "@" in part or part.startswith(_OF_FILE) or (not in_url and _HOST.fullmatch(part))
        if not is_name and is_random(part):
            yield part


def all_secrets_of(config: Config) -> list[Secret]:
    """Return name and value of every secret in a configuration."""
    return [
        *(secret for server in config.servers.values() for secret in secrets_of(server)),
        *own_secrets_of(config),
    ]


def own_secrets_of(config: Config) -> list[Secret]:
    """Return name and value of every secret of the proxy itself, which is that of no server."""
    given = (
        ("embedding.api_key", config.embedding.api_key),
        ("rerank.api_key", config.rerank.api_key),
        ("cluster.key", config.cluster.key),
        *(("cluster.other_keys", key) for key in config.cluster.other_keys),
    )
    secrets = [(name, value) for name, value in given if value is not None]
    for url in (config.store.url or "", config.store.listen_url or ""):
        # The user of a database is no secret, and often has the same name as the database.
        user = url.partition("://")[2].partition("@")[0].partition(":")[0]
        secrets += [each for each in secrets_in_url(url) if each[1] not in (user, unquote(user))]
    return secrets


def secrets_of(server: ServerConfig) -> list[Secret]:
    """Return name and value of every secret in a server's configuration."""
    found = [*named_secrets_of(server)]
    args = [("args", text) for text in server.args]
    given = [("url", server.url or ""), *args, *server.env.items(), *server.headers.items()]
    keys = [(name, key) for name, text in given for key in random_parts(text)]
    return found + [one for one in keys if one[1] not in {value for _, value in found}]


def named_secrets_of(server: ServerConfig) -> Iterator[Secret]:
    """Yield name and value of each secret that is told by its variable, its name or its place in a URL."""
    yield from server.secrets
    if server.oauth is not None and server.oauth.client_secret is not None:
        yield "oauth.client_secret", server.oauth.client_secret
    if server.tls is not None and server.tls.password is not None:
        yield "tls.password", server.tls.password
    for name, value in (*server.env.items(), *server.headers.items()):
        if names_secret(name):
            yield name, value
            yield name, _SCHEME.sub("", value)
    yield from ((name, value) for _, name, value in secret_arguments(server.args))
    for text in (server.url or "", *server.args, *server.env.values()):
        yield from secrets_in_url(text)
