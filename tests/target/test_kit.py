# SPDX-License-Identifier: Apache-2.0
"""The kit on the real packages, in both layouts of the field: editable git checkouts, and site-packages.

What is asserted is read off the disk by sha256sum-like code of the test's own and by git,
never by the engine.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

PROJECT = Path(__file__).resolve().parent.parent.parent
KIT = PROJECT / "scripts" / "kit"
ROWS = tomllib.loads((PROJECT / "patches/v0.20.2rc1/manifest.toml").read_text())["file"]
PRISTINE = {row["path"]: row.get("before") for row in ROWS}
APPLIED = {row["path"]: row["after"] for row in ROWS}
MOE = "vllm_ascend/ops/fused_moe/moe_mlp.py"
ACTIVATION = "vllm_ascend/ops/activation.py"
MODELS = "vllm/model_executor/models/registry.py"
MODEL = "vllm/model_executor/models/step3p7.py"
TOKENIZERS = "vllm/tokenizers/registry.py"
SEALED = os.environ | {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1"}


@dataclass(frozen=True)
class Installation:
    """An interpreter, and where it has the two packages."""

    python: Path
    folders: dict[str, Path]

    def file(self, path: str) -> Path:
        package, _, rest = path.partition("/")
        return self.folders[package] / rest

    def hashes(self) -> dict[str, str | None]:
        def digest(file: Path) -> str | None:
            return hashlib.sha256(file.read_bytes()).hexdigest() if file.exists() else None

        return {path: digest(self.file(path)) for path in APPLIED}

    def kit(self, verb: str, *options: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-I", "-S", str(KIT), verb, *options, "--python", str(self.python)]
        return subprocess.run(command, capture_output=True, text=True, timeout=120)


def bare_interpreter(folder: Path) -> tuple[Path, Path]:
    """A virtual environment without packages: its python and its site-packages."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    return folder / "bin" / "python", next((folder / "lib").glob("python3.*")) / "site-packages"


@pytest.fixture
def site_packages(pristine_root: Path, tmp_path: Path) -> Installation:
    """As pip installs the wheels."""
    python, folder = bare_interpreter(tmp_path / "venv")
    for package in ("vllm", "vllm_ascend"):
        shutil.copytree(
            pristine_root / package, folder / package, ignore=shutil.ignore_patterns("*.so", "__pycache__")
        )
    return Installation(python, {name: folder / name for name in ("vllm", "vllm_ascend")})


@pytest.fixture
def editable(sandbox: Path, tmp_path: Path) -> Installation:
    """As the official image has them: clones, with the finders that pip -e made for the sandbox."""
    python, folder = bare_interpreter(tmp_path / "venv")
    workspace = tmp_path / "vllm-workspace"
    made = next((sandbox / "venv" / "lib").glob("python3.*")) / "site-packages"
    for checkout in ("vllm", "vllm-ascend"):
        source = sandbox / "vllm-workspace" / checkout
        subprocess.run(["git", "clone", "--quiet", source, workspace / checkout], check=True, env=SEALED)
    for file in [*made.glob("__editable__*.pth"), *made.glob("__editable__*.py")]:
        text = file.read_text().replace(str(sandbox / "vllm-workspace"), str(workspace))
        (folder / file.name).write_text(text)
    return Installation(
        python, {"vllm": workspace / "vllm/vllm", "vllm_ascend": workspace / "vllm-ascend/vllm_ascend"}
    )


@pytest.fixture(params=["site_packages", "editable"])
def installation(request: pytest.FixtureRequest) -> Installation:
    found: Installation = request.getfixturevalue(request.param)
    assert found.hashes() == PRISTINE
    return found


def git_status(installation: Installation) -> list[str]:
    """The changed and untracked files of both checkouts."""
    lines = []
    for folder in installation.folders.values():
        status = ["git", "-C", str(folder.parent), "status", "--short", "--untracked-files=all"]
        lines += subprocess.run(
            status, capture_output=True, text=True, check=True, env=SEALED
        ).stdout.splitlines()
    return lines


def test_apply_gives_the_manifests_hashes_and_revert_the_published_ones(installation: Installation) -> None:
    for _ in range(2):
        run = installation.kit("apply")
        assert run.returncode == 0, run.stderr
        assert installation.hashes() == APPLIED
    assert "already applied: all 5 files" in run.stdout

    assert installation.kit("verify", "--fast").returncode == 0
    assert installation.kit("revert").returncode == 0
    assert installation.hashes() == PRISTINE


