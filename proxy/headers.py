"""Which headers cross the proxy (RFC 9110, section 7.6.1)."""

from collections.abc import Iterable

Headers = list[tuple[bytes, bytes]]

HOP_BY_HOP = frozenset(
    (
        b"connection",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
    )
)
# Ours to set: the upstream's own host, the length of what is really sent, and words meant for the proxy.
OURS = frozenset(
    (b"host", b"content-length", b"x-calibration", b"x-case-id", b"x-case-marks", b"x-request-id")
)
# Where clients show their keys.
CREDENTIALS = frozenset((b"authorization", b"x-api-key"))
WORD_LIMIT = 256
"""Characters that an id of a client's may have."""
# What the reader of replies can take apart.
READABLE_ENCODINGS = (b"gzip", b"x-gzip", b"deflate", b"identity")


def get(headers: Iterable[tuple[bytes, bytes]], name: bytes) -> str | None:
    """The first value of a header, names compared as HTTP does."""
    for key, value in headers:
        if key.lower() == name:
            return value.decode("latin-1").strip()
    return None


def end_to_end(headers: Iterable[tuple[bytes, bytes]], without: frozenset[bytes] = frozenset()) -> Headers:
    """The headers that travel on: neither hop-by-hop, nor named in Connection, nor in `without`."""
    headers = list(headers)
    named = {
        token.strip().lower()
        for key, value in headers
        if key.lower() == b"connection"
        for token in value.split(b",")
    }
    stay = HOP_BY_HOP | named | without
    return [(key, value) for key, value in headers if key.lower() not in stay]


def upstream_headers(
    headers: Iterable[tuple[bytes, bytes]],
    request_id: str,
    api_key: str | None,
    *,
    own_keys: bool,
    readable: bool,
) -> Headers:
    """What the upstream gets: the client's end-to-end headers, a request id, the operator's key if any.

    `own_keys`: the client's key was for the proxy, and stays here;
    `readable`: keep only encodings of the client's that we can read, never one that it did not offer.
    """
    sent = end_to_end(headers, OURS | CREDENTIALS if own_keys or api_key else OURS)
    if readable:
        sent = [(k, _readable(v) if k.lower() == b"accept-encoding" else v) for k, v in sent]
    sent.append((b"x-request-id", request_id.encode("latin-1")))
    if api_key:
        sent.append((b"authorization", b"Bearer " + api_key.encode("latin-1")))
    return sent


def _readable(value: bytes) -> bytes:
    offered = [part.strip() for part in value.split(b",")]
    kept = [part for part in offered if part.split(b";")[0].strip().lower() in READABLE_ENCODINGS]
    return b", ".join(kept) or b"identity"


def is_word(value: str) -> bool:
    """Whether an id that a client made up is fit for logs and for other servers."""
    return len(value) <= WORD_LIMIT and value.isascii() and value.isprintable()


def safe(text: str) -> bytes:
    """Text as a header value: no line ends, no control characters, nothing beyond latin-1."""
    if not text.isprintable():
        text = "".join(c if c.isprintable() else " " for c in text)
    return text.encode("latin-1", "replace")[:1000]
