"""`bench run`: benchmarks replayed through the proxy, generated and graded by their own code."""

from collections.abc import Mapping

import click

from bench.group import LazyGroup, Subcommand

SUBCOMMANDS: Mapping[str, Subcommand] = {
    "bfcl": Subcommand(
        "bench.run.bfcl.command:command",
        "BFCL's multi-turn and single-turn categories: recall, accuracy, masking, loops.",
    ),
    "decisions": Subcommand(
        "bench.run.decisions:command",
        "Labelled decisions by whole replies: over-calling, call recall, valid calls.",
    ),
    "tau2": Subcommand(
        "bench.run.tau2.command:command",
        "tau2-bench's conversations: pass^k, recall by action class, accuracy, loops.",
    ),
    "when2call": Subcommand(
        "bench.run.when2call.command:command",
        "When2Call: replies by action class, and multiple choice by log-likelihood.",
    ),
}


@click.group(cls=LazyGroup, subcommands=SUBCOMMANDS)
def run() -> None:
    """Replay a benchmark through the proxy: its own code runs the cases and grades them."""
