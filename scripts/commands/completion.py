# SPDX-License-Identifier: Apache-2.0
"""``kit completion bash|zsh``: what a shell offers after Tab, written from the parser itself."""

from __future__ import annotations

import argparse
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from .request import Answer, Request, Verb

_FOLDER, _FILE = "folder", "file"
_FOLDERS = frozenset({"DIR", "RESULTS", "RESULTS2"})
"""Metavars of the paths that are folders."""


@dataclass(frozen=True)
class Word:
    """An option, or a place for a value (then ``names`` is empty).

    ``values`` are all that it takes, or ``kind`` says which files do; neither is known of
    a number, and an option that takes no value has ``takes_value`` False.
    """

    names: tuple[str, ...]
    help: str
    takes_value: bool
    values: tuple[str, ...]
    kind: str

    @classmethod
    def of(cls, action: argparse.Action) -> Word:
        is_path = isinstance(action.type, type) and issubclass(action.type, Path)
        is_path = is_path or action.metavar in {*_FOLDERS, "PATH", "FILE"}
        kind = "" if not is_path else _FOLDER if action.metavar in _FOLDERS else _FILE
        return cls(
            names=tuple(action.option_strings),
            help=(action.help or "").replace("%(default)s", str(action.default)),
            takes_value=action.nargs != 0,
            values=tuple(map(str, action.choices or ())),
            kind=kind,
        )


@dataclass(frozen=True)
class VerbWords:
    name: str
    summary: str
    options: tuple[Word, ...]
    places: tuple[Word, ...]


def verbs_of(parser: argparse.ArgumentParser) -> tuple[VerbWords, ...]:
    """What the parser of the whole command line knows of each verb."""
    [verbs] = (action for action in parser._actions if isinstance(action, argparse._SubParsersAction))
    summaries = {action.dest: action.help or "" for action in verbs._get_subactions()}
    found = []
    for name, verb in verbs.choices.items():
        words = [Word.of(action) for action in verb._actions]
        options, places = (tuple(w for w in words if bool(w.names) is wanted) for wanted in (True, False))
        found.append(VerbWords(name, summaries[name], options, places))
    return tuple(found)


def bash(verbs: tuple[VerbWords, ...]) -> str:
    lines = [
        "# Completion of kit for bash:  source <(kit completion bash)",
        "_kit() {",
        "    local word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD - 1]} verb=${COMP_WORDS[1]}",
        "    COMPREPLY=()",
        "    if ((COMP_CWORD == 1)); then",
        f"        {_bash_words([*(verb.name for verb in verbs), '--help', '--version'])}",
        "        return",
        "    fi",
        '    case "$verb $before" in',
        *(line for verb in verbs for line in _bash_values(verb)),
        "    esac",
        '    case "$verb $word" in',
        *(line for verb in verbs for line in _bash_options(verb)),
        "    esac",
        '    case "$verb" in',
        *(line for verb in verbs for line in _bash_places(verb)),
        "    esac",
        "}",
        "complete -F _kit kit",
    ]
    return "\n".join(lines)


def _bash_values(verb: VerbWords) -> Iterator[str]:
    """What follows an option; nothing is offered for a number."""
    for option in verb.options:
        if option.takes_value:
            names = "|".join(f'"{verb.name} {name}"' for name in option.names)
            yield f"        {names}) {_bash_offer(option)}; return ;;"


def _bash_options(verb: VerbWords) -> Iterator[str]:
    names = [name for option in verb.options for name in option.names if name.startswith("--")]
    yield f'        "{verb.name} -"*) {_bash_words(names)}; return ;;'


def _bash_places(verb: VerbWords) -> Iterator[str]:
    offers = [_bash_offer(place) for place in verb.places if place.values or place.kind]
    if offers:
        yield f"        {verb.name}) {offers[0]} ;;"


def _bash_offer(word: Word) -> str:
    if word.values:
        return _bash_words(list(word.values))
    if word.kind:
        flag = "-d" if word.kind == _FOLDER else "-f"
        return f'compopt -o filenames; mapfile -t COMPREPLY < <(compgen {flag} -- "$word")'
    return ":"


def _bash_words(words: list[str]) -> str:
    return f'mapfile -t COMPREPLY < <(compgen -W {shlex.quote(" ".join(words))} -- "$word")'


def zsh(verbs: tuple[VerbWords, ...]) -> str:
    lines = [
        "#compdef kit",
        "# Completion of kit for zsh, after compinit:  source <(kit completion zsh)",
        "_kit() {",
        "    local -a verbs",
        "    verbs=(",
        *(f"        {shlex.quote(f'{verb.name}:{verb.summary}')}" for verb in verbs),
        "    )",
        "    if ((CURRENT == 2)); then",
        "        _describe 'verb' verbs",
        "        return",
        "    fi",
        "    local verb=$words[2]",
        "    shift words",
        "    ((CURRENT--))",
        '    case "$verb" in',
        *(line for verb in verbs for line in _zsh_arguments(verb)),
        "    esac",
        "}",
        "compdef _kit kit",
    ]
    return "\n".join(lines)


def _zsh_arguments(verb: VerbWords) -> Iterator[str]:
    specs = [
        f"*{name}[{_zsh_text(option.help)}]{_zsh_value(option) if option.takes_value else ''}"
        for option in verb.options
        for name in option.names
        if name.startswith("--")
    ]
    specs += [f"*{_zsh_value(place)}" for place in verb.places[:1] if place.values or place.kind]
    yield f"        {verb.name})"
    yield "            _arguments \\"
    yield " \\\n".join(f"                {shlex.quote(spec)}" for spec in specs)
    yield "            ;;"


def _zsh_value(word: Word) -> str:
    label = word.names[-1].lstrip("-") if word.names else "value"
    if word.values:
        return f":{label}:({' '.join(word.values)})"
    action = {_FOLDER: "_files -/", _FILE: "_files"}.get(word.kind, " ")
    return f":{label}:{action}"


def _zsh_text(text: str) -> str:
    """As the bracket of an ``_arguments`` spec takes it."""
    return re.sub(r"([\[\]:\\])", r"\\\1", text)


def _completion(request: Request) -> Answer:
    from .command_line import build_parser

    verbs = verbs_of(build_parser("kit"))
    script = {"bash": bash, "zsh": zsh}[request.options.shell](verbs)
    return Answer(script, {"script": script})


def _completion_arguments(verb: argparse.ArgumentParser) -> None:
    verb.add_argument("shell", choices=("bash", "zsh"))


VERBS = {
    "completion": Verb(
        "what a shell offers after Tab: source <(kit completion bash)", _completion, (_completion_arguments,)
    ),
}
