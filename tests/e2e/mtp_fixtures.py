# SPDX-License-Identifier: Apache-2.0
"""What the tests of drafting share."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from e2e.mtp_cases import RunSession
from tiny.draft_engine import Session, Task
from tiny.draft_process import run_session
from tiny.launch import environment


@pytest.fixture(scope="session")
def run(sandbox_python: Path, tmp_path_factory: pytest.TempPathFactory) -> RunSession:
    def start(root: Path, model: Path, tasks: dict[str, Task], settings: Any = (), **options: Any) -> Session:
        scratch = tmp_path_factory.mktemp("session")
        chosen = environment(scratch, root) | dict(settings)
        return run_session(sandbox_python, chosen, model, tasks, scratch, **options)

    return start
