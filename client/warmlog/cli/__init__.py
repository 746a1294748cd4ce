"""The command line `warmlog`.

`app` has the table of all commands, which are in `commands` and `dump` and are imported when they are used.
`terminal.exits` defines how a command ends, `terminal.output` what it prints where, `terminal.options` the options that
several commands take. Modules import the client, the broker, Arrow and Spark inside the commands that need them.
"""


def main() -> None:
    """Run the command that the process's arguments name, and end the process with its exit code."""
    from warmlog.cli.app import run

    run()
