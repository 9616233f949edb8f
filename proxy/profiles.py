"""Profiles: one YAML file each, read as a folder, all good or none taken."""

from collections.abc import Container, Mapping
from pathlib import Path
from typing import Annotated, Any, Self

import yaml
from pydantic import AfterValidator, BeforeValidator, Field, ValidationError, model_validator

from calibrators import cri, sri
from calibrators.actions import Action
from calibrators.bias import LIMIT, Apply
from calibrators.contextual import Contextual, Features
from calibrators.drift import BINS, NONE, Table, Window
from calibrators.entry import Scope
from calibrators.openers import Hint
from calibrators.openers.parsers import parser
from calibrators.state import How
from proxy.config import Section, explain, parsed
from proxy.errors import ConfigError

# Reserved: what the X-Calibration header says where no profile was picked.
RESERVED = ("off", "inline")

Nats = Annotated[float, Field(ge=-LIMIT, le=LIMIT, allow_inf_nan=False)]
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")]


def _known_parser(name: str) -> str:
    return parser(name).name


class EntrySetting(Section):
    """The tokens that open a call, where they are not to be found from the server."""

    tokens: Annotated[tuple[Annotated[int, Field(ge=0)], ...], Field(min_length=1, max_length=128)] | None = (
        None
    )
    """Token ids of the entry set E."""
    text: str = ""
    """The opener, for servers that show log-probabilities by text and not by id."""
    parser: Annotated[str, AfterValidator(_known_parser)] | None = None
    """vLLM's tool parser, to fall back to what is known of its opener where the server does not show one."""
    strings: Annotated[tuple[Annotated[str, Field(min_length=1)], ...], Field(max_length=8)] = ()
    """Openers as text, to fall back to; the server tokenizes them."""
    after: Annotated[tuple[Annotated[int, Field(ge=0)], ...], Field(max_length=16)] = ()
    """Token ids that close the reasoning, where the decision comes after it."""
    space: Annotated[tuple[Annotated[int, Field(ge=0)], ...], Field(max_length=128)] = ()
    """Token ids of whitespace alone, which leave the decision open."""
    scope: Scope = "decision"
    """Where the bias acts; `everywhere` also on calls that come later in a reply."""

    @property
    def hint(self) -> Hint:
        """What discovery falls back to."""
        return Hint(self.parser, self.strings)


def _bias(value: Any) -> Any:
    return {"value": value} if isinstance(value, int | float) else value


def _feature(name: str) -> str:
    if name not in Features._fields:
        raise ValueError(f"no feature {name!r}; there is: {', '.join(Features._fields)}")
    return name


class ContextualSetting(Section):
    """Coefficients of a bias that depends on the request, as `bench calibrate` writes them."""

    b0: Nats
    weights: dict[Annotated[str, AfterValidator(_feature)], Annotated[float, Field(allow_inf_nan=False)]]
    """Nats for one unit of a feature, by its name."""
    low: Nats
    """The bias is never below."""
    high: Nats
    """The bias is never above."""

    @property
    def bias(self) -> Contextual:
        """As the calibrators take it."""
        return Contextual(self.b0, self.weights, self.low, self.high)


class BiasSetting(Section):
    """The tool-entry bias."""

    value: Nats | None = None
    """In nats; negative restrains calls."""
    contextual: ContextualSetting | None = None
    """In place of `value`: a bias computed for each request."""
    apply: Apply = "auto"
    """How it is applied; `auto` takes what the server can."""

    @model_validator(mode="after")
    def _one_of_both(self) -> Self:
        if (self.value is None) == (self.contextual is None):
            raise ValueError("name either value or contextual")
        return self

    def on(self, features: Features) -> float:
        """The bias of a request with these features, in nats."""
        return self.contextual.bias.value(features) if self.contextual else self.value or 0.0

    @property
    def told(self) -> float | str:
        """For tables: its number, or a word where it has none of its own."""
        return "contextual" if self.value is None else self.value


def _probe(value: Any) -> Any:
    """`true` for a probe as it comes, a word for its variant, `false` or `off` for none."""
    if isinstance(value, bool):
        return {} if value else None
    if isinstance(value, str):
        return None if value == "off" else {"variant": value}
    return value


class SriSetting(Section):
    """State-Reconciliation Intervention: asks once more where a reply makes no call."""

    variant: sri.Variant = "v1"
    state: How = "generic"
    """Which snapshot of the executed calls the model is shown."""
    log_only: bool = False
    """Write down what would be done, change nothing."""


