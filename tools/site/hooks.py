"""Pages of the site that are made from the code when it is built: the command line, the errors, and the broker's log.

mkdocs calls the functions that begin with `on_`.
"""

import ast
import inspect
import re
import tomllib
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import warmlog.errors
from warmlog.errors import ApiError, WarmlogError

REMEDIES = Path(__file__).parent / "remedies.toml"
LOG_REMEDIES = Path(__file__).parent / "log_remedies.toml"
BROKER = Path(__file__).parents[2] / "broker" / "warmlog_broker"
HELP_COLUMNS = 100
LEVELS = {"warning": "warning", "error": "error", "exception": "error", "critical": "critical", "complain": "error"}
"""By the method of a logger; `complain` is a partition's."""


def on_config(config: Any) -> Any:
    """Name the version at the foot of each page, and what it was built from."""
    source = "docs/ of the repository of warmlog"
    config.copyright = f"warmlog {version('warmlog')}, Apache-2.0; built by <code>make docs</code> from {source}"
    return config


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Let the search find what explains a word before what only lists it."""
    if page.file.src_uri.startswith("reference/"):
        page.meta.setdefault("search", {"boost": 0.3})
    return markdown


def on_files(files: Any, config: Any) -> Any:
    """Add the generated pages."""
    from mkdocs.structure.files import File

    for path, make in PAGES.items():
        files.append(File.generated(config, path, content=make()))
    return files


def command_line() -> str:
    """Every command with its help, as the program prints it."""
    from warmlog.cli.app import LazyCommand, build_program

    parts = ["# Command line\n"]

    def describe(command: Any, parent: Any, name: str) -> None:
        command = command.load() if isinstance(command, LazyCommand) else command
        context = command.make_context(name, [], parent=parent, resilient_parsing=True)
        context.terminal_width = context.max_content_width = HELP_COLUMNS
        parts.append(f"## {context.command_path}\n\n```text\n{command.get_help(context)}\n```\n")
        for inner_name, inner in getattr(command, "commands", {}).items():
            describe(inner, context, inner_name)

    describe(build_program(), None, "warmlog")
    return "\n".join(parts)


def errors() -> str:
    """Every error of the client with what it means and what to do, in the order of the tree."""
    remedies = tomllib.loads(REMEDIES.read_text())
    parts = [
        "# Errors\n",
        "All errors derive from `warmlog.WarmlogError`. An error with a code is one that the broker sent; a "
        "retriable one is raised only after the client has retried.\n",
    ]
    for error in error_classes():
        code = f"Code {error.code.value} ({error.code.name})" if issubclass(error, ApiError) else ""
        retriable = f", {'retriable' if error.retriable else 'not retriable'}" if code else ""
        parts.append(f"## {error.__name__}\n\n{inspect.getdoc(error)}\n")
        parts.append(f"**What to do:** {remedies[error.__name__]}\n\n{code}{retriable}{'.' if code else ''}\n")
    return "\n".join(parts)


def error_classes() -> list[type[WarmlogError]]:
    """Every public error, by name."""
    public = [getattr(warmlog.errors, name) for name in sorted(warmlog.errors.__all__)]
    return [each for each in public if inspect.isclass(each) and issubclass(each, WarmlogError)]


def log_messages() -> str:
    """What the broker logs at warning and above, with what to do about it."""
    levels = logged_messages()
    parts = [
        "# Messages of the broker's log\n",
        "What the broker logs at the levels warning, error and critical, and what to do about it; … stands for names, "
        "numbers and causes. [The broker's log](../how-to/logs.md) has the rest.\n",
    ]
    for title, remedies in tomllib.loads(LOG_REMEDIES.read_text()).items():
        parts.append(f"## {title}\n\n| message | level | what to do |\n|---|---|---|")
        parts += [f"| {text} | {' or '.join(levels[text])} | {remedy} |" for text, remedy in remedies.items()]
        parts.append("")
    return "\n".join(parts)


def logged_messages() -> dict[str, list[str]]:
    """Return the levels of every message that the broker logs at warning or above. One that is only a cause, or whose
    text comes from elsewhere, is left out."""
    found: dict[str, list[str]] = {}
    for path in sorted(BROKER.rglob("*.py")):
        for function in ast.walk(ast.parse(path.read_text())):
            if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
                for text, level in _messages_of(function):
                    levels = found.setdefault(text, [])
                    levels += [level] if level not in levels else []
    return found


def _messages_of(function: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[tuple[str, str]]:
    nodes = list(ast.walk(function))
    texts = {ast.unparse(each.targets[0]): each.value for each in nodes if isinstance(each, ast.Assign)}
    for call in nodes:
        if isinstance(call, ast.Call) and (level := _level(call)):
            written = [_text(texts.get(ast.unparse(given), given)) for given in call.args]
            if messages := [text for text in written if re.search("[A-Za-z]", text)]:
                yield messages[0 if _is_of_logger(call) else -1], level


def _level(call: ast.Call) -> str:
    """Return the level at which a call logs; empty if it does not, or below warning."""
    method = call.func.attr if isinstance(call.func, ast.Attribute) else ""
    if method in LEVELS and (_is_of_logger(call) or method == "complain"):
        return LEVELS[method]
    given = [ast.unparse(node) for argument in call.args for node in ast.walk(argument)]
    return next((name for name in LEVELS if f"logging.{name.upper()}" in given), "")


def _is_of_logger(call: ast.Call) -> bool:
    return isinstance(call.func, ast.Attribute) and ast.unparse(call.func.value) in ("_log", "logger")


def _text(node: ast.expr) -> str:
    """Return a text with … for what is put into it; empty if it is none."""
    if isinstance(node, ast.JoinedStr):
        return "".join(_text(each) if isinstance(each, ast.Constant) else "…" for each in node.values)
    is_text = isinstance(node, ast.Constant) and isinstance(node.value, str)
    return re.sub(r"%(\.\d)?[a-z]", "…", node.value) if is_text else ""


PAGES = {
    "reference/command-line.md": command_line,
    "reference/errors.md": errors,
    "reference/log-messages.md": log_messages,
}
"""The generated pages."""
