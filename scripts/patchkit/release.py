# SPDX-License-Identifier: Apache-2.0
"""A release of vllm-ascend as the kit knows it: its packages, its base set, the opt-in sets on that."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import PurePosixPath

from . import manifest
from .chain import Chain, short
from .manifest import Folder, Package, PatchSet, Place


@dataclass(frozen=True)
class Catalogue:
    """Every release that the kit has sets for. Each is read when it is asked for, once."""

    bundle: Folder
    _read: dict[str, Release] = field(default_factory=dict, repr=False, compare=False)

    @cached_property
    def ids(self) -> tuple[str, ...]:
        """The names of their folders, in order.

        Raises:
            BundleDamaged: there is none.
        """
        found = _folders(self.bundle / "patches")
        if not found:
            raise manifest.damaged("the kit's own folder patches/ holds no release")
        return found

    @property
    def first(self) -> Release:
        return self.release(self.ids[0])

    def release(self, release_id: str) -> Release:
        """Read and check a release, with all of its sets.

        Raises:
            BundleDamaged: a file of the kit is absent, unreadable, cut or altered, or its
                sets do not stand on one another.
        """
        if release_id not in self._read:
            self._read[release_id] = _load(self, release_id)
        return self._read[release_id]


@dataclass(frozen=True)
class Release:
    """One release. ``base`` makes the model run; each of ``opt_ins`` stands on it."""

    id: str
    title: str
    architecture: str
    packages: tuple[Package, ...]
    base: PatchSet
    opt_ins: tuple[PatchSet, ...]
    catalogue: Catalogue = field(repr=False, compare=False)

    @property
    def sets(self) -> tuple[PatchSet, ...]:
        return (self.base, *self.opt_ins)

    @cached_property
    def chains(self) -> tuple[Chain, ...]:
        """Of every file of every set, in the order of installation.

        What an opt-in set alone touches comes first: nothing reaches it before the
        last file of the base is in place.
        """
        of_base = {file.path for file in self.base.files}
        alone = [file for opt_in in self.opt_ins for file in opt_in.files if file.path not in of_base]
        return tuple(
            Chain(file.path, tuple(f for s in self.sets for f in s.files if f.path == file.path))
            for file in (*alone, *self.base.files)
        )

    def chain(self, path: PurePosixPath) -> Chain | None:
        return next((chain for chain in self.chains if chain.path == path), None)

    def package(self, import_name: str) -> Package:
        return next(p for p in self.packages if p.import_name == import_name)

    @cached_property
    def others(self) -> tuple[Release, ...]:
        """The kit's other releases: a refusal names them."""
        return tuple(self.catalogue.release(name) for name in self.catalogue.ids if name != self.id)


def load(bundle: Folder, release_id: str) -> Release:
    """One release of a kit, as `Catalogue.release` gives it."""
    return Catalogue(bundle).release(release_id)


def _folders(parent: Folder) -> tuple[str, ...]:
    """The names of the folders in a folder of the kit, those of tools apart."""
    if not parent.is_dir():
        return ()
    names = (child.name for child in parent.iterdir() if child.is_dir())
    return tuple(sorted(name for name in names if not name.startswith((".", "_"))))


def _load(catalogue: Catalogue, release_id: str) -> Release:
    bundle, place = catalogue.bundle, Place(release_id)
    table, digest = manifest.read_table(bundle, place)
    with manifest.checked(place):
        manifest.require_name(table["id"], place)
        packages = manifest.packages(table)
        imports = frozenset(package.import_name for package in packages)
        base = manifest.patch_set(table, digest, bundle, place, imports)
        opt_ins = tuple(
            _opt_in(bundle, release_id, name, imports) for name in _folders(bundle / place.patches)
        )
        found = Release(table["id"], base.title, table["architecture"], packages, base, opt_ins, catalogue)
    _require_closed_chains(found)
    return found


def _opt_in(bundle: Folder, release_id: str, name: str, imports: frozenset[str]) -> PatchSet:
    place = Place(release_id, name)
    if name == manifest.BASE:
        raise manifest.damaged(f"patches/{release_id}/{name}/: an opt-in set cannot be called {name!r}")
    table, digest = manifest.read_table(bundle, place)
    with manifest.checked(place):
        manifest.require_name(table["id"], place)
        return manifest.patch_set(table, digest, bundle, place, imports)


# --- sets that do not stand on one another --------------------------------------------------


def _require_closed_chains(release: Release) -> None:
    """Each edit begins with what the one below it leaves, and no two opt-in sets meet in a file.

    Raises:
        BundleDamaged: naming the file and the manifests.
    """
    for patch_set in release.sets:
        paths = [file.path for file in patch_set.files]
        for path in paths:
            if paths.count(path) > 1:
                raise manifest.damaged(f"{_manifest(release, patch_set.name)} names {path} twice")
    for chain in release.chains:
        opt_ins = [edit for edit in chain.edits if edit.owner != manifest.BASE]
        if len(opt_ins) > 1:
            names = " and ".join(_manifest(release, edit.owner) for edit in opt_ins)
            raise manifest.damaged(f"{names} both change {chain.path}, and only one opt-in set may")
        _require_closed(release, chain)


def _require_closed(release: Release, chain: Chain) -> None:
    for below, edit in itertools.pairwise(chain.edits):
        if edit.before != below.after:
            raise manifest.damaged(
                f"{_manifest(release, edit.owner)}: the chain of {chain.path} does not close, for it begins "
                f"with sha256 {short(edit.before)}, and the set {below.owner} leaves {short(below.after)}"
            )
    digests = [chain.digest(rung) for rung in chain.rungs]
    if len(set(digests)) < len(digests):
        top = _manifest(release, chain.edits[-1].owner)
        raise manifest.damaged(f"{top}: two states of {chain.path} have the same sha256")


def _manifest(release: Release, name: str) -> str:
    return Place(release.id, name).manifest
