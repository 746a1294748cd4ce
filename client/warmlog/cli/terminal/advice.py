"""What to type here instead, for errors of the command line that come from habits with other brokers' tools."""

from click import Argument, Context, Group, MissingParameter, NoSuchCommand, NoSuchOption, UsageError

from warmlog.cli.terminal.profile import CONNECTION_SETTINGS

SYNONYMS = (
    ("create", "add", "new", "make"),
    ("list", "ls"),
    ("describe", "show", "info", "get", "inspect", "list"),
    ("delete", "remove", "rm", "del", "drop"),
    ("alter", "set", "update", "modify", "edit", "configure", "alter-config"),
)
"""Verbs for the same; those that there are come first."""
ELSEWHERE = {
    "topic list": "topics stream streams",
    "group list": "groups consumer consumers consumer-groups lag",
    "txn list": "transaction transactions",
    "user list, acl list or quota list": "users acls quotas",
    "topic list` or `warmlog group list": "ls list",
    "topic create TOPIC": "create",
    "topic describe TOPIC` or `warmlog group describe GROUP": "describe",
    "topic delete TOPIC` or `warmlog group delete GROUP": "delete rm",
    "status": "broker brokers server node health",
    "produce TOPIC": "pub publish produce send",
    "consume TOPIC": "sub subscribe consume tail read",
}
"""The command that comes nearest to words that are none."""
TOPIC, GROUP = ("-t", "--topic", "--topics"), ("-g", "--group")
OPTIONS = {
    "--broker": "--bootstrap-server --bootstrap-servers --brokers -b --server -s",
    "--from earliest": "--from-beginning --earliest",
    "--from": "-o --offset --start",
    "--count": "--max-messages --num --max",
    "--config NAME=VALUE": "-c --set --topic-config",
    "--to": "--to-earliest --to-latest --to-offset --to-datetime --shift-by",
    "warmlog group reset GROUP --to earliest": "--reset-offsets --all-topics",
    "a client profile": "--command-config --consumer.config --producer.config --property --consumer-property -X",
    "--replication-factor": "--replicas -r",
    "warmlog topic or group, and a verb": "--create --list --describe --delete --alter",
}
"""What to give in place of options that are none."""


def advised(error: UsageError) -> UsageError:
    """Return the error with what to type, if that is known."""
    context = error.ctx
    if context is None:
        return error
    said = error.message
    if isinstance(error, NoSuchCommand):
        advice = _command_for(error.command_name, context)
    elif isinstance(error, NoSuchOption):
        advice = _option_for(error.option_name, context)
    else:
        said, advice = error.format_message(), _without_verb(context)
    if not advice and isinstance(error, MissingParameter) and context.info_name != "create":
        name = (error.param.name or "").rstrip("s") if error.param is not None else ""
        advice = f"`warmlog {name} list` shows them all" if name in ("topic", "group") else ""
    return UsageError(f"{said.rstrip('.')}: {advice}.", context) if advice else error


def _command_for(word: str, context: Context) -> str:
    family = context.command
    assert isinstance(family, Group)
    for known in (each for words in SYNONYMS if word in words for each in words if each in family.commands):
        return f"type `{context.command_path} {known}`"
    return next((f"type `warmlog {here}`" for here, words in ELSEWHERE.items() if word in words.split()), "")


def _option_for(option: str, context: Context) -> str:
    before = {flag for setting in CONNECTION_SETTINGS for flag in setting.flag.split("/")} | {"--profile", "--debug"}
    if option in before:
        return f"it goes before the command, as in `warmlog {option} … {context.command_path.partition(' ')[2]}`"
    own = {flag for parameter in context.command.params for flag in (*parameter.opts, *parameter.secondary_opts)}
    for names, parameters in ((TOPIC, ("topic", "topics")), (GROUP, ("group", "groups"))):
        if option in names and own.intersection(parameters):
            return f"the name is an argument, as in `{_usage(context)}`"
    wanted = next((here for here, options in OPTIONS.items() if option in options.split()), "")
    is_here = not wanted.startswith("--") or wanted.split()[0] in own or wanted == "--broker"
    return f"give {wanted}" if wanted and is_here else ""


def _without_verb(context: Context) -> str:
    """What to type if a command that does one thing was given a verb."""
    verbs = {each for words in SYNONYMS for each in words}
    given = verbs.intersection(map(str, context.params.values()))
    return f"it takes no verb, as in `{_usage(context)}`" if given else ""


def _usage(context: Context) -> str:
    """The command with what it needs."""
    pieces = [context.command_path]
    for parameter in context.command.params:
        if isinstance(parameter, Argument):
            pieces.append(parameter.make_metavar(context))
        elif parameter.required:
            pieces += [parameter.opts[0], parameter.make_metavar(context)]
    return " ".join(pieces)
