"""The command line `warmlog`: serve, topic, produce, consume, offsets, log and demo.

One file a command family; `app` joins them. `exits` says how a command ends, `output` what it may print where,
`options` holds what several commands take. Modules import the client, the broker, Arrow, Spark and rich inside the
commands that need them, so that a small command starts fast.
"""


def main() -> None:
    """Runs the command that the process's arguments name and ends the process with its exit code."""
    from warmlog.cli.app import run

    run()
