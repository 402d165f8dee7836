# SPDX-License-Identifier: Apache-2.0
"""How the user of this kit types a command: by the name and place by which it was called."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path

_SOME_MODEL = Path("/data/Step-3.7-Flash")


@dataclass(frozen=True)
class Typed:
    """``kit`` is what the user types for this program, ``options`` what names the same target again."""

    kit: str = "kit"
    options: str = ""

    def fill(self, text: str) -> str:
        """A text with ``{kit}``, ``{options}`` and ``{serve}`` as they are to be typed here."""
        options = f" {self.options}" if self.options else ""
        filled = text.replace(" {options}", options).replace("{kit}", self.kit)
        return filled.replace("{serve}", self.start(_SOME_MODEL))

    def start(self, model: Path) -> str:
        """The start of a server of this model, to which flags of ``vllm serve`` can be added."""
        folder, script = shlex.quote(str(model)), self.serve_script
        return f"MODEL={folder} {script}" if script else f"vllm serve {folder}"

    @property
    def serve_script(self) -> str:
        """``serve.sh`` as it is to be typed; "" where it does not lie beside the kit (``kit.pyz``)."""
        place, slash, program = self.kit.rpartition("/")
        return f"{place}/serve.sh" if slash and program == "kit" else ""


PLAIN = Typed()
"""Where nobody types: ``kit`` on the path, the target that it finds by itself."""
