# SPDX-License-Identifier: Apache-2.0
"""Error texts that people meet on the way to a running server: what causes them, what cures them.

One table. A row's ``signs`` are pieces of text of which any one, in one line, is enough; with
``confirm`` that line must match it as well. ``source`` says where the text was seen:
"tried" on the real vLLM 0.20.2 on a CPU, "read" in the sources of this release, or a public report.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from enum import Enum
from pathlib import Path
from typing import IO, Any

from patchkit.errors import Refused

from .machine.reference import SHARED_MEMORY

_BLOCK = 1 << 20
"""Bytes of a log that are looked at in one go, and at most as many again to finish the last line."""

_SHOWN = 240
_BEFORE_SIGN = 80


class Kind(Enum):
    CAUSE = "cause"
    CONSEQUENCE = "consequence"
    """Something else went wrong before it."""
    HARMLESS = "harmless"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class Fault:
    """One row of the table. In ``cure``, ``{kit}`` stands for the kit as it was called."""

    name: str
    signs: tuple[str, ...]
    cause: str
    cure: str
    source: str
    kind: Kind = Kind.CAUSE
    confirm: re.Pattern[str] | None = None
    explained_by: frozenset[str] = frozenset()
    """Rows that, where they are found too, make this one a consequence."""

    def sign_in(self, line: str) -> str:
        """The sign that the line shows, "" if none."""
        found = next((sign for sign in self.signs if sign in line), "")
        return found if found and (self.confirm is None or self.confirm.search(line)) else ""


@dataclass(frozen=True)
class Explanation:
    """A row that was found: in which line first, in how many, and the text there."""

    fault: Fault
    line: int
    count: int
    seen: str

    @property
    def known(self) -> bool:
        return self.fault.kind is not Kind.UNKNOWN


_GUIDE = "question {} of the guide's readers"
_REPORT = "public report: {}"
_TRIED = "tried on vLLM 0.20.2"
_READ = "read in the sources of vLLM 0.20.2 and vllm-ascend 0.20.2rc1"

_SET_ENV = (
    "source /usr/local/Ascend/ascend-toolkit/set_env.sh && source /usr/local/Ascend/nnal/atb/set_env.sh"
)

FAULTS = (
    # --- the patch set ----------------------------------------------------------------
    Fault(
        "vllm-half-missing",
        ("_get_num_multimodal_tokens",),
        "The vLLM half of the set is missing: vLLM does not know the architecture, and falls back to a "
        "generic wrapper around the model folder's own processor.",
        "{kit} apply",
        f"{_TRIED}; {_GUIDE.format(1)}",
    ),
    Fault(
        "architecture-unknown",
        ("are not supported for now",),
        "vLLM does not know the architecture: its registry entry, or the whole vLLM half of the set, is "
        "missing from the installation that was started.",
        "{kit} apply",
        _TRIED,
        confirm=re.compile(r"Model architectures"),
        explained_by=frozenset({"model-module-missing", "model-module-broken"}),
    ),
    Fault(
        "model-module-missing",
        ("No module named 'vllm.model_executor.models.step3p7'",),
        "The registry entry is there, the model file step3p7.py is not.",
        "{kit} apply",
        _TRIED,
    ),
    Fault(
        "model-module-broken",
        ("Error in inspecting model architecture", "failed to be inspected"),
        "The architecture is registered, but its module fails to import. The lines after this one say why.",
        "{kit} verify",
        _TRIED,
        confirm=re.compile(r"Step3p7"),
        explained_by=frozenset({"model-module-missing"}),
    ),
    Fault(
        "activation-missing",
        ("cannot import name 'swiglustep_and_mul'",),
        "moe_mlp.py is patched, activation.py is not: one of the two files of the vllm-ascend half is "
        "missing.",
        "{kit} apply",
        f"Python's own message; {_GUIDE.format(3)}",
    ),
    Fault(
        "guide-to-the-letter",
        ("name 'swiglu_limit' is not defined",),
        "moe_mlp.py was edited by hand after the public guide, which shows two of the four edits.",
        "restore moe_mlp.py from the image, then: {kit} apply",
        _TRIED,
    ),
    Fault(
        "activation-unknown",
        ("swiglustep", "SWIGLUSTEP"),
        "An activation that the vllm-ascend half of the set brings was not known where it was needed.",
        "{kit} verify",
        f"tried on the CPU path of vLLM 0.20.2; {_GUIDE.format(3)}",
        confirm=re.compile(r"(?i)^(?!.*quantised).*(?:unsupported|not supported|unknown|KeyError)"),
        explained_by=frozenset({"activation-missing"}),
    ),
    Fault(
        "quantised-experts",
        ("Quantised MoE experts with activation 'swiglustep' are not supported",),
        "The checkpoint's experts are quantised. That path has no clamp, and layers 43 and 44 would be "
        "wrong, so the set refuses it.",
        "{kit} check-model DIR    # then serve the bfloat16 checkpoint",
        f"this kit's own message; {_GUIDE.format(6)}",
    ),
    # --- the tokenizer and the template -----------------------------------------------
    Fault(
        "tokenizer-unwrapped",
        ("max_chars_per_token",),
        "The tokenizer patch is there by half: the class is chosen, but not wrapped. Every chat answers "
        "HTTP 500.",
        "{kit} apply",
        _TRIED,
        confirm=re.compile(r"(?i)attribute"),
    ),
    Fault(
        "prompt-too-short",
        ("prompt_tokens",),
        "If the question was longer than a word, its text was lost before the model saw it: the "
        "tokenizer patch is missing, or the chat template. Seven or eight tokens are those of the "
        "template alone.",
        "{kit} verify",
        f"{_TRIED}; {_GUIDE.format(4)}",
        confirm=re.compile(r"prompt_tokens\W{1,4}[78]\b"),
    ),
    Fault(
        "text-garbled",
        ("Ġ", "Ċ", "garbled", "乱码"),
        "The wrong tokenizer class reads the file: spaces and newlines show as Ġ and Ċ, or Chinese text "
        "is lost. The tokenizer patch is missing, or --trust-remote-code.",
        "{kit} verify",
        f"{_TRIED}; {_GUIDE.format(4)}",
    ),
    Fault(
        "chat-template-missing",
        ("default chat template is no longer allowed",),
        "The model folder has no chat template, neither in tokenizer_config.json nor as chat_template.jinja.",
        "{kit} check-model DIR    # copy chat_template.jinja from the published model into it",
        f"{_READ}; {_GUIDE.format(4)}",
    ),
    # --- the model folder -------------------------------------------------------------
    Fault(
        "remote-code-not-trusted",
        ("contains custom code which must be executed",),
        "transformers 5.5.3 has no step3p7, so the configuration class comes from the model folder, and "
        "vLLM runs it only when told to.",
        "vllm serve DIR --trust-remote-code ...",
        f"{_TRIED}; {_GUIDE.format(2)}",
    ),
    Fault(
        "wrong-config-class",
        ("max_position_embeddings", "num_attention_heads"),
        "step3p7 was read by another configuration class (a mapping to Step3VLConfig inside vLLM drops "
        "fields).",
        "remove that mapping, then: vllm serve DIR --trust-remote-code ...",
        _TRIED,
        confirm=re.compile(r"Step3TextConfig|text_config extracted from the model config does not have"),
    ),
    Fault(
        "config-field-missing",
        ("swiglu_limits", "layer_types", "moe_layers_enum", "share_expert_dim", "attention_other_setting"),
        "A field of config.json does not arrive: --trust-remote-code is missing, or "
        "configuration_step3p7.py is not the published one.",
        "vllm serve DIR --trust-remote-code ...    # and: {kit} check-model DIR",
        f"{_GUIDE.format(2)}",
        confirm=re.compile(r"has no attribute|KeyError"),
    ),
    Fault(
        "model-type-unknown",
        ("but Transformers does not recognize this architecture",),
        "config.json has no auto_map, so nothing leads to configuration_step3p7.py. Do not upgrade "
        "transformers, whatever the message says: vllm-ascend needs 5.5.3.",
        "{kit} check-model DIR",
        _TRIED,
    ),
    Fault(
        "configuration-file-missing",
        ("does not appear to have a file named configuration_step3p7.py",),
        "The model folder is not complete: config.json names a file that is not beside it.",
        "{kit} check-model DIR",
        _TRIED,
    ),
    Fault(
        "hub-unreachable",
        ("couldn't find them in the cached files",),
        "A file is missing in the model folder, or auto_map in config.json points to a repository, and "
        "there is no way out of this network.",
        "{kit} check-model DIR",
        _TRIED,
    ),
    Fault(
        "not-a-folder",
        (
            "Cannot find an appropriate cached snapshot folder",
            "is not a local folder and is not a valid model",
        ),
        "The path given to vllm serve is not a folder in this container, so it is taken for the name of "
        "a model to download.",
        "ls DIR/config.json    # in the container: mount the folder with -v DIR:DIR",
        _TRIED,
    ),
    Fault(
        "shard-damaged",
        ("Error while deserializing header",),
        "A .safetensors shard is empty, cut off or not one at all (a saved error page): half a download.",
        "{kit} check-model DIR",
        "tried on safetensors of transformers 5.5.3",
    ),
    Fault(
        "weights-do-not-fit",
        ("There is no module or parameter named", "weights were not initialized from checkpoint"),
        "The checkpoint's tensors are not those that the model has: another checkpoint, or a shard is "
        "missing.",
        "{kit} check-model DIR",
        _READ,
    ),
    Fault(
        "clamp-not-seven",
        ("Swiglu limit in fused moe block only support 7.0",),
        "config.json names another clamp for the routed experts than 7.0, which vLLM 0.20.2 refuses.",
        "{kit} check-model DIR",
        _READ,
    ),
    Fault(
        "resume-download",
        ("resume_download",),
        "The argument of the guide's download command is gone; downloads resume by themselves.",
        "leave resume_download out",
        "tried on huggingface_hub 1.33",
        kind=Kind.HARMLESS,
        confirm=re.compile(r"deprecated|unexpected keyword"),
    ),
    # --- memory -----------------------------------------------------------------------
    Fault(
        "out-of-memory",
        ("NPU out of memory",),
        "A card has no room left for what a step needs. vLLM plans weights, profiled activations and KV "
        "cache up to --gpu-memory-utilization; communication buffers, graphs and larger pictures have "
        "only what is above it.",
        "vllm serve ... --gpu-memory-utilization 0.85 --max-num-seqs 8    # {kit} plan DIR computes what "
        "fits",
        f"{_REPORT.format('vllm-project/vllm-ascend issue 1987')}; {_GUIDE.format(5)}",
    ),
    Fault(
        "no-room-for-kv",
        ("No available memory for the cache blocks", "Available KV cache memory: -"),
        "After the weights nothing is left for the KV cache.",
        "vllm serve ... --gpu-memory-utilization 0.95    # and all 8 cards: {kit} plan DIR",
        f"{_TRIED}; {_GUIDE.format(5)}",
    ),
    Fault(
        "context-too-long-for-kv",
        ("is larger than the available KV cache memory",),
        "One request of --max-model-len tokens does not fit into the KV cache that is left.",
        "vllm serve ... --max-model-len N    # the message names the longest that fits; {kit} plan DIR",
        f"{_TRIED}; {_GUIDE.format(5)}",
    ),
    Fault(
        "cards-in-use",
        ("less than desired GPU memory utilization",),
        "Something else holds memory on the cards: another service, or workers left over from an earlier "
        "start.",
        "{kit} doctor    # names the processes",
        _REPORT.format("vllm-project/vllm-ascend issue 8621"),
    ),
    # --- driver, CANN, torch_npu -------------------------------------------------------
    Fault(
        "driver-not-mounted",
        ("libascend_hal.so",),
        "The host's driver libraries are not in the container.",
        "docker run -v /usr/local/Ascend/driver/lib64:/usr/local/Ascend/driver/lib64 ...",
        _REPORT.format("vllm-project/vllm-ascend issue 1440"),
        confirm=re.compile(r"cannot open shared object|No such file"),
    ),
    Fault(
        "cann-not-sourced",
        ("libhccl.so", "libatb.so", "libascendcl.so", "libopapi.so"),
        "CANN or NNAL is not on the library path: a shell that reads no ~/.bashrc (ssh with a command, "
        "an entrypoint, Kubernetes) has not sourced them.",
        _SET_ENV,
        _REPORT.format("vllm-project/vllm-ascend issues 152 and 262"),
        confirm=re.compile(r"cannot open shared object|No such file"),
    ),
    Fault(
        "torch-npu-missing",
        ("No module named 'torch_npu'",),
        "This Python has no torch_npu: it is not the one of the image, or the image is not vllm-ascend's.",
        "{kit} doctor",
        "tried on vllm-ascend 0.20.2rc1",
    ),
    Fault(
        "torch-npu-fails",
        ("Failed to load the backend extension: torch_npu",),
        "torch_npu is there but cannot be loaded; the error above it says which library or symbol is "
        "missing.",
        "{kit} doctor",
        _REPORT.format("vllm-project/vllm-ascend issue 1440"),
        explained_by=frozenset({"driver-not-mounted", "cann-not-sourced", "torch-npu-missing"}),
    ),
    Fault(
        "no-platform",
        ("Failed to infer device type",),
        "vLLM found no NPU platform: the ascend plugin is not installed, not allowed by VLLM_PLUGINS, or "
        "failed to load.",
        "{kit} doctor",
        _REPORT.format("vllm-project/vllm-ascend issue 262"),
        explained_by=frozenset(
            {"driver-not-mounted", "cann-not-sourced", "torch-npu-missing", "torch-npu-fails"}
        ),
    ),
    Fault(
        "card-held-elsewhere",
        ("ret is -8005", "ret is -8020", "because the device is used"),
        "Another container holds the card, and the driver gives a card to one container at a time.",
        "docker ps    # on the host: stop the other one, or give this one other cards",
        _REPORT.format("vllm-project/vllm-ascend issues 632 and 2698"),
    ),
    Fault(
        "other-chip",
        ("does not match the installed version's device type", "Can not support soc_version"),
        "This build of vllm-ascend is for another chip: 910B wants the image without suffix, 910C -a3, "
        "310P -310p.",
        "start a container of the image vllm-ascend:v0.20.2rc1 for these cards",
        _READ,
    ),
    Fault(
        "visible-devices",
        ("set ASCEND_RT_VISIBLE_DEVICES",),
        "ASCEND_RT_VISIBLE_DEVICES names a card that this container does not have; inside it they count "
        "from 0.",
        "export ASCEND_RT_VISIBLE_DEVICES=0,1,2,3,4,5,6,7",
        _REPORT.format("gpustack/gpustack issue 3352"),
        confirm=re.compile(r"error"),
    ),
    Fault(
        "launch-blocking",
        ("ACL graph is incompatible with ASCEND_LAUNCH_BLOCKING",),
        "A variable left over from debugging.",
        "unset ASCEND_LAUNCH_BLOCKING",
        _READ,
    ),
    Fault(
        "flashcomm1",
        ("Flash Comm v1 requires", "Flash Comm v1 is only supported"),
        "FlashComm1 is switched on. It is broken for this model in this release.",
        "unset VLLM_ASCEND_ENABLE_FLASHCOMM1    # and leave enable_flashcomm1 out of --additional-config",
        _READ,
    ),
    # --- HCCL --------------------------------------------------------------------------
    Fault(
        "hccl-port",
        ("EJ0003", "EI0019", "Failed to bind the IP port", "host nic listen start failed"),
        "A port that HCCL wants on the host (60000-60015) is taken: by a second service, or by an "
        "outgoing connection.",
        "export HCCL_IF_BASE_PORT=61000    # {kit} doctor names the port and who holds it",
        _REPORT.format("vllm-project/vllm-ascend issue 405 and pull request 16205"),
    ),
    Fault(
        "hccl-card-port",
        ("and specific port[16666] fail",),
        "Two services share a card, and both want its own HCCL port.",
        "export HCCL_NPU_SOCKET_PORT_RANGE=auto    # or give each service cards of its own",
        _REPORT.format("vllm-project/vllm-ascend issue 4725"),
    ),
    Fault(
        "hccl-connect-timeout",
        ("EI0006", "Getting socket times out", "wait socket establish timeout"),
        "One card did not come to the meeting of all eight: its worker died or was late, or the link is "
        "down. The first error of another worker says which.",
        "search the log for the first ERROR of each worker; if all were only slow: export "
        "HCCL_CONNECT_TIMEOUT=1200",
        _REPORT.format("vllm-project/vllm-ascend issue 5461"),
        explained_by=frozenset({"out-of-memory", "hccl-port", "hccl-card-port", "shared-memory-full"}),
    ),
    Fault(
        "hccl-wait-timeout",
        ("EI0002", "Notify register times out", "fftsplus timeout", "fftsplus task timeout"),
        "The other cards waited in vain for one that had stopped. That one's first error is the cause.",
        "search the log for the first ERROR of each worker",
        _REPORT.format("vllm-project/vllm-ascend issues 1193 and 2800"),
        kind=Kind.CONSEQUENCE,
    ),
    # --- the container -----------------------------------------------------------------
    Fault(
        "shared-memory-full",
        ("Bus error", "bus error encountered", f"available in {SHARED_MEMORY}", f"{SHARED_MEMORY}: No space"),
        "The shared memory is too small: docker gives 64 MiB, the message buffers of eight workers want "
        "two GiB.",
        "docker run --shm-size=16g ...",
        _REPORT.format("vllm-project/vllm pull request 48879, gpustack/gpustack issue 5014"),
    ),
    Fault(
        "disk-full",
        ("No space left on device",),
        "A disk is full: /tmp, the cache folder, the logs, or /dev/shm.",
        "{kit} doctor    # measures each",
        _REPORT.format("NVIDIA/Megatron-LM issue 878"),
        explained_by=frozenset({"shared-memory-full"}),
    ),
    Fault(
        "uid-without-name",
        ("getpwuid(): uid not found",),
        "The container runs as a uid that /etc/passwd does not know, and torch asks for its name.",
        "export USER=vllm HOME=/tmp/vllm && mkdir -p $HOME    # docker run -e USER=vllm -e "
        "HOME=/tmp/vllm ...",
        _TRIED,
    ),
    Fault(
        "port-in-use",
        ("Address already in use", "address already in use"),
        "Something listens on the port to serve on already; often an earlier server that is still running.",
        "{kit} doctor --port N    # names it; or: vllm serve ... --port N",
        _TRIED,
        explained_by=frozenset({"hccl-port"}),
    ),
    Fault(
        "kubernetes-service-link",
        ("appears to be a URI",),
        "Kubernetes sets VLLM_PORT for a service named vllm, and vLLM takes it for its own port.",
        "unset VLLM_PORT    # in the pod: enableServiceLinks: false",
        _TRIED,
        confirm=re.compile(r"VLLM_PORT"),
    ),
    Fault(
        "preload-absent",
        ("from LD_PRELOAD cannot be preloaded",),
        "LD_PRELOAD names a file that is not there; the path differs between Ubuntu and openEuler and "
        "between processors. Programs run without it.",
        "{kit} doctor    # names the path that is there",
        "tried on Debian 12",
        kind=Kind.HARMLESS,
    ),
    # --- requests ----------------------------------------------------------------------
    Fault(
        "model-name",
        ("does not exist",),
        "The request names another model than the server has: its name is that of --served-model-name, "
        "or the path given to vllm serve, to the letter.",
        "curl --noproxy '*' -s http://127.0.0.1:8000/v1/models",
        _REPORT.format("vllm-project/vllm issue 3485"),
        confirm=re.compile(r"The model `"),
    ),
    Fault(
        "request-too-long",
        ("maximum context length is", "longer than the maximum model length"),
        "Prompt and answer together are longer than --max-model-len (the guide has 4096; one large "
        "picture alone takes 3164 tokens).",
        "vllm serve ... --max-model-len 131072    # {kit} plan DIR says what fits",
        _READ,
    ),
    Fault(
        "no-pictures",
        ("At most 0 image(s)",),
        "The server was started for text only (--language-model-only, or --limit-mm-per-prompt with 0 "
        "images).",
        "vllm serve ...    # without that option",
        _READ,
    ),
    Fault(
        "no-lora",
        ("does not support LoRA yet",),
        "This model has no LoRA support in vLLM 0.20.2.",
        "vllm serve ...    # without --enable-lora",
        _TRIED,
    ),
    Fault(
        "no-server",
        ("curl: (7)", "Connection refused"),
        "Nothing listens there: the server is still loading (some minutes), has died, or listens on "
        "another port or address.",
        "curl --noproxy '*' -s -o /dev/null -w '%{http_code}\\n' http://127.0.0.1:8000/health",
        "tried with curl 7.88",
    ),
    Fault(
        "proxy-in-between",
        ("502 Bad Gateway", "503 Service Unavailable", "504 Gateway", "from proxy after CONNECT"),
        "A proxy answers in place of the server: the request to this machine was sent to it.",
        "export no_proxy=localhost,127.0.0.1 NO_PROXY=localhost,127.0.0.1",
        _REPORT.format("microsoft/VibeVoice issue 248"),
    ),
    # --- what is said after the fact ----------------------------------------------------
    Fault(
        "engine-failed",
        (
            "Engine core initialization failed",
            "EngineCore failed to start",
            "EngineCore encountered an issue",
            "EngineDeadError",
            "WorkerProc initialization failed",
            "WorkerProc failed to start",
            "died unexpectedly",
        ),
        "vLLM reports that one of its processes has failed. The reason stands above it, in that "
        "process's own lines.",
        "read upwards from here to the first traceback    # {kit} explain --log FILE does it for a whole log",
        _READ,
        kind=Kind.CONSEQUENCE,
    ),
    Fault(
        "waiting-for-worker",
        ("No available shared memory broadcast block found",),
        "A worker has been busy or stuck for a minute. While weights load or graphs are captured that is "
        "normal; afterwards it has hung.",
        "wait while it loads; afterwards search the log for the first ERROR of a worker",
        _READ,
        kind=Kind.CONSEQUENCE,
    ),
    # --- what only looks like an error ---------------------------------------------------
    Fault(
        "no-vllm-c",
        ("No module named 'vllm._C'",),
        "vLLM for Ascend is built without its CUDA extension; vllm-ascend has its own.",
        "nothing to do",
        _REPORT.format("vllm-project/vllm-omni issue 512"),
        kind=Kind.HARMLESS,
    ),
    Fault(
        "no-nvidia-driver",
        ("Found no NVIDIA driver", "No CUDA runtime is found"),
        "A library looked for CUDA and found none, as it should be here.",
        "nothing to do",
        _TRIED,
        kind=Kind.HARMLESS,
    ),
    Fault(
        "cpu-binding",
        ("Bind cpus failed",),
        "vllm-ascend could not tie its workers to CPU cores (no npu-smi, or too few cores): slower, not "
        "wrong.",
        "{kit} doctor    # npu-smi has to be in the container",
        _READ,
        kind=Kind.HARMLESS,
    ),
)

_UNKNOWN = Fault(
    "unknown",
    (),
    "This text is not known to this kit, and it does not guess.",
    "collect: the log from its first ERROR on; {kit} status --json; {kit} doctor --json; the vllm serve "
    "command; ~/ascend/log/debug/plog",
    "",
    kind=Kind.UNKNOWN,
)

_ORDER = (Kind.CAUSE, Kind.UNKNOWN, Kind.CONSEQUENCE, Kind.HARMLESS)
_COLOUR = re.compile(r"\x1b\[[0-9;]{0,16}m")
_EXCEPTION = re.compile(r"\b(?:[A-Z]\w{0,60})?(?:Error|Exception)\b(?:: |$)")
_ERROR = re.compile(r"\b(?:ERROR|FATAL|CRITICAL|Error|error)\b")
_ERROR_WORDS = ("ERROR", "FATAL", "CRITICAL", "rror", "Exception")
"""One of them is in every line that either expression fits."""


def explain(text: str) -> tuple[Explanation, ...]:
    """What a piece of text is about: causes first, each by its first line. Never empty.

    A text that a terminal has wrapped is tried as one line as well.
    """
    found = _explain([text])
    if any(explanation.known for explanation in found):
        return found
    for joined in ("".join(text.splitlines()), " ".join(text.split())):
        rejoined = _explain([joined])
        if any(explanation.known for explanation in rejoined):
            return rejoined
    return found


def explain_log(path: Path) -> tuple[Explanation, ...]:
    """The same for a log of any size, in bounded memory; a pipe will do (``/dev/stdin``).

    Raises:
        Refused: it cannot be read.
    """
    try:
        with path.open("rb") as file:
            return _explain(_blocks(file))
    except OSError as error:
        raise Refused(f"{path} cannot be read ({error.strerror})", "{kit} explain --log FILE") from error


def _blocks(file: IO[bytes]) -> Iterator[str]:
    """Whole lines, about a block of them at a time; a line longer than that comes in pieces."""
    while block := file.read(_BLOCK):
        yield (block + file.readline(_BLOCK)).decode("utf-8", "replace")


@dataclass
class _Sighting:
    """Where a row was seen first, and how often by now."""

    line: int
    text: str
    count: int = 0


@dataclass
class _Reading:
    """What has been seen while a log is read: rows, and the first line of an error that no row knows."""

    sightings: dict[str, _Sighting] = field(default_factory=dict)
    stray: _Sighting | None = None
    stray_is_exception: bool = False

    def look(self, block: str, number: int) -> None:
        """Look at the lines of a block, the first of which has this number.

        Most blocks of a long log show no sign of anything, and to know that is quick.
        """
        present = [fault for fault in FAULTS if any(sign in block for sign in fault.signs)]
        wants_stray = not self.stray_is_exception and any(word in block for word in _ERROR_WORDS)
        if not present and not wants_stray:
            return
        for offset, line in enumerate(block.split("\n")):
            signs = [(fault.name, sign) for fault in present if (sign := fault.sign_in(line))]
            for name, sign in signs:
                self._note(name, number + offset, line, line.index(sign))
            if not signs and not self.stray_is_exception:
                self._note_stray(number + offset, line)

    def _note(self, name: str, number: int, line: str, at: int) -> None:
        if name not in self.sightings:
            self.sightings[name] = _Sighting(number, _excerpt(line, at))
        self.sightings[name].count += 1

    def _note_stray(self, number: int, line: str) -> None:
        """An exception counts most; before the first one, the first line that says "error" will do."""
        exception = _EXCEPTION.search(line)
        match = exception or (_ERROR.search(line) if self.stray is None else None)
        if match:
            self.stray = _Sighting(number, _excerpt(line, match.start()), 1)
            self.stray_is_exception = exception is not None


def _explain(blocks: Iterable[str]) -> tuple[Explanation, ...]:
    reading = _Reading()
    number = 1
    for block in blocks:
        reading.look(block, number)
        number += block.count("\n")
    names = reading.sightings.keys()
    found = [
        Explanation(_ranked(fault, names), seen.line, seen.count, seen.text)
        for fault in FAULTS
        if (seen := reading.sightings.get(fault.name))
    ]
    if all(explanation.fault.kind is Kind.HARMLESS for explanation in found):
        found += _unknown(reading.stray, is_needed=not found)
    return tuple(sorted(found, key=lambda e: (_ORDER.index(e.fault.kind), e.line)))


def _unknown(stray: _Sighting | None, is_needed: bool) -> list[Explanation]:
    """An honest "not known": with the line of the error, or without where there is nothing else to say."""
    if stray:
        return [Explanation(_UNKNOWN, stray.line, stray.count, stray.text)]
    return [Explanation(_UNKNOWN, 0, 0, "")] if is_needed else []


def _ranked(fault: Fault, names: Iterable[str]) -> Fault:
    """The row, as a consequence where one that explains it was found too."""
    return fault if fault.explained_by.isdisjoint(names) else replace(fault, kind=Kind.CONSEQUENCE)


def _excerpt(line: str, at: int) -> str:
    """The part of a line around a position, printable and short."""
    start = max(0, at - _BEFORE_SIGN)
    cut = _COLOUR.sub("", line[start : start + 2 * _SHOWN])
    return "".join(char if char.isprintable() else " " for char in cut).strip()[:_SHOWN]


_TITLES = {
    Kind.CAUSE: "",
    Kind.UNKNOWN: "",
    Kind.CONSEQUENCE: "which follows from something earlier:",
    Kind.HARMLESS: "which looks worse than it is:",
}


def text(explanations: tuple[Explanation, ...], kit: str = "kit") -> str:
    """The explanations for a person: causes, then what follows from them, then what is harmless."""
    lines: list[str] = []
    for kind in _ORDER:
        of_kind = [explanation for explanation in explanations if explanation.fault.kind is kind]
        if of_kind and _TITLES[kind]:
            lines += [_TITLES[kind], ""]
        lines += [line for explanation in of_kind for line in [*_lines(explanation, kit), ""]]
    return "\n".join(lines).rstrip()


def _lines(explanation: Explanation, kit: str) -> list[str]:
    fault = explanation.fault
    times = f", {explanation.count} times" if explanation.count > 1 else ""
    where = f" (line {explanation.line}{times})" if explanation.line else ""
    lines = [f"{fault.name}{where}"]
    if explanation.seen:
        lines.append(f"  seen:  {explanation.seen}")
    lines += [f"  cause: {fault.cause}", f"  cure:  {fault.cure.replace('{kit}', kit)}"]
    return lines + ([f"  known: {fault.source}"] if fault.source else [])


def as_json(explanations: tuple[Explanation, ...], kit: str = "kit") -> dict[str, Any]:
    """The explanations for a program, in the same order."""
    return {
        "known": any(explanation.known for explanation in explanations),
        "explanations": [
            {
                "name": explanation.fault.name,
                "kind": explanation.fault.kind.value,
                "line": explanation.line,
                "count": explanation.count,
                "seen": explanation.seen,
                "cause": explanation.fault.cause,
                "cure": explanation.fault.cure.replace("{kit}", kit),
                "source": explanation.fault.source,
            }
            for explanation in explanations
        ],
    }
