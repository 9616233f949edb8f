"""Everything that the proxy answers with an error of its own, and the one place that shapes it.

SeamError
├── ConfigError          start-up and reload: what, where, the mend (never an HTTP answer)
└── HttpError            an OpenAI error object with a status
    ├── BadRequest       400  no HTTP/1.1, or more than a limit allows
    ├── BadSelection     400  an unknown calibration or a bad calibration object
    ├── Unauthorized     401  no key, or an unknown one, where `auth` wants one
    ├── KeyRefused       403  a key that does not open what was asked for
    ├── NotForwarded     404  a path that `forward` does not let through
    ├── NotFound         404  no page of ours, or a decision that is not remembered
    ├── ReadOnly         405  another method than GET on a page of ours
    ├── TooLarge         413  a body beyond limits.body_bytes
    ├── HeadTooLarge     431  a head beyond limits.header_bytes
    ├── TooSlow          408  a head or body that took longer than limits.head_seconds, limits.body_seconds
    ├── Busy             503  draining, or limits.concurrency reached; carries Retry-After
    ├── CalibrationFailed 502 a calibrator failed and on_error is `fail`
    ├── Unreachable      502  no connection to the upstream, or it broke before an answer
    └── TimedOut         504  one of the four timeouts; names it
"""

import json
from dataclasses import dataclass
from typing import ClassVar

_LONGEST = 2000
"""Characters of an error's message."""


def printable(text: str) -> str:
    r"""Text without what could begin a line or steer a terminal; such characters show as `\x1b`."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


@dataclass(frozen=True)
class ErrorObject:
    """What went wrong, as OpenAI's API says it."""

    message: str
    type: str
    param: str | None
    code: str | None


@dataclass(frozen=True)
class ErrorDocument:
    """The body of every answer of ours that is an error."""

    error: ErrorObject


class SeamError(Exception):
    """Anything that Seam reports in its own words."""


class ConfigError(SeamError):
    """A configuration that can't be used; the text is one line: what, where, the mend."""


class HttpError(SeamError):
    """An answer of our own: a status and an OpenAI error object."""

    status: ClassVar[int] = 500
    type: ClassVar[str] = "internal_error"
    code: ClassVar[str | None] = None

    def __init__(self, message: str, *, param: str | None = None, retry_after: int | None = None) -> None:
        super().__init__(message)
        self.message = printable(message[:_LONGEST])  # it may quote what a client or a server wrote
        self.param = param
        self.retry_after = retry_after

    def body(self) -> bytes:
        """The error document."""
        document = ErrorDocument(ErrorObject(self.message, self.type, self.param, self.code))
        return json.dumps(document, ensure_ascii=False, default=vars).encode()

    def headers(self) -> list[tuple[bytes, bytes]]:
        """The headers of such an answer."""
        headers = [(b"content-type", b"application/json")]
        if self.retry_after is not None:
            headers.append((b"retry-after", str(self.retry_after).encode()))
        return headers


class BadRequest(HttpError):
    """The request is no request, or asks for more than the operator allows."""

    status, type, code = 400, "invalid_request_error", "bad_request"


class BadSelection(HttpError):
    """The request names a calibration that does not exist or may not be picked."""

    status, type, code = 400, "invalid_request_error", "invalid_calibration"


class Unauthorized(HttpError):
    """The request brings no key that the configuration knows.

    Args:
        opens: what was asked for: a browser asks its user for the key of `pages`.
    """

    status, type, code = 401, "invalid_request_error", "invalid_api_key"

    def __init__(self, message: str, opens: str) -> None:
        super().__init__(message)
        self._scheme = b"Basic" if opens == "pages" else b"Bearer"

    def headers(self) -> list[tuple[bytes, bytes]]:
        """With the way of showing a key."""
        return [*super().headers(), (b"www-authenticate", self._scheme + b' realm="seam"')]


class KeyRefused(HttpError):
    """The key is known, and not for this."""

    status, type, code = 403, "invalid_request_error", "key_not_allowed"


class NotForwarded(HttpError):
    """The path is none that this proxy passes on."""

    status, type, code = 404, "invalid_request_error", "not_forwarded"


class NotFound(HttpError):
    """The proxy has no such page of its own, or no longer what was asked for."""

    status, type, code = 404, "invalid_request_error", "not_found"


class ReadOnly(HttpError):
    """The proxy's own pages answer GET alone."""

    status, type, code = 405, "invalid_request_error", "method_not_allowed"

    def headers(self) -> list[tuple[bytes, bytes]]:
        """With the method that is answered."""
        return [*super().headers(), (b"allow", b"GET")]


class TooLarge(HttpError):
    """The request's body is larger than the operator allows."""

    status, type, code = 413, "invalid_request_error", "request_too_large"


class HeadTooLarge(HttpError):
    """The request line and headers are larger than the operator allows."""

    status, type, code = 431, "invalid_request_error", "head_too_large"


class TooSlow(HttpError):
    """The request did not come in the time that the operator allows."""

    status, type, code = 408, "invalid_request_error", "request_too_slow"


class Busy(HttpError):
    """Not now: the proxy is shutting down or full."""

    status, type, code = 503, "overloaded_error", "busy"


class CalibrationFailed(HttpError):
    """A calibrator failed where the operator wants that to be an error."""

    status, type, code = 502, "calibration_error", "calibration_failed"


class Unreachable(HttpError):
    """The upstream can't be reached, or the connection broke before it answered."""

    status, type, code = 502, "upstream_error", "upstream_unreachable"


class TimedOut(HttpError):
    """The upstream took longer than one of the four timeouts."""

    status, type, code = 504, "upstream_error", "upstream_timeout"
