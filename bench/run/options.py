"""The options of every `bench run` that say what is served: arms, or one server and profile."""

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import click

from bench.errors import InputError
from bench.options import JsonObject, key_of
from bench.run.arms import Arm, Asked, asked, decision_logs, known, probe_grid
from calibrators.actions import Cues
from calibrators.state import How


class Serving(NamedTuple):
    """What is served, as it was asked for."""

    arms: list[Asked]
    running_proxy: str | None
    """A proxy to go through; None: one of our own for each server."""
    decisions: Path | None
    """That proxy's decision log."""
    api_key_env: str | None
    cues: Cues

    def client_key(self) -> str | None:
        """The key for the client to send: our own proxy has the server's, a running one may want it from us.

        Raises InputError where its environment variable is not set.
        """
        key = self.server_key()
        return key if self.running_proxy else None

    def server_key(self) -> str | None:
        """The server's key; errors as of `client_key`."""
        return key_of(self.api_key_env, "--api-key-env")

    def logs(self, folder: Path) -> list[Path]:
        """The decision logs of a run in this folder; none for a running proxy whose log isn't given."""
        if self.running_proxy is not None:
            return [self.decisions] if self.decisions else []
        return decision_logs(folder)

    async def known(self) -> list[Arm]:
        """The arms with what their servers say; errors as of `bench.run.arms.known`."""
        return await known(self.arms, self.api_key_env, running_proxy=self.running_proxy is not None)


def serving_options(state: How) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Add the options to a command, which gets them as one `serving` argument.

    state: which snapshot of the executed calls the probes of --probe-grid show.
    """

    def decorate(function: Callable[..., None]) -> Callable[..., None]:
        @click.option("--upstream", "url", default="http://127.0.0.1:8000", show_default=True, metavar="URL",
                      help="The server; a proxy of the run's own is put in front of it.")  # fmt: skip
        @click.option("--model", help="The model.  [default: the one that the server lists]")
        @click.option("--profile", metavar="FILE", help="A profile's YAML file; with --proxy its name there.")
        @click.option("--arm", "arms", multiple=True, metavar="NAME=[URL][,model=M][,profile=FILE]",
                      help="One of several arms, run in turns by blocks of cases; what it leaves out is "
                           "--upstream's and --model's.")  # fmt: skip
        @click.option("--probe-grid", "grid", is_flag=True,
                      help="Ten arms: off, and each variant of SRI and CRI.")  # fmt: skip
        @click.option("--proxy", "proxy_url", metavar="URL",
                      help="A running proxy to go through.  [default: one of the run's own]")  # fmt: skip
        @click.option("--decisions", type=click.Path(dir_okay=False, exists=True, path_type=Path),
                      metavar="FILE", help="That proxy's decision log.")  # fmt: skip
        @click.option("--api-key-env", metavar="NAME",
                      help="Environment variable that holds the server's key.")  # fmt: skip
        @click.option("--cues", type=click.Choice([*map(str, Cues)]), default=str(Cues.SEAM),
                      show_default=True,
                      help="How texts are classified, by the run's own proxy too.")  # fmt: skip
        @functools.wraps(function)
        def command(
            *,
            url: str,
            model: str | None,
            profile: str | None,
            arms: tuple[str, ...],
            grid: bool,
            proxy_url: str | None,
            decisions: Path | None,
            api_key_env: str | None,
            cues: str,
            **own: Any,
        ) -> None:
            if grid and (arms or profile or proxy_url):
                also = "--arm" if arms else "--profile" if profile else "--proxy"
                raise InputError(
                    f"makes arms of its own, and {also} is given",
                    where="--probe-grid",
                    mend="leave one of the two out",
                )
            chosen = probe_grid(url, model, state) if grid else asked(arms, proxy_url or url, model, profile)
            function(serving=Serving(chosen, proxy_url, decisions, api_key_env, Cues(cues)), **own)

        return command

    return decorate


def reply_options(concurrency: int) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Add what runs of whole replies ask with: `fields`, `max_tokens`, `concurrency` and its default."""

    def decorate(function: Callable[..., None]) -> Callable[..., None]:
        options = (
            click.option("--fields", type=JsonObject(), default="{}", metavar="JSON",
                         help="Added to every request, say a switch of the chat template."),
            click.option("--max-tokens", type=click.IntRange(1), default=512, show_default=True, metavar="N",
                         help="Of a reply."),
            click.option("--concurrency", type=click.IntRange(1), default=concurrency, show_default=True,
                         metavar="N", help="Requests in flight at most; fewer while the server pushes back."),
        )  # fmt: skip
        for option in reversed(options):
            function = option(function)
        return function

    return decorate
