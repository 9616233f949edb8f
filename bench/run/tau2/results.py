"""The simulations of a run while upstream makes them: a file each, which has its name once it is whole."""

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from bench.errors import InputError
from bench.run.upstream import Finished

Json = Mapping[str, Any]


def simulation(root: Path, arm: str, case: str) -> Json:
    """A finished simulation; InputError where its file is damaged."""
    file = _file(root, arm, case)
    try:
        document: Json = json.loads(file.read_bytes())
    except (OSError, ValueError) as error:
        raise InputError(
            f"is no simulation ({error})", where=str(file), mend="delete it, and repeat the same command"
        ) from None
    return document


def fault(simulation: Json) -> str | None:
    """What ended a simulation before its end: its agent's reply that was none, or an error around it."""
    told = ((simulation.get("reward_info") or {}).get("info") or {}).get("error")
    return str(told) if told else None


class Watch:
    """Simulations as they come: each is given out once."""

    def __init__(self, root: Path, planned: Iterable[tuple[str, str]]) -> None:
        self._root = root
        self._waiting = set(planned)

    def new(self) -> Iterator[Finished]:
        """Those of the planned (arm, case) that were finished since the last call."""
        found = {key for key in self._waiting if _file(self._root, *key).exists()}
        self._waiting -= found
        for arm, case in sorted(found):
            read = simulation(self._root, arm, case)
            # What the agent did wrong is a result; what fell to everything else is an error.
            yield Finished(arm, case, fault(read) if read.get("skipped") else None, _prompt_tokens(read))


def _file(root: Path, arm: str, case: str) -> Path:
    return root / arm / "simulations" / f"{case}.json"


def _prompt_tokens(simulation: Json) -> list[int]:
    """The lengths of the agent's prompts in tokens, as the server counted them."""
    used = [message.get("usage") for message in simulation["messages"] if message["role"] == "assistant"]
    return [usage["prompt_tokens"] for usage in used if usage]
