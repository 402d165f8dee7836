# SPDX-License-Identifier: Apache-2.0
"""Headers of safetensors files: what is read, what is refused, and how little is read of it."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from serving.bounded import Unreadable
from serving.model import safetensors_header
from serving.model.safetensors_header import Empty, LfsPointer, Tensor, Truncated
from unit.serving.model_folders import header, write_shard

TWO = {"a": ("BF16", (2, 3)), "b": ("F32", (4,))}
"""12 and 16 bytes."""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "model.safetensors"


def write(path: Path, entries: Any, data: int = 0) -> Path:
    text = entries if isinstance(entries, bytes) else json.dumps(entries).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + bytes(data))
    return path


def entry(dtype: str, shape: list[Any], begin: int, end: int) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


def test_tensors_come_with_type_and_shape(path: Path) -> None:
    write_shard(path, TWO)

    found = safetensors_header.read(path)

    assert found.tensors == {"a": Tensor("BF16", (2, 3)), "b": Tensor("F32", (4,))}
    assert [tensor.bytes_on_disk for tensor in found.tensors.values()] == [12, 16]
    assert found.file_bytes == path.stat().st_size


def test_a_scalar_and_an_empty_tensor_are_tensors(path: Path) -> None:
    write(path, {"scalar": entry("F32", [], 0, 4), "none": entry("F32", [0], 4, 4)}, data=4)

    assert [t.bytes_on_disk for t in safetensors_header.read(path).tensors.values()] == [4, 0]


def test_the_order_of_the_entries_does_not_matter(path: Path) -> None:
    write(path, {"b": entry("F32", [1], 4, 8), "a": entry("F32", [1], 0, 4)}, data=8)

    assert list(safetensors_header.read(path).tensors) == ["a", "b"]


def test_a_header_that_claims_two_to_the_sixty_bytes_is_refused_unread(path: Path) -> None:
    path.write_bytes((1 << 60).to_bytes(8, "little") + b"{}")

    with pytest.raises(Unreadable, match="claims a header of 1152921504606846976 bytes"):
        safetensors_header.read(path)


def test_a_header_over_the_formats_bound_is_refused_though_the_file_is_that_large(path: Path) -> None:
    path.write_bytes((100_000_001).to_bytes(8, "little"))
    os.truncate(path, 200_000_000)

    with pytest.raises(Unreadable, match="the format allows 100000000"):
        safetensors_header.read(path)


def test_a_header_longer_than_its_file_is_a_truncated_file(path: Path) -> None:
    path.write_bytes(header(TWO)[:50])

    with pytest.raises(Truncated) as caught:
        safetensors_header.read(path)

    assert (caught.value.found, caught.value.needed) == (50, len(header(TWO)))


def test_a_file_that_ends_inside_its_tensors_says_what_it_needs(path: Path) -> None:
    write_shard(path, TWO)
    whole = path.stat().st_size
    os.truncate(path, whole - 5)

    with pytest.raises(Truncated) as caught:
        safetensors_header.read(path)

    assert (caught.value.found, caught.value.needed) == (whole - 5, whole)


def test_bytes_behind_the_last_tensor_are_refused(path: Path) -> None:
    write_shard(path, TWO)
    os.truncate(path, path.stat().st_size + 1)

    with pytest.raises(Unreadable, match="1 bytes behind its last tensor"):
        safetensors_header.read(path)


def test_an_empty_file_is_told_from_a_short_one(path: Path) -> None:
    path.write_bytes(b"")
    with pytest.raises(Empty):
        safetensors_header.read(path)

    path.write_bytes(b"1234567")
    with pytest.raises(Unreadable, match="7 bytes, too few"):
        safetensors_header.read(path)


@pytest.mark.parametrize(("size_line", "size"), [("size 42\n", 42), ("size many\n", None), ("", None)])
def test_a_git_lfs_pointer_is_recognised(path: Path, size_line: str, size: int | None) -> None:
    path.write_text(f"version https://git-lfs.github.com/spec/v1\noid sha256:0\n{size_line}")

    with pytest.raises(LfsPointer) as caught:
        safetensors_header.read(path)

    assert caught.value.size == size


@pytest.mark.parametrize(
    ("entries", "says"),
    [
        ({"a": entry("F32", [1], 4, 8)}, "leaves a gap"),
        ({"a": entry("F32", [2], 0, 8), "b": entry("F32", [1], 4, 8)}, "overlaps"),
        ({"a": entry("F32", [2], 0, 4)}, "4 bytes to F32 of shape"),
        ({"a": entry("F32", [1], 4, 0)}, "impossible numbers"),
        ({"a": entry("F99", [1], 0, 4)}, "unknown type 'F99'"),
        ({"a": entry("F32", [-1], 0, 4)}, "not a tensor's"),
        ({"a": entry("F32", [1.0], 0, 4)}, "not a tensor's"),
        ({"a": entry("F32", [True], 0, 4)}, "not a tensor's"),
        ({"a": entry("F32", [1 << 64], 0, 4)}, "not a tensor's"),
        ({"a": entry("F32", [1] * 17, 0, 4)}, "impossible numbers"),
        ({"a": {"dtype": "F32", "shape": [1], "data_offsets": [0]}}, "impossible numbers"),
        ({"a": None}, "not a tensor's"),
        ([], "holds a JSON list, not an object"),
        (b"\xff\xfe", "not UTF-8"),
        (b"{", "not JSON"),
        (b'{"a": ' + b"[" * 100_000, "not usable JSON: RecursionError"),
        (b'{"a": {}, "a": {}}', "names 'a' twice"),
        (b'{"a": ' + b"9" * 5000 + b"}", "not usable JSON: ValueError"),
    ],
)
def test_a_header_that_is_not_one_says_why(path: Path, entries: Any, says: str) -> None:
    write(path, entries, data=8)

    with pytest.raises(Unreadable, match=says):
        safetensors_header.read(path)


def test_of_a_file_of_18_gigabytes_only_the_header_is_read(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_shard(path, {"large": ("BF16", (288, 1280, 4096, 6))})
    read: list[int] = []
    real_open = Path.open

    def counting_open(self: Path, *arguments: Any, **options: Any) -> Any:
        file = real_open(self, *arguments, **options)
        real_read = file.read

        class Counting:
            def __enter__(self) -> Any:
                return self

            def __exit__(self, *_: object) -> None:
                file.close()

            def read(self, size: int) -> bytes:
                read.append(size)
                return bytes(real_read(size))

        return Counting()

    monkeypatch.setattr(Path, "open", counting_open)

    found = safetensors_header.read(path)

    assert found.file_bytes > 18_000_000_000
    assert sum(read) < 1000