def test_git_sees_five_files_after_apply_and_none_after_revert(editable: Installation) -> None:
    editable.kit("apply")
    assert sorted(git_status(editable)) == sorted(
        [f" M {MODELS}", f" M {TOKENIZERS}", f" M {ACTIVATION}", f" M {MOE}", f"?? {MODEL}"]
    )
    editable.kit("revert")
    assert git_status(editable) == []


def test_the_crlf_file_differs_by_the_edits_alone(editable: Installation) -> None:
    editable.kit("apply")
    numstat = ["git", "-C", str(editable.folders["vllm_ascend"].parent), "diff", "--numstat", "--", MOE]
    assert subprocess.run(numstat, capture_output=True, text=True, env=SEALED).stdout.split() == [
        "12",
        "1",
        MOE,
    ]
    assert (
        editable.file(MOE).read_bytes().count(b"\n") == editable.file(MOE).read_bytes().count(b"\r\n") == 484
    )


def test_every_entry_occurs_once_however_often_it_is_applied(site_packages: Installation) -> None:
    for _ in range(3):
        site_packages.kit("apply")
    assert site_packages.file(MODELS).read_text().count('"Step3p7ForConditionalGeneration":') == 1
    assert site_packages.file(TOKENIZERS).read_text().count('"step3p7"') == 1
    assert (
        site_packages.file(TOKENIZERS).read_text().count("tokenizer = get_cached_tokenizer(tokenizer)") == 1
    )


@pytest.mark.parametrize("path", [path for path, before in PRISTINE.items() if before])
def test_the_applied_file_is_what_git_makes_of_the_patch(
    site_packages: Installation, path: str, tmp_path: Path
) -> None:
    [patch] = [PROJECT / "patches/v0.20.2rc1" / row["patch"] for row in ROWS if row["path"] == path]
    root = tmp_path / "by-git"
    (root / path).parent.mkdir(parents=True)
    shutil.copy(site_packages.file(path), root / path)
    ceiling = SEALED | {"GIT_CEILING_DIRECTORIES": str(tmp_path)}
    apply = ["git", "-c", "core.autocrlf=false", "apply", "--whitespace=nowarn", str(patch)]
    subprocess.run(apply, cwd=root, check=True, env=ceiling)
    assert hashlib.sha256((root / path).read_bytes()).hexdigest() == APPLIED[path]


# --- cases from the field ---------------------------------------------------------------


def edited(path: str, old: str, new: str) -> Callable[[Installation], None]:
    def edit(installation: Installation) -> None:
        text = installation.file(path).read_bytes()
        assert text.count(old.encode()) == 1, (path, old)
        installation.file(path).write_bytes(text.replace(old.encode(), new.encode()))

    return edit


def test_the_ascend_half_alone_names_the_missing_and_the_error_at_start_up(
    site_packages: Installation,
) -> None:
    site_packages.kit("apply")
    for path in (MODELS, MODEL, TOKENIZERS):
        undo(site_packages, path)
    run = site_packages.kit("verify")
    assert run.returncode == 1
    assert f"partial: 2 of 5 files are applied; not applied: {TOKENIZERS}, {MODEL}, {MODELS}." in run.stdout
    assert "'Step3VLProcessor' object has no attribute '_get_num_multimodal_tokens'" in run.stdout
    assert site_packages.kit("apply").returncode == 0
    assert site_packages.hashes() == APPLIED


def undo(installation: Installation, path: str) -> None:
    """One file back to pristine, by GNU patch or by removal."""
    row = next(row for row in ROWS if row["path"] == path)
    if "patch" not in row:
        installation.file(path).unlink()
        return
    patch = PROJECT / "patches/v0.20.2rc1" / row["patch"]
    undo = ["git", "-c", "core.autocrlf=false", "apply", "-R", "--whitespace=nowarn", str(patch)]
    root = installation.folders["vllm"].parent
    subprocess.run(undo, cwd=root, check=True, env=SEALED | {"GIT_CEILING_DIRECTORIES": str(root.parent)})


def test_registered_without_its_module_is_not_the_same_message(site_packages: Installation) -> None:
    site_packages.kit("apply")
    site_packages.file(MODEL).unlink()
    out = site_packages.kit("verify").stdout
    assert (
        "registered, but its module fails to import: No module named 'vllm.model_executor.models.step3p7'"
        in out
    )
    assert "_get_num_multimodal_tokens" not in out


