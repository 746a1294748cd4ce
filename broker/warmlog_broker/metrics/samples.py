"""Metric families, each with its samples."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from warmlog_broker.runtime.counters import Histogram


def gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(name, text, value=float(value))


def counter(name: str, text: str, value: float) -> Metric:
    return CounterMetricFamily(name, text, value=value)


def gauges(name: str, text: str, label: str, values: Mapping[str, float]) -> Metric:
    return labelled(GaugeMetricFamily, name, text, [label], (((value,), number) for value, number in values.items()))


def counters(name: str, text: str, label: str, values: Mapping[str, float]) -> Metric:
    return labelled(CounterMetricFamily, name, text, [label], (((value,), number) for value, number in values.items()))


def labelled(
    kind: type[GaugeMetricFamily] | type[CounterMetricFamily],
    name: str,
    text: str,
    labels: list[str],
    values: Iterable[tuple[tuple[str, ...], float]],
) -> Metric:
    """Return a family of `kind` with a sample for each of `values`, which are given with the values of `labels`."""
    family = kind(name, text, labels=labels)
    for label_values, value in values:
        family.add_metric(label_values, float(value))
    return family


def histogram(name: str, text: str, labels: Sequence[str], histograms: Mapping[Any, Histogram]) -> Metric:
    """Return a family; `histograms` are by their values of the labels, a tuple."""
    family = HistogramMetricFamily(name, text, labels=labels)
    for values, each in histograms.items():
        count, buckets = 0, []
        for bound, more in zip([*map(str, each.bounds), "+Inf"], each.counts, strict=True):
            count += more
            buckets.append((bound, count))
        family.add_metric(list(values), buckets, each.total)
    return family
