# SPDX-License-Identifier: Apache-2.0
"""The installation to patch: found without importing it, and safe to write to."""

from __future__ import annotations

import os
import re
import shlex
import stat
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from .errors import BundleDamaged, Refused, TargetNotFound
from .manifest import Package

_LOCATE_TIMEOUT_S = 60
_MARK = b"--- step3p7-kit ---\n"
"""In front of locate.py's answer: a .pth file or a sitecustomize may have printed something, too."""
_NAME_PYTHON = "{kit} status --python PATH    # of the interpreter that runs vllm"
_VERSION = re.compile(r"""^__version__\s*=\s*(?:version\s*=\s*)?['"]([^'"]+)['"]""", re.MULTILINE)
_SH_TRAMPOLINE = re.compile(rb"""^'''exec' ["']?([^"'\n]+?)["']? "\$0" "\$@"$""", re.MULTILINE)


@dataclass(frozen=True)
class Location:
    """One package on the disk. ``folder`` is the package itself, symlinks resolved."""

    import_name: str
    folder: Path
    version: str | None
    others: tuple[Path, ...] = ()
    """Further copies on the interpreter's path. It does not import them."""

    @property
    def checkout(self) -> Path | None:
        """The git checkout of an editable install, or None."""
        parent = self.folder.parent
        return parent if (parent / ".git").exists() else None


@dataclass(frozen=True)
class Target:
    """The packages to patch. ``python`` is None for a bare folder (``--root``)."""

    locations: Mapping[str, Location]
    python: Path | None
    pycache_prefix: Path | None = None

    def file(self, path: PurePosixPath) -> Path:
        """Where a file of the set lies: ``vllm/tokenizers/registry.py`` to a real path."""
        return self.locations[path.parts[0]].folder.joinpath(*path.parts[1:])

    @property
    def lock_folder(self) -> Path:
        return next(iter(self.locations.values())).folder

    @property
    def lock_folders(self) -> list[Path]:
        """All to be locked, always in this order: two vLLMs may share one vllm-ascend."""
        return sorted({location.folder for location in self.locations.values()})

    def bytecode_folder(self, source: Path) -> Path:
        if self.pycache_prefix is None:
            return source.parent / "__pycache__"
        return self.pycache_prefix / source.parent.relative_to("/")


def in_folder(packages: Iterable[Package], root: Path) -> Target:
    """The target of ``--root``: a folder that holds ``vllm/`` and ``vllm_ascend/``.

    Raises:
        TargetNotFound: a package is not there.
    """
    locations = {}
    for package in packages:
        folder = root / package.import_name
        if not (folder / "__init__.py").is_file():
            raise TargetNotFound(
                f"{root} holds no package {package.import_name} ({folder}/__init__.py is absent)",
                "give --root the folder that holds vllm/ and vllm_ascend/",
            )
        locations[package.import_name] = _location(package.import_name, folder, ())
    return Target(locations, python=None)


def of_interpreter(packages: Iterable[Package], python: Path | None) -> Target:
    """The packages that ``python`` would import; by default the one ``vllm`` runs with.

    Raises:
        TargetNotFound: no such interpreter, no such package, or only a namespace shadow.
    """
    interpreter = python or default_interpreter()
    names = [package.import_name for package in packages]
    answer = _ask(interpreter, names)
    locations = {name: _imported(name, answer["packages"][name], interpreter) for name in names}
    prefix = answer["pycache_prefix"]
    return Target(locations, interpreter, Path(prefix) if prefix else None)


def default_interpreter() -> Path:
    """The interpreter of the ``vllm`` command on PATH, else ``python3``, else our own."""
    import shutil

    command = shutil.which("vllm")
    if command is None:
        return Path(os.path.abspath(shutil.which("python3") or sys.executable))  # noqa: PTH100 - links stay
    interpreter = _shebang_interpreter(Path(command))
    if interpreter is None:
        raise TargetNotFound(f"{command} does not tell which interpreter runs it", _NAME_PYTHON)
    return Path(os.path.abspath(interpreter))  # noqa: PTH100


def _shebang_interpreter(script: Path) -> Path | None:
    import shutil

    try:
        with script.open("rb") as file:
            head = file.read(4096)
    except OSError:
        return None
    if not head.startswith(b"#!"):
        return None
    words = head.split(b"\n", 1)[0][2:].decode("utf-8", "surrogateescape").split()
    if words and Path(words[0]).name == "env":
        names = [word for word in words[1:] if not word.startswith("-") and "=" not in word]
        words = [found for found in (shutil.which(name) for name in names[:1]) if found]
    elif trampoline := _SH_TRAMPOLINE.search(head):
        words = [trampoline[1].decode("utf-8", "surrogateescape")]
    is_python = bool(words) and Path(words[0]).name.startswith("python")
    return Path(words[0]) if is_python and os.access(words[0], os.X_OK) else None


def program(name: str) -> str:
    """The source of a module of ours that the target's interpreter runs by ``-c``."""
    import pkgutil

    source = pkgutil.get_data("patchkit", f"{name}.py")
    if source is None:
        raise BundleDamaged(
            f"the kit's own file patchkit/{name}.py is absent", "copy the kit again from where you have it"
        )
    return source.decode("utf-8")


