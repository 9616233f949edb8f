"""The profile that a calibration ends in: one YAML file, which the proxy loads unedited."""

from collections.abc import Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from bench.errors import InputError
from bench.runs import versions
from calibrators.bias import Apply
from calibrators.contextual import Contextual
from calibrators.drift import Window
from calibrators.entry import Scope
from calibrators.openers import Hint
from proxy.config import explain
from proxy.errors import ConfigError
from proxy.profiles import RESERVED, Profile, Reference, read_profiles

Json = dict[str, Any]


def profile(
    name: str,
    model: str,
    bias: float | Contextual,
    apply: Apply,
    scope: Scope,
    hint: Hint,
    fingerprint: str | None,
    provenance: Mapping[str, Any],
) -> Json:
    """The profile's content.

    Entry tokens stay the proxy's to find; the fingerprint says when they are no longer the same.
    """
    entry: Json = {"scope": scope}
    if hint.parser:
        entry["parser"] = hint.parser
    if hint.strings:
        entry["strings"] = list(hint.strings)
    return {
        "name": name,
        "model": model,
        "entry": entry,
        "bias": {
            **({"contextual": asdict(bias)} if isinstance(bias, Contextual) else {"value": bias}),
            "apply": apply,
        },
        "fingerprint": fingerprint,
        "provenance": {
            "made_by": "bench calibrate",
            "date": datetime.now(UTC).date().isoformat(),
            "versions": versions(),
            **provenance,
        },
    }


def check_name(name: str) -> None:
    """Raise InputError for a name that the proxy would not take."""
    try:
        Profile(name=name)
    except ValidationError as error:
        raise InputError(explain(error, Profile), where="--name", mend="give another") from None
    if name in RESERVED:
        raise InputError(f"{name!r} is reserved", where="--name", mend="give another")


def write(folder: Path, content: Mapping[str, Any]) -> Path:
    """Write the profile into a folder of its own, and read it back as the proxy does.

    Raises InputError where it can't be written or the proxy would not take it.
    """
    path = folder / f"{content['name']}.yaml"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        path.write_text(
            yaml.safe_dump(dict(content), sort_keys=False, allow_unicode=True, width=110), "utf-8"
        )
        read_profiles(folder)
    except OSError as error:
        raise InputError(str(error.strerror), where=str(path), mend="make room there") from None
    except ConfigError as error:
        raise InputError(str(error), mend="give another --name") from None
    return path


def add_reference(path: Path, window: Window) -> None:
    """Add what replies were like to a profile that was written: `drift.reference: profile` compares with it.

    Raises InputError as `write` does.
    """
    content = yaml.safe_load(path.read_text("utf-8"))
    reference = Reference.of(window, f"test split of bench calibrate, {content['provenance']['date']}")
    write(path.parent, {**content, "reference": reference.model_dump()})


def shown(estimate: Mapping[str, Any]) -> Json:
    """An estimate as provenance keeps it: rounded, with its interval."""
    keep = ("estimate", "low", "high", "n", "method", "reason")
    rounded = {k: round(v, 4) if isinstance(v, float) else v for k, v in estimate.items() if k in keep}
    return {key: value for key, value in rounded.items() if value is not None}
