"""Faults of a reply's bytes: ids, framing, encoding; and, over HTTP, of the response around it."""

import time

from server import Healthy

from mcp_context_proxy.examples import NoResponse, encode


class WrongId(Healthy):
    """Answers with an id that no request had; the true answer never comes."""

    mode, stage = "wrong-id", "reply"
    id = 999_999

    def call(self, request):
        request.channel.send(request.response(self.result(request)) | {"id": self.id})
        self.hang(request)


class StringId(Healthy):
    """Answers with the id as a string."""

    mode, stage = "string-id", "reply"

    def call(self, request):
        self.reply(request, self.result(request), id=str(request.id))


class NullId(WrongId):
    """Answers with id null; the true answer never comes."""

    mode, stage = "null-id", "reply"
    id = None


class DuplicateReply(Healthy):
    """Answers every call twice, the second time with another content."""

    mode, stage = "duplicate-reply", "reply"

    def call(self, request):
        request.reply(self.result(request))
        return {"content": [{"type": "text", "text": "another"}]}


class SwapIds(Healthy):
    """Answers calls in pairs with the two ids exchanged."""

    mode, stage, http = "swap-ids", "reply", False
    first = None

    def call(self, request):
        if self.first is None:
            self.first = request
        else:
            first, self.first = self.first, None
            request.id, first.id = first.id, request.id
            request.reply(self.result(request))
            first.reply(self.result(first))
        raise NoResponse


class NullResult(Healthy):
    """Answers with a null result."""

    mode, stage = "null-result", "reply"

    def call(self, request):
        return None


class ResultAndError(Healthy):
    """Answers with both result and error."""

    mode, stage = "result-and-error", "reply"

    def call(self, request):
        self.reply(request, self.result(request), error={"code": -32052, "message": "and yet"})


class Garbage(Healthy):
    """Writes non-JSON and non-JSON-RPC lines to stdout around every correct reply."""

    mode, stage, http = "garbage", "reply", False

    def call(self, request):
        lines = [
            b"Traceback (most recent call last):",
            b"[1,2]",
            b'"text"',
            b"{}",
            b'{"a":',
            b"\xff\xfe",
            b"null",
        ]
        for line in lines:
            request.channel.line(line)
        request.reply(self.result(request))
        for line in lines:
            request.channel.line(line)
        raise NoResponse


class _Bytes(Healthy):
    """Answers with bytes that `spoil` changes."""

    def call(self, request):
        request.channel.line(self.spoil(encode(request.response(self.result(request)))))
        raise NoResponse


class InvalidJson(_Bytes):
    """Answers with a line that is cut short; the true answer never comes."""

    mode, stage = "invalid-json", "reply"

    def spoil(self, line):
        return line[:-9]


class InvalidUtf8(_Bytes):
    """Puts bytes that are not UTF-8 into the reply."""

    mode, stage = "invalid-utf8", "reply"

    def spoil(self, line):
        return line.replace(b'"text":"', b'"text":"\xc3\x28\xff')


class LoneSurrogate(_Bytes):
    """Puts an escaped lone surrogate into the reply (valid JSON, not encodable as UTF-8)."""

    mode, stage = "lone-surrogate", "reply"

    def spoil(self, line):
        return line.replace(b'"text":"', b'"text":"\\ud800')


class Nan(_Bytes):
    """Puts NaN and Infinity into the reply (not JSON, but many writers produce it)."""

    mode, stage = "nan", "reply"

    def spoil(self, line):
        return line.replace(b'"content"', b'"structuredContent": {"a": NaN, "b": -Infinity}, "content"')


class Batch(_Bytes):
    """Wraps the reply into a JSON-RPC batch array."""

    mode, stage = "batch", "reply"

    def spoil(self, line):
        return b"[" + line + b"]"


class Crlf(_Bytes):
    """Ends lines with CR LF and puts blank lines between them."""

    mode, stage, http = "crlf", "reply", False

    def spoil(self, line):
        return b"\r\n\r\n" + line + b"\r\n"


class Dribble(Healthy):
    """Writes the reply one byte at a time over `delay` seconds."""

    mode, stage, http = "dribble", "reply", False

    def call(self, request):
        line = encode(request.response(self.result(request))) + b"\n"
        for position in range(len(line)):
            request.channel.write(line[position : position + 1])
            time.sleep(self.delay / len(line))
        raise NoResponse


class _Http(Healthy):
    """Exists only over HTTP; `misbehave` answers calls, if at all."""

    stage = "http"

    def call(self, request):
        self.misbehave(request, request.channel)
        raise NoResponse


class HttpStatus(_Http):
    """Answers calls with 500 and a page of HTML."""

    mode = "http-500"

    def misbehave(self, request, channel):
        channel.response(500, {"content-type": "text/html"}, b"<html>Internal Server Error</html>")


class HttpBusy(_Http):
    """Answers calls with 503 and no body."""

    mode = "http-503"

    def misbehave(self, request, channel):
        channel.response(503, {"retry-after": "120"}, b"")


class HttpHtml(_Http):
    """Answers calls with 200 and a page of HTML, as a captive portal does."""

    mode = "http-html"

    def misbehave(self, request, channel):
        channel.response(200, {"content-type": "text/html"}, b"<html>Please log in</html>")


class HalfOpen(_Http):
    """Opens the event stream of a call and sends nothing more, for ever."""

    mode = "half-open"

    def misbehave(self, request, channel):
        channel.open()
        self.hang(request)


class SlowHeaders(_Http):
    """Sends the response's headers one byte at a time, for ever."""

    mode = "slow-headers"

    def misbehave(self, request, channel):
        channel.socket(b"HTTP/1.1 200 OK\r\nx-slow: ")
        while True:
            time.sleep(0.05)
            channel.socket(b"y")


class Redirect(_Http):
    """Redirects calls to another origin."""

    mode = "redirect"

    def misbehave(self, request, channel):
        location = self.options.get("canary_url", "http://127.0.0.1:1/")
        channel.response(307, {"location": location}, b"")


class Reset(_Http):
    """Resets the connection when it has read the call."""

    mode = "reset"

    def misbehave(self, request, channel):
        channel.reset()


class ShortBody(_Http):
    """Announces more bytes of body than it sends, then closes."""

    mode = "short-body"

    def misbehave(self, request, channel):
        body = encode(request.response(self.result(request)))
        head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
        channel.socket(head % (len(body) * 2) + body)
        channel.reset()


class BigEvent(Healthy):
    """Answers with an event of 2 MiB: more than some clients take."""

    mode, stage = "big-event", "http"

    def result(self, request):
        return {"content": [{"type": "text", "text": "e" * (2 << 20)}]}
