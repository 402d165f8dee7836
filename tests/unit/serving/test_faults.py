# SPDX-License-Identifier: Apache-2.0
"""``kit explain``: texts that were really seen, logs of any size, and an honest answer to anything else."""

from __future__ import annotations

import json
import os
import random
import re
import threading
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from patchkit.errors import Refused
from serving.faults import explaining, report, screen, table
from serving.faults.fault import ANYTHING, Severity
from unit.serving.fault_cases import CASES, KINDS, UNRELATED

FAULTS = table.faults()

# Where each text was seen: "tried" is a run of ours on the real vLLM 0.20.2 or vllm-ascend 0.20.2rc1
# without an NPU; "message" is the sentence in their sources with its gaps filled in; a name with a number
# is a public issue or pull request, of which the telling line is quoted.
SEEN = [
    # tried
    (
        "vllm-half-missing",
        "AttributeError: 'Step3VLProcessor' object has no attribute '_get_num_multimodal_tokens'",
    ),
    (
        "architecture-unknown",
        "ValueError: Model architectures ['Step3p7ForConditionalGeneration'] are not supported for now. "
        "Supported architectures: dict_keys(['AfmoeForCausalLM', 'ApertusForCausalLM'])",
    ),
    (
        "model-module-missing",
        "ERROR 12-01 01:32:16 [registry.py:912] ModuleNotFoundError: No module named "
        "'vllm.model_executor.models.step3p7'",
    ),
    (
        "model-module-broken",
        "ERROR 12-01 01:31:56 [registry.py:912] Error in inspecting model architecture "
        "'Step3p7ForConditionalGeneration'",
    ),
    (
        "model-module-broken",
        "ValueError: Model architectures ['Step3p7ForConditionalGeneration'] failed to be inspected. "
        "Please check the logs for more details.",
    ),
    (
        "activation-missing",
        "ImportError: cannot import name 'swiglustep_and_mul' from 'vllm_ascend.ops.activation' "
        "(/vllm-workspace/vllm-ascend/vllm_ascend/ops/activation.py)",
    ),
    ("guide-to-the-letter", "NameError: name 'swiglu_limit' is not defined"),
    ("activation-unknown", "AssertionError: MoEActivation.SWIGLUSTEP is not supported."),
    ("tokenizer-unwrapped", "AttributeError: TokenizersBackend has no attribute max_chars_per_token"),
    (
        "remote-code-not-trusted",
        "(APIServer pid=20424)   Value error, The repository m1 contains custom code which must be executed "
        "to correctly load the model. You can inspect the repository content at /models/m1 .",
    ),
    (
        "wrong-config-class",
        "AttributeError: 'Step3TextConfig' object has no attribute 'max_position_embeddings'",
    ),
    (
        "wrong-config-class",
        "  Value error, The text_config extracted from the model config does not have `num_attention_heads` "
        "attribute. This indicates a mismatch between the model config and vLLM's expectations.",
    ),
    (
        "model-type-unknown",
        "  Value error, The checkpoint you are trying to load has model type `step3p7` but Transformers does "
        "not recognize this architecture. This could be because of an issue with the checkpoint, or because "
        "your version of Transformers is out of date.",
    ),
    (
        "configuration-file-missing",
        "(APIServer pid=22825) OSError: m2 does not appear to have a file named configuration_step3p7.py. "
        "Checkout '...' for available files.",
    ),
    (
        "hub-unreachable",
        "(APIServer pid=23002) OSError: We couldn't connect to '...' to load the files, and couldn't find "
        "them in the cached files.",
    ),
    (
        "not-a-folder",
        "huggingface_hub.errors.LocalEntryNotFoundError: Cannot find an appropriate cached snapshot "
        "folder for the specified revision on the local disk and outgoing traffic has been disabled.",
    ),
    (
        "shard-damaged",
        "safetensors_rust.SafetensorError: Error while deserializing header: incomplete metadata, file not "
        "fully covered",
    ),
    (
        "shard-damaged",
        "safetensors._safetensors_rust.SafetensorError: Error while deserializing header: header too small",
    ),
    (
        "resume-download",
        "UserWarning: The `resume_download` argument is deprecated and ignored in `snapshot_download`. "
        "Downloads always resume whenever possible.",
    ),
    (
        "no-room-for-kv",
        "ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization` when "
        "initializing the engine.",
    ),
    (
        "context-too-long-for-kv",
        "ValueError: To serve at least one request with the models's max seq len (131072), (0.88 GiB KV "
        "cache is needed, which is larger than the available KV cache memory (0.68 GiB). Based on the "
        "available memory, the estimated maximum model length is 98304.",
    ),
    ("torch-npu-missing", "ModuleNotFoundError: No module named 'torch_npu'"),
    ("uid-without-name", "KeyError: 'getpwuid(): uid not found: 12345'"),
    ("port-in-use", "(APIServer pid=20671) OSError: [Errno 98] Address already in use"),
    (
        "kubernetes-service-link",
        "ValueError: VLLM_PORT 'tcp://10.0.0.1:8000' appears to be a URI. This may be caused by a Kubernetes "
        "service discovery issue,check the warning in: https://docs.vllm.ai/en/stable/serving/env_vars.html",
    ),
    (
        "preload-absent",
        "ERROR: ld.so: object '/usr/lib/aarch64-linux-gnu/libjemalloc.so.2' from LD_PRELOAD cannot be "
        "preloaded (cannot open shared object file): ignored.",
    ),
    (
        "no-server",
        "curl: (7) Failed to connect to 127.0.0.1 port 9 after 0 ms: Couldn't connect to server",
    ),
    ("no-lora", "ValueError: Step3p7ForConditionalGeneration does not support LoRA yet."),
    (
        "no-nvidia-driver",
        "W1201 01:08:05 20424 torch/utils/cpp_extension.py:140] No CUDA runtime is found, using "
        "CUDA_HOME='/usr/local'",
    ),
    # message (vLLM 0.20.2, vllm-ascend 0.20.2rc1, and this kit's own)
    (
        "quantised-experts",
        "NotImplementedError: Quantised MoE experts with activation 'swiglustep' are not supported: the "
        "quantised path would compute plain SwiGLU without the clamp. Serve the bfloat16 checkpoint "
        "instead.",
    ),
    (
        "chat-template-missing",
        "As of transformers v4.44, default chat template is no longer allowed, so you must provide a chat "
        "template if the tokenizer does not define one.",
    ),
    (
        "weights-do-not-fit",
        "ValueError: There is no module or parameter named 'vision_model.extra' in "
        "Step3p7ForConditionalGeneration. The available parameters belonging to vision_model",
    ),
    (
        "weights-do-not-fit",
        "ValueError: Following weights were not initialized from checkpoint: {'vit_large_projector.weight'}",
    ),
    ("clamp-not-seven", "AssertionError: Swiglu limit in fused moe block only support 7.0 now."),
    (
        "other-chip",
        "AssertionError: Current device type: AscendDeviceType.A3 does not match the installed version's "
        "device type: AscendDeviceType.A2, please check your installation package.",
    ),
    ("other-chip", "RuntimeError: Can not support soc_version: 104."),
    (
        "launch-blocking",
        "ValueError: ACL graph is incompatible with ASCEND_LAUNCH_BLOCKING=1. Please unset "
        "ASCEND_LAUNCH_BLOCKING or set it to 0.",
    ),
    ("flashcomm1", "AssertionError: Flash Comm v1 requires enable_expert_parallel=True for MoE models."),
    (
        "request-too-long",
        "This model's maximum context length is 4096 tokens. However, you requested 1024 output tokens "
        "and your prompt contains 3164 input tokens, for a total of 4188 tokens.",
    ),
    ("no-pictures", "At most 0 image(s) may be provided in one prompt."),
    (
        "engine-failed",
        "RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): "
        "{'EngineCore_DP0': 1}",
    ),
    (
        "waiting-for-worker",
        "No available shared memory broadcast block found in 60 seconds. This typically happens when some "
        "processes are hanging or doing some time-consuming work",
    ),
    (
        "cpu-binding",
        "Bind cpus failed in rank0: [Errno 2] No such file or directory: 'npu-smi' Skip binding cpu.",
    ),
    # the fields and replies that the guide's readers ask about
    ("config-field-missing", "AttributeError: 'Step3p5Config' object has no attribute 'swiglu_limits'"),
    ("prompt-too-short", '"usage":{"prompt_tokens":7,"total_tokens":39,"completion_tokens":32}'),
    ("text-garbled", '"content":"TheĠcapitalĠofĠFranceĊ"'),
    ("text-garbled", "中文回答是乱码"),
    # public reports
    (  # vllm-project/vllm-ascend 1987
        "out-of-memory",
        "RuntimeError: NPU out of memory. Tried to allocate 3.47 GiB (NPU 0; 60.97 GiB total capacity; "
        "58.92 GiB already allocated",
    ),
    (  # vllm-project/vllm-ascend 9372
        "no-room-for-kv",
        "Available KV cache memory: -0.87 GiB",
    ),
    (  # vllm-project/vllm-ascend 8621
        "cards-in-use",
        "ValueError: Free memory on device (27.18/60.96 GiB) on startup is less than desired GPU memory "
        "utilization (0.9, 54.86 GiB).",
    ),
    (  # vllm-project/vllm-ascend 1440
        "driver-not-mounted",
        "libascend_hal.so: cannot open shared object file: No such file or directory",
    ),
    (  # vllm-project/vllm-ascend 1440
        "torch-npu-fails",
        "RuntimeError: Failed to load the backend extension: torch_npu. You can disable extension "
        "auto-loading with TORCH_DEVICE_BACKEND_AUTOLOAD=0.",
    ),
    (  # vllm-project/vllm-ascend 152
        "cann-not-sourced",
        "ImportError: libatb.so: cannot open shared object file: No such file or directory",
    ),
    (  # vllm-project/vllm-ascend 262
        "no-platform",
        'raise RuntimeError("Failed to infer device type")',
    ),
    (  # vllm-project/vllm-ascend 2698
        "card-held-elsewhere",
        "dcmi module initialize failed. ret is -8005",
    ),
    (  # vllm-project/vllm-ascend 632
        "card-held-elsewhere",
        "dcmi model initialized failed, because the device is used. ret is -8020",
    ),
    (  # gpustack/gpustack 3352
        "visible-devices",
        "GetVisibleDevices:[INIT][DEFAULT]set ASCEND_RT_VISIBLE_DEVICES:[4] error, input data rang[0-2)",
    ),
    (  # vllm-project/vllm-ascend 405
        "hccl-port",
        "EJ0003: [PID: 159] Failed to bind the IP port. Reason: The IP address and port have been bound "
        "already.",
    ),
    (  # vllm-project/vllm-ascend 405
        "hccl-port",
        "host nic listen start failed, port[60000], return[11]",
    ),
    (  # vllm-project/vllm-ascend 4725
        "hccl-card-port",
        "[HcclSocket][Listen] socket type[0], listen on ip[192.2.2.195] and specific port[16666] fail.",
    ),
    (  # vllm-project/vllm-ascend 5461
        "hccl-connect-timeout",
        "[PID: 749] Get_Socket_Timeout(EI0006): Getting socket times out.",
    ),
    (  # vllm-project/vllm-ascend 1443
        "hccl-wait-timeout",
        "EI0002: [PID: 13075] The wait execution of the Notify register times out.",
    ),
    (  # gpustack/gpustack 5014
        "shared-memory-full",
        "System memory request exceeds memory available in /dev/shm.",
    ),
    (  # vllm-project/vllm 1771
        "shared-memory-full",
        "Fatal python error: Bus error",
    ),
    (  # NVIDIA/Megatron-LM 878
        "disk-full",
        "OSError: [Errno 28] No space left on device",
    ),
    (  # vllm-project/vllm 3485
        "model-name",
        '{"object":"error","message":"The model `Qwen1.5-14B-Chat-GPTQ-Int8` does not exist.",'
        '"type":"NotFoundError","param":null,"code":404}',
    ),
    (  # run-llama/llama_index 13640
        "proxy-in-between",
        "httpx.HTTPStatusError: Server error '503 Service Unavailable' for url "
        "'http://127.0.0.1:11434/api/chat'",
    ),
    (  # vllm-project/vllm-omni 512
        "no-vllm-c",
        "Failed to import from vllm._C with ModuleNotFoundError(\"No module named 'vllm._C'\")",
    ),
]


