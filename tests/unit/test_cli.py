# SPDX-License-Identifier: Apache-2.0
"""The command line as its users type it: what is printed, in which state, with which exit code.

The expected texts lie in ``golden/``. To see a wanted change of wording as a diff:
``KIT_UPDATE_GOLDEN=1 make test-unit``, then ``git diff``.
"""

from __future__ import annotations

import contextlib
import fcntl
import importlib
import json
import os
import pkgutil
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import cli
import commands
import tree
from commands import request as kit_request
from patchkit import report
from patchkit.errors import ExitCode

GOLDEN = Path(__file__).parent / "golden"
GUIDE_MOE = tree.APPLIED[tree.MOE].replace(b", clamp_limit=0.0", b"").replace(b"x, clamp_limit=7.0", b"x")


def installation(name: str, folder: Path) -> Path:
    """The installations that the golden texts are about."""
    match name:
        case "pristine":
            return tree.write_packages(folder)
        case "applied":
            return tree.write_packages(folder, tree.ORDER)
        case "partial":
            return tree.write_packages(folder, (tree.ACTIVATION, tree.MOE))
        case "registered":
            return tree.write_packages(folder, tuple(path for path in tree.ORDER if path != tree.MODEL))
        case "broken":
            tree.write(tree.write_packages(folder, tree.ORDER) / tree.MODEL, b"class NewModel(:\n")
        case "guide":
            tree.write(tree.write_packages(folder, tree.ORDER) / tree.MOE, GUIDE_MOE)
        case "drifted":
            text = tree.PRISTINE[tree.REGISTRY] or b""
            tree.write(tree.write_packages(folder) / tree.REGISTRY, text.replace(b"'older'", b"'oldest'"))
        case "line-ends":
            text = tree.PRISTINE[tree.MOE] or b""
            tree.write(tree.write_packages(folder) / tree.MOE, text.replace(b"\r\n", b"\n"))
        case "unsupported":
            tree.write_packages(folder, (), ("0.20.1", "0.18.0"))
        case "native":
            tree.write_packages(folder, (), ("0.23.0", "0.23.0rc1"))
    return folder


CASES = [
    # installation, command, exit code
    ("pristine", "status", 1),
    ("pristine", "apply", 0),
    ("pristine", "verify --fast", 1),
    ("pristine", "revert", 0),
    ("pristine", "diff", 0),
    ("pristine", "overlay", 0),
    ("pristine", "status --json", 1),
    ("applied", "status", 0),
    ("applied", "apply", 0),
    ("applied", "verify", 0),
    ("applied", "verify --json", 0),
    ("applied", "revert", 0),
    ("applied", "diff", 0),
    ("applied", "overlay --json", 0),
    ("partial", "status", 1),
    ("partial", "apply", 0),
    ("partial", "verify", 1),
    ("partial", "revert", 0),
    ("registered", "verify", 1),
    ("broken", "verify", 1),
    ("guide", "verify", 1),
    ("guide", "apply", 3),
    ("drifted", "status", 1),
    ("drifted", "apply", 3),
    ("drifted", "apply --json", 3),
    ("drifted", "revert", 3),
    ("drifted", "verify", 1),
    ("drifted", "diff", 3),
    ("drifted", "overlay", 3),
    ("line-ends", "apply", 3),
    ("unsupported", "status", 1),
    ("unsupported", "apply", 3),
    ("unsupported", "revert", 3),
    ("unsupported", "verify", 1),
    ("native", "status", 0),
    ("native", "apply", 0),
    ("native", "revert", 0),
    ("native", "verify", 0),
    ("native", "diff", 0),
    ("native", "overlay", 0),
]


