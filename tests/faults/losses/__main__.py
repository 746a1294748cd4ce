"""`python -m faults.losses`: cuts the power of a broker under load, and compares what is lost with what may be."""

import argparse
import sys
import tempfile
from pathlib import Path
from random import Random

from faults.losses.judging import Mode
from faults.losses.measuring import MODES, Cut, measure
from faults.power.powered import why_not


def main() -> int:
    """0 when every loss was within its bound, 1 when not, 2 when the power cannot be cut here."""
    parser = argparse.ArgumentParser(prog="python -m faults.losses", description=__doc__)
    parser.add_argument("--cuts", type=int, default=24, metavar="N", help="how many, over all modes (default: 24)")
    parser.add_argument("--seed", type=int, default=1, help="when the power goes and what it leaves (default: 1)")
    options = parser.parse_args()
    if options.cuts < len(MODES):
        parser.error(f"--cuts {options.cuts}: there are {len(MODES)} modes, and each needs one")
    if missing := why_not():
        print(missing, file=sys.stderr)
        return 2
    is_good = True
    for number, mode in enumerate(MODES):
        with tempfile.TemporaryDirectory(prefix="warmlog-losses-") as workspace:
            cuts = -(-(options.cuts - number) // len(MODES))
            measured = measure(Path(workspace), mode, cuts=cuts, luck=Random(f"{options.seed}:{number}"))
        print(describe(mode, measured), flush=True)
        is_good = is_good and not problems(measured)
        for problem in problems(measured):
            print(f"  {problem}", flush=True)
    print(f"seed {options.seed}: {'every loss within its bound' if is_good else 'NOT as stated'}")
    return 0 if is_good else 1


def describe(mode: Mode, cuts: list[Cut]) -> str:
    """One line on the largest losses of a mode."""
    losses = [loss for cut in cuts for loss in cut.losses]
    hit = sum(loss.records > 0 for loss in losses)
    line = (
        f"{mode.name}: {len(cuts)} cuts, {sum(cut.acknowledged for cut in cuts)} records acknowledged; "
        f"{hit} of {len(losses)} partitions lost some; most in one partition: "
        f"{max((loss.records for loss in losses), default=0)} records, "
        f"{max((loss.size_bytes for loss in losses), default=0)} bytes, "
        f"{max((loss.age_ms for loss in losses), default=0):.0f} ms before the cut"
    )
    allowed_ms = [loss.allowed_age_ms for loss in losses if loss.allowed_age_ms is not None]
    allowed_records = [loss.allowed_records for loss in losses if loss.allowed_records is not None]
    if allowed_ms:
        line += f"; allowed: {min(allowed_ms):.0f} to {max(allowed_ms):.0f} ms"
    if allowed_records:
        line += f"; allowed: {min(allowed_records)} to {max(allowed_records)} records"
    return line + f"; longest flush {max(cut.flush_ms for cut in cuts):.0f} ms"


def problems(cuts: list[Cut]) -> list[str]:
    """What is not as stated."""
    found = [text for cut in cuts for text in cut.wrong]
    for number, cut in enumerate(cuts):
        found += [f"cut {number}: {loss}" for loss in cut.losses if not loss.is_within_bound]
    return found


if __name__ == "__main__":
    sys.exit(main())