@pytest.mark.parametrize(("name", "text"), SEEN, ids=[f"{at}-{name}" for at, (name, _) in enumerate(SEEN)])
def test_a_text_that_was_seen_is_explained_by_its_row_alone(name: str, text: str) -> None:
    found = explaining.explain(text)

    assert [explanation.fault.name for explanation in found] == [name]
    assert found[0].known
    assert found[0].seen.line == 1


def test_every_row_has_a_text_that_was_seen() -> None:
    assert {name for name, _ in [*SEEN, *CASES, *KINDS]} == {fault.name for fault in FAULTS}


def test_every_row_is_complete_and_has_a_name_of_its_own() -> None:
    names = [fault.name for fault in FAULTS]

    assert len(set(names)) == len(names)
    for fault in FAULTS:
        assert all((fault.signs, fault.cause, fault.cure, fault.source))
        assert "\n" not in fault.cure
        assert not re.search(r"vllm serve \.\.\.|\bDIR\b|\bN\b", fault.cure)  # a command that can be typed
        assert fault.explained_by <= {*names, ANYTHING} - {fault.name}


@pytest.mark.parametrize("question", [1, 2, 3, 4, 5, 6])
def test_each_question_of_the_guides_readers_has_a_row(question: int) -> None:
    assert any(f"question {question} of the guide's readers" in fault.source for fault in FAULTS)


