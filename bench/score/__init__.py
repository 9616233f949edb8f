"""`bench score`: the figures of existing result files; no server, no benchmark package."""

from collections.abc import Mapping

import click

from bench.group import LazyGroup, Subcommand

SUBCOMMANDS: Mapping[str, Subcommand] = {}


@click.group(cls=LazyGroup, subcommands=SUBCOMMANDS)
def score() -> None:
    """Score existing result files, offline: action recall, accuracy, masking, loops."""
