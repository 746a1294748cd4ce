"""`python -m warmlog_broker`: the broker without the client's command line."""

import argparse
import gc
import sys
from collections.abc import Sequence
from pathlib import Path

from warmlog_protocol.errors import InvalidConfig

EXIT_MISUSED = 2


def main(arguments: list[str] | None = None) -> int:
    """Read the command line and serve; return the exit code."""
    gc.disable()  # until the broker serves: what is imported stays, and collecting takes a sixteenth of a start
    from warmlog_broker import load_settings, serve

    parser = argparse.ArgumentParser(prog="warmlog_broker", description="A durable log broker.")
    parser.add_argument(
        "--data-dir", action="append", default=[], help="the directory for all data; repeatable: one for each disk"
    )
    parser.add_argument("--listen", help="HOST:PORT to accept connections at (listen)")
    parser.add_argument("--config", type=Path, help="a TOML file with settings")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="any setting")
    options = parser.parse_args(arguments)
    try:
        config = load_settings(given_settings(options), file=options.config)
    except InvalidConfig as error:
        print(f"warmlog: {error}", file=sys.stderr)  # noqa: T201
        return EXIT_MISUSED
    return serve(config)


def given_settings(options: argparse.Namespace) -> dict[str, str]:
    """Return the settings of the command line; InvalidConfig for a `--set` without "="."""
    settings = {}
    for text in options.set:
        name, equals, value = text.partition("=")
        if not equals:
            raise InvalidConfig(f"--set {text}: expected NAME=VALUE")
        settings[name.strip()] = value
    if options.listen is not None:
        settings["listen"] = options.listen
    return settings | directory_settings(options.data_dir)


def directory_settings(names: Sequence[str]) -> dict[str, str]:
    """Return the settings for the data directories of a command line."""
    if len(names) > 1:
        return {"data.dirs": ",".join(names)}
    return {"data.dir": names[0]} if names else {}


if __name__ == "__main__":
    sys.exit(main())