# --- anything else -------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text", ["", "\n\n", "all is well", "GET /health 200 OK", "Uvicorn running on http://x"]
)
def test_a_text_without_any_error_is_not_known(text: str) -> None:
    (found,) = explaining.explain(text)

    assert not found.known
    assert found.seen.line == 0
    assert "collect: " in report.text((found,), "scripts/kit")
    assert "scripts/kit doctor --json" in report.text((found,), "scripts/kit")


def test_an_unknown_error_is_shown_and_not_guessed_at() -> None:
    text = "INFO starting\nERROR something\nTraceback:\nacme.FluxError: capacitor empty\nValueError: later\n"

    (found,) = explaining.explain(text)

    assert not found.known
    assert (found.seen.line, found.seen.text) == (4, "acme.FluxError: capacitor empty")


def test_what_is_harmless_does_not_hide_that_the_rest_is_unknown() -> None:
    text = "Found no NVIDIA driver on your system\nacme.FluxError: capacitor empty\n"

    assert [explanation.fault.severity for explanation in explaining.explain(text)] == [
        Severity.UNKNOWN,
        Severity.HARMLESS,
    ]


def test_ordinary_words_are_no_sign() -> None:
    log = (
        "non-default args: {'max_model_len': 4096, 'model': '/models/step', 'layer_types': 'missing'}\n"
        "prompt_tokens: 78\n"
        "the folder does not exist.\n"
        "config has max_position_embeddings and num_attention_heads\n"
        "loading libascend_hal.so from /usr/local/Ascend/driver/lib64/driver\n"
    )

    assert not any(explanation.known for explanation in explaining.explain(log))


