"""CRC-32C, by the package of this name: the function of its extension module, which is loaded alone.

When the package itself is imported it asks for its own version and imports its command line, 40 modules of the standard
library that take a tenth of the time in which a broker or a command starts.
"""

from collections.abc import Callable
from importlib.machinery import PathFinder
from importlib.util import find_spec, module_from_spec
from typing import Any


def _load() -> Callable[..., int]:
    package = find_spec("crc32c")
    spec = PathFinder.find_spec("_crc32c", package.submodule_search_locations if package else None)
    if spec is None or spec.loader is None:  # another version of the package
        import crc32c as whole

        return whole.crc32c
    module: Any = module_from_spec(spec)
    spec.loader.exec_module(module)
    function: Callable[..., int] = module.crc32c
    return function


crc32c = _load()
"""`crc32c(data, crc=0)`: of any buffer, continuing from `crc`. It releases the interpreter lock for large ones."""
