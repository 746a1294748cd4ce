"""`warmlog user`, `acl` and `quota`: who may do what, and how much."""

from pathlib import Path

import click

data_dir_option = click.option(
    "--data-dir",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help="Change the data directory of a broker that does not run, instead of asking a broker.",
)
