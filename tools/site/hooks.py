"""Pages of the site that are made from the code when it is built: the command line and the errors.

mkdocs calls the functions that begin with `on_`.
"""

import inspect
import tomllib
from pathlib import Path
from typing import Any

import warmlog.errors
from warmlog.errors import ApiError, WarmlogError

REMEDIES = Path(__file__).parent / "remedies.toml"
HELP_COLUMNS = 100


def on_files(files: Any, config: Any) -> Any:
    """Add the generated pages."""
    from mkdocs.structure.files import File

    for path, text in (("reference/command-line.md", command_line()), ("reference/errors.md", errors())):
        files.append(File.generated(config, path, content=text))
    return files


def command_line() -> str:
    """Every command with its help, as the program prints it."""
    from typer.main import get_command

    from warmlog.cli.app import build_app

    parts = ["# Command line\n"]

    def describe(command: Any, parent: Any, name: str) -> None:
        context = command.make_context(name, [], parent=parent, resilient_parsing=True)
        context.terminal_width = context.max_content_width = HELP_COLUMNS
        parts.append(f"## {context.command_path}\n\n```text\n{command.get_help(context)}\n```\n")
        for inner in getattr(command, "commands", {}).values():
            describe(inner, context, inner.name)

    describe(get_command(build_app(is_terminal=False)), None, "warmlog")
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