class CriSetting(Section):
    """Call-Reconciliation Intervention: takes back a call that nothing licenses."""

    variant: cri.Variant = "retry"
    detectors: Annotated[tuple[cri.Detector, ...], Field(min_length=1)] = ("mc", "ur")
    """mc: the tool is not offered; ur: a required parameter's value stands nowhere in the conversation."""
    state: How = "generic"
    """Which snapshot of the executed calls the model is shown."""
    log_only: bool = False
    """Write down what would be done, change nothing."""


SriOrWord = Annotated[SriSetting | None, BeforeValidator(_probe)]
CriOrWord = Annotated[CriSetting | None, BeforeValidator(_probe)]


class Counted(Section):
    """Replies by kind of traffic (`tools, turn 1`) and category."""

    design: Annotated[float, Field(ge=1, allow_inf_nan=False)] = 1.0
    """The design effect: so many of these replies say as much as one independent one."""
    counts: dict[str, dict[str, Annotated[int, Field(gt=0)]]] = Field(default_factory=dict)

    @classmethod
    def of(cls, table: Table) -> Self:
        """From a window's table."""
        return cls(design=round(table.design, 4), counts={kind: dict(r) for kind, r in table.counts.items()})

    def check(self, names: Container[str]) -> None:
        """Raise ValueError for a category that is none of these."""
        for row in self.counts.values():
            for name in row:
                if name not in names:
                    raise ValueError(f"no category {name!r}")


class Reference(Section):
    """A window of replies that drift compares with."""

    window: str = ""
    """Which replies these were; for people."""
    n: Annotated[int, Field(gt=0)]
    """How many."""
    classes: Counted
    """By action class, `none` for cut and empty replies."""
    margins: Counted = Counted()
    """By the margin's bin, named by its upper end in nats."""

    @classmethod
    def of(cls, window: Window, words: str) -> Self:
        """What a window is written down as."""
        classes, margins = Counted.of(window.classes), Counted.of(window.margins)
        return cls(window=words, n=window.classes.n, classes=classes, margins=margins)

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        self.classes.check((*Action, NONE))
        self.margins.check(BINS)
        if self.n != self.value.classes.n:
            raise ValueError(f"n is {self.n} and the classes add up to {self.value.classes.n}")
        return self

    @property
    def value(self) -> Window:
        """As the calibrators take it."""
        margins = Table(self.margins.counts, self.margins.design, ordered=True)
        return Window(Table(self.classes.counts, self.classes.design), margins)


class Profile(Section):
    """One calibration. Unset means off."""

    name: Name
    model: str | None = None
    """The model it was made for; unset: any."""
    entry: EntrySetting = EntrySetting()
    bias: Annotated[BiasSetting, BeforeValidator(_bias)] | None = None
    """A number, or value and apply."""
    sri: SriOrWord = None
    """`true`, a variant, or variant, state and log_only."""
    cri: CriOrWord = None
    """`true`, a variant, or variant, detectors, state and log_only."""
    reference: Reference | None = None
    """What its replies were like: drift compares with it on request (`drift.reference: profile`)."""
    fingerprint: str | None = None
    """Tokenizer and chat template that it was made for, as `seam check` prints it."""
    provenance: dict[str, Any] = Field(default_factory=dict)
    """Data, split, seed, objective, figures with intervals, versions, date."""


class Inline(Section):
    """A calibration object in a request's body."""

    profile: str | None = None
    bias: Nats | None = None
    scope: Scope | None = None
    apply: Apply | None = None
    sri: SriOrWord = None
    """Over the profile's; `false` turns it off."""
    cri: CriOrWord = None
    """Over the profile's; `false` turns it off."""
    explain: bool = False


def read_profiles(folder: Path | None) -> Mapping[str, Profile]:
    """Every profile of a folder (*.yaml, *.yml), by name.

    Raises:
        ConfigError: a file that can't be read or is no profile, or a name that stands twice.
    """
    if folder is None:
        return {}
    if not folder.is_dir():
        raise ConfigError(f"profiles.folder: {folder} is no folder; make it or name another")
    profiles: dict[str, Profile] = {}
    for path in sorted(p for p in folder.iterdir() if p.suffix in (".yaml", ".yml") and p.is_file()):
        profile = read_profile(path)
        if profile.name in profiles:
            raise ConfigError(f"{path}: a profile {profile.name!r} stands in another file already")
        profiles[profile.name] = profile
    return profiles


def read_profile(path: Path) -> Profile:
    """One profile's file.

    Raises:
        ConfigError: it can't be read, or is no profile.
    """
    try:
        document = parsed(path.read_text("utf-8"))
        profile = Profile.model_validate(document)
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: not YAML: {' '.join(str(error).split())}") from None
    except ValidationError as error:
        raise ConfigError(f"{path}: {explain(error, Profile)}") from None
    if profile.name in RESERVED:
        raise ConfigError(f"{path}: name: {profile.name!r} is reserved; choose another")
    return profile
