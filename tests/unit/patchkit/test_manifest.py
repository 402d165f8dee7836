# SPDX-License-Identifier: Apache-2.0
"""The kit's own files: every damage is one sentence, and the real set is what it says it is."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import tree
from patchkit import release
from patchkit.errors import BundleDamaged

PATCHES = Path("patches", tree.SET_ID)


def damaged(bundle: Path, tmp_path: Path, damage: Callable[[Path], None]) -> str:
    """The sentence for a copy of the bundle after ``damage``."""
    copy = tmp_path / "copy"
    shutil.copytree(bundle, copy)
    damage(copy)
    with pytest.raises(BundleDamaged) as caught:
        release.load(copy, tree.SET_ID)
    assert str(caught.value).endswith("; nothing was changed.")
    return str(caught.value)


def replacing(name: Path, old: bytes, new: bytes) -> Callable[[Path], None]:
    def damage(copy: Path) -> None:
        text = (copy / name).read_bytes()
        assert old in text
        (copy / name).write_bytes(text.replace(old, new, 1))

    return damage


def cutting(name: Path, bytes_left: int) -> Callable[[Path], None]:
    def damage(copy: Path) -> None:
        (copy / name).write_bytes((copy / name).read_bytes()[:bytes_left])

    return damage


MANIFEST = PATCHES / "manifest.toml"
REGISTRY_PATCH = PATCHES / tree.patch_name(tree.REGISTRY)


@pytest.mark.parametrize(
    ("damage", "expected"),
    [
        (lambda copy: (copy / MANIFEST).unlink(), "manifest.toml cannot be read"),
        (lambda copy: (copy / REGISTRY_PATCH).unlink(), "registry.py.patch cannot be read (No such file"),
        (lambda copy: (copy / "overlay" / tree.SET_ID / tree.MODEL).unlink(), "new_model.py cannot be read"),
        (lambda copy: tree.write(copy / MANIFEST, b"\xff\xfe"), "is not valid TOML"),
        (lambda copy: tree.write(copy / MANIFEST, b""), "incomplete: the key 'id' is missing"),
        (replacing(MANIFEST, b'title = "A small set"\n', b""), "incomplete: the key 'title' is missing"),
        (
            replacing(MANIFEST, b'line_ends = "lf"', b'line_ends = "cr"'),
            "incomplete: 'cr' is not a valid LineEnds",
        ),
        (replacing(MANIFEST, b'path = "vllm_ascend/ops', b'path = "../ops'), "leaves the package"),
        (replacing(MANIFEST, b"supported = ", b"wanted = "), "the key 'supported' is missing"),
        (replacing(MANIFEST, b'contains = "class OldModel:"', b"contains = 5"), "sentinel.contains is 5"),
        (replacing(MANIFEST, b'native_from = "0.23.0"', b"native_from = 23"), "package.native_from is 23"),
        (replacing(MANIFEST, b'supported = ["0.20.2"]', b'supported = "0.20.2"'), "package.supported is"),
        (replacing(MANIFEST, b'path = "vllm/models/old', b'path = "torch/models/old'), "leaves the package"),
        (cutting(MANIFEST, 200), "is not valid TOML"),
        (cutting(REGISTRY_PATCH, 150), "registry.py.patch is damaged at line"),
        (cutting(REGISTRY_PATCH, 0), "registry.py.patch is damaged at line 1"),
        (replacing(REGISTRY_PATCH, b"a/vllm/models/registry.py", b"a/vllm/other.py"), "the two paths differ"),
        (
            replacing(Path("overlay", tree.SET_ID, tree.MODEL), b"class", b"klass"),
            "was altered: expected sha256",
        ),
    ],
)
def test_damage_is_one_sentence(
    bundle: Path, tmp_path: Path, damage: Callable[[Path], None], expected: str
) -> None:
    assert expected in damaged(bundle, tmp_path, damage)


def test_a_patch_of_another_file_than_the_manifest_says(bundle: Path, tmp_path: Path) -> None:
    def swap(copy: Path) -> None:
        shutil.copy(copy / PATCHES / tree.patch_name(tree.TOKENIZERS), copy / REGISTRY_PATCH)

    assert "patches vllm/tokenizers/registry.py, but the manifest says vllm/models" in damaged(
        bundle, tmp_path, swap
    )


def test_a_patch_whose_cr_was_lost_on_the_way_is_named_when_it_is_used(
    bundle: Path, tmp_path: Path, root: Path
) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(bundle, copy)
    patch = copy / PATCHES / tree.patch_name(tree.MOE)
    patch.write_bytes(patch.read_bytes().replace(b"\r\n", b"\n"))
    before = tree.snapshot(root)

    run = tree.Kit(copy)("apply", "--root", root)

    assert run.code == 3
    assert "the patch of vllm_ascend/ops/moe.py does not fit its own pre-image at line 1" in run.err
    assert tree.snapshot(root) == before


def test_an_altered_line_of_a_patch_is_found_by_the_hash_it_leads_to(
    bundle: Path, tmp_path: Path, root: Path
) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(bundle, copy)
    replacing(REGISTRY_PATCH, b"+    'new'", b"+    'mew'")(copy)
    before = tree.snapshot(root)

    run = tree.Kit(copy)("apply", "--root", root)

    assert run.code == 3
    expected = tree.sha256(tree.APPLIED[tree.REGISTRY])[:12]
    assert f"the manifest says {expected}, so the kit itself is damaged; nothing was changed" in run.err
    assert tree.snapshot(root) == before


def test_a_set_that_does_not_exist(bundle: Path) -> None:
    with pytest.raises(BundleDamaged, match=r"patches/v9/manifest\.toml cannot be read"):
        release.load(bundle, "v9")
