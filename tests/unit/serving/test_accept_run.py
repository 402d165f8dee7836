# SPDX-License-Identifier: Apache-2.0
"""The frame of ``kit accept``: which phases run, what is kept, and what is refused before the first."""

from __future__ import annotations

import errno
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

import tree
from patchkit import lock, target
from patchkit.errors import KitError, Refused
from patchkit.release import Release
from patchkit.target import Target
from serving.accept import record, run, server, table
from serving.accept.phase import Context, Level, Options, Outcome, Step, Verdict, not_run
from serving.accept.record import HEADER, STEPS, VERDICT
from serving.accept.run import Report, Request, Stopped
from serving.accept.table import Need, PhaseRow
from serving.machine.host import Space
from serving.start import profiles
from unit.serving.machines import Machine
from unit.serving.model_folders import ModelFolder

PASSED, FINDING, FAILED = Verdict.PASSED, Verdict.FINDING, Verdict.FAILED


def row(number: int, name: str, level: str = "quick", needs: str = "server", **more: bool) -> PhaseRow:
    values: dict[str, Any] = {"gate": False, "always": False} | more
    return PhaseRow(
        number, name, f"the {name}", "…", Level(level), Need(needs), minutes=1, starts=1, disk_mib=1,
        proves=name, proves_zh=name, **values,
    )  # fmt: skip


ROWS = (
    row(1, "first", needs="nothing"),
    row(2, "second", gate=True),
    row(3, "third", "medium"),
    row(4, "data", "medium", "data"),
    row(5, "fourth", "long"),
    row(6, "last", needs="nothing", always=True),
)


@dataclass
class Script:
    """What the phases do in the place of the real ones, and what they did."""

    plan: dict[str, list[Step | BaseException]] = field(default_factory=dict)
    done: list[str] = field(default_factory=list)
    contexts: dict[str, Context] = field(default_factory=dict)

    def phase(self, name: str) -> Callable[[Context], Iterator[Step]]:
        def steps(context: Context) -> Iterator[Step]:
            self.contexts[name] = context
            for item in self.plan.get(name, [Step(f"{name}.one", PASSED, "fine")]):
                if isinstance(item, BaseException):
                    raise item
                if item.name not in context.done:
                    self.done.append(item.name)
                    yield item

        return steps


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Script:
    found = Script()
    monkeypatch.setattr(table, "phases", lambda: ROWS)
    monkeypatch.setattr(PhaseRow, "load", lambda self: found.phase(self.name))
    return found


@dataclass
class Bench:
    """A machine, an installation, a model folder, and a run on them."""

    machine: Machine
    release: Release
    target: Target
    model: Path
    out: Path
    script: Script

    def request(self, **more: Any) -> Request:
        options = Options(profiles.load("bf16-tp8"), Level(more.pop("level", "medium")))
        options = replace(options, **{k: more.pop(k) for k in ("data", "arguments") if k in more})
        return Request(self.model, self.out, options, "0.1.0", **more)

    def run(self, **more: Any) -> Report:
        return run.run(self.request(**more), self.machine.host, self.release, self.target)

    def verdicts(self) -> dict[str, str]:
        found = self.out.glob(f"*/{VERDICT}")
        return {path.parent.name[3:]: json.loads(path.read_text())["verdict"] for path in sorted(found)}


@pytest.fixture
def bench(tmp_path: Path, machine: Machine, installed: Target, small_set: Release, script: Script) -> Bench:
    model = ModelFolder().write(tmp_path / "model")
    return Bench(machine, small_set, installed, model, tmp_path / "out", script)


def of(report: Report) -> dict[str, Verdict]:
    return {result.row.name: result.outcome.verdict for result in report.results}


# --- the verdict --------------------------------------------------------------------------


def test_the_verdict_of_a_phase_is_that_of_its_worst_step() -> None:
    def outcome(*verdicts: Verdict) -> Verdict:
        return Outcome(tuple(Step("x", verdict, "") for verdict in verdicts)).verdict

    assert outcome() is Verdict.NOT_RUN
    assert outcome(Verdict.NOT_RUN, PASSED) is PASSED
    assert outcome(PASSED, FINDING, Verdict.NOT_RUN) is FINDING
    assert outcome(FINDING, Verdict.UNFINISHED) is Verdict.UNFINISHED
    assert outcome(Verdict.UNFINISHED, FAILED, PASSED) is FAILED
    assert outcome(Verdict.NOT_RUN, Verdict.NOT_RUN) is Verdict.NOT_RUN


