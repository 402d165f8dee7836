# SPDX-License-Identifier: Apache-2.0
"""The profiles: files for ``vllm serve --config`` in which every flag has a comment that says why.

They are YAML, because vLLM reads them; this module reads the small part of YAML that they are
kept to (``name: value`` lines, comments, blank lines), for the container's Python has no YAML
reader that the kit may rely on. What is outside of that part is refused, never guessed at.

What a profile cannot do without stands in comments above its first flag, which vLLM passes over:
``# needs-sets: NAME ...`` and ``# needs-checkpoint: KIND``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path

from patchkit.errors import Refused
from serving import bounded

DEFAULT = "bf16-tp8"

_LIMIT = 64 * 1024
_SUFFIX = ".yaml"
_NAME = re.compile(r"[a-z0-9]+(?:-[a-z0-9]+)*")
_SETTING = re.compile(r"([a-z][a-z0-9-]*): (\S+|\{.+\}|\[.+\])")
_VALUE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/-]*")
# What YAML 1.1 takes for another type than it looks: vLLM would be given "True", "None" or an octal number.
_OTHER_TYPE = re.compile(r"(?i)y|n|yes|no|on|off|null|0[0-9]+|\d{4}-\d{1,2}-\d{1,2}|\d+e\d+")
_SPDX = "SPDX-License-Identifier"
_NEED = re.compile(r"#+\s*needs[-_](\w+)\s*:\s*(.*?)\s*")
_NEEDED = re.compile(r"[a-z0-9][a-z0-9-]*")
_LATE_NEED = "which is below a flag or there twice"


@dataclass(frozen=True)
class Needs:
    """What a profile cannot do without: opt-in sets by name, and a kind of checkpoint ("" is any)."""

    sets: tuple[str, ...] = ()
    checkpoint: str = ""


@dataclass(frozen=True)
class Setting:
    """One flag of ``vllm serve``, without its dashes. ``value`` is "" for a switch that is on.

    It may be JSON: an object is one word for vLLM, of a list every item is one.
    """

    name: str
    value: str
    why: str


@dataclass(frozen=True)
class Profile:
    """A named set of flags. ``name`` is a file's path where the user brought one."""

    name: str
    summary: str
    settings: tuple[Setting, ...]
    needs: Needs = Needs()

    @property
    def arguments(self) -> tuple[str, ...]:
        """The words that ``vllm serve --config`` makes of the file."""
        return tuple(word for setting in self.settings for word in _words(setting))


def _words(setting: Setting) -> tuple[str, ...]:
    flag = f"--{setting.name}"
    if setting.value.startswith("["):
        return (flag, *map(str, json.loads(setting.value)))
    return (flag, setting.value) if setting.value else (flag,)


def names() -> tuple[str, ...]:
    """The profiles of the kit, the default first."""
    found = sorted(
        entry.name.removesuffix(_SUFFIX) for entry in _folder().iterdir() if entry.name.endswith(_SUFFIX)
    )
    return tuple(sorted(found, key=lambda name: name != DEFAULT))


def load(name: str) -> Profile:
    """A profile of the kit by its name, or any file by its path.

    Raises:
        Refused: there is none of that name, or its text is not of the kind that this module reads.
    """
    if "/" in name or name.endswith((_SUFFIX, ".yml")):
        return parse(name, _text(Path(name)))
    if not _NAME.fullmatch(name) or not (file := _folder() / f"{name}{_SUFFIX}").is_file():
        raise Refused(
            f"there is no profile called {name!r}",
            f"choose one of {', '.join(names())}, or give the path of a {_SUFFIX} file",
        )
    return parse(name, file.read_text("utf-8"))


def _folder() -> Traversable:
    """Beside this module, in a checkout as in an archive."""
    return resources.files("serving") / "profiles"


def _text(path: Path) -> str:
    try:
        return bounded.read(path, _LIMIT).decode("utf-8")
    except bounded.Unreadable as error:
        raise Refused(f"the profile {path} {error}", f"choose one of {', '.join(names())}") from None
    except UnicodeDecodeError:
        raise Refused(f"the profile {path} is not UTF-8", "write it as UTF-8") from None


