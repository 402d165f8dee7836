# SPDX-License-Identifier: Apache-2.0
"""``kit report``: the guide's table beside a run, rows that contradict themselves, two runs, the picture."""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from patchkit.errors import KitError, Refused
from serving.measure import bench_drawing, bench_picture, bench_report, bench_results
from serving.measure.bench_figures import (
    GUIDE,
    Doubt,
    Figures,
    Row,
    doubts,
    implied_rate,
    limit,
    rate_of_one_request,
)
from serving.measure.bench_report import Report
from serving.measure.bench_results import Results
from serving.model import checkpoint
from unit.serving.model_folders import CODE, CODE_FILE, published_config

R1, R65536 = Row(1024, 1024, 20), Row(65536, 1024, 4)
FIGURES = Figures(1000.0, 50.0, 40.0)


def raw(row: Row, figures: Figures, cards: int = 8, **more: Any) -> dict[str, Any]:
    """As ``vllm bench serve`` writes it, of two requests a place."""
    requests = 2 * row.concurrency
    return {
        "num_prompts": requests,
        "completed": requests,
        "failed": 0,
        "total_input_tokens": requests * row.input_len,
        "total_output_tokens": requests * row.output_len,
        "mean_ttft_ms": figures.ttft_ms,
        "mean_tpot_ms": figures.tpot_ms,
        "output_throughput": figures.rate * cards,
    } | more


def results(
    folder: Path,
    rows: Iterable[Row],
    figures: Figures = FIGURES,
    environment: dict[str, str] | None = None,
    **more: Any,
) -> Results:
    """A folder with these rows, added to what is in it."""
    folder.mkdir(exist_ok=True)
    environment = environment or {"kit": "0.1.0", "command": "vllm bench serve"}
    for row in rows:
        written = folder / "raw"
        written.write_text(json.dumps(raw(row, figures, **more)))
        bench_results.save(folder, row, 8, environment, written)
        written.unlink()
    return bench_results.load(folder)


def cells(markdown: str, heading: str, first: str) -> list[str]:
    """The cells of the row that begins so, in the table below a heading."""
    below = markdown.split(f"## {heading}")[1].split("\n## ")[0]
    [line] = [line for line in below.splitlines() if line.strip("| ").startswith(first)]
    return [cell.strip() for cell in line.strip("|").split("|")]


# --- what figures say of each other -----------------------------------------------


def test_the_guides_65536_row_cannot_be() -> None:
    """4 requests / 0.053 s / 8 cards = 9.434 < 12.297."""
    assert limit(R65536, GUIDE[R65536], 8) == pytest.approx(9.43396, abs=1e-5)
    assert Doubt.ABOVE_LIMIT in set(doubts(R65536, GUIDE[R65536], 8))
    assert [row for row in GUIDE if Doubt.ABOVE_LIMIT in set(doubts(row, GUIDE[row], 8))] == [R65536]


def test_six_of_the_guides_rows_give_the_rate_of_one_request() -> None:
    """At 1024: 1024 / (0.9527 + 1023 · 0.0521) = 18.875; the table says 18.8849; 20 at once make 47.19."""
    assert rate_of_one_request(R1, GUIDE[R1]) == pytest.approx(18.8754, abs=1e-3)
    assert implied_rate(R1, GUIDE[R1], 8) == pytest.approx(47.188, abs=1e-2)
    same = [row.input_len for row in GUIDE if Doubt.ONE_REQUEST in set(doubts(row, GUIDE[row], 8))]
    assert same == [1024, 2048, 4096, 8192, 16384, 65536]


def test_a_row_that_agrees_with_itself_is_not_doubted() -> None:
    figures = Figures(1000.0, 50.0, 0.95 * 20 * 1024 / (1.0 + 1023 * 0.05) / 8)
    assert list(doubts(R1, figures, 8)) == []


# --- Markdown ---------------------------------------------------------------------


def test_a_row_stands_beside_the_guides_with_ratios(tmp_path: Path) -> None:
    text = bench_report.markdown(Report(results(tmp_path / "a", [R1])))
    assert cells(text, "Latency", "1024") == [
        "1024 → 1024", "20", "1000.0", "952.7", "1.05", "50.00", "52.10", "0.96",
    ]  # fmt: skip
    # 40 / 18.8849 and 40 / 47.188
    assert cells(text, "Output tokens", "1024") == [
        "1024 → 1024", "20", "40.00", "18.88*", "2.12", "47.19", "0.85", "–", "–",
    ]  # fmt: skip
    assert "No ceiling: it needs the model's folder" in text


def test_a_row_that_is_not_the_guides_has_nothing_beside_it(tmp_path: Path) -> None:
    text = bench_report.markdown(Report(results(tmp_path / "a", [Row(100, 10, 2)])))
    assert cells(text, "Latency", "100")[3:5] == ["–", "–"]
    assert "- guide, " not in text


