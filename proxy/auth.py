"""Client keys: who may ask, and what each may pick. The configuration holds their hashes alone."""

import base64
import binascii
import hashlib
import hmac
import secrets
from collections.abc import Iterable
from typing import NamedTuple

from proxy import headers as h
from proxy.config import Auth, Opens
from proxy.errors import KeyRefused, Unauthorized

_PREFIX = "seam-"
"""What a key begins with, so that a scanner for secrets can find one that leaked."""


class Caller(NamedTuple):
    """Whose request it is.

    Attributes:
        name: of the key; None where nobody needs one.
        profiles: the only calibrations that this key may pick; None for all.
    """

    name: str | None = None
    profiles: tuple[str, ...] | None = None


ANYONE = Caller()


def new_key() -> str:
    """A key of 256 random bits: so many that a plain, fast hash of it is safe to publish."""
    return _PREFIX + secrets.token_urlsafe(32)


def hashed(key: str) -> str:
    """What the configuration holds in place of a key."""
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).hexdigest()


def admitted(auth: Auth | None, headers: Iterable[tuple[bytes, bytes]], opens: Opens) -> Caller:
    """The caller whose key a request carries, where that key opens what it asks for.

    Raises:
        Unauthorized: no key, or one that is not in the configuration.
        KeyRefused: the key is for something else.
    """
    if auth is None:
        return ANYONE
    shown = _shown(list(headers), opens)
    if shown is None:
        raise Unauthorized("no key; send `Authorization: Bearer KEY`", opens)
    digest = hashed(shown)
    found = None
    for name, key in auth.keys.items():  # all of them, so that time tells nothing
        if hmac.compare_digest(key.sha256, digest):
            found = name
    if found is None:
        raise Unauthorized("the key is not known here", opens)
    if opens not in auth.keys[found].opens:
        raise KeyRefused(f"this key does not open {_WHAT[opens]} (auth.keys.{found}.opens)")
    return Caller(found, auth.keys[found].profiles)


_WHAT = {"api": "the upstream's routes", "pages": "/metrics and /seam/"}


def _shown(headers: list[tuple[bytes, bytes]], opens: Opens) -> str | None:
    """The key as the client sent it.

    A browser's password counts on pages alone: it is sent along with requests that other sites make.
    """
    scheme, _, value = (h.get(headers, b"authorization") or "").partition(" ")
    value = value.strip()
    if scheme.lower() == "bearer" and value:
        return value
    if scheme.lower() == "basic" and opens == "pages":
        try:
            return base64.b64decode(value, validate=True).decode("latin-1").partition(":")[2] or None
        except (binascii.Error, ValueError):
            return None
    return h.get(headers, b"x-api-key") or None  # as clients of /v1/messages send it
