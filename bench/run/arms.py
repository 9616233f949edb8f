"""The arms of a run: what is served under which calibration, each through a proxy of its own server."""

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple, get_args

import yaml

from bench.errors import InputError
from bench.seam import proxy
from bench.served import connected, facts_of, names_of
from calibrators import cri, sri
from calibrators.actions import Cues
from calibrators.state import How
from proxy.errors import ConfigError
from proxy.profiles import read_profile

Json = dict[str, Any]

OFF: Final = "off"
"""The name of an arm without a calibration."""
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9-]{0,63}")
_PARTS: Final = ("model", "profile")


class Asked(NamedTuple):
    """An arm as it was asked for."""

    name: str
    """Letters, digits and hyphens: benchmarks make folders and Python names of it."""
    url: str
    """The server, or with `--proxy` the proxy."""
    model: str | None
    """None: the only one that is served."""
    profile: str | None
    """A profile's file, with `--proxy` its name there; None: no calibration, or one of `probes`."""
    probes: Mapping[str, Any] | None = None
    """SRI or CRI as a profile has it, where the arm is of the probe grid."""


class Arm(NamedTuple):
    """An arm that can run."""

    name: str
    url: str
    """The server, or with `--proxy` the proxy."""
    model: str
    profile: str | None
    """Its name; None: no calibration."""
    content: bytes | None
    """The profile's file, where our own proxy needs it."""
    server: Json
    """kind, version, and context: tokens of a prompt and its reply together; null where it is hidden."""

    @property
    def headers(self) -> dict[str, str]:
        """What picks the calibration. Without one nothing is picked, and the reply is only observed."""
        return {"X-Calibration": self.profile} if self.profile else {}

    def calibration(self) -> Json | None:
        """The profile's name and, where we have its file, digest."""
        if self.profile is None:
            return None
        digest = hashlib.sha256(self.content).hexdigest() if self.content else None
        return {"name": self.profile, "sha256": digest}


def asked(arms: Sequence[str], url: str, model: str | None, profile: str | None) -> list[Asked]:
    """The arms of `--arm NAME=[URL][,model=M][,profile=P]`; without any the one of the other options.

    What an arm leaves out is url and model as given; its profile is never inherited.
    """
    if not arms:
        name = _hyphens(Path(profile).stem) if profile else OFF
        return [Asked(name, url, model, profile)]
    if profile:
        raise InputError("belongs to no arm", where="--profile", mend="write --arm NAME=profile=..")
    found = [_asked(text, url, model) for text in arms]
    names = [arm.name for arm in found]
    if twice := {name for name in names if names.count(name) > 1}:
        raise InputError(f"the name {min(twice)!r} stands twice", where="--arm", mend="name each once")
    return found


def probe_grid(url: str, model: str | None, state: How) -> list[Asked]:
    """Ten arms of one server: no calibration, and each variant of SRI and of CRI (calibration.md section 6).

    state: which snapshot of the executed calls they show.
    """
    variants = [("sri", name) for name in get_args(sri.Variant)]
    variants += [("cri", name) for name in get_args(cri.Variant)]
    probes = [
        Asked(_hyphens(f"{probe}-{name}"), url, model, None, {probe: {"variant": name, "state": state}})
        for probe, name in variants
    ]
    return [Asked(OFF, url, model, None), *probes]


def _hyphens(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9-]", "-", text)


def _asked(text: str, url: str, model: str | None) -> Asked:
    name, equals, rest = text.partition("=")
    wanted = "write NAME=URL,model=..,profile=.. with a name of letters, digits and hyphens"
    if not equals or not _NAME.fullmatch(name):
        raise InputError(f"{text!r} is no arm", where="--arm", mend=wanted)
    parts: dict[str, str | None] = {"model": model, "profile": None, "url": url}
    for part in filter(None, rest.split(",")):
        key, equals, value = part.partition("=")
        if part.startswith(("http://", "https://")):
            parts["url"] = part
        elif equals and value and key in _PARTS:
            parts[key] = value
        else:
            raise InputError(f"{part!r} in {text!r} is no part of an arm", where="--arm", mend=wanted)
    assert parts["url"] is not None
    return Asked(name, parts["url"], parts["model"], parts["profile"])


async def known(asked: Sequence[Asked], api_key_env: str | None, *, running_proxy: bool) -> list[Arm]:
    """The arms with what their servers say.

    Raises:
        ServerUnreachable: a server does not answer.
        InputError: it has no such model, or several and none is named; a profile can't be read.
    """
    return [await _known(arm, api_key_env, running_proxy=running_proxy) for arm in asked]


