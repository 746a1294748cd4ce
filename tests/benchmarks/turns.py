"""What all benchmarks are told, and rows that another process asks for: `make bench-compare` has two builds take turns.

With `--turns` a benchmark announces its units in a line of JSON on stdout, then runs each that a line of stdin names,
and responds with a line: the rows, or why there are none. An older build cannot do what some units need.
"""

import argparse
import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

Row = Mapping[str, object]
Units = Mapping[str, Callable[[], Sequence[Row]]]


def add_options(parser: argparse.ArgumentParser, output: Path) -> None:
    parser.add_argument("--only", default="", help="only those whose names contain this, or one of a,b")
    parser.add_argument("--output", type=Path, default=output, help="where the figures go")
    parser.add_argument("--turns", action="store_true", help=argparse.SUPPRESS)


def serve(units: Units, missing: Mapping[str, str]) -> None:
    """Run what stdin asks for until it ends. `missing` has reasons by the names of modules that were not imported."""
    with os.fdopen(os.dup(1), "w") as responses:
        os.dup2(2, 1)  # whatever else prints
        print(json.dumps({"units": [*units], "missing": missing}), file=responses, flush=True)
        for line in sys.stdin:
            try:
                response: dict[str, object] = {"rows": [*units[line.strip()]()]}
            except Exception as error:
                response = {"missing": reason_of(error)}
            print(json.dumps(response), file=responses, flush=True)


def reason_of(error: Exception) -> str:
    first_line, *_ = [*str(error).splitlines(), ""]
    return f"{type(error).__name__}: {first_line}"


def write_json(path: Path, rows: Sequence[Row]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(rows, indent=2) + "\n")
