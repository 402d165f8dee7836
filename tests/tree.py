# SPDX-License-Identifier: Apache-2.0
"""One builder of temporary trees for all tests: a small patch set, and installations of it.

The set has the shape of the real one (five files, one new, one with CRLF line ends,
two packages) and none of its text, so the engine is tested without the real packages.
"""

from __future__ import annotations

import difflib
import hashlib
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

PROJECT = Path(__file__).resolve().parent.parent
SET_ID = "v0.20.2rc1"
NEXT_ID = "v0.21.0rc1"

MODEL = "vllm/models/new_model.py"
REGISTRY = "vllm/models/registry.py"
TOKENIZERS = "vllm/tokenizers/registry.py"
ACTIVATION = "vllm_ascend/ops/activation.py"
MOE = "vllm_ascend/ops/moe.py"
NEIGHBOUR = "vllm/models/old_model.py"
NEIGHBOUR_TEXT = b"class OldModel:\n    pass\n"

ORDER = (ACTIVATION, MOE, TOKENIZERS, MODEL, REGISTRY)


def _lines(*lines: str) -> bytes:
    return ("\n".join(lines) + "\n").encode()


def _crlf(text: bytes) -> bytes:
    return text.replace(b"\n", b"\r\n")


_PLAIN_ACTIVATION = _lines("def silu(x):", "    return x", "", "", "def gelu(x):", "    return x")

PRISTINE: dict[str, bytes | None] = {
    ACTIVATION: _PLAIN_ACTIVATION,
    MOE: _crlf(
        _lines(
            "from vllm_ascend.ops.activation import silu",
            "",
            "",
            "def mlp(x, activation=None):",
            "    # one",
            "    # two",
            "    # three",
            "    return silu(x)",
            "",
            "",
            "def unified(x):",
            "    return mlp(x)",
        )
    ),
    TOKENIZERS: _lines("KNOWN = {'old'}", "", "", "def load(name):", "    return name in KNOWN"),
    MODEL: None,
    REGISTRY: _lines("MODELS = {", "    'old': 'old_model',", "    'older': 'older_model',", "}"),
}
APPLIED: dict[str, bytes] = {
    ACTIVATION: _PLAIN_ACTIVATION + _lines("", "", "def step(x, limit):", "    return min(x, limit)"),
    MOE: _crlf(
        _lines(
            "from vllm_ascend.ops.activation import silu, step",
            "",
            "",
            "def mlp(x, activation=None, clamp_limit=0.0):",
            "    # one",
            "    # two",
            "    # three",
            "    if activation == 'step':",
            "        return step(x, clamp_limit)",
            "    return silu(x)",
            "",
            "",
            "def unified(x):",
            "    return mlp(x, clamp_limit=7.0)",
        )
    ),
    TOKENIZERS: _lines("KNOWN = {'old', 'new'}", "", "", "def load(name):", "    return name in KNOWN"),
    MODEL: _lines("from .old_model import OldModel", "", "", "class NewModel(OldModel):", "    pass"),
    REGISTRY: _lines(
        "MODELS = {", "    'old': 'old_model',", "    'new': 'new_model',", "    'older': 'older_model',", "}"
    ),
}

# Two opt-in sets. Each edits a file of the base where the base left it, and brings one of its own.
LIMIT, DRAFT = "limit", "draft"
ATTENTION = "vllm/attention.py"
DRAFT_MODEL = "vllm/models/draft.py"
ATTENTION_TEXT = _lines("def attend(x, window):", "    return x[:window]")
Edits = dict[str, tuple[bytes | None, bytes]]
OPT_INS: dict[str, Edits] = {
    LIMIT: {
        MOE: (APPLIED[MOE], APPLIED[MOE].replace(b"clamp_limit=7.0", b"clamp_limit=3.5")),
        ATTENTION: (ATTENTION_TEXT, ATTENTION_TEXT.replace(b"[:window]", b"[:window - 1]")),
    },
    DRAFT: {
        DRAFT_MODEL: (None, _lines("from .new_model import NewModel", "", "", "class Draft(NewModel): ...")),
        REGISTRY: (
            APPLIED[REGISTRY],
            APPLIED[REGISTRY].replace(b"    'older'", b"    'draft': 'draft',\n    'older'"),
        ),
    },
}
STACKED = (*ORDER, ATTENTION, DRAFT_MODEL)


def sha256(text: bytes) -> str:
    return hashlib.sha256(text).hexdigest()


