# SPDX-License-Identifier: Apache-2.0
"""Run by the target's own interpreter: where would it import each package from?

Reads package names from its arguments and prints one JSON object. It finds the
packages without importing them: vllm takes seconds and may not even import.
"""

import importlib.util
import json
import os
import sys
from importlib.machinery import ModuleSpec


def find_spec(name: str) -> ModuleSpec | None:
    try:
        return importlib.util.find_spec(name)
    except (ImportError, ValueError):
        return None


def describe(name: str) -> dict[str, object]:
    spec = find_spec(name)
    origin = spec.origin if spec else None
    namespace = list(spec.submodule_search_locations or ()) if spec and not origin else []
    return {"origin": origin, "namespace": namespace, "others": other_copies(name, origin)}


def other_copies(name: str, origin: str | None) -> list[str]:
    """Folders on the path that also hold the package, but are not the one imported."""
    folders = [os.path.join(entry, name) for entry in sys.path if entry]
    chosen = os.path.realpath(os.path.dirname(origin)) if origin else None
    found = {os.path.realpath(f) for f in folders if os.path.isfile(os.path.join(f, "__init__.py"))}
    return sorted(found - {chosen})


print("--- step3p7-kit ---")
print(
    json.dumps(
        {
            "version": list(sys.version_info[:3]),
            "pycache_prefix": sys.pycache_prefix,
            "packages": {name: describe(name) for name in sys.argv[1:]},
        }
    )
)