@pytest.mark.parametrize("kit_name", ["kit", "stacked_kit"])
@pytest.mark.parametrize(("name", "command", "code"), CASES, ids=lambda value: str(value).replace(" ", ""))
def test_what_is_printed(
    request: pytest.FixtureRequest, tmp_path: Path, kit_name: str, name: str, command: str, code: int
) -> None:
    """Whoever uses the base alone sees nothing of the opt-in sets that there are."""
    kit: tree.Kit = request.getfixturevalue(kit_name)
    root = installation(name, tmp_path / "site-packages")

    run = kit(*command.split(), "--root", root, cwd=tmp_path)

    text = f"$ kit {command}\n{run.out}{run.err}[exit code {run.code}]\n"
    text = text.replace(str(tmp_path), "/tmp").replace(f"{kit.folder}/scripts/kit", "kit")
    text = re.sub(r'("manifest_sha256": ")[0-9a-f]{64}', r"\1...", text)
    golden = GOLDEN / f"{name}-{command.replace(' ', '')}.txt"
    if os.environ.get("KIT_UPDATE_GOLDEN"):
        golden.write_bytes(text.encode())
    assert text == golden.read_bytes().decode()
    assert run.code == code
    assert "Traceback" not in text


def test_no_golden_text_lies_about_unused() -> None:
    assert {path.name for path in GOLDEN.iterdir()} == {
        f"{name}-{command.replace(' ', '')}.txt" for name, command, _ in CASES
    }


@pytest.mark.parametrize("verb", commands.NAMES)
def test_every_verb_has_help_and_json(kit: tree.Kit, verb: str) -> None:
    run = kit(verb, "--help")
    assert run.code == 0
    assert "--json" in run.out


def test_each_module_of_verbs_is_listed_with_all_that_it_has() -> None:
    """The list is what lets a run import the module of its own verb alone."""
    assert {name: commands.load(name).summary for name in commands.NAMES} == {
        name: verb.summary
        for module in pkgutil.iter_modules(commands.__path__)
        for name, verb in getattr(importlib.import_module(f"commands.{module.name}"), "VERBS", {}).items()
    }


def test_a_verb_is_not_charged_for_the_others(kit: tree.Kit, root: Path) -> None:
    command = [sys.executable, "-I", "-S", "-X", "importtime", str(kit.folder / "scripts/kit"), "status"]
    run = subprocess.run([*command, "--root", str(root)], capture_output=True, text=True)
    imported = set(re.findall(r"\| +([\w.]+)$", run.stderr, re.MULTILINE))
    assert "patchkit.state" in imported
    assert imported.isdisjoint({"commands.starting", "commands.asking", "serving", "json", "subprocess"})


def test_the_help_names_every_exit_code(kit: tree.Kit) -> None:
    codes = re.findall(r"^  (\d)  ", kit("--help").out, re.MULTILINE)
    assert codes == [str(int(code)) for code in ExitCode]


@pytest.mark.parametrize(
    "arguments", [[], ["aply"], ["apply", "--rot", "x"], ["apply", "--root", "a", "--python", "b"]]
)
def test_a_command_line_that_is_not_understood(kit: tree.Kit, arguments: list[str]) -> None:
    run = kit(*arguments)
    assert run.code == 2
    assert run.err.startswith("usage: ")


def test_diff_is_read_by_git_apply_and_gives_the_applied_set(kit: tree.Kit, root: Path) -> None:
    diff = subprocess.run(
        [sys.executable, kit.folder / "scripts/kit", "diff", "--root", root], capture_output=True, check=True
    ).stdout
    sealed = os.environ | {"GIT_CEILING_DIRECTORIES": str(root.parent), "GIT_CONFIG_GLOBAL": os.devnull}
    subprocess.run(["git", "apply", "--whitespace=nowarn"], cwd=root, input=diff, check=True, env=sealed)
    assert set(tree.states(root).values()) == {"applied"}


def test_overlay_files_are_the_applied_ones(kit: tree.Kit, root: Path, tmp_path: Path) -> None:
    run = kit("overlay", "--root", root, "--out", tmp_path / "out")
    assert run.code == 0
    for path in tree.ORDER:
        assert (tmp_path / "out" / path).read_bytes() == tree.APPLIED[path]
    assert set(tree.states(root).values()) == {"pristine"}