def parse(name: str, text: str) -> Profile:
    """Read a profile's text.

    Raises:
        Refused: a line that is neither blank, a comment nor ``name: value``; a flag without a
            reason, or given twice; a value that YAML would take for something else; a need that
            is not known, is given twice, or stands below a flag.
    """
    comment: list[str] = []
    summary = ""
    settings: list[Setting] = []
    needs: dict[str, tuple[str, ...]] = {}
    for number, line in enumerate(text.splitlines(), 1):
        where = f"line {number} of the profile {name}"
        if need := _NEED.fullmatch(line):
            if settings or need[1] in needs:
                raise Refused(
                    f"{where} is {line[:80]!r}, {_LATE_NEED}", "write it once, above the first flag"
                )
            needs[need[1]] = _needed(where, *need.groups())
        elif line.startswith("#"):
            comment.append(line.lstrip("# ").rstrip())
        elif not line.strip():
            summary = summary or _joined(comment)
            comment = []
        else:
            settings.append(_setting(where, line, _joined(comment)))
            comment = []
    _require_once(name, settings)
    checkpoint = needs.get("checkpoint", ("",))[0]
    return Profile(name, summary, tuple(settings), Needs(needs.get("sets", ()), checkpoint))


def _joined(comment: list[str]) -> str:
    return " ".join(line for line in comment if _SPDX not in line)


def _needed(where: str, key: str, words: str) -> tuple[str, ...]:
    """The names behind ``# needs-KEY:``."""
    names = tuple(words.split())
    if key not in {"sets", "checkpoint"}:
        raise Refused(
            f"{where} says needs-{key}, which the kit does not know", "needs-sets or needs-checkpoint"
        )
    if not names or (key == "checkpoint" and len(names) > 1) or not all(map(_NEEDED.fullmatch, names)):
        expected = "names of sets with spaces between them" if key == "sets" else "one kind of checkpoint"
        raise Refused(f"{where}: needs-{key} says {words[:80]!r}, expected {expected}", "correct the line")
    return names


def _setting(where: str, line: str, why: str) -> Setting:
    match = _SETTING.fullmatch(line)
    if not match:
        raise Refused(
            f"{where} is {line[:80]!r}, expected a line such as max-model-len: 65536",
            "one flag a line, without quotes, lists or indentation; other flags go on the command line",
        )
    flag, value = match.groups()
    if value == "false":
        raise Refused(f"{where} says false, and vLLM drops such a line without a word", f"take {flag} out")
    if not _is_read_alike(value):
        raise Refused(
            f"{where}: YAML would not read {value[:80]!r} as it is written",
            f"give it on the command line: --{flag} ...",
        )
    if not why:
        raise Refused(f"{where}: {flag} has no reason", "write a comment above it that says why")
    return Setting(flag, "" if value == "true" else value, why)


def _is_read_alike(value: str) -> bool:
    """Whether YAML takes a value for what it looks like."""
    if not value.startswith(("{", "[")):
        return bool(_VALUE.fullmatch(value)) and not _OTHER_TYPE.fullmatch(value)
    try:
        found = json.loads(value)
        is_canonical = json.dumps(found) == value  # else a key twice, an escape, another notation
    except (ValueError, RecursionError):
        return False
    leaves = found.values() if isinstance(found, dict) else found
    return is_canonical and bool(leaves) and all(map(_is_plain, leaves))


def _is_plain(leaf: object) -> bool:
    """In JSON, a word of the safe kind, a whole number, yes or no: all that YAML reads alike."""
    return isinstance(leaf, int) or (isinstance(leaf, str) and bool(_VALUE.fullmatch(leaf)))


def _require_once(name: str, settings: list[Setting]) -> None:
    seen: set[str] = set()
    for setting in settings:
        if setting.name in seen:
            raise Refused(f"the profile {name} gives {setting.name} twice", "take one of the two out")
        seen.add(setting.name)


def text(profile: Profile) -> str:
    """The profile as a person reads it: every flag, and why."""
    return "\n".join(
        [f"profile {profile.name}: {profile.summary}", *_need_lines(profile.needs), *_lines(profile)]
    )


def _need_lines(needs: Needs) -> Iterator[str]:
    yield from (f"  needs the set {name}" for name in needs.sets)
    if needs.checkpoint:
        yield f"  needs a checkpoint of the kind {needs.checkpoint}"


def _lines(profile: Profile) -> Iterator[str]:
    shown = [" ".join(_words(setting)) for setting in profile.settings]
    width = max(map(len, shown), default=0)
    for flag, setting in zip(shown, profile.settings, strict=True):
        yield f"  {flag:<{width}}  {setting.why}"
