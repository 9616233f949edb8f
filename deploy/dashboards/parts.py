"""What the dashboard is made of: queries, and panels that all have a unit, a legend and one data source."""

from collections.abc import Mapping, Sequence
from string import ascii_uppercase
from typing import NamedTuple, TypeVar

from grafana_foundation_sdk.builders import common, dashboard, heatmap, prometheus, stat, table, timeseries
from grafana_foundation_sdk.builders import statetimeline as timeline
from grafana_foundation_sdk.models import common as settings
from grafana_foundation_sdk.models import dashboard as models
from grafana_foundation_sdk.models import heatmap as heat_settings
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

SOURCE = models.DataSourceRef(type_val="prometheus", uid="${datasource}")
PICKED = 'model=~"$model",profile=~"$profile"'
"""The selectors of series that the dashboard's variables choose among."""
BY = "{{model}} · {{profile}}"
NATS = "suffix: nats"

_P = TypeVar("_P", timeseries.Panel, stat.Panel, heatmap.Panel, timeline.Panel, table.Panel)

Step = tuple[float | None, str]
"""From which value on a colour holds; None: from the lowest."""


class Query(NamedTuple):
    """PromQL, and how its series are named."""

    expr: str
    legend: str


def rate(metric: str, by: str, selector: str = PICKED) -> str:
    """Events a second, summed over instances and workers."""
    return f"sum by ({by}) (rate({metric}{{{selector}}}[$__rate_interval]))"


def share(part: str, whole: str) -> str:
    """`part / whole`, 0 where there is none of the part, nothing where there is nothing of the whole."""
    return f"({part} or 0 * {whole}) / ({whole} > 0)"


def quantile(q: float, metric: str, selector: str = PICKED) -> Query:
    """A quantile of a histogram, by model and profile."""
    rates = f"sum by (model, profile, le) (rate({metric}_bucket{{{selector}}}[$__rate_interval]))"
    return Query(f"histogram_quantile({q:g}, {rates})", f"{BY} p{q * 100:g}")


def lines(
    title: str,
    description: str,
    unit: str,
    *queries: Query,
    span: int = 12,
    stacked: settings.StackingMode | None = None,
    colours: Mapping[str, str] | None = None,
    log: bool = False,
) -> timeseries.Panel:
    """Series over time; the newest value and the mean stand in the legend."""
    legend = common.VizLegendOptions().show_legend(True).calcs(["lastNotNull", "mean"])
    legend.display_mode(settings.LegendDisplayMode.TABLE).placement(settings.LegendPlacement.BOTTOM)
    panel = timeseries.Panel().legend(legend).span_nulls(False).line_width(1)
    panel.tooltip(
        common.VizTooltipOptions().mode(settings.TooltipDisplayMode.MULTI).sort(settings.SortOrder.DESCENDING)
    )
    if stacked:
        panel.stacking(common.StackingConfig().mode(stacked)).fill_opacity(60)
    if log:
        panel.scale_distribution(
            common.ScaleDistributionConfig().type(settings.ScaleDistribution.LOG).log(10)
        )
    for name, colour in (colours or {}).items():
        value = {"mode": "fixed", "fixedColor": colour}
        panel.override_by_name(name, [models.DynamicConfigValue(id_val="color", value=value)])
    return _asking(panel, title, description, unit, queries, span, 9)


def number(
    title: str, description: str, unit: str, expr: str, *steps: Step, decimals: int | None = None
) -> stat.Panel:
    """One number of now, coloured by steps, over its course."""
    panel = stat.Panel().graph_mode(settings.BigValueGraphMode.AREA)
    panel.color_mode(settings.BigValueColorMode.VALUE).text_mode(settings.BigValueTextMode.VALUE)
    panel.reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"]).values(False))
    panel.thresholds(_thresholds(steps or ((None, "text"),)))
    if decimals is not None:
        panel.decimals(decimals)
    return _asking(panel, title, description, unit, [Query(expr, title)], 3, 4)


