"""Runs the blocks of each page in order, and then once more, in a directory for it: `page_runner.py BROKER PAGE…`.

As in a notebook, the Python blocks of one round share their names. Shell blocks run in bash, which stops at the first
command that fails; their `warmlog` is a fork (see `fork_client`). Everywhere the address that pages use stands for
that of the broker, and each other one of this machine for one that is free.
"""

import os
import subprocess
import sys
import time
import traceback
from pathlib import Path
from typing import Any

from blocks import Addresses, Block, blocks_of

ROUNDS = 2
BLOCK_TIMEOUT_S = 300


def run_page(page: Path, addresses: Addresses) -> bool:
    """Whether all blocks ran; stderr names the one that failed."""
    blocks = [block for block in blocks_of(page) if block.is_run]
    for number in range(1, ROUNDS + 1):
        names: dict[str, Any] = {"__name__": "__main__"}
        for block in blocks:
            begun = time.monotonic()
            try:
                _run(page, block, addresses.put_into(block.text), names)
            except BaseException:
                traceback.print_exc()
                print(f"{page}:{block.line}: failed in round {number}", file=sys.stderr)
                return False
            finally:
                sys.stdout.flush()
                print(f"{page.name}:{block.line}: {time.monotonic() - begun:.1f} s in round {number}", file=sys.stderr)
    return True


def _run(page: Path, block: Block, text: str, names: dict[str, Any]) -> None:
    if block.language == "python":
        exec(compile("\n" * (block.line - 1) + text, page, "exec"), names)
        return
    command = ["bash", "-euo", "pipefail", "-c", text]
    subprocess.run(command, check=True, stdin=subprocess.DEVNULL, timeout=BLOCK_TIMEOUT_S)


def main(broker: str, pages: list[Path]) -> int:
    """Return the exit code: 1 if a block failed."""
    top = Path.cwd()
    for page in pages:
        directory = top / page.stem
        directory.mkdir()
        os.chdir(directory)
        if not run_page(page, Addresses(broker)):
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], [*map(Path, sys.argv[2:])]))
