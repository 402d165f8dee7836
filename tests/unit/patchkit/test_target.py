# SPDX-License-Identifier: Apache-2.0
"""Finding the installation that Python would import, in the layouts and traps seen in the field."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import tree
from patchkit import state, target, transaction
from patchkit.errors import Refused, TargetNotFound
from patchkit.release import Release


@pytest.fixture
def python(tmp_path: Path) -> Path:
    """An interpreter of its own: a virtual environment without any package."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "venv"], check=True)
    return tmp_path / "venv" / "bin" / "python"


def site_packages(python: Path) -> Path:
    return next((python.parent.parent / "lib").glob("python3.*")) / "site-packages"


def editable(python: Path, checkout: Path, package: str) -> None:
    """Install a checkout as setuptools does for a flat layout: a finder at the end of sys.meta_path."""
    finder = f"""
import sys
from importlib.machinery import PathFinder


class Finder:
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        if name.partition(".")[0] == {package!r}:
            return PathFinder.find_spec(name, path or [{str(checkout)!r}], target)


sys.meta_path.append(Finder)
"""
    name = f"__editable___{package}_finder"
    tree.write(site_packages(python) / f"{name}.py", finder.encode())
    tree.write(site_packages(python) / f"__editable__.{package}.pth", f"import {name}".encode())


def workspace(folder: Path) -> tuple[Path, Path]:
    """The official image's layout: one git checkout for each package, of the same name in one case."""
    tree.write_packages(folder)
    for package, checkout in (("vllm", "vllm"), ("vllm_ascend", "vllm-ascend")):
        (folder / package).rename(folder / f"{package}.moved")
        (folder / checkout / ".git").mkdir(parents=True)
        (folder / f"{package}.moved").rename(folder / checkout / package)
    return folder / "vllm", folder / "vllm-ascend"


def test_a_wheel_layout_is_found(small_set: Release, python: Path) -> None:
    tree.write_packages(site_packages(python))
    found = target.of_interpreter(small_set.packages, python)
    assert found.locations["vllm"].folder == site_packages(python) / "vllm"
    assert found.locations["vllm_ascend"].version == "0.20.2rc1"
    assert found.locations["vllm"].checkout is None


def test_an_editable_layout_is_found_from_any_working_folder(
    small_set: Release, python: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkouts = workspace(tmp_path / "vllm-workspace")
    for checkout, package in zip(checkouts, ("vllm", "vllm_ascend"), strict=True):
        editable(python, checkout, package)
    monkeypatch.chdir(tmp_path / "vllm-workspace")  # where `import vllm` finds a plain folder

    naive = subprocess.run(
        [python, "-c", "import importlib.util as u; print(u.find_spec('vllm').origin)"],
        capture_output=True,
        text=True,
    )
    found = target.of_interpreter(small_set.packages, python)

    assert naive.stdout.strip() == "None"
    assert found.locations["vllm"].folder == checkouts[0] / "vllm"
    assert found.locations["vllm"].checkout == checkouts[0]


@pytest.mark.parametrize("python_path", [":", ":/nowhere", "/nowhere:"])
def test_an_empty_part_of_pythonpath_does_not_bring_the_working_folder_in(
    small_set: Release, python: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, python_path: str
) -> None:
    checkouts = workspace(tmp_path / "vllm-workspace")
    for checkout, package in zip(checkouts, ("vllm", "vllm_ascend"), strict=True):
        editable(python, checkout, package)
    monkeypatch.chdir(tmp_path / "vllm-workspace")
    monkeypatch.setenv("PYTHONPATH", python_path)
    assert target.of_interpreter(small_set.packages, python).locations["vllm"].folder == checkouts[0] / "vllm"


def test_a_namespace_shadow_is_refused_by_name(
    small_set: Release, python: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkouts = workspace(tmp_path / "vllm-workspace")
    for checkout, package in zip(checkouts, ("vllm", "vllm_ascend"), strict=True):
        editable(python, checkout, package)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "vllm-workspace"))
    with pytest.raises(
        TargetNotFound, match=rf"plain folder {checkouts[0]} .*namespace package.*PYTHONPATH"
    ) as caught:
        target.of_interpreter(small_set.packages, python)
    assert caught.value.next_step == "unset PYTHONPATH; {again}"


