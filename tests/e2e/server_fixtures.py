# SPDX-License-Identifier: Apache-2.0
"""What the tests of the real server share."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from e2e.cases import PICTURES, QUESTIONS, Serve
from e2e.folders import with_remote_code
from e2e.roots import kit
from e2e.server import Server, Setup, Way, serving
from target.conftest import copy_root
from tiny.engine import Reply
from tiny.engine_process import ask_engine
from tiny.launch import environment
from tiny.packages import NATIVE, installed
from tiny.pictures import Views, look_at


@pytest.fixture(scope="session")
def caches(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What vLLM and transformers keep from one start to the next."""
    return tmp_path_factory.mktemp("caches")


@pytest.fixture(scope="session")
def serve(sandbox_python: Path, caches: Path, tmp_path_factory: pytest.TempPathFactory) -> Serve:
    @contextmanager
    def start(root: Path, model: Path, way: Way | None = None) -> Iterator[Server]:
        setup = Setup(sandbox_python, model, root, way or Way())
        with serving(setup, tmp_path_factory.mktemp("server"), caches) as server:
            yield server

    return start


@pytest.fixture(scope="session")
def published_form(flat_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny checkpoint with model and processor code of its own. Shared: do not change it."""
    return with_remote_code(flat_model, tmp_path_factory.mktemp("models") / "published")


@pytest.fixture(scope="session")
def reverted_root(pristine_root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Patched by the kit and put back by the kit."""
    root = copy_root(pristine_root, tmp_path_factory.mktemp("reverted") / "root")
    kit("apply", root)
    kit("revert", root)
    return root


@pytest.fixture(scope="session")
def one_process(
    sandbox_python: Path, patched_root: Path, flat_model: Path, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Reply]:
    """What the patched vLLM says in a single process, without a server."""
    scratch = tmp_path_factory.mktemp("one-process")
    settings = environment(scratch, patched_root)
    return ask_engine(sandbox_python, settings, flat_model, QUESTIONS, scratch).replies


@pytest.fixture(scope="session")
def native(
    sandbox_python: Path, flat_model: Path, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Reply]:
    """What a vLLM says that has the model by itself, and that nobody patched."""
    scratch = tmp_path_factory.mktemp("native")
    settings = environment(scratch, installed(NATIVE, sandbox_python))
    return ask_engine(sandbox_python, settings, flat_model, QUESTIONS, scratch).replies


@pytest.fixture(scope="session")
def views() -> dict[str, list[Views]]:
    """The pictures of `QUESTIONS`, as the reference sees them."""
    return {name: [look_at(drawn) for drawn in pictures] for name, pictures in PICTURES.items()}
