"""Runs the blocks of a page in order, in the current directory, and then once more: `page_runner.py PAGE BROKER`.

As in a notebook, the Python blocks of one round share their names. Shell blocks run in bash, which stops at the first
command that fails. Everywhere the address that pages use stands for that of the broker.
"""

import subprocess
import sys
import traceback
from pathlib import Path
from typing import Any

from blocks import Block, blocks_of

ADDRESS = "127.0.0.1:7400"
ROUNDS = 2
BLOCK_TIMEOUT_S = 100


def main(page: Path, broker: str) -> int:
    """Return the exit code: 1 if a block failed, which stderr names."""
    blocks = [block for block in blocks_of(page) if block.is_run]
    for number in range(1, ROUNDS + 1):
        names: dict[str, Any] = {"__name__": "__main__"}
        for block in blocks:
            try:
                _run(page, block, block.text.replace(ADDRESS, broker), names)
            except BaseException:
                traceback.print_exc()
                print(f"{page}:{block.line}: failed in round {number}", file=sys.stderr)
                return 1
            finally:
                sys.stdout.flush()
    return 0


def _run(page: Path, block: Block, text: str, names: dict[str, Any]) -> None:
    if block.language == "python":
        exec(compile("\n" * (block.line - 1) + text, page, "exec"), names)
        return
    subprocess.run(
        ["bash", "-euo", "pipefail", "-c", text], check=True, stdin=subprocess.DEVNULL, timeout=BLOCK_TIMEOUT_S
    )


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2]))
