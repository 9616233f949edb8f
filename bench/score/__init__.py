"""`bench score`: the figures of existing result files; no server, no benchmark package."""

from collections.abc import Mapping

import click

from bench.group import LazyGroup, Subcommand

SUBCOMMANDS: Mapping[str, Subcommand] = {
    "actions": Subcommand(
        "bench.score.commands:actions",
        "Confusion table and recall of the action classifier on texts of known class.",
    ),
    "audit": Subcommand(
        "bench.score.audit_command:audit",
        "Labels of the mechanism audit in a BFCL or tau2 run, and agreement with given ones.",
    ),
    "bfcl": Subcommand(
        "bench.score.commands:bfcl",
        "Recall, accuracy, masking and loops of BFCL multi-turn results.",
    ),
    "tau2": Subcommand(
        "bench.score.tau2_command:tau2",
        "pass^k, recall by class, judged CONFIRM and loops of tau2-bench results.",
    ),
}


@click.group(cls=LazyGroup, subcommands=SUBCOMMANDS)
def score() -> None:
    """Score existing result files, offline: action recall, accuracy, masking, loops."""
