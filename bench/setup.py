"""`bench setup`: make or repair a benchmark's own environment."""

import click

from bench import environments
from bench.benchmarks import BENCHMARKS
from bench.errors import InputError
from bench.options import Shared, shared_options


@click.command(epilog="Examples: bench setup bfcl; bench setup tau2")
@click.argument("benchmark", type=click.Choice([*BENCHMARKS]))
@shared_options(limit="Ignored: there is nothing to limit.")
def setup(*, shared: Shared, benchmark: str) -> None:
    """Make a benchmark's environment, or see that the one there works and make it anew if not.

    Its package and everything that needs is pinned (bench/data/BENCHMARK_requirements.txt). `bench run` makes
    it by itself on first use; it does not look for damage.
    """
    chosen = BENCHMARKS[benchmark]
    chosen.ready()
    if fault := chosen.fault():
        click.echo(f"· {chosen.place.name} is damaged ({fault})", err=True)
        environments.discard(benchmark)
        chosen.ready()
        fault = chosen.fault()
    if fault:
        raise InputError(fault, where=str(chosen.place), mend="this Python cannot run it; try another")
    document = {"benchmark": benchmark, "package": chosen.package, "environment": str(chosen.place)}
    shared.show(document, lambda: f"{chosen.package} is ready in {chosen.place}")