def _ask(interpreter: Path, names: list[str]) -> dict[str, Any]:
    """Run ``locate.py`` in the interpreter, with no folder of ours on its path.

    ``-P`` keeps the working folder off the path: from /vllm-workspace the checkout
    folder ``vllm`` would pass for a namespace package. PYTHONPATH stays, for the
    server will run with it too; its empty parts mean the working folder, hence ``cwd``.
    """
    import json  # these two are not for --root
    import subprocess

    command = [str(interpreter), "-P", "-c", program("locate"), *names]
    other = _NAME_PYTHON
    try:
        run = subprocess.run(
            command,
            cwd=os.path.dirname(os.path.realpath(interpreter)),
            env=environment(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_LOCATE_TIMEOUT_S,
        )
    except subprocess.TimeoutExpired as error:
        raise TargetNotFound(f"{interpreter} gave no answer in {error.timeout:.0f} s", other) from error
    except OSError as error:
        raise TargetNotFound(f"{interpreter} cannot be run ({error.strerror})", other) from error
    try:
        answer: dict[str, Any] = json.loads(run.stdout.rpartition(_MARK)[2])
        if "packages" not in answer:
            raise ValueError
    except (ValueError, TypeError) as error:
        last = run.stderr.decode("utf-8", "replace").strip().splitlines()[-1:] or ["it printed nothing"]
        raise TargetNotFound(
            f"{interpreter} is not a usable Python 3.11 or newer ({last[0]})", other
        ) from error
    return answer


def environment() -> dict[str, str]:
    """Ours, for the target's interpreter in another working folder: relative places stay where they are."""
    path = os.environ.get("PYTHONPATH")
    if path is None:
        return dict(os.environ)
    parts = [os.path.abspath(part) if part else part for part in path.split(os.pathsep)]  # noqa: PTH100
    return os.environ | {"PYTHONPATH": os.pathsep.join(parts)}


def _imported(name: str, found: Mapping[str, Any], interpreter: Path) -> Location:
    if found["namespace"]:
        raise TargetNotFound(
            f"for {interpreter} the name {name} means the plain folder {found['namespace'][0]} "
            "(a namespace package, not an installed one), which PYTHONPATH brings in",
            "unset PYTHONPATH; {again}",
        )
    origin = found["origin"]
    if origin is None or not origin.endswith("__init__.py"):
        raise TargetNotFound(
            f"{interpreter} cannot import a package {name}",
            _NAME_PYTHON,
        )
    return _location(name, Path(origin).parent, (Path(other) for other in found["others"]))


def _location(name: str, folder: Path, others: Iterable[Path]) -> Location:
    real = folder.resolve()
    return Location(name, real, _version(real), tuple(others))


def _version(folder: Path) -> str | None:
    """The version that the package's own ``_version.py`` states, unread by Python."""
    file = folder / "_version.py"
    try:
        match = _VERSION.search(file.read_text("utf-8", "replace")) if file.is_file() else None
    except OSError:
        return None
    return match[1] if match else None


def require_inside(target: Target, paths: Iterable[PurePosixPath]) -> None:
    """Refuse a set of which any file lies elsewhere than its name says.

    Raises:
        Refused: a symlink on the way, or a folder that does not exist.
    """
    for path in paths:
        folder = target.locations[path.parts[0]].folder
        for part in path.parts[1:]:
            folder = folder / part
            try:
                mode = folder.lstat().st_mode
            except FileNotFoundError:
                break
            except OSError as error:
                raise Refused(
                    f"{folder} cannot be read ({error.strerror})", "{again}    # as root"
                ) from error
            if stat.S_ISLNK(mode):
                raise Refused(
                    f"{folder} is a symlink to {folder.readlink()}, and the kit writes to no "
                    "file that may belong to something else",
                    _instead_of_link(folder),
                )
        if not target.file(path).parent.is_dir():
            raise Refused(
                f"the folder {target.file(path).parent} does not exist, so this is not a whole installation",
                "reinstall the package, or start from a fresh container",
            )


def _instead_of_link(link: Path) -> str:
    """The command that puts a file of its own in the place of a symlink."""
    name = shlex.quote(str(link))
    if not link.exists():
        return f"rm {name}    # it points nowhere"
    return f"rm {name} && cp -r {shlex.quote(str(link.resolve()))} {name}"


def mount_points() -> frozenset[Path]:
    """Every mount point this process sees; empty where there is no /proc."""
    try:
        table = Path("/proc/self/mountinfo").read_bytes()
    except OSError:
        return frozenset()
    fields = (line.split(b" ") for line in table.splitlines())
    return frozenset(Path(os.fsdecode(_unescape(field[4]))) for field in fields if len(field) > 4)


def _unescape(text: bytes) -> bytes:
    """Undo the kernel's octal escapes (``\\040`` for a space) in a mount table."""
    return re.sub(rb"\\([0-7]{3})", lambda match: bytes([int(match[1], 8)]), text)
