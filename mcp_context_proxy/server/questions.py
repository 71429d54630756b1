"""Requests of servers on their way to a client's person or model: named, cleaned, bounded, or refused.

A server may ask a person by elicitation and a model by sampling, and the client shows both as if they came
from one server, the proxy. So each request says which server asks, in its text and in its ``_meta``. Texts
lose what a person cannot see. A request is refused, with a reason for its server, if it opens a URL that is
not safe to open, has a form that asks for a secret, or is one of too many.

A form reaches the server through the client and the model's context, where secrets must not be. The words
that give such a form away are a short list, looked for however they are spelled. It stops the plain attempt
and the honest mistake; a person who is asked for "the usual string" still has to think.

A request reaches a client in one of four forms, and all of them pass through `checked`: as a request of its
own, as the question of a call that waits, in an ``input_required`` result, and in an error with URLs.
"""

from __future__ import annotations

import json
import logging
import secrets
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, TypeAlias

import msgspec
from msgspec import Raw, Struct

from mcp_context_proxy.config import Limits
from mcp_context_proxy.config.secrets import Redactor
from mcp_context_proxy.config.tables import KIB
from mcp_context_proxy.downstream import Ask
from mcp_context_proxy.downstream.client import DownstreamClient
from mcp_context_proxy.errors import BadAnswerError, InputMissingError, RemoteError
from mcp_context_proxy.protocol import envelope, eras
from mcp_context_proxy.protocol.envelope import (
    INTERNAL_ERROR,
    INVALID_PARAMS,
    METHOD_NOT_FOUND,
    Members,
    RequestError,
    nests_deeper,
)
from mcp_context_proxy.protocol.eras import CAPABILITY_OF, client_capabilities
from mcp_context_proxy.protocol.strangers import (
    clean,
    compact,
    in_plain_letters,
    named,
    normalized,
    quoted,
    unmarked,
    url_refusal,
)
from mcp_context_proxy.server import Caller
from mcp_context_proxy.system.later import pattern
from mcp_context_proxy.system.threads import in_thread_if

logger = logging.getLogger(__name__)

ELICITATION, SAMPLING = "elicitation/create", "sampling/createMessage"

ELICITATION_BYTES = 64 * KIB
"""Largest elicitation: a long form, and more than a person reads."""

BLOCKING_BYTES = 64 * KIB
"""Size from which a request is checked in a worker thread; sampling may carry images of megabytes."""

ANSWERS_NOTED = 10
"""Questions of one result that the audit has."""

NO_SYSTEM_PROMPT = "The messages below come from this server and not from the user."
"""System prompt of a sampling request that has none of its own."""

Requests: TypeAlias = dict[str, tuple[Members, Members]]
"""The requests in a result by their keys: the members of each, and those of its params."""

_EXACT: Final = frozenset(
    {eras.ELICITATION_ID, "$ref", "blob", "const", "data", "default", "enum", "format", "id", "mimeType"}
    | {"mode", "name", "pattern", "required", "toolUseId", "type", "uri", "url"}
)
"""Members that a peer compares or sends back: they are never changed, so they must hide nothing."""


class ClientQuestions(Struct, eq=False):
    """Asks the client for a server during one call: bounded, checked, and told to the audit."""

    caller: Caller
    client: DownstreamClient
    ask: Ask
    note: Callable[[str, str], None]
    """Takes the method of each question, and how it was answered."""
    _asked: int = 0

    async def __call__(self, method: str, params: Members) -> bytes:
        """Ask; see `Ask`."""
        session, answer = self.caller.session, "refused"
        try:
            party = None if session is None else session.party
            answered = await self.client.asked(self._limited, party, method, params)
            answer = answer_word(answered)
            return answered
        finally:
            self.note(method, answer)

    async def _limited(self, method: str, params: Members) -> bytes:
        # A request that is refused counts as well: a server that tries words until one passes is stopped.
        if self._asked >= self.client.limits.questions_per_call:
            raise RequestError(INTERNAL_ERROR, f"the client was asked {self._asked} times during this call")
        self._asked += 1
        return await ask_client(self.caller, self.ask, method, await _checked(self.client, method, params))


async def ask_client(caller: Caller, ask: Ask, method: str, params: Members) -> bytes:
    """Make a request of the client by `ask`, within the capabilities that it declared.

    Raises `RequestError` if the client did not declare the capability, or refuses.
    """
    lacking = _lacking(caller, method, params)
    if lacking is not None:
        missing = next((part for parts in lacking.values() for part in parts), None)
        if missing is None:
            raise RequestError(METHOD_NOT_FOUND, f"the client does not support {method}")
        part = f"mode {missing!r}" if method == ELICITATION else missing
        raise RequestError(INVALID_PARAMS, f"the client does not support {method} with {part}")
    return await ask(method, params)