def test_an_overlay_folder_that_cannot_be_made(kit: tree.Kit, root: Path, tmp_path: Path) -> None:
    tree.write(tmp_path / "file", b"")
    run = kit("overlay", "--root", root, "--out", tmp_path / "file" / "below")
    assert run.code == 3
    assert "cannot be written (Not a directory); the installation was not changed" in run.err
    assert run.err.endswith("Next: give another folder with --out\n")


def test_an_overlay_is_not_built_into_the_installation(kit: tree.Kit, root: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(root)
    before = tree.snapshot(root)
    for out in (root, tmp_path / "link"):
        run = kit("overlay", "--root", root, "--out", out)
        assert run.code == 3
        assert "is the installation itself; nothing was changed" in run.err
    assert tree.snapshot(root) == before


def test_an_overlay_follows_no_link_and_replaces_one(kit: tree.Kit, root: Path, tmp_path: Path) -> None:
    precious = tree.write(tmp_path / "precious", b"mine\n")
    out = tmp_path / "out"
    (out / tree.REGISTRY).parent.mkdir(parents=True)
    (out / tree.REGISTRY).symlink_to(precious)
    assert kit("overlay", "--root", root, "--out", out).code == 0
    assert precious.read_bytes() == b"mine\n"
    assert not (out / tree.REGISTRY).is_symlink()
    assert (out / tree.REGISTRY).read_bytes() == tree.APPLIED[tree.REGISTRY]


def test_the_next_command_carries_the_target_and_can_be_typed(kit: tree.Kit, tmp_path: Path) -> None:
    root = tree.write_packages(tmp_path / "a folder with spaces")
    run = kit("status", "--root", root)
    [command] = re.findall(r"^Next: (.*)$", run.out, re.MULTILINE)
    subprocess.run(command, shell=True, check=True, stdout=subprocess.DEVNULL)
    assert set(tree.states(root).values()) == {"applied"}


def test_it_runs_from_any_folder_and_through_a_symlink(kit: tree.Kit, root: Path, tmp_path: Path) -> None:
    link = tmp_path / "kit"
    link.symlink_to(kit.folder / "scripts" / "kit")
    done = subprocess.run([link, "status", "--root", root], cwd="/", capture_output=True, text=True)
    assert "pristine: none of the 5 files" in done.stdout


def test_any_path_can_be_printed_in_any_locale(kit: tree.Kit, tmp_path: Path) -> None:
    root = tree.write_packages(tmp_path / "模型")
    run = kit("status", "--root", root, env={"LC_ALL": "C", "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"})
    assert run.code == 1
    assert "Traceback" not in run.err


def test_an_answer_of_no_stays_one_when_the_reader_goes_away(kit: tree.Kit, root: Path) -> None:
    command = f"'{sys.executable}' '{kit.folder}/scripts/kit' status --root '{root}' > >(exec 0<&-)"
    assert subprocess.run(["bash", "-c", f"{command}; exit $?"]).returncode == 1


def test_a_signal_that_nohup_ignores_stays_ignored(kit: tree.Kit, root: Path) -> None:
    with locked(root):
        command = ["nohup", sys.executable, str(kit.folder / "scripts/kit"), "apply", "--root", str(root)]
        waiting = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        wait_until(lambda: has_open(waiting.pid, root / "vllm"))
        waiting.send_signal(signal.SIGHUP)
        time.sleep(0.3)
    waiting.communicate(timeout=30)
    assert waiting.returncode == 0
    assert set(tree.states(root).values()) == {"applied"}


def test_many_signals_at_once_are_one(kit: tree.Kit, root: Path) -> None:
    before = tree.snapshot(root)
    command = as_in_a_terminal(kit, "apply", "--root", root)
    with locked(root):
        waiting = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        wait_until(lambda: has_open(waiting.pid, root / "vllm"))
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
            waiting.send_signal(number)
        error = waiting.communicate(timeout=30)[1]
    assert waiting.returncode == 4
    assert "Traceback" not in error
    assert tree.snapshot(root) == before


def as_in_a_terminal(kit: tree.Kit, *arguments: str | Path) -> list[str | Path]:
    """The kit with no signal ignored: ``nohup make test &`` hands down that two of them are."""
    heeded = ["env", "--default-signal=INT,TERM,HUP"]
    return [*heeded, sys.executable, kit.folder / "scripts" / "kit", *arguments]


@contextlib.contextmanager
def locked(root: Path) -> Iterator[None]:
    folder = os.open(root / "vllm", os.O_RDONLY)
    fcntl.flock(folder, fcntl.LOCK_EX)
    try:
        yield
    finally:
        os.close(folder)


def test_a_reader_that_goes_away_is_no_error(kit: tree.Kit, root: Path) -> None:
    command = f"'{sys.executable}' '{kit.folder}/scripts/kit' status --root '{root}' | true"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True)
    assert done.stderr == ""


