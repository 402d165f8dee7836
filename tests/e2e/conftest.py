# SPDX-License-Identifier: Apache-2.0
"""The tiny model, and the real packages that serve it."""

from __future__ import annotations

from pathlib import Path

import pytest

from e2e.roots import kit
from target.conftest import copy_root, patched_root, pristine_root, sandbox, sandbox_python
from target.vllm_half_checkpoint import Layout
from tiny.checkpoint import write_checkpoint

__all__ = ["patched_root", "pristine_root", "sandbox", "sandbox_python"]


@pytest.fixture(scope="session")
def drafting_root(pristine_root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of `pristine_root` with the base and the opt-in set mtp. Shared: do not change it."""
    root = copy_root(pristine_root, tmp_path_factory.mktemp("drafting") / "root")
    kit("apply", root, "mtp")
    return root


@pytest.fixture(scope="session")
def flat_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny checkpoint with the names of the published one. Shared: do not change it."""
    return written(tmp_path_factory, Layout.FLAT)


@pytest.fixture(scope="session")
def grouped_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same weights with names grouped by part. Shared: do not change it."""
    return written(tmp_path_factory, Layout.GROUPED)


def written(factory: pytest.TempPathFactory, layout: Layout) -> Path:
    folder = factory.mktemp("model") / layout.value
    write_checkpoint(folder, layout=layout)
    return folder