def _lacking(caller: Caller, method: str, params: Members) -> dict[str, Any] | None:
    """Return the capabilities that a client did not declare and that a request needs; None if it has all."""
    declared = client_capabilities(caller.capabilities)
    name = CAPABILITY_OF.get(method, "")
    if name not in declared:
        return {name: {}}
    part, parts = None, declared[name]
    if method == ELICITATION:
        part = envelope.text(params.get("mode")) or "form"
        # Declared without parts, as before there were any, it means forms.
        parts = parts if {"form", "url"} & set(parts) else {"form": {}}
    elif method == SAMPLING and {"tools", "toolChoice"} & set(params):
        part = "tools"
    return None if part is None or part in parts else {name: {part: {}}}


ROLES: Final = ("user", "assistant")
"""Roles that messages of a server may have, in a sampling request and in a prompt."""

_PARTS: Final = ("form", "url", "tools")
"""Parts of capabilities that a request of a server may need."""

ANSWERS: Final = ("accept", "decline", "cancel")
"""Answers that a person may give to an elicitation."""


def answer_word(answer: bytes | Raw) -> str:
    """Return how a client answered a request, in one word, without anything of the answer."""
    if len(answer) > BLOCKING_BYTES:
        return "answered"
    action = envelope.text(envelope.members_of(answer).get("action"))
    return action if action in ANSWERS else "answered"


def answers_in(params: Members) -> list[str]:
    """Return how a modern client answered the requests of a result, each in one word."""
    raw = params["inputResponses"]
    if len(raw) > BLOCKING_BYTES:
        return ["answered"]
    return [answer_word(each) for each in envelope.members_of(raw).values()][:ANSWERS_NOTED]


async def input_required(result: bytes) -> Members | None:
    """Return the members of a result that requires input, if it does; a large one is read in a thread."""
    return await in_thread_if(len(result) > BLOCKING_BYTES, _input_required, result)


def _input_required(result: bytes) -> Members | None:
    parts = envelope.members(result) if eras.may_require_input(result) else {}
    return parts if eras.result_type(parts) == "input_required" else None


def asked_by(result: bytes) -> list[str]:
    """Return the methods of the requests in a result that has been checked; none if it requires no input."""
    parts = _input_required(result) if len(result) <= BLOCKING_BYTES else None
    if parts is None:
        return []
    requests = envelope.members(parts.get("inputRequests", Raw(b"{}"))).values()
    methods = [envelope.text(envelope.members(each).get("method")) for each in requests]
    return [method for method in methods if method in CAPABILITY_OF][:ANSWERS_NOTED]


async def requests_in(
    server: str, result: bytes, limits: Limits, *, of_task: bool = False
) -> tuple[Members, Requests | None]:
    """Return the members of a result, and the requests in it; None if it requires no input.

    A result of ``tasks/get`` says by another member whether its task does. Raises `InputMissingError` if
    there are too many requests, and `BadAnswerError` if they cannot be read.
    """
    large = len(result) > envelope.TAKEN_APART_BYTES
    try:
        return await in_thread_if(large, _requests, server, result, limits.questions_per_call, of_task)
    except msgspec.DecodeError as error:
        raise BadAnswerError(server, "with requests for input that cannot be read") from error


_ASKING: Final = frozenset({"resultType", "inputRequests", "requestState"})
"""Members by which a result requires input."""


def _requests(server: str, result: bytes, most: int, of_task: bool) -> tuple[Members, Requests | None]:
    parts = envelope.members(result)
    if (odd := envelope.misread(parts, envelope.DECIDED_BY_OF_TASKS if of_task else _ASKING)) is not None:
        raise BadAnswerError(server, f"with {quoted(odd[0])}, which may be read as {odd[1]!r}")
    if (envelope.text(parts.get("status")) if of_task else eras.result_type(parts)) != "input_required":
        return parts, None
    nothing = Raw(b"{}")
    listed = _members(parts.get("inputRequests", nothing))
    if len(listed) > most:
        raise InputMissingError(server, f"it asked {len(listed):,} times at once")
    required = {key: _members(each) for key, each in listed.items()}
    return parts, {key: (each, _members(each.get("params", nothing))) for key, each in required.items()}