def test_the_contradicting_row_is_flagged_beside_ours(tmp_path: Path) -> None:
    figures = Figures(30000.0, 50.0, 6.0)
    text = bench_report.markdown(Report(results(tmp_path / "a", [R65536], figures)))
    assert "12.30*" in cells(text, "Output tokens", "65536")
    assert "guide, 65536 → 1024 tokens, 4 at once: 12.30 tokens/s a card cannot be" in text
    assert "4 requests / 0.053 s / 8 cards are 9.43 at the most" in text
    assert "- measured, " not in text


def test_our_own_row_is_flagged_as_well(tmp_path: Path) -> None:
    """20 / 0.05 / 8 = 50 a card at the most."""
    text = bench_report.markdown(Report(results(tmp_path / "a", [R1], Figures(1000.0, 50.0, 60.0))))
    assert "measured, 1024 → 1024 tokens, 20 at once: 60.00 tokens/s a card cannot be" in text
    assert "60.00*" in cells(text, "Output tokens", "1024")


def test_prompts_of_another_length_are_named(tmp_path: Path) -> None:
    text = bench_report.markdown(Report(results(tmp_path / "a", [R1], total_input_tokens=40 * 1100)))
    assert "the prompts came to 1100 tokens on the server" in text


def test_rows_that_are_absent_or_damaged_are_named(tmp_path: Path) -> None:
    results(tmp_path / "a", [R1])
    (tmp_path / "a" / "8192-1024-10.json").write_text("{")
    text = bench_report.markdown(Report(bench_results.load(tmp_path / "a")))
    absent = text.split("not measured")[1]
    assert "- 8192 → 1024 tokens, 10 at once" in absent
    assert "- 8192-1024-10.json is not JSON" in absent
    assert "- 1024 → 1024" not in absent


def test_the_environment_is_told_once_and_what_differs_with_its_rows(tmp_path: Path) -> None:
    results(tmp_path / "a", [R1], environment={"kit": "0.1.0", "max_model_len": "4096"})
    both = results(tmp_path / "a", [R65536], environment={"kit": "0.1.0", "max_model_len": "131072"})
    text = bench_report.markdown(Report(both))
    assert text.count("`0.1.0`") == 1
    assert "`4096` (rows 1024-1024-20)" in text
    assert "`131072` (rows 65536-1024-4)" in text


def test_text_from_elsewhere_stays_within_its_backticks(tmp_path: Path) -> None:
    found = results(tmp_path / "a", [R1], environment={"server's command": "a|b`c\nd\x1b[31m"})
    assert "`a|b'c d [31m`" in bench_report.markdown(Report(found))


def test_two_runs_are_compared_row_by_row(tmp_path: Path) -> None:
    first = results(tmp_path / "a", [R1, R65536])
    second = results(tmp_path / "b", [R1, Row(5, 5, 5)], Figures(500.0, 25.0, 80.0))
    text = bench_report.markdown(Report(first, second))
    assert cells(text, "Two runs", "1024")[2:] == [
        "1000.0", "500.0", "0.50", "50.00", "25.00", "0.50", "40.00", "80.00", "2.00",
    ]  # fmt: skip
    assert "- only in A: 65536 → 1024 tokens, 4 at once" in text
    assert "- only in B: 5 → 5 tokens, 5 at once" in text


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """The config of the published model, without its weights."""
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(published_config()))
    (folder / CODE_FILE).write_text(CODE)
    return folder


def test_the_ceiling_is_the_roofline_at_the_rows_mean_context(tmp_path: Path, model: Path) -> None:
    """Worked out by hand, in GB a step and card, for 20 requests of 1024 + 512 tokens.

    Experts 42 · 288 · 3 · 1280 · 4096 · 2 / 8 = 47.563, of them 1 - (280 / 288)^20 = 0.43074: 20.487.
    Attention, dense and shared MLP 5596.6 M · 2 / 8 = 1.399; head 0.132; router in float32 0.198.
    KV cache 20 · 512 · (12 · 1536 + 33 · 512) = 0.362. In all 22.578, so 20 · 1600 / 22.578 / 8 = 177.2.
    """
    found = results(tmp_path / "a", [R1])
    [rate] = bench_report.ceilings(checkpoint.load_config(model), found, "910B3").values()
    assert rate == pytest.approx(177.2, abs=0.1)
    text = bench_report.markdown(Report(found, None, {R1: 177.2}))
    assert cells(text, "Output tokens", "1024")[-2:] == ["177.2", "22.6%"]


def test_a_chip_of_unknown_bandwidth_has_no_ceiling(tmp_path: Path, model: Path) -> None:
    config = checkpoint.load_config(model)
    assert bench_report.ceilings(config, results(tmp_path / "a", [R1]), "910B4-1") == {}