@pytest.mark.parametrize("redirect", [">/dev/full", ">&-", "2>&- >&-"])
@pytest.mark.parametrize("verb", ["status", "diff", "status --json", "apply"])
def test_an_answer_that_cannot_be_written_is_no_traceback(
    kit: tree.Kit, root: Path, verb: str, redirect: str
) -> None:
    command = f"'{sys.executable}' '{kit.folder}/scripts/kit' {verb} --root '{root}'"
    done = subprocess.run(["bash", "-c", f"{command} {redirect}"], capture_output=True, text=True)
    assert "Traceback" not in done.stderr
    if verb.startswith("status"):
        assert done.returncode == ExitCode.NO  # the answer itself, by its exit code
    else:
        assert done.returncode == (ExitCode.UNWRITTEN if "full" in redirect else ExitCode.OK)
    assert set(tree.states(root).values()) == {"applied" if verb == "apply" else "pristine"}


@pytest.mark.parametrize("arguments", ["apply", "apply --json", "--help", "apply --help", "--version"])
def test_a_full_disk_is_told_on_the_other_stream(kit: tree.Kit, root: Path, arguments: str) -> None:
    place = f" --root '{root}'" if arguments.startswith("apply") and "help" not in arguments else ""
    command = f"'{sys.executable}' '{kit.folder}/scripts/kit' {arguments}{place}"
    done = subprocess.run(["bash", "-c", f"{command} >/dev/full"], stderr=subprocess.PIPE, text=True)
    assert done.returncode == ExitCode.UNWRITTEN
    assert done.stderr.splitlines() == [
        "kit: the answer could not be written (No space left on device); what was done stays done.",
        f"Next: {command.partition(' ')[2]}    # when the cause is gone".replace("'", ""),
    ]


def test_a_refusal_stays_one_where_nobody_can_be_told(kit: tree.Kit, tmp_path: Path) -> None:
    command = f"'{sys.executable}' '{kit.folder}/scripts/kit' apply --root '{tmp_path}'"
    for redirect in ("2>/dev/full", "--json >/dev/full 2>&1", ">/dev/full 2>&1"):
        assert subprocess.run(["bash", "-c", f"{command} {redirect}"]).returncode == ExitCode.REFUSED


@pytest.mark.parametrize("absent", ["patchkit/state.py", "cli.py", "commands"])
def test_an_incomplete_copy_of_the_kit_is_one_sentence(
    kit: tree.Kit, root: Path, tmp_path: Path, absent: str
) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(kit.folder, copy, ignore=shutil.ignore_patterns("__pycache__"))
    gone = copy / "scripts" / absent
    shutil.rmtree(gone) if gone.is_dir() else gone.unlink()
    run = tree.Kit(copy)("apply", "--root", root)
    assert run.code == 3
    assert run.err.startswith("kit: a file of the kit itself is absent (")
    assert "Traceback" not in run.err


def test_an_interpreter_is_named_as_a_shell_would_take_it(kit: tree.Kit, tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "venv"], check=True)
    site = next((tmp_path / "venv" / "lib").glob("python3.*")) / "site-packages"
    tree.write_packages(site)
    bin_folder = tmp_path / "venv" / "bin"
    for cwd, name in ((tmp_path, "venv/bin/python"), (bin_folder, "./python"), (tmp_path, "python")):
        env = {"PATH": f"{bin_folder}:{os.environ['PATH']}"}
        run = kit("status", "--python", name, cwd=cwd, env=env)
        assert f"{site}/vllm" in run.out, (name, run.err)


