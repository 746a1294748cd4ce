"""The program: its options and the table of its commands, each of which is imported when it is used."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

import click

from warmlog.cli.terminal.exits import DEBUG_VARIABLE, end_quickly, run_cleanly
from warmlog.cli.terminal.options import check_broker
from warmlog.cli.terminal.output import open_closed_streams
from warmlog.cli.terminal.profile import CONNECTION_SETTINGS, PROFILE_VARIABLE

PROGRAM = "warmlog"

COMMANDS: dict[str, tuple[str, str]] = {
    "serve": ("commands.serve:serve", "Run a broker until SIGTERM or Ctrl-C."),
    "produce": ("commands.produce:produce", "Send the lines of standard input as records, or one record with --value."),
    "consume": ("commands.consume:consume", "Print the records of topics, from --from to --to, or without end."),
    "offsets": ("commands.offsets:offsets", "Show an offset of each partition."),
    "spark-export": (
        "commands.spark_export:spark_export",
        "Copy a topic to Parquet files with Spark, each record once.",
    ),
    "status": ("commands.status:status", "Show the broker, its disks, its topics by size, and groups by their lag."),
    "console": ("warmlog.console.command:console", "Show topics, records, groups and the broker in a browser."),
    "backup": ("commands.backup:backup", "Copy the data directories of a broker, which may run meanwhile."),
    "restore": ("commands.backup:restore", "Copy a backup into new data directories."),
    "profile": ("commands.about:profile", "Show the broker and the connection options that commands use."),
    "completion": ("commands.about:completion", "Print the script that completes what one types in a shell."),
    "version": ("commands.about:version", "Print the version."),
    "help": ("commands.about:help_command", "Show the help of a command, or of the program."),
}
"""Where each command is, below `warmlog.cli` or from the top, and what a list of commands says of it."""

FAMILIES: dict[str, tuple[str, dict[str, tuple[str, str]]]] = {
    "topic": (
        "Create, list, describe, change and delete topics.",
        {
            "create": ("commands.topic.change:create", "Create topics."),
            "list": ("commands.topic.describe:list_topics", "List all topics."),
            "describe": ("commands.topic.describe:describe", "Show a topic's records, size, partitions and settings."),
            "alter": ("commands.topic.change:alter", "Change settings of a topic."),
            "add-partitions": ("commands.topic.change:add_partitions", "Add partitions to a topic."),
            "delete": ("commands.topic.change:delete", "Delete topics and all their records."),
            "delete-records": ("commands.topic.delete_records:delete_records", "Delete the oldest records of a topic."),
            "copy": ("commands.topic.copy:copy", "Copy the records of a topic into another one."),
        },
    ),
    "group": (
        "List, describe, reset and delete consumer groups.",
        {
            "list": ("commands.group:list_groups", "List all consumer groups."),
            "describe": ("commands.group:describe", "Show how far a group is behind, and which member reads what."),
            "members": ("commands.group:members", "Show the members of a group, and what each of them reads."),
            "reset": ("commands.group:reset", "Move the committed offsets of a group without members."),
            "adopt": ("commands.group:adopt", "Commit what groups have committed in a stopped Kafka."),
            "delete": ("commands.group:delete", "Delete groups without members, and their committed offsets."),
        },
    ),
    "txn": (
        "List, describe and abort transactions.",
        {
            "list": ("commands.txn:list_transactions", "List all transactional ids, and their open transactions."),
            "describe": ("commands.txn:describe", "Show a transactional id and its open transaction."),
            "abort": ("commands.txn:abort", "Abort the open transaction of a producer or a job."),
        },
    ),
    "user": (
        "Add, list and delete users, and change their passwords.",
        {
            "add": ("commands.access.user:add", "Create a user."),
            "list": ("commands.access.user:list_users", "List the users."),
            "rotate": ("commands.access.user:rotate", "Give a user another password."),
            "delete": ("commands.access.user:delete", "Delete users, whose connections end."),
        },
    ),
    "acl": (
        "Add, list, delete and check rights.",
        {
            "add": ("commands.access.acl:add", "Allow a principal operations on topics, groups or the cluster."),
            "list": ("commands.access.acl:list_acls", "List the rules."),
            "delete": ("commands.access.acl:delete", "Remove the rules that all the options fit."),
            "check": ("commands.access.acl:check", "Tell whether a principal may do something, and why."),
        },
    ),
    "quota": (
        "Set, list and delete quotas of users and clients.",
        {
            "set": ("commands.access.quota:set_quota", "Set limits of a user or a client id."),
            "list": ("commands.access.quota:list_quotas", "List the quotas."),
            "delete": ("commands.access.quota:delete", "Remove limits of a user or a client id."),
        },
    ),
    "config": (
        "Check, show and alter the settings of a broker.",
        {
            "check": ("commands.config:check", "Check a file of settings without a broker."),
            "show": ("commands.config:show", "Show the settings in force and where each comes from."),
            "set": ("commands.config:set_settings", "Alter settings of the running broker."),
            "unset": ("commands.config:unset_settings", "Return altered settings to what the broker started with."),
        },
    ),
    "log": (
        "Inspect, check and adopt the files of a data directory.",
        {
            "dump": ("dump.command:dump", "Print log segments and the other files of a partition."),
            "dirs": ("commands.log.dirs:dirs", "Show the broker's data directories and their partitions."),
            "move": ("commands.log.dirs:move", "Begin to move a partition to another data directory."),
            "verify": ("commands.log.verify:verify", "Check every batch, index entry and other file of a partition."),
            "rebuild-index": ("commands.log.verify:rebuild_index", "Rebuild index files from the .log files."),
            "adopt": ("commands.log.adopt:adopt", "Take over the topics of a stopped Kafka."),
        },
    ),
    "cluster": (
        "Create and look after a cluster of several brokers.",
        {
            "init": ("commands.cluster.change:init", "Create a cluster in etcd, before its first broker."),
            "status": ("commands.cluster.show:status", "Show partitions that are not as they should be."),
            "brokers": ("commands.cluster.show:brokers", "Show the brokers, and what they lead and follow."),
            "elect": ("commands.cluster.change:elect", "Change the leaders of partitions."),
            "reassign": ("commands.cluster.change:reassign", "Move partitions to other brokers."),
            "drain": ("commands.cluster.change:drain", "Let a broker hand over what it leads."),
            "replace": ("commands.cluster.change:replace", "Let a broker start with new disks."),
            "upgrade": ("commands.cluster.change:upgrade", "Raise the feature level, once all brokers are new."),
            "recover": ("commands.cluster.recover:recover", "Rebuild what a lost etcd had from the brokers."),
            "demo": ("commands.cluster.demo:demo", "Show three brokers on this machine, one of which is killed."),
        },
    ),
    "index": (
        "Show what a search in an index reads.",
        {"trace": ("commands.index:trace", "Show which pages of an index a search reads.")},
    ),
}


class LazyCommand(click.Command):
    """The place of a command that is not imported yet, with its line in the list of commands."""

    def __init__(self, name: str, place: str, short_help: str) -> None:
        super().__init__(name, short_help=short_help)
        self._place = place

    def get_short_help_str(self, limit: int = 0) -> str:  # noqa: ARG002 - it is wrapped, not cut
        return self.short_help or ""

    def load(self) -> click.Command:
        module, _, attribute = self._place.partition(":")
        path = module if module.startswith("warmlog.") else f"warmlog.cli.{module}"
        command: click.Command = getattr(import_module(path), attribute)
        return command


class Family(click.Group):
    """A group of commands that are imported when they are resolved."""

    def add_lazily(self, commands: dict[str, tuple[str, str]]) -> None:
        for name, (place, short_help) in commands.items():
            self.add_command(LazyCommand(name, place, short_help))

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        """Return the names in the order of the table."""
        return list(self.commands)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name, command, rest = super().resolve_command(ctx, args)
        return name, command.load() if isinstance(command, LazyCommand) else command, rest


class Program(Family):
    """All commands; what any of them raises ends the process as `exits` says."""

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        with _advised():
            return super().make_context(info_name, args, parent, **extra)

    def invoke(self, ctx: click.Context) -> Any:
        with _advised():
            return run_cleanly(lambda: super(Program, self).invoke(ctx))


@contextmanager
def _advised() -> Iterator[None]:
    """Say what to type in errors of options and arguments."""
    try:
        yield
    except click.UsageError as error:
        from warmlog.cli.terminal.advice import advised

        raise advised(error) from None


def _version(_: click.Context) -> str:
    from warmlog.cli.commands.about import version_text

    return version_text()


def _connection_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options of CONNECTION_SETTINGS, in their order."""
    for setting in reversed(CONNECTION_SETTINGS):
        if setting.flag:
            add = click.option(
                setting.flag,
                setting.name,
                default=None,
                metavar=setting.metavar,
                help=f"{setting.help} (also {setting.variable}).",
            )
            command = add(command)
    return command


