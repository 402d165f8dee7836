# SPDX-License-Identifier: Apache-2.0
"""Fixtures that all tests share."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import tree
from patchkit import release
from patchkit.release import Release

_NOTES = pytest.StashKey[list[str]]()


@pytest.fixture
def note(request: pytest.FixtureRequest) -> Callable[[str], None]:
    """Say a figure that the end of the run shows, passed or not."""
    return request.config.stash.setdefault(_NOTES, []).append


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    notes = config.stash.get(_NOTES, [])
    if notes:
        terminalreporter.section("figures")
        for line in notes:
            terminalreporter.line(line)


@pytest.fixture(scope="session")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The small set, as a checkout of the kit. Not to be changed."""
    return tree.write_bundle(tmp_path_factory.mktemp("bundle"))


@pytest.fixture(scope="session")
def small_set(bundle: Path) -> Release:
    return release.load(bundle, tree.SET_ID)


@pytest.fixture(scope="session")
def kit(bundle: Path) -> tree.Kit:
    """The kit with the small set, as a command."""
    return tree.Kit(bundle)


@pytest.fixture(scope="session")
def stacked_bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The small set with two opt-in sets on it. Not to be changed."""
    folder = tree.write_bundle(tmp_path_factory.mktemp("stacked"))
    for name, edits in tree.OPT_INS.items():
        tree.write_opt_in(folder, name, edits)
    return folder


@pytest.fixture(scope="session")
def stacked_set(stacked_bundle: Path) -> Release:
    return release.load(stacked_bundle, tree.SET_ID)


@pytest.fixture(scope="session")
def stacked_kit(stacked_bundle: Path) -> tree.Kit:
    """The kit with the small set and the two opt-in sets, as a command."""
    return tree.Kit(stacked_bundle)


@pytest.fixture(scope="session")
def two_releases(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A kit with a second release, which shares the new file of the first. Not to be changed."""
    folder = tree.write_bundle(tmp_path_factory.mktemp("releases"))
    for name, edits in tree.OPT_INS.items():
        tree.write_opt_in(folder, name, edits)
    tree.write_release(folder, tree.NEXT_ID, tree.next_edits(), f"overlay/{tree.SET_ID}")
    return folder


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A pristine installation of the small set."""
    return tree.write_packages(tmp_path / "site-packages")
