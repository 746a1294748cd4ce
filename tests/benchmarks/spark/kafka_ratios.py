"""What our source makes of a topic, as a multiple of what Kafka's own connector makes of the same."""

from rich.console import Console
from rich.table import Table

from benchmarks.measurement import Measurement

PEER = "kafka."
BARS = {
    "spark.count": 2.2,
    "spark.sum_length": 1.65,
    "spark.seven_columns": 1.25,
    "spark.parquet": 1.4,
    "spark.parquet_seven": 1.4,
}
"""How many times the peer's rate it is to be at least, in the same run."""


def print_ratios(measurements: list[Measurement], console: Console) -> None:
    """A line for every benchmark that has a peer."""
    by_name = {each.name: each for each in measurements}
    table = Table(title="Against Kafka's own connector, in this run")
    for heading in ("", "warmlog", "kafka", "ratio", "bar", ""):
        table.add_column(heading, justify="right" if heading else "left")
    for name, ours in by_name.items():
        if (peer := by_name.get(PEER + name)) is None:
            continue
        if "trigger_ms" in ours.figures:
            ours_ms, peer_ms = ours.figures["trigger_ms"], peer.figures["trigger_ms"]
            table.add_row(name, f"{ours_ms:,.0f} ms", f"{peer_ms:,.0f} ms", f"{ours_ms / peer_ms:.2f}", "", "")
            continue
        ratio = ours.records_per_s / peer.records_per_s
        bar = BARS.get(name)
        verdict = "" if bar is None else "reached" if ratio >= bar else "missed"
        rates = (f"{each.records_per_s:,.0f}" for each in (ours, peer))
        table.add_row(name, *rates, f"{ratio:.2f}", f"{bar:.2f}" if bar else "", verdict)
    console.print(table)