def test_a_kit_below_a_path_with_a_space_can_be_typed_again(
    kit: tree.Kit, root: Path, tmp_path: Path
) -> None:
    copy = tmp_path / "my kit"
    shutil.copytree(kit.folder, copy)
    [command] = re.findall(r"^Next: (.*)$", tree.Kit(copy)("status", "--root", root).out, re.MULTILINE)
    subprocess.run(command, shell=True, check=True, stdout=subprocess.DEVNULL)
    assert set(tree.states(root).values()) == {"applied"}


def test_a_python_that_is_too_old_is_told_so(kit: tree.Kit) -> None:
    """No old Python is at hand, so a new one says that it is old."""
    program = (
        "import sys, runpy; sys.version_info = (3, 9, 2); sys.argv = ['kit', 'apply'];"
        f"runpy.run_path({str(kit.folder / 'scripts' / 'kit')!r}, run_name='__main__')"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 3
    assert done.stderr.startswith(
        "kit: this is Python 3.9, the kit needs 3.11 or newer; nothing was changed.\nNext: "
    )


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_while_waiting_changes_nothing(kit: tree.Kit, root: Path, number: signal.Signals) -> None:
    before = tree.snapshot(root)
    with (
        locked(root),
        subprocess.Popen(
            as_in_a_terminal(kit, "apply", "--root", root), stderr=subprocess.PIPE, text=True
        ) as waiting,
    ):
        wait_until(lambda: has_open(waiting.pid, root / "vllm"))
        waiting.send_signal(number)
        error = waiting.communicate(timeout=30)[1]
    assert waiting.returncode == 4
    assert error.startswith(f"kit: interrupted by {number.name}; every file is as it was before.\nNext: ")
    assert tree.snapshot(root) == before


def has_open(pid: int, folder: Path) -> bool:
    """Whether a process has opened a folder: the kit does so to lock it."""
    with contextlib.suppress(OSError):
        return any(entry.readlink() == folder for entry in Path(f"/proc/{pid}/fd").iterdir())
    return False


def wait_until(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_a_ctrl_c_during_the_imports_is_no_traceback(kit: tree.Kit, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(kit.folder, copy)
    (copy / "scripts" / "cli.py").write_text("raise KeyboardInterrupt\n")
    run = tree.Kit(copy)("apply")
    assert (run.code, run.err) == (4, "kit: interrupted; nothing was changed.\n")


def test_a_signal_that_comes_when_all_is_done_is_not_reported_as_nothing_done(
    bundle: Path, root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Between the last rename and the report: the disk is asked, not the clock."""
    monkeypatch.setattr(kit_request, "bundle", lambda: bundle)
    monkeypatch.setattr(report, "changed", lambda _: os.kill(os.getpid(), signal.SIGTERM))
    handlers = {number: signal.signal(number, signal.SIG_DFL) for number in cli._STOPPING}
    try:
        code = cli.main(["apply", "--root", str(root)], "kit")
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
    assert code == 0
    assert "interrupted by SIGTERM, when nothing was left to do. applied: 5 of 5" in capsys.readouterr().out
    assert set(tree.states(root).values()) == {"applied"}


def test_json_is_one_object_even_for_a_refusal(kit: tree.Kit, tmp_path: Path) -> None:
    run = kit("apply", "--root", tmp_path, "--json")
    answer = json.loads(run.out)
    assert answer["exit_code"] == run.code == 3
    assert answer["outcome"] == "refused"
    assert answer["next"].startswith("give --root the folder")


def test_an_unreadable_manifest_is_one_sentence(bundle: Path, root: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(bundle, copy)
    (copy / "patches" / tree.SET_ID / "manifest.toml").unlink()
    run = tree.Kit(copy)("apply", "--root", root)
    assert run.code == 3
    assert run.err.splitlines()[0] == (
        "kit: the kit's own file patches/v0.20.2rc1/manifest.toml cannot be read "
        "(No such file or directory); nothing was changed."
    )