def test_of_two_copies_only_the_imported_one_changes_and_the_other_is_listed(
    small_set: Release, python: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree.write_packages(site_packages(python))
    imported = tree.write_packages(tmp_path / "imported")
    decoy_before = tree.snapshot(site_packages(python))
    monkeypatch.setenv("PYTHONPATH", str(imported))

    found = target.of_interpreter(small_set.packages, python)
    transaction.apply(small_set, found)

    assert found.locations["vllm"].others == (site_packages(python) / "vllm",)
    assert set(tree.states(imported).values()) == {"applied"}
    assert {
        k: v for k, v in tree.snapshot(site_packages(python)).items() if "__pycache__" not in k
    } == decoy_before


def test_the_packages_are_not_imported(small_set: Release, python: Path) -> None:
    tree.write_packages(site_packages(python))  # whose __init__ raises
    target.of_interpreter(small_set.packages, python)
    assert not list(site_packages(python).rglob("vllm/__pycache__"))


def test_an_interpreter_without_vllm_is_named(small_set: Release, python: Path) -> None:
    with pytest.raises(TargetNotFound, match=rf"{python} cannot import a package vllm; nothing was changed"):
        target.of_interpreter(small_set.packages, python)


def test_an_interpreter_without_vllm_ascend_is_named(
    small_set: Release, python: Path, tmp_path: Path
) -> None:
    tree.write_packages(tmp_path / "both")
    (tmp_path / "both" / "vllm").rename(site_packages(python) / "vllm")
    with pytest.raises(TargetNotFound, match="cannot import a package vllm_ascend"):
        target.of_interpreter(small_set.packages, python)


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        ("#!/bin/sh\nexit 7\n", "not a usable Python 3.11 or newer .it printed nothing"),
        (
            "#!/bin/sh\necho 'Unknown option: -P' >&2; exit 2\n",
            "not a usable Python 3.11 or newer .Unknown option: -P",
        ),
        ("#!/bin/sh\necho hello\n", "not a usable Python"),
        ("#!/bin/sh\necho 5\n", "not a usable Python"),
        ("#!/bin/sh\necho '[]'\n", "not a usable Python"),
        ("#!/nowhere/python\n", "cannot be run .No such file"),
    ],
)
def test_something_that_is_no_python_is_named(
    small_set: Release, tmp_path: Path, script: str, expected: str
) -> None:
    fake = tree.write(tmp_path / "python", script.encode())
    fake.chmod(0o755)
    with pytest.raises(TargetNotFound, match=expected):
        target.of_interpreter(small_set.packages, fake)


def test_a_path_that_is_not_there_is_named(small_set: Release, tmp_path: Path) -> None:
    with pytest.raises(TargetNotFound, match=r"cannot be run .No such file or directory"):
        target.of_interpreter(small_set.packages, tmp_path / "absent")


@pytest.mark.parametrize(
    "first_lines",
    [
        "#!{python}\n",
        "#!/usr/bin/env {python}\n",
        "#! {python} -s\n",
        "#!/bin/sh\n'''exec' {python} \"$0\" \"$@\"\n' '''\n",
        "#!/bin/sh\n'''exec' \"{python}\" \"$0\" \"$@\"\n' '''\n",
        "#!/bin/sh\n'''exec' '{python}' \"$0\" \"$@\"\n' '''\n",
        "#!/usr/bin/env -S {python} -u\n",
    ],
)
def test_the_default_is_the_interpreter_of_the_vllm_command(
    python: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first_lines: str
) -> None:
    command = tree.write(
        tmp_path / "bin" / "vllm", (first_lines.format(python=python) + "import vllm\n").encode()
    )
    command.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    assert target.default_interpreter() == python


