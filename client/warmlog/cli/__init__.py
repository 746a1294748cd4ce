"""The command line `warmlog`: serve, topic, produce, consume, offsets, log, index, spark-export and demo.

Each command has its file in `commands`; `app` joins them. `terminal.exits` defines how a command ends,
`terminal.output` what it prints where, `terminal.options` the options that several commands take. Modules import the
client, the broker, Arrow, Spark and rich inside the commands that need them, so that small commands start fast.
"""


def main() -> None:
    """Run the command that the process's arguments name, and end the process with its exit code."""
    from warmlog.cli.app import run

    run()
