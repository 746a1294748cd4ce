"""The command `warmlog demo`."""

from pathlib import Path
from typing import Annotated

import typer

from warmlog.cli.terminal.exits import ends_cleanly


@ends_cleanly
def demo(
    limit: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="Take N flights, spread over the year, instead of all 336,776."),
    ] = None,
    keep: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Keep the broker's data and its log in DIR, which must be empty or missing."),
    ] = None,
) -> None:
    """Show the main job on real input: produce, kill the broker, consume, seek, read in Spark.

    Every result is checked: the exit code is 0 only if all are right. The input is the flights that left New York in
    2013. It takes under two minutes, and needs the extra demo and Java 17.
    """
    if keep is not None and keep.exists() and (not keep.is_dir() or any(keep.iterdir())):
        raise typer.BadParameter(f"{keep} is not an empty directory", param_hint="--keep")

    from warmlog.cli.demo.story import tell

    tell(limit=limit, keep=keep)
