"""Seam's dashboard, row by row; docs/watching.md says how to read each."""

from collections.abc import Iterable, Iterator, Sequence

from grafana_foundation_sdk.builders import dashboard
from grafana_foundation_sdk.builders.dashboard import Row
from grafana_foundation_sdk.cog.builder import Builder
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models import common as settings
from grafana_foundation_sdk.models import dashboard as models

from deploy.dashboards.parts import (
    BY,
    NATS,
    PICKED,
    SOURCE,
    Event,
    Query,
    heat,
    lines,
    listed,
    number,
    quantile,
    rate,
    share,
    states,
)

PERCENT = settings.StackingMode.PERCENT
NORMAL = settings.StackingMode.NORMAL
COLOURS = {
    "tool_call": "blue",
    "ask": "purple",
    "refuse": "orange",
    "confirm": "green",
    "other": "yellow",
    "none": "red",
}
"""One colour for each action class, wherever it shows."""
MODEL = "model, profile"

Panel = Builder[models.Panel]
Rows = Sequence[tuple[str, Iterable[Panel]]]


def rows() -> Rows:
    """Every row, from what to look at first to Seam's own records."""
    return (
        ("In a minute", _first_look()),
        ("What replies do", _actions()),
        ("Margins", _margins()),
        ("What Seam did", _interventions()),
        ("Drift", _drift()),
        ("Extra queries and cost", _cost()),
        ("Time", _time()),
        ("Errors and passthrough", _errors()),
        ("Seam's own records", _records()),
    )


def generated() -> str:
    """The dashboard as the JSON that Grafana imports."""
    board = dashboard.Dashboard("Seam").uid("seam").tags(["seam", "llm"]).editable()
    board.description("Whether action classes moved, why, and whether Seam is the cause: docs/watching.md.")
    board.time("now-6h", "now").refresh("30s").timezone("browser").version(1)
    board.tooltip(models.DashboardCursorSync.CROSSHAIR)
    for variable in _variables():
        board.with_variable(variable)
    for event in _events():
        board.annotation(event)
    for title, panels in rows():
        board.with_row(Row(title))
        for panel in panels:
            board.with_panel(panel)
    built = board.build()
    for identity, placed in enumerate(built.panels or (), start=1):
        placed.id_val = identity
    return JSONEncoder(sort_keys=True, indent=2).encode(built) + "\n"


def _variables() -> Iterator[Builder[models.VariableModel]]:
    yield dashboard.DatasourceVariable("datasource").label("Prometheus").type("prometheus")
    for name in ("model", "profile"):
        yield (
            dashboard.QueryVariable(name)
            .label(name.capitalize())
            .datasource(SOURCE)
            .query(f"label_values(seam_requests_total, {name})")
            .refresh(models.VariableRefresh.ON_TIME_RANGE_CHANGED)
            .sort(models.VariableSort.ALPHABETICAL_ASC)
            .multi(True)
            .include_all(True)
            .all_value(".*")
        )


def _events() -> Iterator[Event]:
    def new(what: str) -> str:
        return f"({what}) unless ({what.replace('}', '} offset 1m')})"

    loaded = new('max by (profile, model, bias) (seam_profile_info{profile=~"$profile"})')
    title = "{{profile}} loaded, bias {{bias}}"
    yield Event("Profiles", "purple", loaded, title)
    reloaded = "sum by (outcome) (increase(seam_config_reloads_total{}[1m])) > 0"
    yield Event("Reloads", "blue", reloaded, "Reload {{outcome}}")
    yield Event("Versions", "green", new("max by (version) (seam_build_info{})"), "Seam {{version}}")


