"""`make bench-compare BASE=COMMIT`: this tree's benchmarks against another build and this one, in turns.

Each build has a process and a broker of its own. A row is run by one build and then by the other, ROUNDS times, after a
run of each that does not count; which is first changes with each round. All of that is done with PROCESSES processes of
each build, one after another: of two processes with the same code one may be a fifth faster for as long as it lives.
What another build cannot do with these benchmarks is measured once by its own, if they have a row of that name, or is
said to be missing. The table has the medians of all rounds, their ratio, and the lowest and highest ratio of a single
round; build/compare-TARGET.json has all figures. Ctrl-C ends it with what was measured.
"""

import argparse
import json
import os
import subprocess
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from rich.console import Console
from rich.table import Table

HERE = Path(__file__).parents[2]
MODULES = {"bench": "benchmarks", "bench-storage": "benchmarks.storage", "bench-spark": "benchmarks.spark"}
WITH_JAVA = ("bench", "bench-spark")
NOT_FIGURES = ("min_", "max_", "runs", "load_average", "mb_per_s")
NO_SUCH_ROW = "no such row"
TOLERATED = 0.97
"""A rate below this share of the base's is marked."""

Rows = list[dict[str, Any]]


class Figure(NamedTuple):
    row: str
    name: str


Found = dict[Figure, list[float]]
"""What each round has measured."""


class Missing(Exception):
    """A build cannot do a row; the reason."""


