# SPDX-License-Identifier: Apache-2.0
"""``kit bench``: which rows are run, which are kept, and what is said of those that cannot be."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import tree
from patchkit.errors import KitError, Refused
from serving.machine.host import Host
from serving.measure import bench, bench_results, bench_server
from serving.measure.bench import BenchRequest, Report, State
from serving.measure.bench_figures import GUIDE, Row, parse_row
from unit.serving import fake_server
from unit.serving.fake_server import Server, Vllm

SMALL, LARGE = Row(1024, 1024, 20), Row(2048, 1024, 15)
TOO_LONG = Row(4096, 1024, 15)
ABOUT = {"kit": "0.1.0", "set": "v0.20.2rc1"}


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "tokenizer_config.json").write_text("{}")
    return folder


@pytest.fixture
def server(model: Path) -> Iterator[Server]:
    with fake_server.running(model) as found:
        yield found


@pytest.fixture
def vllm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Vllm:
    monkeypatch.setenv("PATH", str(tmp_path / "commands"), prepend=os.pathsep)
    monkeypatch.setattr(bench, "_POLL_S", 0.05)
    return Vllm(tmp_path / "commands").write()


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "results"


def run(server: Server, out: Path, *rows: Row, **more: Any) -> Report:
    return bench.run(BenchRequest(server.url, out, rows or tuple(GUIDE), **more), ABOUT, Host())


def states(report: Report) -> list[State]:
    return [outcome.state for outcome in report.outcomes]


# --- rows -------------------------------------------------------------------------


def test_the_guides_rows_are_the_default_and_those_that_do_not_fit_are_named(
    server: Server, vllm: Vllm, out: Path
) -> None:
    report = run(server, out)
    assert states(report) == [State.MEASURED] * 2 + [State.DOES_NOT_FIT] * 6
    assert vllm.measured == ["1024", "2048"]
    text = bench.text(report)
    assert "131072 → 1024   at 2    DOES NOT FIT: a request has 132096 tokens, the server takes 4096" in text
    assert "2 of 8 rows are in" in text
    assert "start the server with --max-model-len 132096" in text
    assert not report.complete


def test_a_row_that_fills_the_context_to_the_last_token_fits(server: Server, vllm: Vllm, out: Path) -> None:
    assert states(run(server, out, Row(3072, 1024, 1), Row(3073, 1024, 1))) == [
        State.MEASURED,
        State.DOES_NOT_FIT,
    ]
    assert vllm.measured == ["3072"]


def test_requests_are_a_multiple_of_the_concurrency(server: Server, vllm: Vllm, out: Path) -> None:
    run(server, out, SMALL, rounds=3)
    options = vllm.calls[-1]["options"]
    assert (options["--num-prompts"], options["--max-concurrency"]) == ("60", "20")
    assert (options["--random-input-len"], options["--random-output-len"]) == ("1024", "1024")


def test_a_warm_up_goes_before_with_other_prompts(server: Server, vllm: Vllm, out: Path) -> None:
    run(server, out, SMALL)
    warm_up, measured = (call["options"] for call in vllm.calls)
    assert "--save-result" not in warm_up
    assert (warm_up["--num-prompts"], warm_up["--random-input-len"]) == ("20", "1024")
    assert warm_up["--seed"] != measured["--seed"]


def test_no_two_runs_share_their_prompts(server: Server, vllm: Vllm, out: Path, tmp_path: Path) -> None:
    """The server would have them in its prefix cache."""
    run(server, out, SMALL, LARGE)
    run(server, tmp_path / "again", SMALL)
    seeds = [call["options"]["--seed"] for call in vllm.calls]
    assert len(set(seeds)) == len(seeds) == 6


# --- going on ---------------------------------------------------------------------


def test_a_finished_row_is_not_run_again(server: Server, vllm: Vllm, out: Path) -> None:
    run(server, out, SMALL)
    report = run(server, out, SMALL, LARGE)
    assert states(report) == [State.KEPT, State.MEASURED]
    assert vllm.measured == ["1024", "2048"]
    assert report.complete


def test_a_half_written_result_is_no_result(server: Server, vllm: Vllm, out: Path) -> None:
    vllm.plan({1024: {"cut": 40}})
    report = run(server, out, SMALL)
    assert states(report) == [State.FAILED]
    assert "the result is not JSON" in report.outcomes[0].what
    assert bench_results.load(out).measurements == ()

    vllm.plan({})
    assert states(run(server, out, SMALL)) == [State.MEASURED]


def test_a_damaged_file_is_named_and_measured_again(server: Server, vllm: Vllm, out: Path) -> None:
    run(server, out, SMALL)
    path = out / f"{SMALL.name}.json"
    path.write_bytes(path.read_bytes()[:100])
    report = run(server, out, SMALL)
    assert states(report) == [State.MEASURED]
    assert f"damaged and measured again: {path.name} is not JSON" in bench.text(report)
    assert vllm.measured == ["1024", "1024"]


def test_a_second_run_into_the_same_folder_is_refused(server: Server, vllm: Vllm, out: Path) -> None:
    (out / ".running").mkdir(parents=True)
    with (out / ".running" / "lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(Refused, match="another kit bench is measuring into"):
            run(server, out, SMALL)
    assert vllm.calls == []


def test_a_signal_ends_vllm_and_keeps_what_is_finished(server: Server, vllm: Vllm, out: Path) -> None:
    vllm.plan({2048: {"sleep": 60}})
    program = f"""
