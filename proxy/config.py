"""The configuration: read once into a frozen value.

`seam.yaml`, then the environment (`SEAM_LISTEN__PORT=9000`), then flags. A reload builds a new value and
swaps it; nobody writes to one.
"""

import difflib
import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import yaml
from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    field_validator,
    model_validator,
)
from pydantic_settings import (
    BaseSettings,
    EnvSettingsSource,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    SettingsError,
)

from calibrators.actions import Cues
from calibrators.drift import MINIMUM
from proxy.errors import ConfigError

ENV_PREFIX = "SEAM_"
LONGEST_NAME = 80
"""Characters of a name that are looked at to find what it may have meant; looking takes their square."""
CONFIG_VARIABLE = "SEAM_CONFIG_FILE"
"""Names the file itself (cli.py), and so is no setting in it."""


class Section(BaseModel):
    """A part of the configuration: frozen, and strict about its keys."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)


Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class Listen(Section):
    """Where clients reach the proxy."""

    host: str = "127.0.0.1"
    port: Annotated[int, Field(ge=0, le=65535)] = 8080
    workers: Annotated[int, Field(ge=1, le=256)] = 1
    """Processes that serve it."""
    drain_seconds: Seconds = 60.0
    """How long open replies may go on after SIGTERM."""
    heartbeat_seconds: Seconds = 10.0
    """How often a stream that a probe holds is sent a comment, so that nobody takes it for dead."""


class Timeouts(Section):
    """How long the upstream may take, in seconds."""

    connect: Seconds = 5.0
    """Until a connection stands."""
    write: Seconds = 30.0
    """Until a part of the request is taken."""
    first_token: Seconds = 120.0
    """Until the first event of a stream; a reply that is no stream has only `total`."""
    total: Seconds = 600.0
    """Until the end of the reply, all queries made for it together."""


class Connections(Section):
    """The pool of connections to one upstream."""

    max: Annotated[int, Field(gt=0)] = 2000
    keepalive: Annotated[int, Field(ge=0)] = 200
    idle_seconds: Seconds = 4.0
    """How long an idle connection is kept; below uvicorn's 5 s, so that we close first."""


class Upstream(Section):
    """One OpenAI-compatible server."""

    url: Annotated[str, Field(pattern=r"^https?://[^/?#\s]+([^?#\s]*)$")]
    """With or without /v1 at its end."""
    kind: Literal["auto", "vllm", "openai"] = "auto"
    """`openai` is never probed: profiles then bring entry tokens and `apply`."""
    api_key_env: str | None = None
    """The environment variable that holds the key to send instead of the client's."""
    timeouts: Timeouts = Timeouts()
    connections: Connections = Connections()


class Sampling(Section):
    """How the server samples where a request does not say; `apply: resample` has to know it."""

    temperature: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 1.0
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    top_k: Annotated[int, Field(ge=0)] = 0
    """0: all tokens."""


class Model(Section):
    """What Seam knows of one served model."""

    upstream: str | None = None
    """The upstream's name; unset where there is only one."""
    profile: str | None = None
    """The calibration of requests that pick none."""
    aliases: tuple[str, ...] = ()
    """Other names under which clients may ask for it."""
    sampling: Sampling | None = None
    """The server's sampling defaults; unset: unknown."""


class Profiles(Section):
    """Where profiles are kept."""

    folder: Path | None = None


class Selection(Section):
    """What clients may pick."""

    inline: bool = True
    """Whether a request may carry a calibration object."""
    locked: bool = False
    """Whether the model's default is the only calibration."""


class Decisions(Section):
    """The decision log."""

    sink: Literal["jsonl", "off"] = "jsonl"
    path: Path = Path("decisions.jsonl")
    text: bool = False
    """Whether records hold prompts, the reply's text and the calls' arguments."""
    sample: Annotated[float, Field(ge=0, le=1)] = 1.0
    """The share of replies that are recorded."""
    max_bytes: Annotated[int, Field(gt=0)] = 256 * 2**20
    """A file larger than this is rotated."""
    keep: Annotated[int, Field(ge=1)] = 5
    """How many rotated files stay."""
    queue: Annotated[int, Field(gt=0)] = 10_000
    """Records that may wait to be written; more are dropped and counted."""