class Build:
    """A tree with its environment, and a process that runs the benchmarks on its code."""

    def __init__(self, tree: Path, target: str, bench_args: Sequence[str]) -> None:
        self._tree = tree
        self._command = [".venv/bin/python", "-m", MODULES[target], *bench_args]
        environment = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))}
        subprocess.run(["make", "dev"], cwd=tree, env=environment, check=True)
        if target in WITH_JAVA:
            environment["JAVA_HOME"] = subprocess.check_output([HERE / "tools" / "java-home"], text=True).strip()
        self._environment = environment

    def start(self) -> None:
        self._process = subprocess.Popen(
            [*self._command, "--turns"],
            cwd=self._tree,
            env=self._environment | {"PYTHONPATH": str(HERE / "tests")},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        announced = self._response()
        self.units: list[str] = announced["units"]
        self.missing: dict[str, str] = announced["missing"]

    def run(self, unit: str) -> Rows:
        """The rows of one run. Raises Missing."""
        if unit not in self.units:
            raise Missing(NO_SUCH_ROW)
        assert self._process.stdin is not None
        print(unit, file=self._process.stdin, flush=True)
        response = self._response()
        if "missing" in response:
            raise Missing(response["missing"])
        rows: Rows = response["rows"]
        return rows

    def end(self) -> None:
        """Wait until the process has stopped what it started."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()

    def run_its_own(self, unit: str) -> Rows:
        """What the build's own benchmarks measure, in one run of them; nothing if they cannot."""
        output = HERE / "build" / "compare-own.json"
        output.unlink(missing_ok=True)
        command = [*self._command, "--only", unit, "--output", str(output)]
        environment = self._environment | {"PYTHONPATH": str(self._tree / "tests")}
        subprocess.run(command, cwd=self._tree, env=environment, capture_output=True)
        rows: Rows = json.loads(output.read_text()) if output.exists() else []
        return rows

    def _response(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit(f"the benchmarks in {self._tree} have ended with exit code {self._process.wait()}")
        response: dict[str, Any] = json.loads(line)
        return response


class Comparison:
    """The figures of both builds."""

    def __init__(self, base: Build, here: Build, console: Console) -> None:
        self.base: Found = defaultdict(list)
        self.here: Found = defaultdict(list)
        self.missing: dict[str, str] = {}
        """Reasons, by the unit's name."""
        self._builds = ((base, self.base), (here, self.here))
        self._console = console

    def measure(self, rounds: int) -> None:
        """Run each unit `rounds` times in new processes."""
        (base, _), (here, _) = self._builds
        base.start()
        here.start()
        for unit in here.units:
            self._console.print(unit, style="dim")
            try:
                self._measure_unit(unit, rounds)
            except Missing as reason:  # the figures of the others stay
                self._console.print(f"{unit} ended early: {reason}", style="red")
        base.end()
        here.end()

    def _measure_unit(self, unit: str, rounds: int) -> None:
        (base, _), (here, found_here) = self._builds
        here.run(unit)
        try:
            base.run(unit)
        except Missing as reason:
            self.missing[unit] = str(reason)
            take(here.run(unit), found_here)
            return
        for index in range(rounds):
            for build, found in self._builds if index % 2 == 0 else reversed(self._builds):
                take(build.run(unit), found)

    def add_own(self) -> None:
        """Add what the base's own benchmarks measure of the rows that it lacks."""
        (base, found), _ = self._builds
        wanted = {figure.row for figure in self.here} - {figure.row for figure in self.base}
        for unit in self.missing:
            take([row for row in base.run_its_own(unit) if row["name"] in wanted], found)

    def print(self) -> None:
        """Print what both have, then what is missing in the base."""
        table = Table(title=f"Medians; * a rate below {TOLERATED} of the base's")
        for heading in ("", "base", "here", "here / base", "lowest", "highest", ""):
            table.add_column(heading, justify="right" if heading else "left", no_wrap=True)
        for figure, after in self.here.items():
            before = self.base.get(figure, [])
            if before and all(before):
                table.add_row(f"{figure.row} {figure.name}", *_cells(figure, before, after))
        self._console.print(table)
        lacking = {figure.row for figure in self.here} - {figure.row for figure in self.base}
        for row in sorted(lacking):
            self._console.print(f"missing in the base: {row}", highlight=False, markup=False)
        for unit, reason in (self._builds[0][0].missing | self.missing).items():
            if reason != NO_SUCH_ROW:
                text = f"the base cannot do {unit} with these benchmarks: {reason}"
                self._console.print(text, highlight=False, markup=False)


def take(rows: Rows, found: Found) -> None:
    for row in rows:
        for name, value in row.items():
            if isinstance(value, int | float) and not name.startswith(NOT_FIGURES):
                found[Figure(row["name"], name)].append(value)


def _cells(figure: Figure, before: Sequence[float], after: Sequence[float]) -> list[str]:
    ratio = median(after) / median(before)
    cells = [f"{median(before):,.6g}", f"{median(after):,.6g}", f"{ratio:.3f}"]
    if len(before) == len(after):
        ratios = sorted(now / then for then, now in zip(before, after, strict=True))
        cells += [f"{ratios[0]:.3f}", f"{ratios[-1]:.3f}"]
    else:
        cells += ["its own", "benchmark"]
    return [*cells, "*" if "_per_s" in figure.name and ratio < TOLERATED else ""]


def tree_of(base: str) -> Path:
    """A tree of `base`: itself if it is a directory, else a worktree of that commit."""
    if Path(base).is_dir():
        return Path(base).resolve()
    commit = subprocess.check_output(["git", "rev-parse", "--short", base], cwd=HERE, text=True).strip()
    tree = HERE / "build" / f"base-{commit}"
    if not tree.exists():
        subprocess.run(["git", "worktree", "add", "--detach", str(tree), commit], cwd=HERE, check=True)
    return tree


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("base", help="a commit, or the directory of a clone")
    parser.add_argument("--target", choices=sorted(MODULES), default="bench")
    parser.add_argument("--processes", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--bench-args", default="", help="passed to each benchmark")
    arguments = parser.parse_args()
    console = Console(width=140)
    base, here = (
        Build(tree, arguments.target, arguments.bench_args.split()) for tree in (tree_of(arguments.base), HERE)
    )
    comparison = Comparison(base, here, console)
    try:
        for _ in range(arguments.processes):
            comparison.measure(arguments.rounds)
        comparison.add_own()
    except KeyboardInterrupt:
        console.print("interrupted: these are the rows that were measured")
    output = HERE / "build" / f"compare-{arguments.target}.json"
    figures = {
        side: {f"{figure.row} {figure.name}": values for figure, values in found.items()}
        for side, found in (("base", comparison.base), ("here", comparison.here))
    }
    output.write_text(json.dumps(figures | {"missing": comparison.missing}, indent=2) + "\n")
    comparison.print()


if __name__ == "__main__":
    main()