def _members(raw: Raw) -> Members:
    """Decode an object; one with far too many members counts as one that cannot be read."""
    if envelope.holds_a_flood(raw):
        raise msgspec.ValidationError("too many members")
    return envelope.members(raw)


async def ask_for_input(ask: Ask | None, required: Members, params: Members) -> bytes:
    """Make one of the requests in an ``input_required`` result of a handshake-era client."""
    if ask is None:
        raise RequestError(INTERNAL_ERROR, "this client cannot be asked for anything")
    if envelope.text(params.get("mode")) == "url" and eras.ELICITATION_ID not in params:
        # Only the handshake era gives each an id; nobody refers to this one again.
        params[eras.ELICITATION_ID] = envelope.raw(secrets.token_hex(8))
    return await ask(envelope.text(required.get("method")) or "", params)


async def checked_requests(
    client: DownstreamClient, parts: Members, required: Requests, caller: Caller
) -> bytes:
    """Return a result with its requests as they may reach a modern client.

    Raises `InputMissingError` if a request was refused, and `RequestError` if the client did not declare
    that it can be asked so.
    """
    shown: dict[str, Members] = {}
    lacking: dict[str, Any] | None = None
    try:
        for key, (each, asked) in required.items():
            method = envelope.text(each.get("method")) or ""
            if method not in CAPABILITY_OF:
                raise RequestError(METHOD_NOT_FOUND, f"the proxy does not pass on {quoted(clean(method))}")
            lacking = lacking or _lacking(caller, method, asked)
            # What stands beside the request reaches nobody, and the key of an answer is not changed.
            shown[_unchanged(key, "a key")] = {"method": each["method"]}
            if params := await _checked(client, method, asked):
                shown[key]["params"] = envelope.raw(params)
    except RequestError as error:
        raise InputMissingError(client.name, error.message) from error
    if lacking is not None:
        message = f"server {client.name!r} asks for what the client did not declare: {', '.join(lacking)}"
        # A mode that nobody knows would be a text of the server without its name.
        known = {
            of: {part: dict[str, Any]() for part in told if part in _PARTS} for of, told in lacking.items()
        }
        raise RequestError(eras.MISSING_CAPABILITY, message, {"requiredCapabilities": known})
    if required:
        parts["inputRequests"] = envelope.raw(shown)
    return envelope.encode(parts)


async def checked_error(client: DownstreamClient, error: RemoteError) -> RemoteError:
    """Return an error with its URL elicitations as they may reach a client; other errors as they are."""
    if error.code != eras.URL_ELICITATION_REQUIRED or not isinstance(error.data, Raw):
        return error
    try:
        data = envelope.members(error.data)
        entries = msgspec.json.decode(data.get("elicitations", Raw(b"[]")), type=list[Members])
    except msgspec.DecodeError:
        return _refused(error, "its elicitations cannot be read")
    if (odd := envelope.misread(data)) is not None:
        return _refused(error, f"{quoted(odd[0])} may be read as {odd[1]!r}")
    if len(entries) > client.limits.questions_per_call:
        return _refused(error, f"it has {len(entries):,} elicitations")
    try:
        elicitations = [
            await _checked(client, ELICITATION, {**entry, "mode": Raw(b'"url"')}) for entry in entries
        ]
    except RequestError as refused:
        return _refused(error, refused.message)
    data.pop("elicitations", None)
    data = envelope.members(client.redact.json(envelope.encode(data))) | {
        "elicitations": envelope.raw(elicitations)
    }
    return RemoteError(error.server, error.code, error.remote_message, envelope.raw(data))


def _refused(error: RemoteError, why: str) -> RemoteError:
    return RemoteError(error.server, INTERNAL_ERROR, f"{error.remote_message} ({why})")


def sends_away(error: RemoteError, caller: Caller) -> bool:
    """Return whether an error sends a person to a URL, and the client is one that can lead them there."""
    elicitation = client_capabilities(caller.capabilities).get("elicitation", {})
    return error.code == eras.URL_ELICITATION_REQUIRED and "url" in elicitation