# --- order ---------------------------------------------------------------------------------

LOG = """\
INFO 12-01 01:08:07 [utils.py:299] version 0.20.2
Failed to import from vllm._C with ModuleNotFoundError("No module named 'vllm._C'")
(Worker_TP3 pid=11) ERROR 12-01 WorkerProc failed to start.
(Worker_TP3 pid=11) ERROR 12-01 Traceback (most recent call last):
\x1b[31m(Worker_TP3 pid=11) ERROR 12-01 RuntimeError: NPU out of memory. Tried to allocate 3.47 GiB\x1b[0m
(Worker_TP5 pid=13) ERROR 12-01 RuntimeError: NPU out of memory. Tried to allocate 3.47 GiB
(Worker_TP0 pid=8) EI0006: Getting socket times out.
(Worker_TP0 pid=8) ERROR 12-01 OSError: [Errno 28] No space left on device
RuntimeError: Engine core initialization failed. See root cause above.
"""


def test_causes_come_first_by_line_then_what_follows_then_what_is_harmless() -> None:
    found = [(e.fault.name, e.fault.severity, e.seen.line, e.seen.count) for e in explaining.explain(LOG)]

    assert found == [
        ("out-of-memory", Severity.FATAL, 5, 2),
        ("disk-full", Severity.FATAL, 8, 1),
        ("engine-failed", Severity.CONSEQUENCE, 3, 2),
        ("hccl-connect-timeout", Severity.CONSEQUENCE, 7, 1),
        ("no-vllm-c", Severity.HARMLESS, 2, 1),
    ]


