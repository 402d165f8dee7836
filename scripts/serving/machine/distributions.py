# SPDX-License-Identifier: Apache-2.0
"""Run by the target's own interpreter: which versions does its package metadata name?

Reads distribution names from its arguments and prints one JSON object. It imports
none of them: a broken torch_npu is one of the things that the doctor is to find.
"""

import json
import sys
from importlib.metadata import version


def installed(name: str) -> str | None:
    try:
        return version(name)
    except Exception:
        # Absent, or with metadata so damaged that any error may come of it.
        return None


found = {name: installed(name) for name in sys.argv[1:]}
print(
    json.dumps(
        {
            "python": list(sys.version_info[:3]),
            "versions": {name: text for name, text in found.items() if text},
        }
    )
)