async def _known(arm: Asked, api_key_env: str | None, *, running_proxy: bool) -> Arm:
    upstream = connected(arm.url, api_key_env)
    try:
        facts = await facts_of(upstream)
        names = names_of(facts, arm.model)
        if len(names) > 1:
            raise InputError(
                "the server has several models", where=arm.url, mend=f"name one: {', '.join(names)}"
            )
        _, listed = await upstream.get_json("GET", "/v1/models")
    finally:
        await upstream.aclose()
    server = {"kind": facts.kind, "version": facts.version, "context": _context(listed, names[0])}
    return Arm(arm.name, arm.url, names[0], *_profile(arm, running_proxy=running_proxy), server)


def _profile(arm: Asked, *, running_proxy: bool) -> tuple[str | None, bytes | None]:
    """The profile's name, and its file's bytes where our own proxy needs them."""
    if arm.probes is not None:
        return arm.name, yaml.safe_dump({"name": arm.name, **arm.probes}, sort_keys=False).encode()
    if arm.profile is None or running_proxy:
        return arm.profile, None
    try:
        return read_profile(Path(arm.profile)).name, Path(arm.profile).read_bytes()
    except ConfigError as error:
        raise InputError(str(error), mend="give a profile's YAML file") from None


def _context(listed: Any, model: str) -> int | None:
    entries = listed.get("data", ()) if isinstance(listed, Mapping) else ()
    found = (each.get("max_model_len") for each in entries if each.get("id") == model)
    length = next(found, None)
    return length if isinstance(length, int) else None


@contextmanager
def proxies(
    arms: Sequence[Arm], folder: Path, api_key_env: str | None, running_proxy: str | None, cues: Cues
) -> Iterator[Mapping[str, str]]:
    """By arm the base URL that its benchmark talks to; our own proxies end with the block.

    folder: has one folder a server, `proxy-1` and on, for its configuration, profiles and decision log; cues:
    what that log's classes, and the gates of probes, go by.
    Raises ServerUnreachable where a proxy does not start.
    """
    if running_proxy is not None:
        yield {arm.name: _v1(running_proxy) for arm in arms}
        return
    with ExitStack() as stack:
        urls = {}
        for number, server in enumerate(dict.fromkeys(arm.url for arm in arms), 1):
            place = folder / f"proxy-{number}"
            _copy_profiles([arm for arm in arms if arm.url == server], place / "profiles")
            # Texts are how the classes can be checked; the run folder is as private as its result files.
            decisions = {"text": True, "max_bytes": 2**40}
            urls[server] = stack.enter_context(
                proxy(
                    place,
                    place / "profiles",
                    server,
                    api_key_env,
                    kind="auto",
                    decisions=decisions,
                    cues=cues,
                )
            )
        yield {arm.name: _v1(urls[arm.url]) for arm in arms}


def servers_of(arms: Sequence[Arm]) -> dict[str, Json]:
    """What a plan holds of each arm's server."""
    return {arm.name: {"url": arm.url, "model": arm.model, **arm.server} for arm in arms}


def calibrations_of(arms: Sequence[Arm]) -> dict[str, Json | None]:
    """What a plan holds of each arm's calibration."""
    return {arm.name: arm.calibration() for arm in arms}


def agents(arms: Sequence[Arm], urls: Mapping[str, str]) -> list[Json]:
    """The arms as an adapter asks them, at the proxies' `urls`."""
    return [
        {"name": arm.name, "model": arm.model, "url": urls[arm.name], "headers": arm.headers} for arm in arms
    ]


def decision_logs(folder: Path) -> list[Path]:
    """The decision logs of our own proxies."""
    return sorted(folder.glob("proxy-*/decisions.jsonl"))


def _copy_profiles(arms: Sequence[Arm], folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    known: dict[str, bytes] = {}
    for arm in arms:
        if arm.content is not None and arm.profile is not None:
            if known.setdefault(arm.profile, arm.content) != arm.content:
                raise InputError(
                    f"its profile's name {arm.profile!r} is another arm's too",
                    where=f"--arm {arm.name}",
                    mend="rename one of the two profiles",
                )
            (folder / f"{arm.profile}.yaml").write_bytes(arm.content)


def _v1(url: str) -> str:
    return url.rstrip("/").removesuffix("/v1") + "/v1"