def _first_look() -> Iterator[Panel]:
    requests = f"sum(rate(seam_requests_total{{{PICKED}}}[$__rate_interval]))"
    failed = f'sum(rate(seam_requests_total{{{PICKED},status=~"5.."}}[$__rate_interval]))'
    offered = f'sum(rate(seam_actions_total{{{PICKED},tools="yes"}}[$__rate_interval]))'
    called = f'sum(rate(seam_actions_total{{{PICKED},tools="yes",action="tool_call"}}[$__rate_interval]))'
    overhead = quantile(0.99, "seam_overhead_seconds").expr
    yield number("Requests", "Requests a second of the picked models and profiles.", "reqps", requests)
    yield number(
        "Server errors",
        "Share of requests that end in a 5xx, Seam's own or the upstream's.",
        "percentunit",
        share(failed, requests),
        (None, "green"), (0.01, "orange"), (0.05, "red"),
    )  # fmt: skip
    yield number(
        "Calls where offered",
        "Share of replies with a call among those to requests that offer tools.",
        "percentunit",
        share(called, offered),
    )
    yield number(
        "Classes moved",
        "Largest PSI of action classes against the reference; 0.02 is noticeable. See the row Drift.",
        "none",
        f'max(seam_action_drift{{{PICKED},statistic="psi"}})',
        (None, "green"), (0.02, "orange"), (0.1, "red"),
        decimals=3,
    )  # fmt: skip
    yield number(
        "Margins moved, same mix",
        "Largest PSI of margins after traffic is accounted for: what is left is the model's.",
        "none",
        f'max(seam_margin_drift{{{PICKED},statistic="psi_same_mix"}})',
        (None, "green"), (0.02, "orange"), (0.1, "red"),
        decimals=3,
    )  # fmt: skip
    yield number(
        "Uncalibrated",
        "Share of replies without the calibration that was picked, for a reason that can be mended.",
        "percentunit",
        "seam:seam_passthrough:ratio_rate15m",
        (None, "green"), (0.01, "orange"), (0.1, "red"),
    )  # fmt: skip
    yield number(
        "Seam's own time, p99",
        "The 99th percentile of the time that Seam itself takes of a reply; the worst of the picked.",
        "s",
        f"max({overhead})",
        (None, "green"), (0.01, "orange"), (0.025, "red"),
    )  # fmt: skip
    yield number(
        "Stale profiles",
        "Profiles that were made for another tokenizer or chat template than the server has.",
        "none",
        "sum(max by (profile) (seam_profile_stale))",
        (None, "green"), (1, "red"),
    )  # fmt: skip
    yield states(
        "Alerts",
        "Alerts of deploy/prometheus/alerts.yaml; each has a section in docs/watching.md.",
        Query(
            'max by (alertname) (1 + (ALERTS{alertname=~"Seam.*",alertstate="firing"}))'
            ' or max by (alertname) (ALERTS{alertname=~"Seam.*",alertstate="pending"})',
            "{{alertname}}",
        ),
        words={"1": ("pending", "orange"), "2": ("firing", "red")},
        span=24,
    )


def _actions() -> Iterator[Panel]:
    mix = lines(
        "Action classes under $profile",
        "What replies do, as shares of all replies; marks are profile changes, reloads and versions.",
        "ops",
        Query(rate("seam_actions_total", "action"), "{{action}}"),
        span=24, stacked=PERCENT, colours=COLOURS,
    )  # fmt: skip
    yield mix.repeat("profile").repeat_direction("h").max_per_row(3)
    by_class = f"sum by ({MODEL}, action) (rate(seam_actions_total{{{PICKED}}}[$__rate_interval]))"
    whole = rate("seam_actions_total", MODEL)
    yield lines(
        "Share of each class, by model and profile",
        "The same as lines, to compare profiles and models with each other.",
        "percentunit",
        Query(f"{by_class} / on ({MODEL}) group_left () ({whole} > 0)", f"{BY} · {{{{action}}}}"),
    )
    called = rate("seam_actions_total", MODEL, f'{PICKED},tools="yes",action="tool_call"')
    offered = rate("seam_actions_total", MODEL, f'{PICKED},tools="yes"')
    yield lines(
        "Calls where tools are offered, by model and profile",
        "Share of replies with a call among those to requests that offer tools: what a bias moves.",
        "percentunit",
        Query(share(called, offered), BY),
    )
    calls = rate("seam_actions_total", MODEL, f'{PICKED},action="tool_call"')
    yield lines(
        "Delayed calls",
        "Of the replies with a call, the share that say something first: a bias at the decision misses them.",
        "percentunit",
        Query(share(rate("seam_delayed_calls_total", MODEL), calls), BY),
    )
    yield lines(
        "Repeated calls",
        "Calls that repeat an earlier one of their turn, for each reply that calls: loops.",
        "percentunit",
        Query(share(rate("seam_repeated_calls_total", MODEL), calls), BY),
    )