# --- which phases -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("asked", "names"),
    [
        ({"level": "quick"}, ["first", "second", "last"]),
        ({}, ["first", "second", "third", "data", "last"]),
        ({"level": "long"}, ["first", "second", "third", "data", "fourth", "last"]),
        ({"only": ("fourth", "first")}, ["first", "fourth"]),
        ({"skip": ("second", "data")}, ["first", "third", "last"]),
        ({"start": "third"}, ["third", "data", "last"]),
    ],
)
def test_the_phases_that_are_asked_for(asked: dict[str, Any], names: list[str], bench: Bench) -> None:
    assert [found.name for found in run.chosen(bench.request(**asked))] == names


@pytest.mark.parametrize("word", ["only", "skip", "again"])
def test_a_phase_that_does_not_exist_is_refused(word: str, bench: Bench) -> None:
    with pytest.raises(Refused, match="there is no phase called 'fifth'"):
        bench.run(**{word: ("fifth",)})
    assert not bench.out.exists()


def test_the_real_table_is_read_and_has_a_module_for_each_row() -> None:
    rows = table.phases()
    assert [found.number for found in rows] == list(range(1, len(rows) + 1))
    for found in rows:
        assert callable(found.load())


# --- running and going on -------------------------------------------------------------------


def test_every_phase_has_its_folder_steps_and_verdict(script: Script, bench: Bench) -> None:
    script.plan["third"] = [Step("third.one", FINDING, "a finding", {"rate": 1.5}, ("vllm serve x",))]
    report = bench.run()
    assert of(report) == {
        "first": PASSED, "second": PASSED, "third": FINDING, "data": Verdict.NOT_RUN, "last": PASSED,
    }  # fmt: skip
    assert not report.failed
    assert bench.verdicts() == {"first": "passed", "second": "passed", "third": "finding", "last": "passed"}
    line = json.loads((bench.out / "03-third" / STEPS).read_text())
    assert (line["sentence"], line["figures"], line["commands"]) == (
        "a finding", {"rate": 1.5}, ["vllm serve x"],
    )  # fmt: skip
    header = json.loads((bench.out / HEADER).read_text())
    assert (header["cards"], header["npus"], header["device"]) == (8, "8 × 910B3", "cards")
    assert header["sets"]["base"] == "applied"


def test_what_is_through_is_not_done_again(script: Script, bench: Bench) -> None:
    bench.run(level="quick")
    script.done.clear()
    report = bench.run()
    assert script.done == ["third.one", "last.one"]
    assert [result.kept for result in report.results] == [True, True, False, False, False]


def test_a_phase_is_done_again_where_it_is_asked_for(script: Script, bench: Bench) -> None:
    bench.run()
    script.done.clear()
    bench.run(again=("second",))
    assert script.done == ["second.one", "last.one"]


@pytest.mark.parametrize("stopped", ["first", "second", "third", "last"])
@pytest.mark.parametrize("after", [0, 1, 2])
def test_a_run_that_is_stopped_anywhere_goes_on_from_there(
    stopped: str, after: int, script: Script, bench: Bench
) -> None:
    names = ["first", "second", "third", "last"]
    steps: dict[str, list[Step | BaseException]] = {
        name: [Step(f"{name}.{n}", PASSED, "fine") for n in range(2)] for name in names
    }
    script.plan |= {name: list(found) for name, found in steps.items()}
    script.plan[stopped].insert(after, KeyboardInterrupt("SIGINT"))
    with pytest.raises(Stopped, match=f"interrupted by SIGINT in {stopped}"):
        bench.run()
    done_before = list(script.done)
    assert len(done_before) == 2 * names.index(stopped) + after

    script.plan |= steps
    script.done.clear()
    report = bench.run()
    kept = [name for name in done_before if not name.startswith("last")]
    everything = [f"{name}.{n}" for name in names for n in range(2)]
    assert script.done == [name for name in everything if name not in kept]
    assert not report.failed
    assert [len(result.outcome.steps) for result in report.results] == [2, 2, 2, 1, 2]