import signal, sys
sys.path.insert(0, {str(tree.PROJECT / "scripts")!r})
from pathlib import Path
from serving.measure import bench
from serving.measure.bench_figures import Row
from serving.machine.host import Host
class Interrupted(BaseException): pass
def interrupt(number, frame): raise Interrupted(signal.Signals(number).name)
signal.signal(signal.SIGINT, interrupt)
wanted = bench.BenchRequest({server.url!r}, Path({str(out)!r}), (Row(1024, 1024, 20), Row(2048, 1024, 15)))
try: bench.run(wanted, {{}}, Host())
except bench.Stopped as error: print(error)
"""
    process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 20
    while len(vllm.calls) < 3:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    told, _ = process.communicate(timeout=20)
    assert "interrupted by SIGINT; its unfinished row is not kept, every finished one is." in told
    assert [found.row for found in bench_results.load(out).measurements] == [SMALL]
    with pytest.raises(ProcessLookupError):
        os.kill(vllm.calls[-1]["pid"], 0)
    assert not (out / ".running").exists()


# --- rows that fail ---------------------------------------------------------------


def test_a_row_that_fails_is_told_with_the_end_of_its_log_and_the_others_go_on(
    server: Server, vllm: Vllm, out: Path
) -> None:
    vllm.plan({1024: {"exit": 1, "says": "no such tokenizer"}})
    report = run(server, out, SMALL, LARGE)
    assert states(report) == [State.FAILED, State.MEASURED]
    assert report.outcomes[0].log_end[-1] == "ValueError: no such tokenizer"
    text = bench.text(report)
    assert "vllm bench serve ended with exit code 1; its log is" in text
    assert "| ValueError: no such tokenizer" in text
    assert "3/6" not in text


def test_of_the_log_the_errors_are_shown_before_the_figures(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text(
        "Error 0: Traceback (most recent call last):\n"
        '  File "x.py", line 1, in f\n'
        "aiohttp.client_exceptions.ServerDisconnectedError: gone\n"
        "Error 1: Traceback (most recent call last):\n"
        "aiohttp.client_exceptions.ServerDisconnectedError: gone\n"
        "Error 2: Bad Request\n"
        "Mean ITL (ms):      6.91\n==========\n"
    )
    assert bench._end(log) == (
        "aiohttp.client_exceptions.ServerDisconnectedError: gone",
        "Error 2: Bad Request",
    )


@pytest.mark.parametrize(
    ("result", "said"),
    [
        ({"completed": 79, "failed": 1}, "the result has 79 of 80 requests answered"),
        ({"total_output_tokens": 81919}, "has 81919 generated tokens, where 80 replies make 81920"),
        ({"mean_ttft_ms": 0.0}, "has 0.0 for 'mean_ttft_ms', where a number above 0 is wanted"),
        ({"mean_tpot_ms": None}, "has None for 'mean_tpot_ms'"),
        ({"output_throughput": float("nan")}, "has nan for 'output_throughput'"),
    ],
)
def test_a_result_that_is_not_of_the_whole_row_is_not_kept(
    server: Server, vllm: Vllm, out: Path, result: dict[str, Any], said: str
) -> None:
    vllm.plan({1024: {"result": result}})
    report = run(server, out, SMALL)
    assert said in report.outcomes[0].what
    assert not (out / f"{SMALL.name}.json").exists()


def test_a_row_without_end_is_stopped(server: Server, vllm: Vllm, out: Path) -> None:
    vllm.plan({1024: {"sleep": 60}})
    report = run(server, out, SMALL, timeout_s=1)
    assert "no end after 1 s (--timeout)" in report.outcomes[0].what
    with pytest.raises(ProcessLookupError):
        os.kill(vllm.calls[-1]["pid"], 0)


def test_when_the_server_goes_away_the_rest_is_not_tried(
    server: Server, vllm: Vllm, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    vllm.plan({1024: {"exit": 1, "says": "Connection refused"}})
    monkeypatch.setattr(bench_server, "is_up", lambda *_: False)
    report = run(server, out, SMALL, LARGE, TOO_LONG)
    assert states(report) == [State.FAILED, State.NOT_RUN, State.DOES_NOT_FIT]
    assert "NOT RUN: the server went away" in bench.text(report)


# --- before the first row ---------------------------------------------------------


def refusal(server_url: str, out: Path, **more: Any) -> KitError:
    with pytest.raises(KitError) as caught:
        bench.run(BenchRequest(server_url, out, (SMALL,), **more), ABOUT, Host())
    assert not out.exists()
    return caught.value


def test_a_server_is_up_until_it_is_not(model: Path) -> None:
    with fake_server.running(model) as server:
        found = bench_server.look(server.url, "")
        assert bench_server.is_up(found, "")
    assert not bench_server.is_up(found, "")


@pytest.mark.usefixtures("vllm")
def test_no_server(out: Path) -> None:
    error = refusal("http://127.0.0.1:9", out)
    assert str(error) == "no server answers at http://127.0.0.1:9 (Connection refused); nothing was changed."


@pytest.mark.usefixtures("vllm")
def test_an_address_that_is_none(out: Path) -> None:
    assert "'ftp://host' is not the address of a server" in str(refusal("ftp://host", out))


@pytest.mark.usefixtures("vllm")
@pytest.mark.parametrize(("given", "what"), [("", "an API key"), ("wrong", "another API key")])
def test_a_key_that_is_wanted(server: Server, out: Path, given: str, what: str) -> None:
    server.key = "secret"
    error = refusal(server.url, out, key=given)
    assert f"wants {what} (HTTP 401)" in str(error)
    assert "API_KEY=" in error.next_step


def test_the_key_goes_through_the_environment_and_is_written_nowhere(
    server: Server, vllm: Vllm, out: Path
) -> None:
    server.key = "s3cret-key"
    run(server, out, SMALL, key="s3cret-key")
    assert vllm.calls[-1]["environment"]["OPENAI_API_KEY"] == "s3cret-key"
    assert "s3cret-key" not in json.dumps(vllm.calls[-1]["options"])
    assert all(b"s3cret-key" not in path.read_bytes() for path in out.rglob("*") if path.is_file())


def test_a_proxy_is_kept_out_of_the_measurement(
    server: Server, vllm: Vllm, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    monkeypatch.setenv("no_proxy", "intranet")
    assert run(server, out, SMALL).complete
    assert vllm.calls[-1]["environment"]["no_proxy"] == "intranet,127.0.0.1"


@pytest.mark.usefixtures("vllm")
def test_something_else_answers(server: Server, out: Path) -> None:
    server.status = 404
    assert "/v1/models answers HTTP 404" in str(refusal(server.url, out))
    server.status, server.models = 200, []
    assert "/v1/models names no model" in str(refusal(server.url, out))


@pytest.mark.usefixtures("vllm")
def test_a_name_that_is_not_served(server: Server, out: Path) -> None:
    error = refusal(server.url, out, served_model_name="other")
    assert "does not serve 'other', but step3p7" in str(error)


@pytest.mark.usefixtures("vllm")
def test_a_gateway_that_hides_the_longest_context(server: Server, out: Path) -> None:
    del server.models[0]["max_model_len"]
    assert "does not tell the longest context" in str(refusal(server.url, out))


@pytest.mark.usefixtures("vllm")
def test_a_model_folder_that_is_on_another_machine(server: Server, out: Path, model: Path) -> None:
    server.models[0]["root"] = "/elsewhere/Step-3.7-Flash"
    error = refusal(server.url, out)
    assert "the server's model folder /elsewhere/Step-3.7-Flash is not on this machine" in str(error)
    assert "--tokenizer DIR" in error.next_step
    assert run(server, out, SMALL, tokenizer=model).complete


def test_no_vllm_on_path(server: Server, out: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "the vllm command, which measures, is not on PATH" in str(refusal(server.url, out))


@pytest.mark.usefixtures("vllm")
@pytest.mark.parametrize("what", ["rounds", "cards"])
def test_numbers_that_make_no_sense(server: Server, out: Path, what: str) -> None:
    assert f"--{what} 0 makes no sense" in str(refusal(server.url, out, **{what: 0}))


# --- what is recorded -------------------------------------------------------------


@pytest.mark.usefixtures("vllm")
def test_every_row_records_where_it_was_measured(server: Server, out: Path, model: Path) -> None:
    run(server, out, SMALL, cards=4)
    [found] = bench_results.load(out).measurements
    environment = found.environment
    assert environment["kit"] == "0.1.0"
    assert environment["set"] == "v0.20.2rc1"
    assert environment["server's vLLM"] == "0.20.2"
    assert environment["max_model_len"] == "4096"
    assert environment["model folder"] == str(model)
    assert environment["cards"] == "4"
    assert environment["command"].startswith("vllm bench serve --backend openai")
    assert environment["measured at"]
    assert found.figures.rate == 80.0 / 4


@pytest.mark.parametrize(
    "words",
    [
        ["serve", "m", "--api-key", "k1", "--port", "1"],
        ["serve", "m", "--api-key", "k1", "k1", "--port", "1"],
        ["serve", "m", "--api-key=k1", "--port", "1"],
        ["serve", "m", "--api_key", "k1", "--port", "1"],
    ],
)
def test_a_servers_key_is_not_recorded_with_its_command(words: list[str]) -> None:
    shown = bench_server.without_key(words)
    assert "k1" not in shown
    assert shown.endswith("--port 1")


@pytest.mark.parametrize(
    ("given", "address"),
    [
        ("localhost:8000", "http://localhost:8000"),
        ("http://host:8000/v1/", "http://host:8000"),
        ("https://host/prefix/v1", "https://host/prefix"),
    ],
)
def test_an_address_is_taken_as_people_write_it(given: str, address: str) -> None:
    assert bench_server.normalise(given) == address


def test_rows_as_they_are_typed() -> None:
    assert parse_row("8192") == Row(8192, 1024, 10)
    assert parse_row("100:50:3") == Row(100, 50, 3)
    for wrong in ("", "1000", "1:2", "0:1:1", "1:-1:1", "a:b:c", "1:2:3:4"):
        with pytest.raises(ValueError, match="is no row"):
            parse_row(wrong)


def test_the_answer_for_a_program(server: Server, vllm: Vllm, out: Path) -> None:
    vllm.plan({2048: {"exit": 3, "says": "no"}})
    answer = json.loads(json.dumps(bench.as_json(run(server, out, SMALL, LARGE))))
    assert answer["complete"] is False
    assert [row["state"] for row in answer["rows"]] == ["measured", "failed"]
    assert answer["rows"][0]["output_tokens_per_second_a_card"] == 10.0