def _margins() -> Iterator[Panel]:
    yield heat(
        "Margins before any bias",
        "Log-odds of opening a call; above 0 the model would rather call. A bias does not move this map.",
        NATS,
        "seam_entry_margin",
    )
    yield heat(
        "Entry probability before any bias",
        "The same as a probability; replies near 0 or 1 are beyond any small bias.",
        "percentunit",
        "seam_entry_probability",
    )
    yield lines(
        "Median margin",
        "Interpolated within the heat map's buckets.",
        NATS,
        quantile(0.5, "seam_entry_margin"),
    )
    yield lines(
        "Margins read",
        "Replies a second of which the margin was read; without it there is no drift of margins.",
        "ops",
        Query(rate("seam_entry_margin_count", MODEL), BY),
    )


def _interventions() -> Iterator[Panel]:
    yield lines(
        "Interventions by outcome",
        "What each calibrator did to replies, or why not: docs/metrics.md has the outcomes.",
        "ops",
        Query(rate("seam_interventions_total", "calibrator, outcome", ""), "{{calibrator}} · {{outcome}}"),
        stacked=NORMAL,
    )
    looks = 'outcome=~"retried|failed|bypassed|passed|gated|log_only"'
    by_outcome = rate("seam_interventions_total", "calibrator, outcome", looks)
    looked = rate("seam_interventions_total", "calibrator", looks)
    yield lines(
        "Outcomes of probes",
        "Of the replies that a probe looked at, the share that it asked again, let pass, or failed to mend.",
        "percentunit",
        Query(
            f"{by_outcome} / on (calibrator) group_left () ({looked} > 0)",
            "{{calibrator}} · {{outcome}}",
        ),
    )
    yield lines(
        "Entry flips",
        "Replies a second whose likeliest first token the bias moved out of the entry set, or into it.",
        "ops",
        Query(rate("seam_entry_flips_total", "direction", ""), "{{direction}}"),
    )
    yield listed(
        "Profiles loaded",
        "As the proxies have them now; two lines for one profile: not all have reloaded.",
        'max by (profile, model, bias) (seam_profile_info{profile=~"$profile"})',
        "profile", "model", "bias",
    )  # fmt: skip
    yield states(
        "Profiles and their server",
        "When a profile was not for the tokenizer or chat template that the server had.",
        Query('max by (profile) (seam_profile_stale{profile=~"$profile"})', "{{profile}}"),
        words={"0": ("fits", "green"), "1": ("stale", "red")},
        span=24,
    )


def _drift() -> Iterator[Panel]:
    def worst(metric: str, statistics: str, by: str = "max") -> Query:
        chosen = f'{metric}{{{PICKED},statistic=~"{statistics}"}}'
        return Query(f"{by} by ({MODEL}, statistic) ({chosen})", f"{BY} · {{{{statistic}}}}")

    for what, metric in (("Classes", "seam_action_drift"), ("Margins", "seam_margin_drift")):
        yield lines(
            f"{what}: how far",
            "PSI and Jensen-Shannon distance from the reference, of the process that is furthest away; "
            "same_mix: after traffic is accounted for.",
            "none",
            worst(metric, "psi|psi_same_mix|jensen_shannon"),
        )
        yield lines(
            f"{what}: how sure",
            "p of steady traffic: below 0.001 with a PSI of 0.02 or more, it moved.",
            "none",
            worst(metric, "p_value|p_value_same_mix", "min"),
            log=True,
        )
    yield lines(
        "Share that traffic explains",
        "Of the change of classes: near 1 other requests came, near 0 the model or Seam changed.",
        "percentunit",
        worst("seam_action_drift", "mix_share"),
    )
    yield lines(
        "Shift of the mean margin",
        "The bias that would undo it is this number with its sign turned.",
        NATS,
        worst("seam_margin_drift", "shift|shift_same_mix", "avg"),
    )
    yield lines(
        "All processes together: PSI of the last hour",
        "From counters, so that it adds up over processes; from 200 replies on.",
        "none",
        Query(f"model_profile:seam_action_drift:psi_increase1h{{{PICKED}}}", BY),
    )
    hour = f"model_profile_action:seam_actions:ratio_increase1h{{{PICKED}}}"
    pinned = f"model_profile_action:seam_action_reference:ratio{{{PICKED}}}"
    yield lines(
        "Each class: last hour minus reference",
        "Which classes moved, in shares of replies.",
        "percentunit",
        Query(f"{hour} - {pinned}", f"{BY} · {{{{action}}}}"),
    )