def test_a_row_is_a_consequence_only_where_its_cause_was_seen() -> None:
    timeout, hal = "EI0006: Getting socket times out.", "libascend_hal.so: cannot open shared object file"
    fails = "RuntimeError: Failed to load the backend extension: torch_npu."

    assert explaining.explain(timeout)[0].fault.severity is Severity.FATAL
    assert [(e.fault.name, e.fault.severity) for e in explaining.explain(f"{fails}\n{hal}")] == [
        ("driver-not-mounted", Severity.FATAL),
        ("torch-npu-fails", Severity.CONSEQUENCE),
    ]


def test_the_report_shows_line_count_cause_and_cure() -> None:
    text = report.text(explaining.explain(LOG), "scripts/kit")

    assert text.splitlines()[0] == "out-of-memory (line 5, 2 times)"
    assert "  seen:  (Worker_TP3 pid=11) ERROR 12-01 RuntimeError: NPU out of memory. Tried to" in text
    assert "# scripts/kit plan /data/Step-3.7-Flash computes what fits" in text
    assert text.index("which follows from something earlier:") > text.index("disk-full")
    assert text.index("which looks worse than it is:") > text.index("engine-failed")
    assert all(char.isprintable() or char == "\n" for char in text)


def test_the_report_for_a_program_has_the_same_order_and_every_field() -> None:
    data = json.loads(json.dumps(report.as_json(explaining.explain(LOG), "scripts/kit")))

    assert data["known"] is True
    assert [row["name"] for row in data["explanations"]][:2] == ["out-of-memory", "disk-full"]
    first = data["explanations"][0]
    assert set(first) == {
        "name", "kind", "severity", "line", "count", "seen", "cause", "codes", "could_be", "decide", "cure",
        "source",
        "first_errors",
    }  # fmt: skip
    assert (first["kind"], first["line"], first["count"]) == ("cause", 5, 2)
    assert report.as_json(explaining.explain("x"))["known"] is False


@pytest.mark.parametrize("width", [60, 79, 80, 81])
def test_a_text_that_a_terminal_has_wrapped_is_found_all_the_same(width: int) -> None:
    text = (
        "(APIServer pid=22825) OSError: m2 does not appear to have a file named configuration_step3p7.py. "
        "Checkout the folder"
    )
    wrapped = "\n".join(text[at : at + width] for at in range(0, len(text), width))

    assert explaining.explain(wrapped)[0].fault.name == "configuration-file-missing"


# --- eight workers -------------------------------------------------------------------------

