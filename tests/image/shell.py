# SPDX-License-Identifier: Apache-2.0
"""Commands that were printed for a person, read back."""

from __future__ import annotations

import subprocess
from itertools import pairwise


def shell_words(text: str) -> list[str]:
    """A printed command, as bash reads it."""
    script = 'eval "set -- $1"; printf "%s\\0" "$@"'
    run = subprocess.run(["bash", "-c", script, "-", text], capture_output=True, text=True, check=True)
    return run.stdout.split("\0")[:-1]


def option_values(command: list[str], option: str) -> list[str]:
    """Every value that an option is given."""
    return [value for name, value in pairwise(command) if name == option]