def _cost() -> Iterator[Panel]:
    queries = rate("seam_queries_per_reply_sum", MODEL)
    replies = rate("seam_queries_per_reply_count", MODEL)
    single = rate("seam_queries_per_reply_bucket", MODEL, f'{PICKED},le="1.0"')
    yield lines(
        "Queries for one reply",
        "1 where nothing is asked again; probes and resampling add.",
        "none",
        Query(f"{queries} / ({replies} > 0)", BY),
    )
    yield lines(
        "Replies that took more than one query",
        "Their share.",
        "percentunit",
        Query(f"1 - {single} / ({replies} > 0)", BY),
    )
    yield lines(
        "Tokens by purpose",
        "Prompt and completion tokens a second, by what the query was for, where the upstream counts them.",
        "short",
        Query(rate("seam_tokens_total", "role, kind"), "{{role}} · {{kind}}"),
        stacked=NORMAL,
    )
    first = rate("seam_tokens_total", MODEL, f'{PICKED},role="first"')
    extra = rate("seam_tokens_total", MODEL, f'{PICKED},role!="first"')
    yield lines(
        "Extra tokens",
        "Tokens of further queries for each token of a first one: what calibration costs.",
        "percentunit",
        Query(share(extra, first), BY),
    )


def _time() -> Iterator[Panel]:
    yield lines(
        "Seam's own time",
        "A reply's time that was spent neither waiting for the upstream nor for the client.",
        "s",
        quantile(0.5, "seam_overhead_seconds"),
        quantile(0.99, "seam_overhead_seconds"),
    )
    yield lines(
        "Upstream",
        "Waiting for the server, all queries of a reply together.",
        "s",
        quantile(0.5, "seam_upstream_seconds"),
        quantile(0.95, "seam_upstream_seconds"),
    )
    yield lines(
        "Until the first event",
        "Until the client was shown the first event of a stream, or a whole reply.",
        "s",
        quantile(0.5, "seam_first_token_seconds"),
        quantile(0.95, "seam_first_token_seconds"),
    )
    yield lines(
        "Requests being answered",
        "All instances and workers together; at limits.concurrency further ones get 503.",
        "short",
        Query("sum(seam_requests_in_flight)", "in flight"),
    )


def _errors() -> Iterator[Panel]:
    yield lines(
        "Requests by status",
        "499: the client left before an answer.",
        "reqps",
        Query(rate("seam_requests_total", "status"), "{{status}}"),
        stacked=NORMAL,
    )
    yield lines(
        "Requests by route",
        "Route `forward` is everything that is not calibrated.",
        "reqps",
        Query(rate("seam_requests_total", "route"), "{{route}}"),
        stacked=NORMAL,
    )
    yield lines(
        "Replies that the upstream failed",
        "Their share of the requests.",
        "percentunit",
        Query(share(rate("seam_upstream_errors_total", MODEL), rate("seam_requests_total", MODEL)), BY),
    )
    yield lines(
        "Passthrough by reason",
        "Replies a second without a calibration that was picked; docs/watching.md tells faults from requests "
        "to which it does not apply.",
        "ops",
        Query(rate("seam_passthrough_total", "reason", ""), "{{reason}}"),
        stacked=NORMAL,
    )
    yield lines(
        "Connections refused",
        "Ended for what came on them in place of a request: 400 no HTTP, 408 too slow, 431 too long a head.",
        "ops",
        Query(rate("seam_connections_refused_total", "status", ""), "{{status}}"),
        span=24,
    )


def _records() -> Iterator[Panel]:
    yield lines(
        "Decision records dropped",
        "In the time between two points; the decision log has gaps there.",
        "short",
        Query("sum(increase(seam_decisions_dropped_total[$__rate_interval]))", "dropped"),
    )
    yield lines(
        "Redis failures",
        "Requests to state.store that failed; each process then remembers by itself.",
        "short",
        Query("sum(increase(seam_memory_errors_total[$__rate_interval]))", "failed"),
    )
    yield lines(
        "Reloads",
        "Of configuration and profiles; after a refused one, what was running stays.",
        "short",
        Query("sum by (outcome) (increase(seam_config_reloads_total[$__rate_interval]))", "{{outcome}}"),
    )
    yield lines(
        "Versions running",
        "Instances by version of Seam.",
        "short",
        Query("count by (version) (seam_build_info)", "{{version}}"),
    )
    yield lines(
        "Workers started",
        "Processes that began to serve, in the time between two points; on and on: they keep dying.",
        "short",
        Query("sum by (instance) (increase(seam_worker_starts_total[$__rate_interval]))", "{{instance}}"),
        span=24,
    )