EIGHT = [
    "\x1b[1;36m(APIServer pid=100)\x1b[0;0m INFO 12-01 01:08:07 [utils.py:299] version 0.20.2",
    "\x1b[1;36m(Worker_TP{rank} pid=20{rank})\x1b[0;0m INFO 12-01 01:08:09 [model_runner_v1.py:2] Loading",
    "(Worker_TP{rank} pid=20{rank}) ERROR 12-01 01:09:00 EI0006: Getting socket times out. Reason: remote",
    "\x1b[1;36m(Worker_TP5 pid=205)\x1b[0;0m \x1b[31mERROR\x1b[0m 12-01 01:08:30 RuntimeError: NPU function "
    "error: aclrtMalloc, \x1b[31merror code is 207001\x1b[0m",
    "(Worker_TP{rank} pid=20{rank}) ERROR 12-01 01:09:01 RuntimeError: Connection closed by peer gloo",
    "(Worker_TP{rank} pid=20{rank}) ERROR 12-01 01:09:02 TimeoutError: RPC call to execute_model timed out.",
    "[ERROR] TBE Subprocess[task_distribute] raise error[], main process disappeared!",
    "(EngineCore_DP0 pid=150) ERROR 12-01 01:09:05 [core.py:1006] EngineCore failed to start.",
    "[ERROR] 2025-12-01-01:09:06 (PID:100, Device:-1, RankID:-1) ERR99999 UNKNOWN applicaiton exception",
]


def eight_workers(seed: int) -> list[str]:
    """Each worker's lines in their order, those of different workers in any."""
    draw = random.Random(seed)
    queues = [
        [line.format(rank=rank) for line in EIGHT if rank == 5 or "TP5" not in line] for rank in range(8)
    ]
    lines = []
    while queues := [queue for queue in queues if queue]:
        lines.append(draw.choice(queues).pop(0))
    return lines


@pytest.mark.parametrize("seed", range(8))
def test_of_eight_workers_the_one_that_failed_first_is_the_cause(seed: int, tmp_path: Path) -> None:
    log = tmp_path / "serve.log"
    lines = eight_workers(seed)
    log.write_text("\n".join(lines))

    found = explaining.explain_log(log)

    assert [e.fault.name for e in found if e.fault.severity.is_cause] == ["device-memory-full"]
    assert "Worker_TP5" in lines[found[0].seen.line - 1]
    assert {e.fault.name for e in found if e.fault.severity is Severity.CONSEQUENCE} == {
        "hccl-connect-timeout",
        "rank-lost",
        "worker-call-timeout",
        "compiler-left-behind",
        "engine-failed",
        "ended-by-exception",
    }


def test_of_an_unknown_fault_the_first_error_of_each_process_is_shown() -> None:
    text = "\n".join(
        line
        for line in eight_workers(1)
        if not any(known in line for known in ("EI0006", "RPC call", "207001"))
    )
    text += "\n(Worker_TP5 pid=205) ERROR 12-01 01:08:30 acme.FluxError: capacitor empty"

    found = explaining.explain(text)[0]

    assert found.fault.name == "unknown"
    assert {process.split()[0] for process, _ in found.processes} >= {f"(Worker_TP{n}" for n in range(8)}
    said = report.text([found], "scripts/kit")
    assert "first error of each process:" in said
    assert "~/ascend/log/debug/plog" in said
    assert "ASCEND_PROCESS_LOG_PATH" in said


# --- logs ----------------------------------------------------------------------------------


def test_a_log_is_explained_like_its_text(tmp_path: Path) -> None:
    path = tmp_path / "serve.log"
    path.write_text(LOG)

    assert explaining.explain_log(path) == explaining.explain(LOG)


def test_line_numbers_hold_beyond_the_first_block(tmp_path: Path) -> None:
    path = tmp_path / "serve.log"
    line = "INFO: 127.0.0.1 - POST /v1/chat/completions 200 OK and some more text to fill it\n"
    with path.open("w") as file:
        file.writelines([line] * 30_000)
        file.write("RuntimeError: NPU out of memory.\n")
        file.writelines([line] * 30_000)
        file.write("OSError: [Errno 28] No space left on device")

    found = explaining.explain_log(path)

    assert path.stat().st_size > 4 << 20
    assert [(e.fault.name, e.seen.line) for e in found] == [("out-of-memory", 30_001), ("disk-full", 60_002)]