@click.group(
    PROGRAM,
    cls=Program,
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"], "show_default": True},
)
@click.custom_version_option(_version, "--version", "-V", help="Print the version.")
@click.option("--debug", "is_debug", is_flag=True, help=f"Show the traceback of a failure (also {DEBUG_VARIABLE}=1).")
@click.option("--broker", metavar="HOST:PORT", help="The broker, for commands that connect to one.")
@click.option("--profile", metavar="NAME", help=f"A table of the client profile (also {PROFILE_VARIABLE}=NAME).")
@_connection_options
def program(is_debug: bool, broker: str | None, profile: str | None, **connection: str | bool | None) -> None:
    """A durable log broker: Kafka's log semantics, no JVM.

    Client commands take --broker HOST:PORT and --json. Data goes to stdout, everything else to stderr. The exit code
    is 0 on success, 1 if the command failed, 2 for a wrong option or argument.
    """
    if is_debug:
        os.environ[DEBUG_VARIABLE] = "1"
    if broker is not None:
        check_broker(broker)
    if profile is not None:
        os.environ[PROFILE_VARIABLE] = profile
    for setting in CONNECTION_SETTINGS:
        given = connection.get(setting.name)
        if given is not None:
            os.environ[setting.variable] = str(given).lower() if setting.is_switch else str(given)


def build_program() -> Program:
    assert isinstance(program, Program)
    program.add_lazily(COMMANDS)
    for name, (text, members) in FAMILIES.items():
        family = Family(name, help=text, no_args_is_help=True)
        family.add_lazily(members)
        program.add_command(family)
    return program


def run() -> None:
    """Run the command that the process's arguments name, and end the process."""
    open_closed_streams()
    try:
        build_program()(prog_name=PROGRAM)
    except SystemExit as end:
        end_quickly(end.code)
        raise