def test_a_chip_that_is_not_known_is_refused(tmp_path: Path, model: Path) -> None:
    with pytest.raises(Refused, match="the memory bandwidth of 'H100' is not known here"):
        bench_report.ceilings(checkpoint.load_config(model), results(tmp_path / "a", [R1]), "H100")


def test_so_many_cards_as_the_model_does_not_allow_have_no_ceiling(tmp_path: Path, model: Path) -> None:
    config = checkpoint.load_config(model)
    found = results(tmp_path / "a", [R1])
    odd = Results(found.folder, (dataclasses.replace(found.measurements[0], cards=7),), {})
    assert bench_report.ceilings(config, odd, "910B3") == {}


@pytest.mark.parametrize(
    ("shown", "chip"),
    [("8 × 910B3", "910B3"), ("8 × 910B4-1", "910B4-1"), ("2 × 910B2, 6 × 910B3", ""), ("", "")],
)
def test_the_chip_is_the_one_that_was_seen(tmp_path: Path, shown: str, chip: str) -> None:
    found = results(tmp_path / "a", [R1], environment={"NPUs of this machine": shown})
    assert bench_report.chip(found) == chip


def test_the_servers_model_folder_is_found_where_it_is_on_this_machine(tmp_path: Path, model: Path) -> None:
    assert (
        bench_report.model_folder(results(tmp_path / "a", [R1], environment={"model folder": str(model)}))
        == model
    )
    elsewhere = results(tmp_path / "b", [R1], environment={"model folder": "/elsewhere"})
    assert bench_report.model_folder(elsewhere) is None


# --- folders ----------------------------------------------------------------------


def test_a_folder_without_a_row_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Refused, match=r"absent is not there; nothing was changed"):
        bench_results.load_finished(tmp_path / "absent")
    (tmp_path / "1-1-1.json").write_text('{"format": 2}')
    with pytest.raises(Refused, match=r"holds no finished row \(1-1-1.json is no result of this kit"):
        bench_results.load_finished(tmp_path)


@pytest.mark.parametrize("cut", [0, 1, 10, 200, -1])
def test_a_result_cut_anywhere_is_no_result(tmp_path: Path, cut: int) -> None:
    results(tmp_path / "a", [R1])
    path = tmp_path / "a" / f"{R1.name}.json"
    path.write_bytes(path.read_bytes()[:cut])
    found = bench_results.load(tmp_path / "a")
    assert found.measurements == ()
    assert list(found.damaged) == [path.name]


# --- the picture ------------------------------------------------------------------


def failure(report: Report, picture: Path, python: Path | None = None) -> KitError:
    with pytest.raises(KitError) as caught:
        bench_picture.draw(report, picture, python)
    return caught.value


def test_without_matplotlib_one_sentence_says_how_to_get_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    blocked = tmp_path / "matplotlib.py"
    blocked.write_text("raise ImportError")
    report = Report(results(tmp_path / "a", [R1]))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    error = failure(report, tmp_path / "p.svg", Path(sys.executable))
    assert f"{sys.executable} has no matplotlib, which draws" in str(error)
    assert error.next_step == f"{sys.executable} -m pip install matplotlib"
    assert not (tmp_path / "p.svg").exists()


def test_a_picture_of_another_kind_is_refused(tmp_path: Path) -> None:
    report = Report(results(tmp_path / "a", [R1]))
    assert "ends in neither .png nor .svg" in str(failure(report, tmp_path / "p.pdf"))


def test_an_interpreter_that_cannot_draw(tmp_path: Path) -> None:
    report = Report(results(tmp_path / "a", [R1]))
    assert "was not drawn" in str(failure(report, tmp_path / "p.svg", tmp_path / "python"))


def test_lengths_are_short_on_the_axis() -> None:
    assert [bench_drawing.length(n) for n in (1024, 131072, 1000)] == ["1K", "128K", "1000"]


@pytest.mark.skipif("KIT_DRAW_PYTHON" not in os.environ, reason="KIT_DRAW_PYTHON: a Python with matplotlib")
def test_the_picture_names_every_length_and_line(tmp_path: Path) -> None:
    report = Report(results(tmp_path / "a", GUIDE), None, dict.fromkeys(GUIDE, 100.0))
    for name in ("p.svg", "p.png"):
        bench_picture.draw(report, tmp_path / name, Path(os.environ["KIT_DRAW_PYTHON"]))
    drawn = (tmp_path / "p.svg").read_text()
    lines = ("measured", "deployment guide", "bandwidth ceiling", "contradicts its own TTFT and TPOT")
    assert [text for text in (*lines, "1K", "128K", "×20") if f">{text}<" not in drawn] == []
    assert (tmp_path / "p.png").read_bytes().startswith(b"\x89PNG")