class Reading(Section):
    """How entry probability and margin are read from replies."""

    how: Literal["auto", "ids", "top_logprobs", "scoring", "prompt", "off"] = "auto"
    """`auto`: what costs other clients nothing, and only on requests that a bias changes anyhow."""
    share: Annotated[float, Field(ge=0, le=1)] = 1.0
    """The share of replies that are read."""
    top: Annotated[int, Field(ge=1, le=20)] = 20
    """How many alternatives `top_logprobs` asks for."""


class Drift(Section):
    """What the last replies of each model and profile are compared with."""

    reference: Literal["pinned", "profile", "off"] = "pinned"
    """`pinned`: the first full window of the same traffic; `profile`: the profile's own; `off`: nothing."""
    window: Annotated[int, Field(ge=1, le=100_000)] = 1000
    """How many replies a window has."""
    minimum: Annotated[int, Field(ge=1)] = MINIMUM
    """Fewest replies, in the window and in the reference, for which there is a number."""
    path: Path = Path("drift.json")
    """The file of pinned windows; a window that it lacks is pinned anew."""

    @model_validator(mode="after")
    def _reachable(self) -> Self:
        if self.minimum > self.window:
            raise ValueError(f"minimum is {self.minimum} and a window never has more than {self.window}")
        return self


Opens = Literal["api", "pages"]


class ClientKey(Section):
    """One client's key, which `seam key` makes."""

    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    """The hash of the key; the key itself stands nowhere."""
    opens: tuple[Opens, ...] = ("api",)
    """`api`: the upstream's routes; `pages`: /metrics and /seam/."""
    profiles: tuple[str, ...] | None = None
    """The only calibrations that it may pick, `off` and `inline` among them; unset: all."""


class Auth(Section):
    """Who may ask. Where this is unset, everybody who reaches the port."""

    keys: Annotated[dict[str, ClientKey], Field(min_length=1)]
    """By the client's name."""

    @field_validator("keys")
    @classmethod
    def _one_name_each(cls, keys: dict[str, ClientKey]) -> dict[str, ClientKey]:
        names: dict[str, str] = {}
        for name, key in keys.items():
            if key.sha256 in names:
                raise ValueError(f"{names[key.sha256]} and {name} have the same key")
            names[key.sha256] = name
        return keys


class Limits(Section):
    """What one client may ask of the proxy."""

    body_bytes: Annotated[int, Field(gt=0)] = 64 * 2**20
    header_bytes: Annotated[int, Field(ge=1024)] = 32 * 2**10
    """Request line and headers together."""
    head_seconds: Seconds = 10.0
    """Until request line and headers have come, from the connection on or from their first byte."""
    body_seconds: Seconds = 120.0
    """Until the body has come."""
    taking_seconds: Seconds = 60.0
    """How long a client may take nothing of an answer that waits for it."""
    json_values: Annotated[int, Field(gt=0)] = 1_000_000
    """JSON values in a request that is read; their number, not their length, is what reading costs."""
    tools: Annotated[int, Field(gt=0)] = 1024
    """Tools that a request may offer."""
    concurrency: Annotated[int, Field(gt=0)] | None = None
    """Requests in flight; more get 503. Unset: no limit."""
    max_queries: Annotated[int, Field(ge=1, le=20)] = 6
    """Upstream queries made for one reply, redrawn and reconciling ones together."""


class Logging(Section):
    """The program log, on stderr."""

    format: Literal["text", "json"] = "text"
    """A line of text, or one JSON object a line."""
    level: Literal["debug", "info", "warning", "error"] = "info"


class State(Section):
    """What probes remember between the requests of a case."""

    store: Annotated[str, Field(pattern=r"^(memory|rediss?://\S+)$")] = "memory"
    """`memory`: each process its own; a Redis URL: all workers and hosts together."""
    ttl_seconds: Seconds = 3600.0
    """How long a case is remembered after its last request that changed what is remembered."""
    cases: Annotated[int, Field(gt=0)] = 10_000
    """How many cases one process remembers; the ones unused for longest go first."""