def write(path: Path, text: bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text)
    return path


def diff_of(path: str, before: bytes, after: bytes) -> bytes:
    """A unified diff by difflib, whose lines end at LF alone."""

    def lines(text: bytes) -> list[bytes]:
        return [line + b"\n" for line in text.split(b"\n")[:-1]]

    body = difflib.diff_bytes(
        difflib.unified_diff, lines(before), lines(after), b"a/" + path.encode(), b"b/" + path.encode()
    )
    return b"Description: a patch for a test\n" + b"".join(body)


def file_rows(edits: Edits, source: str = "") -> list[str]:
    """The ``[[file]]`` tables of a manifest; ``source`` is a folder that has the new files."""
    rows = []
    for path, (before, after) in edits.items():
        state = (
            "new = true" if before is None else f'before = "{sha256(before)}"\npatch = "{patch_name(path)}"'
        )
        if source and before is None:
            state += f'\nsource = "{source}/{path}"'
        ends = "crlf" if b"\r\n" in after else "lf"
        rows += ["[[file]]", f'path = "{path}"', state, f'after = "{sha256(after)}"']
        rows += [f'line_ends = "{ends}"', 'purpose = "a test"']
    return rows


def base_edits() -> Edits:
    return {path: (PRISTINE[path], APPLIED[path]) for path in ORDER}


def next_edits() -> Edits:
    """The base of the next release: the same edits of files that all moved on, and the new file shared."""
    return {
        path: (before, after) if before is None else (_moved_on(before), _moved_on(after))
        for path, (before, after) in base_edits().items()
    }


def _moved_on(text: bytes) -> bytes:
    return (b"# of the next release\r\n" if b"\r\n" in text else b"# of the next release\n") + text


def manifest_text(release: str = SET_ID, edits: Edits | None = None, source: str = "") -> str:
    """The base's manifest of a release whose packages say that they are of it."""
    rows = [f'id = "{release}"', 'title = "A small set"', 'architecture = "NewModel"']
    for name, title, version, native in (
        ("vllm", "vLLM", release.removeprefix("v").removesuffix("rc1"), "0.23.0"),
        ("vllm_ascend", "vllm-ascend", release.removeprefix("v"), "0.23.0rc1"),
    ):
        rows += [
            "[[package]]",
            f'import = "{name}"',
            f'name = "{title}"',
            f'supported = ["{version}"]',
            f'native_from = "{native}"',
            f'image_folder = "/image/{name}"',
        ]
    rows += file_rows(edits or base_edits(), source)
    rows += [
        "[[sentinel]]",
        f'path = "{NEIGHBOUR}"',
        'contains = "class OldModel:"',
        f'needed_by = "{MODEL}"',
        "[[symptom]]",
        f'without = ["{REGISTRY}"]',
        "with = []",
        "text = \"'Processor' object has no attribute '_get_num_multimodal_tokens'\"",
        "[[symptom]]",
        f'without = ["{MODEL}"]',
        f'with = ["{REGISTRY}"]',
        'text = "registered, but its module fails to import: No module named new_model"',
    ]
    return "\n".join(rows) + "\n"


def patch_name(path: str) -> str:
    return path.replace("/", "-") + ".patch"


def write_set(folder: Path, place: str, text: str, edits: Edits) -> None:
    """A set as a kit carries it, at ``patches/PLACE`` and ``overlay/PLACE``."""
    for path, (before, after) in edits.items():
        if before is None:
            write(folder / "overlay" / place / path, after)
        else:
            write(folder / "patches" / place / patch_name(path), diff_of(path, before, after))
    write(folder / "patches" / place / "manifest.toml", text.encode())


def write_opt_in(folder: Path, name: str, edits: Edits, rows: tuple[str, ...] = ()) -> None:
    """An opt-in set of the small release; ``rows`` are sentinels and symptoms of it."""
    about = [f'{key} = "What {name} {key}."' for key in ("does", "costs", "needs", "proved")]
    text = [f'id = "{name}"', f'title = "The set {name}"', *about, *file_rows(edits), *rows]
    write_set(folder, f"{SET_ID}/{name}", "\n".join(text) + "\n", edits)


def write_release(folder: Path, release: str, edits: Edits, source: str = "") -> None:
    """Another release beside the small one. New files are its own, unless ``source`` names a folder."""
    write_set(folder, release, manifest_text(release, edits, source), edits)
    if source:
        shutil.rmtree(folder / "overlay" / release)