def url_elicitation(error: RemoteError, params: Members, caller: Caller) -> bytes | None:
    """Turn the error by which a handshake-era server sends a person to a URL into a modern result.

    The error has been checked. The call has not run, so the client repeats it when the person has been there;
    nothing waits meanwhile. Returns None if the error is another one, or if the person has declined. Raises
    `RequestError` if the client did not declare that it can be asked so.
    """
    elicitations = None
    if error.code == eras.URL_ELICITATION_REQUIRED and isinstance(error.data, Raw):
        # What was checked has been written anew, but not what stands beside it.
        elicitations = envelope.value_or_none(envelope.members(error.data).get("elicitations", Raw(b"[]")))
    requests = {}
    for number, asked in enumerate(elicitations or ()):
        # The modern era gives no ids, so the server's become the keys of the input requests.
        key = str(asked.pop(eras.ELICITATION_ID, number))
        requests[key] = {"method": ELICITATION, "params": asked}
    if not requests or _has_declined(params.get("inputResponses", Raw(b"{}"))):
        return None
    if not sends_away(error, caller):
        needed: dict[str, Any] = {"requiredCapabilities": {"elicitation": {"url": {}}}}
        raise RequestError(eras.MISSING_CAPABILITY, named(error.server, error.remote_message), needed)
    return envelope.encode({"resultType": "input_required", "inputRequests": requests})


class _ClientResponse(msgspec.Struct):
    """The answer of a client to one request."""

    action: Any = None


_responses = msgspec.json.Decoder(dict[str, _ClientResponse]).decode


def _has_declined(responses: Raw) -> bool:
    try:
        return any(each.action != "accept" for each in _responses(responses).values())
    except msgspec.DecodeError:
        return False


async def _checked(client: DownstreamClient, method: str, params: Members) -> Members:
    """Check a request as `checked` does, and log a refusal."""
    size = sum(len(key) + len(bytes(raw)) for key, raw in params.items())
    try:
        if method == ELICITATION and size > ELICITATION_BYTES:
            raise RequestError(INVALID_PARAMS, f"an elicitation may have {ELICITATION_BYTES:,} bytes")
        return await in_thread_if(size > BLOCKING_BYTES, checked, client, method, params)
    except RequestError as error:
        logger.warning("%s: %s was not passed on: %s", client.name, quoted(clean(method)), error.message)
        raise


def checked(client: DownstreamClient, method: str, params: Members) -> Members:
    """Return the params of a server's request as they may reach a person or a model.

    Raises `RequestError`, which tells the server why, if they may not.
    """
    server, limits = client.name, client.limits
    if (odd := envelope.misread(params)) is not None:
        raise RequestError(INVALID_PARAMS, f"{quoted(odd[0])} may be read as {odd[1]!r}")
    encoded = envelope.encode(params)
    if nests_deeper(encoded, limits.nesting_results):
        raise RequestError(INVALID_PARAMS, f"{method} nests deeper than {limits.nesting_results} levels")
    try:
        # Not msgspec, which has no numbers beyond 64 bits.
        asked: dict[str, Any] = _cleaned(json.loads(encoded), "", client.redact)
    except ValueError as error:
        raise RequestError(INVALID_PARAMS, f"{method} has a number with too many digits") from error
    meta = asked.pop("_meta", None)
    meta = eras.own_words(meta) if isinstance(meta, dict) else {}
    if method in (ELICITATION, SAMPLING):
        meta[eras.SERVER_KEY] = server
    if method == ELICITATION:
        message = asked["message"] if isinstance(asked.get("message"), str) else ""
        _check_elicitation(asked, message, client.config.url)
        asked["message"] = named(server, message, "asks")
    elif method == SAMPLING:
        _check_roles(asked.get("messages"))
        if "includeContext" in asked:
            asked["includeContext"] = "none"  # of another server
        wanted, most = asked.get("maxTokens"), limits.sampling_tokens
        usable = isinstance(wanted, int | float) and not isinstance(wanted, bool) and 0 < wanted <= most
        asked["maxTokens"] = wanted if usable else most
        system = asked.get("systemPrompt") or NO_SYSTEM_PROMPT
        asked["systemPrompt"] = named(server, system if isinstance(system, str) else "", "asks")
    if meta:
        asked["_meta"] = meta
    try:
        return {key: Raw(_encoded(value)) for key, value in asked.items()}
    except ValueError as error:
        raise RequestError(INVALID_PARAMS, f"{method} has a number that is too large") from error


def _encoded(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, allow_nan=False).encode()


def _cleaned(value: Any, key: str, redact: Redactor) -> Any:
    """Return a value with clean texts without secrets; recursion is bounded by the depth that was checked."""
    if isinstance(value, str):
        return _unchanged(value, key) if key in _EXACT else unmarked(compact(redact(clean(value))))
    if isinstance(value, list):
        return [_cleaned(item, key, redact) for item in value]
    if isinstance(value, dict):
        return {_unchanged(name, name): _cleaned(item, name, redact) for name, item in value.items()}
    return value


