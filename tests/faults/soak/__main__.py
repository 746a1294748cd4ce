"""`python -m faults.soak`: holds a share of the peak for so many minutes, and says what has drifted."""

import argparse
import json
import sys
import tempfile
from pathlib import Path
from statistics import median

from faults.soak.run import WARM_UP_SHARE, Plan, Soak, soak


def main() -> int:
    """0 when every bar holds, 1 when not."""
    parser = argparse.ArgumentParser(prog="python -m faults.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=30.0, help="how long the load is held (default: 30)")
    parser.add_argument("--share", type=float, default=0.7, help="the share of the peak (default: 0.7)")
    parser.add_argument(
        "--saturate", type=float, default=120.0, metavar="S", help="seconds for the peak (default: 120)"
    )
    parser.add_argument("--output", type=Path, default=Path("build/soak.json"), help="default: build/soak.json")
    options = parser.parse_args()
    plan = Plan(options.minutes, options.share, options.saturate)
    with tempfile.TemporaryDirectory(prefix="warmlog-soak-") as workspace:
        result = soak(Path(workspace), plan, lambda line: print(line, flush=True))
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(json.dumps(result.as_json(), indent=1))
    print(report(result))
    print(f"everything is in {options.output}")
    return 0 if all(verdict.is_good for verdict in result.verdicts) else 1


def report(result: Soak) -> str:
    """The figures and verdicts, as text."""
    producing, consuming, churning = (result.reports[name] for name in ("producing", "consuming", "churning"))
    lines = [
        f"{result.plan.minutes:g} minutes at {result.rate:,.0f} records/s, {result.plan.share:.0%} of the peak: "
        f"{producing['acknowledged']:,} records acknowledged, {consuming['tail_records']:,} read at the tail, "
        f"{consuming['reread_records']:,} read again in {consuming['rounds']} rounds; "
        f"{churning['connections']:,} connections and {churning['topics']} topics came and went; "
        f"{producing['dropped_ticks']} ticks dropped",
        f"{len(result.judged)} of {len(result.samples)} samples count: the first {WARM_UP_SHARE:.0%} are warming up",
        *map(str, result.verdicts),
        f"     a sync of one block, beside all that: {_thirds([each.sync_ms for each in result.judged])}",
        *(f"  {error}" for error in result.errors[:20]),
    ]
    missed = [verdict.name for verdict in result.verdicts if not verdict.is_good]
    lines.append(f"DRIFT or failure: {', '.join(missed)}" if missed else "nothing drifts")
    return "\n".join(lines)


def _thirds(values: list[float]) -> str:
    third = max(1, len(values) // 3)
    if not values:
        return "no samples"
    return f"first third {median(values[:third]):.2f}, last third {median(values[-third:]):.2f} ms"


if __name__ == "__main__":
    sys.exit(main())