def test_a_failed_step_is_done_again_and_leaves_no_trace(script: Script, bench: Bench) -> None:
    script.plan["third"] = [Step("third.one", PASSED, "fine"), Step("third.server", FAILED, "it died")]
    assert bench.run().failed
    script.plan["third"] = [Step("third.one", PASSED, "fine"), Step("third.two", PASSED, "fine")]
    script.done.clear()
    assert of(bench.run())["third"] is PASSED
    assert script.done == ["third.two", "last.one"]
    lines = (bench.out / "03-third" / STEPS).read_text().splitlines()
    assert [json.loads(line)["name"] for line in lines] == ["third.one", "third.two"]


def test_a_line_that_was_cut_is_passed_over(script: Script, bench: Bench) -> None:
    script.plan["third"] = [Step("third.one", PASSED, "fine"), KeyboardInterrupt("SIGKILL")]
    with pytest.raises(Stopped):
        bench.run()
    steps = bench.out / "03-third" / STEPS
    steps.write_text(steps.read_text() + '{"name": "third.two", "verd')
    script.plan["third"] = [Step(f"third.{n}", PASSED, "fine") for n in ("one", "two")]
    script.done.clear()
    bench.run()
    assert script.done == ["third.two", "last.one"]
    assert [json.loads(line)["name"] for line in steps.read_text().splitlines()] == ["third.one", "third.two"]


def test_a_phase_sees_the_steps_of_those_before_it(script: Script, bench: Bench) -> None:
    bench.run()
    context = script.contexts["third"]
    assert [step.sentence for step in context.earlier("first")] == ["fine"]
    assert context.folder == bench.out / "03-third"
    assert (context.cards, context.model) == (8, bench.model)


def test_behind_a_gate_that_failed_nothing_is_started(script: Script, bench: Bench) -> None:
    script.plan["second"] = [Step("second.one", FAILED, "wrong numbers")]
    report = bench.run()
    assert of(report)["third"] is Verdict.NOT_RUN
    assert "not started, because second failed (--go-on" in run.text(report)
    assert script.done == ["first.one", "second.one"]
    assert not (bench.out / "03-third").exists()

    script.done.clear()
    assert of(bench.run(go_on=True))["third"] is PASSED
    assert script.done == ["second.one", "third.one", "last.one"]


def test_what_goes_wrong_in_a_phase_is_a_step_and_the_others_run(script: Script, bench: Bench) -> None:
    script.plan["first"] = [Refused("no such thing", "type it again")]
    script.plan["third"] = [Step("third.one", PASSED, "fine"), ValueError("unforeseen")]
    report = bench.run()
    assert report.failed
    assert script.done == ["second.one", "third.one", "last.one"]
    text = run.text(report)
    assert "first: failed: no such thing" in text
    assert "third: failed: the kit itself failed: ValueError: unforeseen" in text
    assert "Traceback" in (bench.out / "03-third" / "kit-fault.txt").read_text()
    assert "NOT accepted: 2 passed, 2 failed, 1 not run of 5 phases" in text


def test_a_disk_that_fills_up_ends_the_run_with_a_sentence(script: Script, bench: Bench) -> None:
    script.plan["third"] = [OSError(errno.ENOSPC, "No space left on device", "/out/file")]
    with pytest.raises(Stopped, match=r"/out/file could not be written \(No space left on device\)"):
        bench.run()
    assert bench.verdicts() == {"first": "passed", "second": "passed"}


def test_the_answer_for_a_program(script: Script, bench: Bench) -> None:
    script.plan["first"] = [not_run("first.one", "no card")]
    answer = json.loads(json.dumps(run.as_json(bench.run(level="quick"))))
    assert [(phase["phase"], phase["verdict"]) for phase in answer["phases"]] == [
        ("first", "not run"), ("second", "passed"), ("last", "passed"),
    ]  # fmt: skip
    assert answer["phases"][0]["steps"][0]["sentence"] == "no card"


