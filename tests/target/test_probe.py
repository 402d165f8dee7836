# SPDX-License-Identifier: Apache-2.0
"""What ``kit verify`` runs on an NPU tells right files from wrong ones.

The probe's own functions run here, on the real files and with the stand-in for
``torch_npu``; what they report for wrong files is what a user would read.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from patchkit import probe
from target.real_packages import ACTIVATION, MOE_MLP, ascend_from, write_variant
from target.wrong_variants import CLAMP_BEFORE_SILU, GUIDE_TO_THE_LETTER, WRONG_ACTIVATIONS, WRONG_BRANCHES

# Wrong numbers of the activation that a MoE layer's sums hide: in its trial the order of
# clamp and silu makes 0.1 % of the largest value, and it has no gate that the lower clamp
# touches, nor any limit but the one. They are for the activation's own check to find.
TOO_SMALL_FOR_THE_BRANCH = {CLAMP_BEFORE_SILU, "gate clamped from below too", "limit ignored"}


def moe_branch() -> str:
    return probe.moe_branch("cpu")


def report(check: Callable[[], str], *roots: Path) -> dict[str, str]:
    with ascend_from(*roots):
        return probe.attempt("it", check)


@pytest.mark.parametrize("check", [probe.activation, moe_branch])
def test_the_patched_files_pass(patched_root: Path, check: Callable[[], str]) -> None:
    assert report(check, patched_root)["status"] == "passed"


def test_what_passed_is_said_with_its_precision(patched_root: Path) -> None:
    assert report(probe.activation, patched_root)["detail"] == "right at limits 7 and 3 (float32, CPU)"
    assert report(moe_branch, patched_root)["detail"].endswith("of the formula (float16, cpu)")


def test_the_pristine_activation_fails_as_an_absent_function(pristine_root: Path) -> None:
    found = report(probe.activation, pristine_root)
    assert found["status"] == "failed"
    assert found["detail"].startswith("ImportError: cannot import name 'swiglustep_and_mul'")


def test_the_pristine_moe_branch_fails_by_its_numbers(pristine_root: Path) -> None:
    found = report(moe_branch, pristine_root)
    assert found["status"] == "failed"
    assert found["detail"].endswith("is the clamp ignored?")


@pytest.mark.parametrize("variant", sorted(WRONG_ACTIVATIONS.keys() - {"gate clamped from below too"}))
def test_an_activation_with_wrong_numbers_fails(patched_root: Path, tmp_path: Path, variant: str) -> None:
    root = write_variant(tmp_path, ACTIVATION, patched_root, WRONG_ACTIVATIONS[variant])
    with ascend_from(root, patched_root), pytest.raises(AssertionError, match=r"^value \d is .*, expected "):
        probe.activation()


@pytest.mark.parametrize("variant", sorted(WRONG_ACTIVATIONS.keys() - TOO_SMALL_FOR_THE_BRANCH))
def test_a_moe_branch_on_a_wrong_activation_fails(patched_root: Path, tmp_path: Path, variant: str) -> None:
    root = write_variant(tmp_path, ACTIVATION, patched_root, WRONG_ACTIVATIONS[variant])
    with ascend_from(root, patched_root), pytest.raises(AssertionError, match="off by"):
        moe_branch()


@pytest.mark.parametrize("variant", WRONG_BRANCHES)
def test_a_moe_branch_with_wrong_numbers_fails(patched_root: Path, tmp_path: Path, variant: str) -> None:
    root = write_variant(tmp_path, MOE_MLP, patched_root, WRONG_BRANCHES[variant])
    with ascend_from(root, patched_root), pytest.raises(AssertionError, match="off by"):
        moe_branch()


def test_field_case_the_guide_to_the_letter_fails_by_the_name(
    pristine_root: Path, patched_root: Path, tmp_path: Path
) -> None:
    root = write_variant(tmp_path, MOE_MLP, pristine_root, *GUIDE_TO_THE_LETTER)
    found = report(moe_branch, root, patched_root)
    assert found["status"] == "failed"
    assert found["detail"] == "NameError: name 'swiglu_limit' is not defined"


def test_without_an_npu_the_moe_branch_is_not_run_and_says_so(patched_root: Path) -> None:
    found = report(probe.moe_branch_on_npu, patched_root)
    assert found == {"check": "it", "status": "not run", "detail": "torch_npu sees no NPU here"}


@pytest.mark.parametrize("check", [probe.activation, probe.moe_branch_on_npu])
def test_without_torch_npu_neither_is_run(check: Callable[[], str]) -> None:
    found = probe.attempt("it", check)
    assert found["status"] == "not run"
    assert found["detail"].startswith("torch_npu cannot be imported here (ModuleNotFoundError")
