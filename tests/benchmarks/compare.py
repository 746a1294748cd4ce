"""`make bench-compare BASE=COMMIT`: a benchmark of another commit and of this tree, in turns on one machine.

Each round runs `make TARGET` in both trees, and which is first changes with each round. The table has the medians of
the rounds and their ratio; build/compare-TARGET.json has all of them.
"""

import argparse
import json
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from statistics import median

from rich.console import Console
from rich.table import Table

HERE = Path(__file__).parents[2]
OUTPUTS = {"bench": "bench.json", "bench-storage": "bench-storage.json", "bench-spark": "bench-spark.json"}
NOT_FIGURES = ("min_", "max_", "runs", "load_average", "mb_per_s")

Figures = dict[str, float]
"""By the row's name and the figure's, joined by a space."""


def tree_of(base: str) -> Path:
    """A tree of `base`: itself if it is a directory, else a worktree of that commit."""
    if Path(base).is_dir():
        return Path(base).resolve()
    commit = subprocess.check_output(["git", "rev-parse", "--short", base], cwd=HERE, text=True).strip()
    tree = HERE / "build" / f"base-{commit}"
    if not tree.exists():
        subprocess.run(["git", "worktree", "add", "--detach", str(tree), commit], cwd=HERE, check=True)
    return tree


def run(tree: Path, target: str, bench_args: str) -> Figures:
    """The figures of one run of `make target` in `tree`."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))}
    subprocess.run(["make", target, f"BENCH_ARGS={bench_args}"], cwd=tree, env=environment, check=True)
    rows = json.loads((tree / "build" / OUTPUTS[target]).read_text())
    return {
        f"{row['name']} {name}": value
        for row in rows
        for name, value in row.items()
        if isinstance(value, int | float) and not name.startswith(NOT_FIGURES)
    }


def print_ratios(base: Sequence[Figures], here: Sequence[Figures], console: Console) -> None:
    table = Table(title=f"Medians of {len(here)} rounds")
    for heading in ("", "base", "here", "here / base"):
        table.add_column(heading, justify="right" if heading else "left")
    for name in here[0]:
        if all(name in figures for figures in [*base, *here]):
            before, after = (median(figures[name] for figures in rounds) for rounds in (base, here))
            table.add_row(name, f"{before:,.6g}", f"{after:,.6g}", f"{after / before:.3f}" if before else "")
    console.print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("base", help="a commit, or the directory of a clone")
    parser.add_argument("--target", choices=sorted(OUTPUTS), default="bench")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--bench-args", default="", help="passed to each benchmark")
    arguments = parser.parse_args()
    trees = [tree_of(arguments.base), HERE]
    figures: dict[Path, list[Figures]] = {tree: [] for tree in trees}
    for index in range(arguments.rounds):
        for tree in trees if index % 2 == 0 else reversed(trees):
            figures[tree].append(run(tree, arguments.target, arguments.bench_args))
    base, here = (figures[tree] for tree in trees)
    output = HERE / "build" / f"compare-{arguments.target}.json"
    output.write_text(json.dumps({"base": base, "here": here}, indent=2) + "\n")
    print_ratios(base, here, Console(width=120))


if __name__ == "__main__":
    main()