# --- refused ------------------------------------------------------------------------------


def refusal(bench: Bench, **more: Any) -> KitError:
    with pytest.raises(Refused) as found:
        bench.run(**more)
    return found.value


def test_no_card(script: Script, bench: Bench) -> None:
    (bench.machine.root / "usr/local/bin/npu-smi").unlink()
    error = refusal(bench)
    assert "there is no npu-smi that shows a card, the vLLM here is no CPU build" in error.what
    assert error.next_step == f"{{kit}} accept --out {bench.out} --only ground -- {bench.model}"
    assert script.done == []
    assert of(bench.run(only=("first",))) == {"first": PASSED}


def test_four_cards(bench: Bench) -> None:
    table = bench.machine.root / "usr/local/bin/npu-smi.txt"
    lines = table.read_text().splitlines()
    table.write_text("\n".join([*lines[:18], *lines[30:]]))  # three lines a card
    error = refusal(bench)
    assert "npu-smi shows 4 × 910B3, and the profile bf16-tp8 takes 8 cards" in error.what
    assert "--profile NAME" in error.next_step
    assert not bench.run(arguments=("--tensor-parallel-size", "4"), only=("third",)).failed


def test_cards_in_use(script: Script, bench: Bench) -> None:
    bench.machine.npu_smi("910b3-busy")
    assert "the cards are in use: " in refusal(bench).what
    assert script.done == []


def test_a_model_that_check_model_rejects(bench: Bench) -> None:
    (bench.model / "config.json").write_text("{}")
    error = refusal(bench)
    assert f"{bench.model} cannot be served: " in error.what
    assert error.next_step == f"{{kit}} check-model {bench.model}"
    assert not bench.out.exists()


def test_a_set_that_is_not_applied(bench: Bench, tmp_path: Path) -> None:
    root = tree.write_packages(tmp_path / "pristine")
    bench.target = target.in_folder(bench.release.packages, root)
    assert "none of the 5 files is applied" in refusal(bench).what
    assert not bench.out.exists()


def test_a_full_disk(bench: Bench) -> None:
    bench.machine.overrides["measure"] = lambda _path: Space(1 << 40, 1 << 20)
    assert "GiB free, and" in refusal(bench).what
    assert not bench.out.exists()


def test_a_folder_that_holds_something_else(bench: Bench) -> None:
    bench.out.mkdir()
    (bench.out / "thesis.tex").write_text("")
    assert f"{bench.out} is no folder of kit accept, and holds thesis.tex" in refusal(bench).what


def test_the_folder_of_another_run(bench: Bench) -> None:
    bench.run()
    assert "a run of other options of vllm serve" in refusal(bench, arguments=("--seed", "1")).what
    newer = replace(bench.request(), kit_version="0.0.9")
    with pytest.raises(Refused, match=r"another version of the kit: 0\.1\.0, and this is 0\.0\.9"):
        run.run(newer, bench.machine.host, bench.release, bench.target)
    config = bench.model / "config.json"
    config.write_text(config.read_text() + "\n")
    assert "a run of another model" in refusal(bench).what


def test_the_same_model_in_another_place_is_the_same(bench: Bench) -> None:
    bench.run()
    bench.model = bench.model.rename(bench.model.with_name("elsewhere"))
    assert all(result.kept for result in bench.run(only=("first", "second", "third")).results)


def test_two_at_once(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lock, "WAIT_S", 0.0)
    bench.run()
    with lock.held(bench.out):
        assert f"another run of the kit holds {bench.out}" in refusal(bench).what


def test_a_data_folder_that_is_not_there(bench: Bench, tmp_path: Path) -> None:
    assert "is not there" in refusal(bench, data=tmp_path / "absent").what


def test_a_server_that_was_left_is_ended_first(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    swept: list[Path] = []
    monkeypatch.setattr(server, "sweep", swept.append)
    bench.run()
    assert swept == [bench.out / server.RECORD]


def test_steps_survive_the_way_to_the_disk_and_back() -> None:
    step = Step("a.b", FINDING, "一句话", {"x_s": 1.5}, ("c",), ("d",))
    assert record.step_of(json.loads(json.dumps(record.step_json(step)))) == step