def _by_name(value: Any) -> Any:
    """A list whose items carry `name` is the same as a mapping by name."""
    if not isinstance(value, list):
        return value
    named: dict[str, Any] = {}
    for item in value:
        if not isinstance(item, Mapping):
            return value
        name = str(item.get("name", "default"))
        if name in named:
            raise ValueError(f"the name {name!r} stands twice")
        named[name] = {key: part for key, part in item.items() if key != "name"}
    return named


def _reading(value: Any) -> Any:
    return {"how": value} if isinstance(value, str) else value


def _drift(value: Any) -> Any:
    return {"reference": value} if isinstance(value, str) else value


def _state(value: Any) -> Any:
    return {"store": value} if isinstance(value, str) else value


class Config(BaseSettings):
    """The whole configuration."""

    model_config = SettingsConfigDict(
        extra="forbid",
        frozen=True,
        env_prefix=ENV_PREFIX,
        env_nested_delimiter="__",
        use_attribute_docstrings=True,
        title="seam.yaml",
    )

    schema_url: str | None = Field(default=None, alias="$schema")
    """For editors; ignored."""
    listen: Listen = Listen()
    upstreams: Annotated[dict[str, Upstream], Field(min_length=1)]
    """By name, or a list whose items carry `name`."""
    models: dict[str, Model] = {}
    """By the name that the server lists."""
    profiles: Profiles = Profiles()
    selection: Selection = Selection()
    decisions: Decisions = Decisions()
    auth: Auth | None = None
    limits: Limits = Limits()
    reading: Annotated[Reading, BeforeValidator(_reading)] = Reading()
    """A word for `how`, or how, share and top."""
    drift: Annotated[Drift, BeforeValidator(_drift)] = Drift()
    """A word for `reference`, or reference, window, minimum and path."""
    state: Annotated[State, BeforeValidator(_state)] = State()
    """A word or URL for `store`, or store, ttl_seconds and cases."""
    logging: Logging = Logging()
    tracing: Literal["otlp", "off"] = "off"
    """`otlp`: a span for each upstream query; where they go say the OTEL_ variables."""
    cues: Cues = Cues.SEAM
    """The classifier's rules: `seam`, or the `published` lists, by which published figures were counted."""
    forward: Literal["v1", "all"] = "v1"
    """Which of the upstream's other paths are passed on: /v1 and documented routes, or all."""
    on_error: Literal["passthrough", "fail"] = "passthrough"
    """What becomes of a reply whose calibration failed."""
    on_stale: Literal["apply", "off"] = "apply"
    """Whether a profile made for another tokenizer or template still acts."""

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Only what `load` has put together: there the order of file, environment and flags is kept."""
        del settings_cls, env_settings, dotenv_settings, file_secret_settings
        return (init_settings,)

    def upstream_of(self, model: str | None) -> str:
        """The name of the upstream that serves a model: its own, or the first one."""
        chosen = self.models[model].upstream if model in self.models else None
        return chosen or next(iter(self.upstreams))


def load(path: Path | None, flags: Mapping[str, Any] | None = None) -> Config:
    """Read the configuration: file, environment, flags (nested like the file), later ones win.

    Raises:
        ConfigError: one line that names the key, the place and the mend.
    """
    where = str(path) if path else "the flags and the environment"
    _check_environment(os.environ)
    try:
        document = _merged(_read(path) if path else {}, EnvSettingsSource(Config)())
        config = Config(**_merged(document, flags or {}))
    except ValidationError as error:
        raise ConfigError(f"{where}: {explain(error, Config)}") from None
    except SettingsError as error:
        raise ConfigError(f"environment: {error}; write lists and objects as JSON") from None
    _check_references(config, where)
    return config


class _Loader(yaml.SafeLoader):
    """Reads `off` as a word, as YAML 1.2 does: it names no calibration, no sink, no reading."""

    yaml_implicit_resolvers = {  # noqa: RUF012
        first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:bool"]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:bool", re.compile("true|True|TRUE|false|False|FALSE"), "tTfF"
)


def parsed(text: str) -> Any:
    """A YAML document.

    Raises:
        yaml.YAMLError
    """
    return yaml.load(text, _Loader)


def _read(path: Path) -> dict[str, Any]:
    try:
        document = parsed(path.read_text("utf-8"))
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}; name another file with --config") from None
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
        raise ConfigError(f"{path}: not YAML: {' '.join(str(error).split())}") from None
    if document is None:
        return {}
    if not isinstance(document, dict):
        raise ConfigError(f"{path}: a mapping of settings is due, not a {type(document).__name__}")
    for key in document:
        if not isinstance(key, str):
            raise ConfigError(
                f"{path}: {key!r}: no such key; nearest: {_nearest(str(key), Config.model_fields)}"
            )
    try:
        return {
            key: _by_name(value) if key in ("upstreams", "models") else value
            for key, value in document.items()
        }
    except ValueError as error:
        raise ConfigError(f"{path}: {error}") from None


def _merged(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(base)
    for key, value in over.items():
        old = merged.get(key)
        merged[key] = (
            _merged(old, value) if isinstance(old, Mapping) and isinstance(value, Mapping) else value
        )
    return merged


def _check_environment(environment: Mapping[str, str]) -> None:
    """An unknown SEAM_ variable is an error like an unknown key."""
    known = [name.upper() for name in Config.model_fields]
    for variable in environment:
        if variable.startswith(ENV_PREFIX) and variable != CONFIG_VARIABLE:
            key = variable.removeprefix(ENV_PREFIX).split("__")[0]
            if key.upper() not in known:
                near = _nearest(key.upper(), known)
                raise ConfigError(f"environment: {variable} is no setting; nearest: {ENV_PREFIX}{near}")


def _check_references(config: Config, where: str) -> None:
    taken: dict[str, str] = {}
    for name, model in config.models.items():
        if model.upstream is not None and model.upstream not in config.upstreams:
            names = ", ".join(config.upstreams)
            raise ConfigError(
                f"{where}: models.{name}.upstream: no upstream {model.upstream!r}; there is: {names}"
            )
        for alias in (name, *model.aliases):
            if alias in taken:
                raise ConfigError(f"{where}: models.{name}: the name {alias!r} is {taken[alias]}'s already")
            taken[alias] = name


def explain(error: ValidationError, model: type[BaseModel]) -> str:
    """The first fault of a pydantic report in one line; an unknown key with the nearest valid one."""
    faults = error.errors(include_url=False)
    # A mistyped key is told before the one that is missing for it.
    fault = next((f for f in faults if f["type"] == "extra_forbidden"), faults[0])
    place = ".".join(str(part) for part in fault["loc"])
    if fault["type"] == "extra_forbidden":
        return (
            f"{place}: no such key; nearest: {_nearest(str(fault['loc'][-1]), _keys_at(model, fault['loc']))}"
        )
    return f"{place or 'the document'}: {fault['msg'][0].lower()}{fault['msg'][1:]}"


def _nearest(word: str, words: Iterable[str]) -> str:
    words = list(words)
    close = difflib.get_close_matches(word[:LONGEST_NAME], words, n=1, cutoff=0.0)
    return close[0] if close else "none"


def _keys_at(model: type[BaseModel], location: tuple[int | str, ...]) -> list[str]:
    """The valid keys beside the unknown one that `location` names."""
    schema = model.model_json_schema(by_alias=True)
    node: dict[str, Any] = schema
    for part in location[:-1]:
        node = _resolved(node, schema)
        properties = node.get("properties", {})
        node = properties.get(part) or node.get("additionalProperties") or node.get("items") or {}
    return list(_resolved(node, schema).get("properties", {}))


def _resolved(node: dict[str, Any], schema: dict[str, Any]) -> dict[str, Any]:
    options = [node, *node.get("anyOf", ()), *node.get("oneOf", ())]
    for option in options:
        if "$ref" in option:
            return dict(schema["$defs"][option["$ref"].rsplit("/", 1)[1]])
    return next((option for option in options if "properties" in option), node)
