# SPDX-License-Identifier: Apache-2.0
"""Which release an installation is of. Its version strings say, and the hashes where they name none."""

from __future__ import annotations

from collections.abc import Sequence

from . import state, versions
from .errors import Refused
from .manifest import Package
from .release import Catalogue, Release
from .state import Installation, SetState
from .target import Location, Target, require_inside


def release_of(catalogue: Catalogue, target: Target) -> Release:
    """The one release that fits, or, where none does, the nearest one: what is wrong is told of it.

    Raises:
        Refused: two fit. BundleDamaged: a file of the kit is absent, cut or altered.
    """
    for name in catalogue.ids:
        release = catalogue.release(name)
        if _named(release, target) == len(release.packages):
            return release  # and the others need not be read
    releases = [catalogue.release(name) for name in catalogue.ids]
    allowed = [r for r in releases if state.by_version(r, target) is not SetState.UNSUPPORTED]
    if not allowed:
        return nearest(releases, target)[0]
    if len(allowed) == 1 or state.by_version(allowed[0], target) is SetState.NATIVE:
        return allowed[0]
    return _by_hashes(allowed, target)


def nearest(releases: Sequence[Release], target: Target) -> list[Release]:
    """Those of which most packages name the version: one, or several that are equally near."""
    most = max(_named(release, target) for release in releases)
    return [release for release in releases if _named(release, target) == most]


def _named(release: Release, target: Target) -> int:
    """How many packages say that they are of this release."""
    pairs = ((package, target.locations[package.import_name]) for package in release.packages)
    return sum(says(package, location) for package, location in pairs)


def says(package: Package, location: Location) -> bool:
    """Whether the version string of a package names a version of the release."""
    is_named = versions.parse(location.version or "") is not None
    return is_named and not state.is_other_release(package, location)


def _by_hashes(releases: Sequence[Release], target: Target) -> Release:
    known = {release.id: _known(release, target) for release in releases}
    whole = [release for release in releases if known[release.id] == len(release.base.files)]
    if len(whole) > 1:
        raise Refused(
            f"{strings(releases[0], target)} name no release, and the files are those of "
            f"{' and of '.join(release.id for release in whole)} alike",
            "use an image of vllm-ascend whose packages name their versions",
        )
    return max(releases, key=lambda release: known[release.id])


def _known(release: Release, target: Target) -> int:
    """How many files of the base have a content that the release knows."""
    paths = [file.path for file in release.base.files]
    require_inside(target, paths)
    return sum(
        chain.rung_of(state.read(target.file(chain.path))) is not None
        for chain in release.chains
        if chain.path in paths
    )


def files_of_another(found: Installation) -> str:
    """Where the files of a drifted base are of no release, or of another than the versions say: that."""
    release, target = found.release, found.target
    names = [release.id, *(other.id for other in release.others)]
    if len(names) == 1:
        return ""
    if not _named(release, target):
        return (
            f"the version strings name no release ({strings(release, target)}), "
            f"the files are nearest to {release.id}, of {' and '.join(names)}"
        )
    whole = [other.id for other in release.others if _known(other, target) == len(other.base.files)]
    if not whole:
        return ""
    return f"the version strings name {release.id}, and the files are those of {' and '.join(whole)}"


def strings(release: Release, target: Target) -> str:
    """The packages with the version strings that were found."""
    pairs = ((package, target.locations[package.import_name]) for package in release.packages)
    return " and ".join(f"{package.name} {location.version or '(no version)'}" for package, location in pairs)