def test_a_line_that_lies_across_two_blocks_is_read_as_one(tmp_path: Path) -> None:
    path = tmp_path / "serve.log"
    sign = "RuntimeError: NPU out of memory."
    path.write_text("x" * ((1 << 20) - len(sign) // 2 - 1) + "\n" + sign + "\nlast\n")

    assert [(e.fault.name, e.seen.line) for e in explaining.explain_log(path)] == [("out-of-memory", 2)]


def test_a_log_of_binary_junk_in_one_line_is_read_in_bounded_memory(tmp_path: Path) -> None:
    path = tmp_path / "core"
    with path.open("wb") as file:
        file.truncate(48 << 20)
        file.seek(0, os.SEEK_END)
        file.write(b"\xff\xfe NPU out of memory \x00\x1b[2J\nKeyError: 'x'\n")

    tracemalloc.start()
    found = explaining.explain_log(path)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert [(e.fault.name, e.seen.line) for e in found] == [("out-of-memory", 1)]
    assert found[0].seen.text.isprintable()
    assert peak < 16 << 20


def test_a_log_can_come_through_a_pipe(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=lambda: pipe.write_text(LOG))
    writer.start()

    found = explaining.explain_log(pipe)

    writer.join(5)
    assert found[0].fault.name == "out-of-memory"


@pytest.mark.parametrize(("name", "reason"), [("absent", "No such file"), (".", "Is a directory")])
def test_a_log_that_cannot_be_read_is_refused_in_one_sentence(tmp_path: Path, name: str, reason: str) -> None:
    with pytest.raises(Refused, match=reason):
        explaining.explain_log(tmp_path / name)


def test_a_log_of_an_unrelated_program_is_not_known(tmp_path: Path) -> None:
    log = tmp_path / "syslog"
    log.write_text(UNRELATED)

    assert [e.fault.name for e in explaining.explain_log(log)] == ["unknown"]


def test_the_same_texts_count_in_a_log_of_a_server_and_when_asked_for(tmp_path: Path) -> None:
    log = tmp_path / "serve.log"
    log.write_text(f"INFO [utils.py:299] vLLM version 0.20.2\n{UNRELATED}")
    full = "OSError: [Errno 28] No space left on device"

    assert {"disk-full", "not-permitted", "port-in-use"} <= {
        e.fault.name for e in explaining.explain_log(log)
    }
    assert explaining.explain(full)[0].fault.name == "disk-full"


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("size", [512, 4096, 3 << 20])
def test_random_bytes_are_refused_in_one_sentence(tmp_path: Path, seed: int, size: int) -> None:
    path = tmp_path / "core"
    path.write_bytes(random.Random(seed).randbytes(size))

    with pytest.raises(Refused, match="is no text: a binary file") as refused:
        explaining.explain_log(path)

    assert refused.value.exit_code == 3


@pytest.mark.parametrize("encoding", ["gbk", "utf-16", "latin-1"])
def test_a_text_of_another_encoding_is_no_binary(tmp_path: Path, encoding: str) -> None:
    path = tmp_path / "serve.log"
    path.write_bytes("INFO vllm\r\nRuntimeError: NPU out of memory.\r\n".encode(encoding))

    assert [(e.fault.name, e.seen.line) for e in explaining.explain_log(path)] == [("out-of-memory", 2)]


SIGNS = sorted({screen.letters(sign.encode()) for fault in FAULTS for sign in fault.signs})


@settings(max_examples=100, deadline=None, derandomize=True)
@given(st.lists(st.lists(st.sampled_from([*SIGNS, b"INFO", b"server", b"x", b" "]), max_size=4), max_size=6))
def test_the_quick_look_finds_the_signs_that_a_slow_one_finds(lines: list[list[bytes]]) -> None:
    quick = screen.Screen(SIGNS)

    for words in [*lines, *lines]:  # the second time from memory
        line = b" ".join(words) + b"".join(words)
        assert set(quick.signs_in(line)) == {sign for sign in SIGNS if sign in line}


@settings(max_examples=150, deadline=None, derandomize=True)
@given(
    st.text(max_size=400)
    | st.lists(
        st.sampled_from([*(s for f in FAULTS for s in f.signs), "\n", "\x1b[0m", "\r", "Error: "])
    ).map(" ".join)
)
def test_no_text_breaks_it_and_no_answer_is_empty(text: str) -> None:
    found = explaining.explain(text)

    assert found
    assert report.text(found)
    json.dumps(report.as_json(found))


# --- the field -----------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "text"), [*CASES, *KINDS])
def test_a_text_from_the_field_has_its_right_row_first_and_alone(name: str, text: str) -> None:
    assert [explanation.fault.name for explanation in explaining.explain(text)] == [name]


# --- numbers -------------------------------------------------------------------------------

HCCL_RESULTS = """\
PARA PTR MEMORY INTERNAL NOT_SUPPORT NOT_FOUND UNAVAIL SYSCALL TIMEOUT OPEN_FILE_FAILURE TCP_CONNECT
ROCE_CONNECT TCP_TRANSFER ROCE_TRANSFER RUNTIME DRV PROFILING CCE NETWORK AGAIN REMOTE SUSPENDING
OPRETRY_FAIL OOM"""
SEEN_BY_USERS = """\
107001 107002 107003 107022 161001 161002 207001 207005 207018 500001 500002 507000 507008 507010 507011
507014 507015 507017 507018 507033 507035 507046 507053 507054 507056 507057 507899 561000 561103"""
LETTERS = """\
EE1001 EE9999 EI0002 EI0006 EI0009 EI0019 EJ0003 EL0003 EL0004 EZ9999 EZ1001 EH0010 E40021"""


@pytest.mark.parametrize(("number", "name"), list(enumerate(HCCL_RESULTS.split(), 1)))
def test_a_result_of_hccl_gets_its_name(number: int, name: str) -> None:
    text = f"RuntimeError: HCCL function error: hcclBarrier(comm), error code is {number}"

    assert f"{number} HCCL_E_{name}: " in report.text(explaining.explain(text))


def test_a_small_number_alone_is_no_result_of_hccl() -> None:
    assert not explaining.explain("the job ended, error code is 5")[0].known


@pytest.mark.parametrize("number", SEEN_BY_USERS.split())
@pytest.mark.parametrize("text", ["{}", "error code is {}", "rtStreamSynchronize ret={}", "ErrCode={}, desc"])
def test_a_number_of_the_runtime_gets_its_name(text: str, number: str) -> None:
    (found,) = explaining.explain(text.format(number))

    assert found.fault.name == f"acl-{number}"
    assert re.match(rf"{number} ACL\w+: ", found.fault.cause)
    assert "Usually " in found.fault.cause


@pytest.mark.parametrize("code", LETTERS.split())
def test_a_letter_code_alone_gets_its_name(code: str) -> None:
    found = explaining.explain(code)

    assert found[0].known
    assert re.search(rf": +{code} \w+: .+ Usually ", report.text(found))


@pytest.mark.parametrize(
    ("code", "means"),
    [("ERR00100", "call acl api"), ("ERR01007", "not supported"), ("ERR02200", "call hccl api")],
)
def test_a_code_of_torch_npu_says_what_failed(code: str, means: str) -> None:
    (found,) = explaining.explain(f"[ERROR] 2025-06-17 (PID:1) {code} PTA failed")

    assert means in found.fault.cause


@pytest.mark.parametrize("text", ["599999", "error code is 999999", "pid 507015 started", "EI12", "E507015"])
def test_a_number_that_no_list_confirms_is_not_known(text: str) -> None:
    assert not explaining.explain(text)[0].known


def test_a_colour_within_a_text_does_not_hide_it() -> None:
    assert (
        explaining.explain("RuntimeError: \x1b[1;31mNPU\x1b[0m out of memory")[0].fault.name
        == "out-of-memory"
    )
