# SPDX-License-Identifier: Apache-2.0
"""What can be typed after ``kit``: the verbs, their options, the exit codes."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from . import NAMES, load
from .request import VERSION

_EPILOG = """\
exit codes:
  0  done, or already so
  1  the answer is no: not wholly applied (status, verify), a problem found (doctor,
     check-model), it does not fit (plan), not known (explain)
  2  the command line was not understood
  3  refused before the first write; nothing was changed
  4  failed on the way; every file is again as it was
  5  failed on the way; at least one file could not be put back
  6  done, or already so, but the answer could not be written (a full disk)
"""


def build_parser(prog: str, names: Sequence[str] = NAMES) -> argparse.ArgumentParser:
    """The parser of the command line, with the options of these verbs."""
    parser = argparse.ArgumentParser(
        prog=prog,
        description="A checked patch set that lets vllm-ascend v0.20.2rc1 serve Step-3.7-Flash.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"kit {VERSION}")
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB")
    for name in names:
        verb = load(name)
        subparser = verbs.add_parser(name, help=verb.summary, description=verb.summary)
        subparser.add_argument("--json", action="store_true", help="one JSON object instead of text")
        for add in verb.add_options:
            add(subparser)
    return parser