def _unchanged(value: str, key: str) -> str:
    where = quoted(clean(key) or "a name")
    if clean(value) != value:
        raise RequestError(INVALID_PARAMS, f"it hides characters in {where}")
    if compact(value) != value:
        raise RequestError(INVALID_PARAMS, f"it hides something behind a run of spaces in {where}")
    if key != "pattern" and unmarked(value) != value:
        raise RequestError(INVALID_PARAMS, f"it writes the mark of a server in {where}")
    return value


def _check_roles(messages: Any) -> None:
    """Refuse messages that some hosts would give a model as those of its system or its developer."""
    for message in messages if isinstance(messages, list) else [messages]:
        for key, value in message.items() if isinstance(message, dict) else ():
            if envelope.letters_of(key) == "role" and (key != "role" or value not in ROLES):
                said = quoted(f"{key}: {value}")
                raise RequestError(INVALID_PARAMS, f"a message has {said}; roles are {', '.join(ROLES)}")


def check_prompt(server: str, result: bytes) -> None:
    """Refuse a prompt with a message that some hosts would give a model as that of its system.

    Raises `BadAnswerError` if there is one, perhaps under a name that comes twice or is spelled in another
    way.
    """
    # As pairs: of a name that comes twice, some readers take the first value, and some the last.
    for name, messages in json.loads(result, object_pairs_hook=_Pairs):
        if envelope.letters_of(name) != "messages" or not isinstance(messages, list):
            continue
        for message in [messages] if isinstance(messages, _Pairs) else messages:
            for key, value in message if isinstance(message, _Pairs) else ():
                if envelope.letters_of(key) == "role" and (key != "role" or value not in ROLES):
                    raise BadAnswerError(server, f"with a message of another role than {' and '.join(ROLES)}")


class _Pairs(list[tuple[str, Any]]):
    """The members of an object in JSON, in their order."""


def _check_elicitation(asked: dict[str, Any], message: str, sender: str | None) -> None:
    if asked.get("mode") == "url" or "url" in asked:
        url = asked.get("url")
        refusal = url_refusal(url, sender) if isinstance(url, str) else "it is no text"
        if refusal:
            raise RequestError(INVALID_PARAMS, f"the URL {quoted(str(url))} is not passed on: {refusal}")
    field = secret_field(asked.get("requestedSchema"), message)
    if field:
        raise RequestError(
            INVALID_PARAMS,
            f"{field} asks for a secret, which a form must not; send the person to a page of the server "
            "(mode 'url'), or take the secret from the server's configuration",
        )


_NO_SECRET: Final = (
    r"(?! (?:names?|ids?|identifiers?|types?|kinds?|length|limits?|counts?|budget|usage|polic(?:y|ies)|"
    r"expiry|managers?|rotation|symbol|address)\b)"
)
"""Words after which the words before them mean no secret: ``secret name``, ``token limit``."""

_SECRETS: Final = (
    r"pass ?words?|pass ?wd|pass ?phrases?|pass ?codes?|pwd|passwort|kennwort|contrasena|mot de passe|senha"
    r"|wachtwoord|losenord|passord|adgangskode|salasana|haslo|heslo|jelszo|sifre|kata sandi|mat khau"
    r"|(?:cle|clave|chave) (?:d |de )?api|api (?:schlussel|sleutel)"
    r"|codigo de (?:verificacion|verificacao)|code de verification|(?:verifizierungs|bestatigungs) ?code"
    r"|(?:tarjeta|cartao) de credito|carte (?:de credit|bancaire)|carta di credito|kreditkarten? ?(?:nummer)?"
    r"|secrets?|credentials?"
    r"|(?:api|access|secret|private|ssh|signing|encryption|deploy|service account) ?keys?"
    r"|(?:api|access|auth|authentication|authorization|bearer|refresh|session|security|login|bot|oauth|id) ?"
    r"tokens"
    r"|(?<!max )(?<!page )(?<!next )(?<!cursor )(?<!continuation )(?<!per )token|jwt"
    r"|[th]?otp|(?:2fa|mfa|one time|verification|security|recovery|backup|authenticator) ?codes?"
    r"|(?:seed|recovery|mnemonic) (?:phrases?|words)"
    r"|(?:credit|debit|bank|payment) ?cards?|card ?(?:number|no|num|details)|cvv2?|cvc2?"
)
_ELSEWHERE: Final = (
    "парол", "код подтверждения", "密码", "密碼", "口令", "验证码", "驗證碼", "パスワード", "暗証番号",
    "認証コード", "비밀번호", "암호", "인증번호", "पासवर्ड", "كلمة المرور", "كلمة السر", "סיסמה", "รหัสผ่าน",
    "κωδικός πρόσβασης",
)  # fmt: skip
"""Words in other letters."""