@pytest.mark.parametrize(
    "content", [b"\x7fELF\0\0", b"#!/nowhere/python3.11\n", b"#!/bin/sh\n", b"#!\n", b""]
)
def test_a_vllm_command_that_tells_nothing_is_not_guessed_about(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes
) -> None:
    tree.write(tmp_path / "bin" / "vllm", content).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    with pytest.raises(TargetNotFound, match="bin/vllm does not tell which interpreter runs it"):
        target.default_interpreter()


def test_without_a_vllm_command_it_is_python3(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mine = tmp_path / "bin" / "python3"
    mine.parent.mkdir()
    mine.symlink_to(sys.executable)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    assert target.default_interpreter() == mine


@pytest.mark.parametrize("noise", ["print('welcome')", "sys.stdout.write('{}')"])
def test_a_site_that_prints_is_no_hindrance(small_set: Release, python: Path, noise: str) -> None:
    tree.write_packages(site_packages(python))
    tree.write(site_packages(python) / "noise.pth", f"import sys; exec({noise!r})\n".encode())
    assert (
        target.of_interpreter(small_set.packages, python).locations["vllm"].folder
        == site_packages(python) / "vllm"
    )


def test_a_relative_pythonpath_means_what_it_means_to_the_server(
    small_set: Release, python: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree.write_packages(site_packages(python))
    here = tree.write_packages(tmp_path / "here")
    monkeypatch.chdir(here)
    monkeypatch.setenv("PYTHONPATH", ".:/nowhere")
    assert target.of_interpreter(small_set.packages, python).locations["vllm"].folder == here / "vllm"


def test_a_pipe_in_the_place_of_a_version_or_of_byte_code_does_not_hang(
    small_set: Release, root: Path
) -> None:
    (root / "vllm/_version.py").unlink()
    os.mkfifo(root / "vllm/_version.py")
    (root / "vllm/models/__pycache__").mkdir()
    os.mkfifo(root / "vllm/models/__pycache__/registry.cpython-311.pyc")
    found = target.in_folder(small_set.packages, root)
    transaction.apply(small_set, found)
    transaction.apply(small_set, found)
    assert set(tree.states(root).values()) == {"applied"}


def test_a_root_without_the_packages_is_named(small_set: Release, tmp_path: Path) -> None:
    with pytest.raises(TargetNotFound, match="holds no package vllm"):
        target.in_folder(small_set.packages, tmp_path)


# --- places that must not be written to --------------------------------------------------


@pytest.mark.parametrize("inside", [True, False], ids=["within the package", "out of the package"])
def test_a_symlinked_file_is_refused(small_set: Release, root: Path, tmp_path: Path, inside: bool) -> None:
    real = (root / "vllm" if inside else tmp_path) / "real.py"
    (root / tree.REGISTRY).rename(real)
    (root / tree.REGISTRY).symlink_to(real)
    before = tree.snapshot(tmp_path)
    with pytest.raises(Refused, match=r"is a symlink to .*real\.py"):
        transaction.apply(small_set, target.in_folder(small_set.packages, root))
    assert tree.snapshot(tmp_path) == before


def test_the_cure_of_a_symlink_can_be_typed(small_set: Release, root: Path, tmp_path: Path) -> None:
    (root / "vllm/models").rename(tmp_path / "it's elsewhere")
    (root / "vllm/models").symlink_to(tmp_path / "it's elsewhere")
    (root / tree.ACTIVATION).rename(tmp_path / "activation.py")
    (root / tree.ACTIVATION).symlink_to(tmp_path / "activation.py")
    (root / tree.MODEL).symlink_to("/nowhere")
    found = target.in_folder(small_set.packages, root)
    for _ in range(3):
        with pytest.raises(Refused, match="is a symlink") as caught:
            transaction.apply(small_set, found)
        subprocess.run(caught.value.next_step, shell=True, check=True)
    transaction.apply(small_set, found)
    assert set(tree.states(root).values()) == {"applied"}


def test_a_symlinked_folder_on_the_way_is_refused(small_set: Release, root: Path, tmp_path: Path) -> None:
    (root / "vllm/models").rename(tmp_path / "elsewhere")
    (root / "vllm/models").symlink_to(tmp_path / "elsewhere")
    before = tree.snapshot(tmp_path)
    with pytest.raises(Refused, match="vllm/models is a symlink"):
        transaction.apply(small_set, target.in_folder(small_set.packages, root))
    assert tree.snapshot(tmp_path) == before


def test_a_dangling_symlink_in_place_of_the_new_file_is_refused(small_set: Release, root: Path) -> None:
    (root / tree.MODEL).symlink_to("/nowhere/at/all.py")
    with pytest.raises(Refused, match="is a symlink to /nowhere"):
        transaction.apply(small_set, target.in_folder(small_set.packages, root))


def test_the_package_itself_may_be_reached_by_a_symlink(
    small_set: Release, root: Path, tmp_path: Path
) -> None:
    linked = tmp_path / "linked"
    linked.mkdir()
    for package in ("vllm", "vllm_ascend"):
        (linked / package).symlink_to(root / package)
    transaction.apply(small_set, target.in_folder(small_set.packages, linked))
    assert set(tree.states(root).values()) == {"applied"}


def test_a_directory_in_place_of_a_file_is_refused(small_set: Release, root: Path) -> None:
    (root / tree.MODEL).mkdir()
    with pytest.raises(Refused, match="is not a regular file"):
        transaction.apply(small_set, target.in_folder(small_set.packages, root))


def test_a_missing_folder_of_the_package_is_refused(small_set: Release, root: Path) -> None:
    (root / "vllm/tokenizers/registry.py").unlink()
    (root / "vllm/tokenizers").rmdir()
    with pytest.raises(Refused, match="not a whole installation"):
        transaction.apply(small_set, target.in_folder(small_set.packages, root))


def test_a_file_larger_than_any_source_is_not_read(small_set: Release, root: Path) -> None:
    os.truncate(root / tree.REGISTRY, state.MAX_SOURCE_BYTES + 1)
    with pytest.raises(Refused, match="larger than any source file"):
        state.inspect(small_set, target.in_folder(small_set.packages, root))


def mounts_work() -> bool:
    return (
        os.geteuid() == 0 and subprocess.run(["unshare", "-m", "true"], capture_output=True).returncode == 0
    )


needs_mounts = pytest.mark.skipif(not mounts_work(), reason="needs root and mount namespaces")


def in_mount_namespace(
    kit: tree.Kit, commands: str, verb: str, root: Path
) -> subprocess.CompletedProcess[str]:
    """Run shell commands that mount something, then the kit, in a mount namespace of its own."""
    script = f'set -e; {commands}\nexec "{sys.executable}" "{kit.folder}/scripts/kit" {verb} --root "{root}"'
    return subprocess.run(["unshare", "-m", "sh", "-c", script], capture_output=True, text=True)


@needs_mounts
def test_a_bind_mounted_file_is_refused(kit: tree.Kit, root: Path, tmp_path: Path) -> None:
    mine = tree.write(tmp_path / "mine.py", tree.PRISTINE[tree.REGISTRY] or b"")
    before = tree.snapshot(root)
    run = in_mount_namespace(kit, f"mount --bind '{mine}' '{root / tree.REGISTRY}'", "apply", root)
    assert run.returncode == 3
    assert "registry.py is a bind mount" in run.stderr
    assert "nothing was changed" in run.stderr
    assert tree.snapshot(root) == before


@needs_mounts
def test_five_mounted_overlays_are_recognised_as_applied(kit: tree.Kit, root: Path, tmp_path: Path) -> None:
    tree.write(root / tree.MODEL, b"")  # what docker makes to mount on
    mounts = ""
    for number, path in enumerate(tree.ORDER):
        mine = tree.write(tmp_path / f"overlay {number}.py", tree.APPLIED[path])
        mounts += f"mount --bind '{mine}' '{root / path}'; mount -o remount,ro,bind '{root / path}';"
    run = in_mount_namespace(kit, mounts, "status", root)
    assert run.returncode == 0
    assert run.stdout.count("applied, mounted") == 5
    run = in_mount_namespace(kit, mounts, "apply", root)
    assert (run.returncode, run.stdout.count("already applied")) == (0, 1)
    run = in_mount_namespace(kit, mounts, "revert", root)
    assert (run.returncode, run.stderr.count("is a bind mount")) == (3, 1)


@needs_mounts
def test_a_read_only_file_system_is_refused(kit: tree.Kit, root: Path) -> None:
    before = tree.snapshot(root)
    mount = f"mount --bind '{root}' '{root}'; mount -o remount,ro,bind '{root}'"
    run = in_mount_namespace(kit, mount, "apply", root)
    assert run.returncode == 3
    assert "read-only file system; nothing was changed" in run.stderr
    assert tree.snapshot(root) == before


@needs_mounts
def test_a_full_disk_is_refused(kit: tree.Kit, root: Path, tmp_path: Path) -> None:
    small = tmp_path / "small"
    small.mkdir()
    fill = (
        f"mount -t tmpfs -o size=96k tmpfs '{small}'; cp -r '{root}' '{small}/packages';"
        f"dd if=/dev/zero of='{small}/filler' bs=4k status=none || true"
    )
    refused = in_mount_namespace(kit, fill, "apply", small / "packages")
    assert refused.returncode == 3, refused.stderr
    assert "there is no room left in" in refused.stderr

    quietly = (
        f"'{sys.executable}' '{kit.folder}/scripts/kit' apply --root '{small}/packages' 2>/dev/null || true"
    )
    after = in_mount_namespace(kit, f"{fill}; {quietly}", "status", small / "packages")
    assert "pristine: none of the 5 files" in after.stdout


@pytest.mark.skipif(os.geteuid() != 0, reason="becomes another user, so it needs root")
def test_an_unwritable_folder_is_refused_with_the_user(small_set: Release, root: Path) -> None:
    for folder in root.parents:
        folder.chmod(folder.stat().st_mode | 0o055)
    before = tree.snapshot(root)
    found = target.in_folder(small_set.packages, root)

    message = as_user(12345, lambda: transaction.apply(small_set, found))

    assert "cannot be written to as user 12345 (Permission denied); nothing was changed" in message
    assert tree.snapshot(root) == before


def as_user(uid: int, work: Callable[[], object]) -> str:
    """What the work said when it refused, done by a forked process of another user."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.setuid(uid)
        try:
            work()
        except Refused as refusal:
            os.write(writer, str(refusal).encode())
        finally:
            os._exit(0)
    os.close(writer)
    os.waitpid(child, 0)
    with os.fdopen(reader) as pipe:
        return pipe.read()


def test_inside_another_repository_only_the_bytes_matter(small_set: Release, tmp_path: Path) -> None:
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@b"]
    subprocess.run([*git, "init", "--quiet", tmp_path], check=True)
    tree.write(tmp_path / "theirs.txt", b"changed, not committed\n")
    tree.write(tmp_path / ".gitattributes", b"* text eol=crlf\n")
    root = tree.write_packages(tmp_path / "deep" / "inside")
    transaction.apply(small_set, target.in_folder(small_set.packages, root))
    assert set(tree.states(root).values()) == {"applied"}
    transaction.revert(small_set, target.in_folder(small_set.packages, root))
    assert set(tree.states(root).values()) == {"pristine"}
    assert (tmp_path / "theirs.txt").read_bytes() == b"changed, not committed\n"