def write_bundle(folder: Path) -> Path:
    """The small set as a kit carries it, and the real ``scripts`` beside it."""
    write_set(folder, SET_ID, manifest_text(), base_edits())
    ignore = shutil.ignore_patterns("__pycache__")
    shutil.copytree(PROJECT / "scripts", folder / "scripts", ignore=ignore)
    return folder


def write_packages(
    root: Path, applied: tuple[str, ...] = (), versions: tuple[str, str] = ("0.20.2", "0.20.2rc1")
) -> Path:
    """An installation: ``root/vllm`` and ``root/vllm_ascend``, with some files of the set applied."""
    for package, version in zip(("vllm", "vllm_ascend"), versions, strict=True):
        write(root / package / "__init__.py", b"raise RuntimeError('this package must not be imported')\n")
        write(root / package / "_version.py", f"__version__ = version = '{version}'\n".encode())
    write(root / NEIGHBOUR, NEIGHBOUR_TEXT)
    for path in ORDER:
        text = APPLIED[path] if path in applied else PRISTINE[path]
        if text is not None:
            write(root / path, text)
    return root


def write_next(
    root: Path, applied: tuple[str, ...] = (), versions: tuple[str, str] = ("0.21.0", "0.21.0rc1")
) -> Path:
    """An installation of the next release."""
    write_packages(root, (), versions)
    for path, (before, after) in next_edits().items():
        text = after if path in applied else before
        if text is not None:
            write(root / path, text)
    return root


def write_stacked(root: Path, sets: tuple[str, ...]) -> Path:
    """An installation with everything that the opt-in sets touch, and some sets of ``base`` and theirs."""
    write_packages(root)
    for path in STACKED:
        text = contents(path)[height(path, sets)][1]
        if text is None:
            (root / path).unlink(missing_ok=True)
        else:
            write(root / path, text)
    return root


def contents(path: str) -> list[tuple[str, bytes | None]]:
    """What a file may hold, from the bottom up, and which set makes it."""
    first = PRISTINE[path] if path in PRISTINE else {ATTENTION: ATTENTION_TEXT}.get(path)
    found: list[tuple[str, bytes | None]] = [("pristine", first)]
    if path in APPLIED:
        found.append(("base", APPLIED[path]))
    return found + [(name, edits[path][1]) for name, edits in OPT_INS.items() if path in edits]


def height(path: str, sets: tuple[str, ...]) -> int:
    return sum(name in sets for name, _ in contents(path)[1:])


def rungs(root: Path) -> dict[str, str]:
    """Of each file of the stacked sets the one whose content it has, told without the engine."""

    def rung(path: str) -> str:
        text = (root / path).read_bytes() if (root / path).exists() else None
        return next((name for name, content in contents(path) if content == text), "torn")

    return {path: rung(path) for path in STACKED}


def rungs_of(sets: tuple[str, ...]) -> dict[str, str]:
    """What `rungs` gives where these sets are wholly there."""
    return {path: contents(path)[height(path, sets)][0] for path in STACKED}


def snapshot(root: Path) -> dict[str, bytes]:
    """Every file below ``root`` by name; what is not a file shows as its kind."""
    found = {}
    for path in sorted(root.rglob("*")):
        name = str(path.relative_to(root))
        if path.is_symlink():
            found[name] = b"-> " + os.fsencode(path.readlink())
        elif path.is_file():
            found[name] = path.read_bytes()
    return found


def states(root: Path) -> dict[str, str]:
    """The state of each file of the small set, told by its bytes, without the engine."""

    def state(path: str) -> str:
        text = (root / path).read_bytes() if (root / path).exists() else None
        if text == APPLIED[path]:
            return "applied"
        return "pristine" if text == PRISTINE[path] else "torn"

    return {path: state(path) for path in ORDER}


@dataclass(frozen=True)
class Run:
    code: int
    out: str
    err: str


@dataclass(frozen=True)
class Kit:
    """A copy of the kit that carries the small set, run as its users run it."""

    folder: Path

    def __call__(
        self, *arguments: str | Path, env: dict[str, str] | None = None, cwd: Path | None = None
    ) -> Run:
        done = subprocess.run(
            [sys.executable, self.folder / "scripts" / "kit", *map(str, arguments)],
            env=os.environ | (env or {}),
            cwd=cwd,
            capture_output=True,
            text=True,
            timeout=120,
        )
        return Run(done.returncode, done.stdout, done.stderr)
