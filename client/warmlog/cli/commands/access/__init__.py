"""`warmlog user`, `acl` and `quota`: who may do what, and how much."""

from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from warmlog.cli.terminal.options import chosen_broker, run_admin, run_client
from warmlog.cli.terminal.paths import NEW_DIRECTORY

if TYPE_CHECKING:
    from warmlog import Admin

USER_PREFIX = "User:"

T = TypeVar("T")

data_dir_option = click.option(
    "--data-dir",
    type=NEW_DIRECTORY,
    metavar="DIR",
    help="Change the data directory of a broker that does not run, instead of asking a broker.",
)


def run_access(data_dir: Path | None, ask: "Callable[[Admin], Awaitable[T]]") -> T:
    """Return the result of `ask` with an Admin of the broker, or of the directory of one that does not run."""
    if data_dir is None:
        return run_admin(ask)
    from warmlog import Admin
    from warmlog_broker.tools.access import respond

    respond_there = partial(respond, data_dir)

    class AdminOfDirectory(Admin):
        @property
        def cluster(self) -> Any:
            return self

        async def call(self, request: Any, _expected: type, **_options: Any) -> Any:
            return respond_there(request)

    async def main() -> T:
        return await ask(AdminOfDirectory(chosen_broker()))

    return run_client(main)