def heat(title: str, description: str, unit: str, metric: str, span: int = 12) -> heatmap.Panel:
    """A histogram over time: how many replies fell into each bucket."""
    expr = f"sum by (le) (increase({metric}_bucket{{{PICKED}}}[$__rate_interval]))"
    colour = heatmap.HeatmapColorOptions().mode(heat_settings.HeatmapColorMode.SCHEME)
    colour.scheme("Turbo").steps(64).fill("dark-orange").exponent(0.5)
    colour.scale(heat_settings.HeatmapColorScale.EXPONENTIAL).reverse(False)
    panel = heatmap.Panel().calculate(False).color(colour).show_legend().cell_gap(0)
    panel.y_axis(heatmap.YAxisConfig().unit(unit).axis_placement(settings.AxisPlacement.LEFT))
    panel.cell_values(heatmap.CellValues().unit("short").decimals(0))
    panel.filter_values(heatmap.FilterValueRange().le(1e-9))
    asking = _query(Query(expr, "{{le}}"), "A").format(PromQueryFormat.HEATMAP)
    return _placed(panel, title, description, "short", span, 9).with_target(asking)


def states(
    title: str, description: str, *queries: Query, words: Mapping[str, tuple[str, str]], span: int = 12
) -> timeline.Panel:
    """What held when; `words` name and colour each value."""
    panel = timeline.Panel().merge_values(True).row_height(0.8)
    panel.legend(
        common.VizLegendOptions()
        .show_legend(True)
        .display_mode(settings.LegendDisplayMode.LIST)
        .placement(settings.LegendPlacement.BOTTOM)
    )
    results = {
        value: models.ValueMappingResult(text=text, color=colour) for value, (text, colour) in words.items()
    }
    panel.mappings([models.ValueMap(options=results)])
    panel.thresholds(_thresholds(((None, "text"),)))
    return _asking(panel, title, description, "none", queries, span, 7)


def listed(title: str, description: str, expr: str, *columns: str, span: int = 12) -> table.Panel:
    """A table of series as they are now, one column a label."""
    panel = table.Panel().show_header(True).frame_index(0)
    asking = _query(Query(expr, "__auto"), "A").instant().format(PromQueryFormat.TABLE)
    options = {
        "excludeByName": {"Time": True, "Value": True},
        "indexByName": {column: at for at, column in enumerate(columns)},
    }
    panel.with_transformation(models.DataTransformerConfig(id_val="organize", options=options))
    return _placed(panel, title, description, "none", span, 7).with_target(asking)


def _asking(
    panel: _P, title: str, description: str, unit: str, queries: Sequence[Query], span: int, height: int
) -> _P:
    _placed(panel, title, description, unit, span, height)
    for name, query in zip(ascii_uppercase[: len(queries)], queries, strict=True):
        panel.with_target(_query(query, name))
    return panel


def _query(query: Query, name: str) -> prometheus.Dataquery:
    return prometheus.Dataquery().expr(query.expr).legend_format(query.legend).ref_id(name).datasource(SOURCE)


def _placed(panel: _P, title: str, description: str, unit: str, span: int, height: int) -> _P:
    panel.title(title).description(description).unit(unit).span(span).height(height).datasource(SOURCE)
    return panel


def _thresholds(steps: Sequence[Step]) -> dashboard.ThresholdsConfig:
    told = [models.Threshold(value=value, color=colour) for value, colour in steps]
    return dashboard.ThresholdsConfig().mode(models.ThresholdsMode.ABSOLUTE).steps(told)


class Event(dashboard.AnnotationQuery):
    """Marks in time where a Prometheus query has data, one a minute at most."""

    def __init__(self, name: str, colour: str, expr: str, title: str) -> None:
        super().__init__()
        self._internal = _Event(name=name, datasource=SOURCE, enable=True, icon_color=colour, expr=expr)
        self._internal.title = title


class _Event(models.AnnotationQuery):
    """The SDK's type lacks the fields that are Prometheus' own."""

    title: str

    def to_json(self) -> dict[str, object]:
        # Grafana asks what `target` says; its editor before 12 shows the fields beside it.
        asked = {"expr": self.expr, "interval": "60s", "refId": "Anno"}
        own = {"titleFormat": self.title, "textFormat": "", "tagKeys": "", "step": "60s"}
        return {**super().to_json(), "target": asked, **own}
