"""What to install for the parts of warmlog that need more than its base installation."""

import re
import shlex

_REQUIREMENT = re.compile(r"""(?P<package>[^;]+?) *; *extra == ['"](?P<extra>\w+)['"]$""")


def install_hint(extra: str) -> str:
    """Return the command that installs the packages of `extra`; warmlog itself is not in a package index."""
    from importlib.metadata import PackageNotFoundError, requires  # slow to import

    try:
        found = [match for match in map(_REQUIREMENT.match, requires("warmlog") or ()) if match is not None]
    except PackageNotFoundError:  # a source tree that is not installed
        found = []
    packages = [match["package"] for match in found if match["extra"] == extra]
    return f"pip install {shlex.join(packages)}" if packages else f"pip install '.[{extra}]' in a clone of warmlog"
