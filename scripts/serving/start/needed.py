# SPDX-License-Identifier: Apache-2.0
"""What a start cannot do without beside the base: opt-in sets, by the profile's head or by a flag.

Which set a profile or a flag needs is data: a comment of the profile, a column of ``flags.toml``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from patchkit import recognition
from patchkit.errors import Refused
from patchkit.state import Installation, SetState

from . import flags, profiles
from .profiles import Profile


@dataclass(frozen=True)
class Need:
    """``who`` needs the set ``name``; ``otherwise`` is what to do where the release has no such set."""

    who: str
    name: str
    otherwise: str


def sets(profile: Profile, words: Sequence[str]) -> Iterator[Need]:
    """What the profile needs, then what the words behind ``vllm serve`` do."""
    for name in profile.needs.sets:
        others = [other for other in profiles.names() if name not in profiles.load(other).needs.sets]
        yield Need(f"the profile {profile.name}", name, f"choose one of {', '.join(others)}")
    for advice in flags.advise(words):
        if advice.row.needs_set:
            yield Need(advice.given, advice.row.needs_set, f"leave {advice.given} out")


def require_sets(found: Installation, profile: Profile, words: Sequence[str], options: str) -> None:
    """``options`` names the target on a command line.

    Raises:
        Refused: one of them is not applied, or this release has none of that name.
    """
    for need in sets(profile, words):
        if need.name in found.applied:
            continue
        what = f"{need.who} needs the set {need.name}"
        if found.state is SetState.NATIVE or need.name not in {s.name for s in found.release.opt_ins}:
            raise Refused(f"{what}, which there is not for {_installed(found)}", need.otherwise)
        raise Refused(f"{what}, which is not applied", f"{{kit}} apply {need.name} {options}".rstrip())


def _installed(found: Installation) -> str:
    """What a set would have to be for."""
    if found.state is SetState.NATIVE:
        return recognition.strings(found.release, found.target)
    return found.release.id
