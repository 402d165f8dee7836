# SPDX-License-Identifier: Apache-2.0
"""What a phase is given, and what it gives back: steps, each with a verdict."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any

from patchkit.release import Release
from patchkit.target import Target
from serving.machine.host import Host
from serving.start.profiles import Profile
from serving.typed import PLAIN, Typed

from . import server
from .device import Device
from .server import Server


class Verdict(Enum):
    """The values are stable, for programs."""

    PASSED = "passed"
    FINDING = "finding"
    """Nothing is wrong with the kit's part, and somebody should know of it."""
    FAILED = "failed"
    NOT_RUN = "not run"
    UNFINISHED = "unfinished"
    """It was begun and not ended; the same command goes on with it."""


_WORST_FIRST = (Verdict.FAILED, Verdict.UNFINISHED, Verdict.FINDING, Verdict.PASSED)


class Level(Enum):
    """How much time there is: each has the phases of those before it."""

    QUICK = "quick"
    MEDIUM = "medium"
    LONG = "long"

    def has(self, other: Level) -> bool:
        order = list(Level)
        return order.index(other) <= order.index(self)


@dataclass(frozen=True)
class Step:
    """One thing looked at within a phase: a row of the report.

    ``name`` is stable ("serve.bf16-tp8"), and unique within its phase. ``figures`` is plain JSON; a
    key ends with its unit (``_s``, ``_gib``, ``_tokens_per_s``).
    """

    name: str
    verdict: Verdict
    sentence: str
    """What was found, with its figures; for what was not run, why."""
    figures: Mapping[str, Any] = field(default_factory=dict)
    commands: tuple[str, ...] = ()
    """What was run, as it can be typed again."""
    suspects: tuple[str, ...] = ()
    """Of a failure: the files, sets and kernels that it may come from."""


@dataclass(frozen=True)
class Outcome:
    """What a phase gave."""

    steps: tuple[Step, ...]

    @property
    def verdict(self) -> Verdict:
        """That of its worst step; what was not run counts only where nothing else was."""
        found = {step.verdict for step in self.steps}
        return next((verdict for verdict in _WORST_FIRST if verdict in found), Verdict.NOT_RUN)


@dataclass(frozen=True)
class Options:
    """What the user chose. ``arguments`` go to every ``vllm serve``, and win over the profile."""

    profile: Profile
    level: Level = Level.MEDIUM
    data: Path | None = None
    arguments: tuple[str, ...] = ()
    start_limit_s: float = 3600.0
    """How long a server may take until it is healthy."""
    chinese: bool = False


@dataclass(frozen=True)
class Context:
    """What a phase is given. ``folder`` is its own and exists; ``out`` is the whole run's.

    ``packages`` is a folder that holds ``vllm/`` and ``vllm_ascend/`` in place of the interpreter's
    own, None for those. ``cards`` are those to use, 0 on a CPU build. ``done`` are the steps of an
    earlier run that was stopped, by name: they need not be done again, nor given again.
    """

    model: Path
    folder: Path
    out: Path
    python: Path
    packages: Path | None
    host: Host
    release: Release
    target: Target
    device: Device
    cards: int
    options: Options
    done: Mapping[str, Step]
    earlier: Callable[[str], tuple[Step, ...]]
    """The steps of a phase before this one, by its name."""
    say: Callable[[str], None]
    typed: Typed = PLAIN

    @property
    def vllm(self) -> tuple[str, ...]:
        """The words that are ``vllm`` of the target, whatever the working folder."""
        return (str(self.python), "-P", "-m", "vllm.entrypoints.cli.main")

    def serving(
        self,
        name: str,
        *,
        profile: Profile | None = None,
        options: Sequence[str] = (),
        model: Path | None = None,
        packages: Path | None = None,
        settings: Mapping[str, str] | None = None,
    ) -> AbstractContextManager[Server]:
        """A server of this run's own, healthy, and gone at the end of the block whatever happens.

        Args:
            name: Of its log in the phase's folder, ``NAME.log``.
            profile: None for the user's.
            options: Words behind the profile's; the user's own come last and win.
            model: Another than the run's.
            packages: Another copy of the packages than the run's, for this server alone.
            settings: Of the environment, on top of ours.

        Raises:
            ServerFailed: on entering, where it ends or is not healthy in time.
        """
        chosen = profile or self.options.profile
        folder = model or self.model
        words = (*chosen.arguments, *options, *self.options.arguments)
        return server.serving(
            server.Start(
                vllm=self.vllm,
                model=folder,
                arguments=words,
                log=self.folder / f"{name}.log",
                record=self.out / server.RECORD,
                packages=packages or self.packages,
                settings=dict(settings or {}),
                limit_s=self.options.start_limit_s,
            ),
            self.say,
        )


Phase = Callable[[Context], Iterator[Step]]
"""Every step is on the disk as soon as it is yielded, so that a run that was killed goes on after it."""


def not_run(name: str, why: str, commands: tuple[str, ...] = ()) -> Step:
    return Step(name, Verdict.NOT_RUN, why, commands=commands)


def quoted(*words: str | Path) -> str:
    """A command as it can be typed."""
    return shlex.join(map(str, words))