_SECRET: Final = pattern(
    lambda: rf"\b(?:{_SECRETS})\b{_NO_SECRET}|" + "|".join(_words_of(_plain(word)) for word in _ELSEWHERE)
)
_SECRET_LABEL: Final = pattern(rf"\b(?:{_SECRETS}|pin|pin (?:code|number)|cookies?|pass)\b{_NO_SECRET}")
"""Short words that are harmless in a sentence: ``pin the issue``."""

_DEMAND: Final = pattern(
    r"\b(?:enter|type|paste|provide|give|supply|send|share|input|insert|submit|tell|need|needs|requires?|"
    rf"confirm your|what is|whats|fill in)\b(?: \w+){{0,6}}? (?:{_SECRETS})\b{_NO_SECRET}"
)
"""A sentence that asks for a secret. Without the verb it may speak of one: ``reset the password of ada?``."""

_WORD_STARTS: Final = pattern(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
_SPELLED: Final = pattern(r"\b(\w) (?=\w\b)")
_NO_WORD: Final = pattern(r"[\W_]+")
_DIGITS: Final = str.maketrans("01345$", "oieass")


def secret_field(schema: Any, message: str) -> str:
    """Return the field of a form that asks for a secret, or the message that does; empty if none does."""
    fields = [(name, field) for name, field in _fields(schema) if not _is_choice(field)]
    for name, field in fields:
        if (
            "password" in _told(field, "format")
            or names_secret(name, *_told(field, "title"))
            or any(map(_SECRET.search, _spellings(*_told(field, "description"))))
        ):
            return f"the field {quoted(name)}"
    if fields and any(map(_DEMAND.search, _spellings(message, *_told(schema, "title", "description")))):
        return "its message"
    return ""


def names_secret(*labels: Any) -> bool:
    """Return whether a label, such as the name of an argument, says that its value is a secret."""
    return any(_SECRET_LABEL.search(text) or _SECRET.search(text) for text in _spellings(*labels))


def _fields(schema: Any) -> Iterator[tuple[str, Any]]:
    """Yield name and schema of each field, at any depth."""
    left = [schema]
    while left:
        value = left.pop()
        if isinstance(value, dict):
            for name, members in value.items():
                if isinstance(members, dict) and envelope.letters_of(name).startswith(("properties", "def")):
                    yield from members.items()
                elif isinstance(members, list):  # the parts of a field, but for the values of a choice
                    yield from (("", one) for one in members if isinstance(one, dict) and "const" not in one)
            left.extend(value.values())
        elif isinstance(value, list):
            left.extend(value)


def _told(schema: Any, *names: str) -> list[Any]:
    """Return the values that some readers of a schema find under these names."""
    return [schema[k] for k in schema if envelope.letters_of(k) in names] if isinstance(schema, dict) else []


def _is_choice(field: Any, kinds: Sequence[str] = ("oneOf",)) -> bool:
    """Return whether a person can only choose: in place of other choices, hosts show a line to write on."""
    if not isinstance(field, dict):
        return False
    if field.get("type") == "boolean":
        return True
    if field.get("type") == "array":
        return _is_choice(field.get("items"), ("oneOf", "anyOf"))
    for key in kinds:
        choices = field.get(key)
        if isinstance(choices, list) and choices:
            return all(isinstance(each, dict) and "const" in each for each in choices)
    words = field.get("enum") if field.get("type", "string") == "string" else None
    return isinstance(words, list) and bool(words)


def _spellings(*texts: Any) -> Iterator[str]:
    """Yield each text in small words without accents: as it is written, and as it is drawn."""
    for text in texts:
        if isinstance(text, str):
            for spelling in {_plain(text), in_plain_letters(_divided(text)).casefold().translate(_DIGITS)}:
                yield _words_of(spelling)


def _divided(text: str) -> str:
    return _WORD_STARTS.sub(" ", normalized("NFKD", text))


def _plain(text: str) -> str:
    return "".join(char for char in _divided(text) if not unicodedata.combining(char)).casefold()


def _words_of(text: str) -> str:
    return _SPELLED.sub(r"\1", _NO_WORD.sub(" ", text).strip())
