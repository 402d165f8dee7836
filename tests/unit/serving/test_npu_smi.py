# SPDX-License-Identifier: Apache-2.0
"""The table of ``npu-smi info``: every layout that people have posted, and any text at all."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from serving.machine import npu_smi
from serving.machine.npu_smi import Chip, Family, Process
from unit.serving import machines


def table(name: str) -> npu_smi.Table:
    return npu_smi.parse((machines.HOSTS / "npu-smi" / f"{name}.txt").read_text())


@pytest.mark.parametrize(
    ("name", "version", "chips", "family", "total"),
    [
        ("910b3", "23.0.3", 8, Family.A2, 65536),
        ("910b2", "24.1.0", 8, Family.A2, 65536),
        ("910b4", "25.2.3", 8, Family.A2, 32768),
        ("910b4-1", "25.2.0", 8, Family.A2, 65536),
        ("910c", "24.1.rc3.7", 16, Family.A3, 65536),
        ("26.0-wide", "26.0.rc2", 2, Family.A3, 65536),
        ("910prob", "24.1.0", 8, Family.FIRST, 32768),
        ("310p3", "25.0.rc1.1", 4, Family.P310, 44280),
    ],
)
def test_chips_are_read_from_every_layout(
    name: str, version: str, chips: int, family: Family, total: int
) -> None:
    found = table(name)

    assert found.version == version
    assert len(found.chips) == chips
    assert {chip.family for chip in found.chips} == {family}
    assert {chip.total_mib for chip in found.chips} == {total}


def test_a_chip_has_its_card_die_health_and_memory() -> None:
    assert table("910b3").chips[0] == Chip(0, 0, "910B3", "OK", 3159, 65536)
    assert table("910b3-alarm").chips[5].health == "Alarm"
    assert [(chip.card, chip.die) for chip in table("910c").chips[:3]] == [(0, 0), (0, 1), (1, 0)]


def test_processes_are_read_with_and_without_the_container_column() -> None:
    assert table("910b3-busy").processes == (
        Process(0, 0, 669096, "VLLMWorker_TP", 55124),
        Process(0, 0, 669153, "VLLMWorker_TP", 107),
        Process(1, 0, 669097, "VLLMWorker_TP", 55130),
    )
    assert table("26.0-wide").processes == (Process(0, 0, 632268, "python3.1", 197),)
    assert table("910b3").processes == ()


@pytest.mark.parametrize(
    ("name", "family"),
    [
        ("910B3", Family.A2),
        ("910B2C", Family.A2),
        ("910B4-1", Family.A2),
        ("Ascend910B3", Family.A2),
        ("Ascend910", Family.A3),
        ("910_9362", Family.A3),
        ("910B", Family.FIRST),
        ("910A", Family.FIRST),
        ("310P3", Family.P310),
        ("Ascend950PR", Family.A5),
        ("610", Family.UNKNOWN),
    ],
)
def test_a_chip_is_of_a_family_by_its_name(name: str, family: Family) -> None:
    assert Chip(0, 0, name, "OK", 0, 0).family is family


@pytest.mark.parametrize("name", ["held-elsewhere", "no-driver"])
def test_an_error_is_no_table(name: str) -> None:
    assert table(name).chips == ()


@settings(max_examples=200, derandomize=True)
@given(
    st.text()
    | st.lists(st.sampled_from(["|", "+", " ", "0", "910B3", "0000:C1:00.0", "1/2", "\n", "9" * 5000])).map(
        "".join
    )
)
def test_no_text_breaks_the_reader(text: str) -> None:
    npu_smi.parse(text)