def test_registered_with_a_syntax_error_names_it(site_packages: Installation) -> None:
    site_packages.kit("apply")
    edited(MODEL, "(StepVLForConditionalGeneration):", "(StepVLForConditionalGeneration)")(site_packages)
    out = site_packages.kit("verify").stdout
    assert "registered, but its module fails to import: line 19: SyntaxError: expected ':'" in out


def test_the_guide_to_the_letter_is_failed_without_running_it(site_packages: Installation) -> None:
    """moe_mlp.py with only the import and the branch, as the public guide shows it."""
    site_packages.kit("apply")
    for old, new in (
        ("    swiglu_limit: float = 0.0,\r\n) -> torch.Tensor:", ") -> torch.Tensor:"),
        (
            "            swiglu_limit=swiglu_limit,\r\n        )\r\n\r\n    if getattr",
            "        )\r\n\r\n    if getattr",
        ),
    ):
        edited(MOE, old, new)(site_packages)
    run = site_packages.kit("verify")
    assert run.returncode == 1
    assert "the name 'swiglu_limit' is not defined" in run.stdout


@pytest.mark.parametrize(
    "edit",
    [
        edited(MOE, "import torch\r\nimport torch_npu\r\n", "import torch_npu\r\nimport torch\r\n"),
        edited(
            MODELS,
            '    "StepVLForConditionalGeneration": ("step_vl", "StepVLForConditionalGeneration"),\n',
            '    "StepVLForConditionalGeneration": ("step_vl", "StepVLForConditionalGeneration"),\n' * 2,
        ),
        edited(TOKENIZERS, '{"step3_vl"}', '{"step3_vl", "step3p7"}'),
        lambda i: i.file(MOE).write_bytes(i.file(MOE).read_bytes().replace(b"\r\n", b"\n")),
        lambda i: i.file(MODELS).write_bytes(i.file(MODELS).read_bytes().replace(b"\n", b"\r\n")),
    ],
    ids=[
        "context re-ordered",
        "anchor twice",
        "set entry by hand",
        "LF instead of CRLF",
        "CRLF instead of LF",
    ],
)
def test_drift_is_refused_and_every_file_stays(
    installation: Installation, edit: Callable[[Installation], None]
) -> None:
    edit(installation)
    before = installation.hashes()
    for verb in ("apply", "revert", "diff", "overlay"):
        run = installation.kit(verb)
        assert run.returncode == 3, (verb, run.stdout)
        assert "nothing was changed" in run.stderr
    assert installation.hashes() == before
    left = [
        p
        for folder in installation.folders.values()
        for p in folder.rglob("*")
        if p.suffix in {".rej", ".orig"}
    ]
    assert left == []


def test_the_cure_for_drift_in_a_checkout_can_be_typed(editable: Installation) -> None:
    edited(TOKENIZERS, '{"step3_vl"}', '{"step3_vl", "step3p7"}')(editable)
    error = editable.kit("apply").stderr
    cure = error.partition("Next: ")[2].strip()
    subprocess.run(cure, shell=True, check=True, env=SEALED)
    assert editable.kit("apply").returncode == 0
    assert editable.hashes() == APPLIED


@pytest.mark.parametrize(
    ("path", "version", "expected"),
    [
        ("vllm", "0.20.2+empty", 0),
        ("vllm", "0.1.dev1+g0123abc.empty", 0),
        ("vllm", "0.20.1", 3),
        ("vllm", "0.21.0", 3),
        ("vllm_ascend", "0.18.0", 3),
    ],
)
def test_versions(site_packages: Installation, path: str, version: str, expected: int) -> None:
    (site_packages.folders[path] / "_version.py").write_text(f"__version__ = version = {version!r}\n")
    run = site_packages.kit("apply")
    assert run.returncode == expected
    assert site_packages.hashes() == (PRISTINE if expected else APPLIED)
    assert (version in run.stderr) == bool(expected)


def test_overlay_makes_the_five_files_and_the_options_to_mount_them(
    editable: Installation, tmp_path: Path
) -> None:
    run = editable.kit("overlay", "--out", str(tmp_path / "out"))
    assert run.returncode == 0, run.stderr
    for path, digest in APPLIED.items():
        built = tmp_path / "out" / path
        assert hashlib.sha256(built.read_bytes()).hexdigest() == digest
        assert f"-v {built}:{editable.file(path)}:ro" in run.stdout
    assert editable.hashes() == PRISTINE
