"""The `seam` command."""

import asyncio
import json
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from calibrators.actions import Action
from proxy.errors import ConfigError, SeamError

CONFIG = click.option(
    "--config",
    "config",
    type=click.Path(path_type=Path),
    envvar="SEAM_CONFIG_FILE",
    help="seam.yaml to read.",
)
UPSTREAM = click.option("--upstream", help="URL of the server, with or without /v1.")


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="seam")
def cli() -> None:
    """Calibrate the tool calls of a model served by vLLM.

    \b
    seam serve --upstream http://127.0.0.1:8000
    seam check --config seam.yaml
    """


@cli.command()
@CONFIG
@UPSTREAM
@click.option("--host", help="Address to listen on.  [default: 127.0.0.1]")
@click.option("--port", type=click.IntRange(0, 65535), help="Port to listen on.  [default: 8080]")
@click.option("--workers", type=click.IntRange(1, 256), help="Processes that serve it.  [default: 1]")
@click.option(
    "--log-level",
    type=click.Choice(["debug", "info", "warning", "error"]),
    help="Least level of the program log.  [default: info]",
)
def serve(
    config: Path | None,
    upstream: str | None,
    host: str | None,
    port: int | None,
    workers: int | None,
    log_level: str | None,
) -> None:
    """Run the proxy."""
    from proxy.server import serve as run

    flags = _flags(upstream, host=host, port=port, workers=workers)
    if log_level is not None:
        flags["logging"] = {"level": log_level}
    run(_config_path(config), flags)


@cli.command()
@CONFIG
@UPSTREAM
@click.option("--json", "as_json", is_flag=True, help="One JSON document instead of a table.")
def check(config: Path | None, upstream: str | None, as_json: bool) -> None:
    """Validate configuration and profiles, probe the upstreams, and say what is wrong.

    Exits 1 on any problem, 2 where the configuration can't be read.
    """
    from proxy.check import check as run
    from proxy.check import table
    from proxy.settings import build

    settings = build(_config_path(config), _flags(upstream))
    findings = asyncio.run(run(settings))
    click.echo(json.dumps(findings.as_json(), indent=2) if as_json else table(findings))
    if findings.problems:
        sys.exit(1)


@cli.command()
@click.argument("name")
@click.option("--profile", "profiles", multiple=True, help="Only calibration it may pick; may be repeated.")
@click.option("--opens", multiple=True, type=click.Choice(["api", "pages"]), help="[default: api]")
def key(name: str, profiles: tuple[str, ...], opens: tuple[str, ...]) -> None:
    """Make a client's key, and the line that tells the configuration of it.

    The key is shown once, on stdout. The line goes under auth.keys in seam.yaml; it is no secret.
    """
    from proxy.auth import hashed, new_key

    made = new_key()
    told = {"sha256": hashed(made), **_given(opens=opens, profiles=profiles)}
    click.echo(f"key:  {made}")
    click.echo("seam.yaml:")
    click.echo(f"auth:\n  keys:\n    {json.dumps(name)}: {json.dumps(told)}")


def _given(**lists: tuple[str, ...]) -> dict[str, list[str]]:
    return {key: list(values) for key, values in lists.items() if values}


@cli.command()
@click.argument("path", type=click.Path(path_type=Path), default="decisions.jsonl")
@click.option("--action", "actions", multiple=True,
              type=click.Choice([*(action.value for action in Action), "none"]),
              help="Only replies of this class; may be given again, like the next three.")  # fmt: skip
@click.option("--model", "models", multiple=True, metavar="NAME", help="Only this model.")
@click.option("--profile", "profiles", multiple=True, metavar="NAME", help="Only this profile.")
@click.option("--applied", multiple=True, type=click.Choice(["bias", "sri", "cri", "none"]),
              help="Only replies on which this acted.")  # fmt: skip
@click.option("--case", metavar="ID", help="Only this case.")
@click.option("--since", metavar="TIME", help="From then on: 90s, 10m, 2h, 1d ago, or an ISO time.")
@click.option("-n", "--lines", default=10, show_default=True, type=click.IntRange(min=0), metavar="N",
              help="How many past records to begin with; --since shows all of its time.")  # fmt: skip
@click.option("--follow/--no-follow", default=True, show_default=True, help="Whether to wait for more.")
@click.option("--json", "as_json", is_flag=True, help="The records themselves, one JSON object a line.")
def tail(
    path: Path,
    actions: tuple[str, ...],
    models: tuple[str, ...],
    profiles: tuple[str, ...],
    applied: tuple[str, ...],
    case: str | None,
    since: str | None,
    lines: int,
    follow: bool,
    as_json: bool,
) -> None:
    """Show decisions as they are made, from the decision log PATH or all *.jsonl of a folder.

    \b
    seam tail decisions.jsonl --action refuse --since 10m
    seam tail /var/log/seam --json --applied sri | jq .probes
    """
    from proxy.tail import Tail, Wanted, moment, run

    try:
        begin = None if since is None else moment(since, datetime.now(UTC))
    except (ValueError, OverflowError):
        raise click.BadParameter(
            f"{since!r} is no time; write 10m, 2h or 2026-08-01T12:00", param_hint="--since"
        ) from None
    wanted = Wanted(actions, models, profiles, applied, case, begin)
    run(Tail(path, wanted), lines, follow, as_json)


@cli.command()
def schema() -> None:
    """Print the JSON schema of seam.yaml."""
    from proxy.settings import config_schema

    click.echo(json.dumps(config_schema(), indent=2))


def _config_path(config: Path | None) -> Path | None:
    """The named file, or ./seam.yaml where there is one."""
    default = Path("seam.yaml")
    return config or (default if default.is_file() else None)


def _flags(upstream: str | None, **listen: str | int | None) -> dict[str, Any]:
    given = {key: value for key, value in listen.items() if value is not None}
    flags: dict[str, Any] = {"listen": given} if given else {}
    if upstream is not None:
        flags["upstreams"] = {"default": {"url": upstream}}
    return flags


def main() -> None:
    """Entry point: a user's mistake is one line, never a traceback."""
    try:
        cli(standalone_mode=True)
    except ConfigError as error:
        click.echo(f"seam: {error}", err=True)
        sys.exit(2)
    except SeamError as error:
        click.echo(f"seam: {error}", err=True)
        sys.exit(3)
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
