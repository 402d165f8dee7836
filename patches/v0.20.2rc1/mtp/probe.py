# SPDX-License-Identifier: Apache-2.0
"""Run by the target's own interpreter: can Step-3.7 draft with its own layers here?

Arguments and answer are those of the base set's probe: the file to write a JSON list of
{"check", "status", "detail"} to, and an empty folder. Of vllm-ascend's proposer and model
runner the source is read, so that these can be judged where no NPU is.
"""

import ast
import importlib
import importlib.util
import json
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

MAIN, DRAFT = 5, 3

# What the proposer and the drafting call, or override, or are called by: file, class, method, and
# the parameters that count.
METHODS = (
    ("spec_decode/eagle_proposer.py", "AscendEagleProposer", "__init__", "vllm_config device runner"),
    ("spec_decode/llm_base_proposer.py", "AscendSpecDecodeBaseProposer", "load_model", "model"),
    ("spec_decode/llm_base_proposer.py", "AscendSpecDecodeBaseProposer", "_get_model", ""),
    ("spec_decode/llm_base_proposer.py", "AscendSpecDecodeBaseProposer", "_maybe_share_lm_head", "model"),
    (
        "spec_decode/llm_base_proposer.py",
        "AscendSpecDecodeBaseProposer",
        "_propose",
        "target_token_ids target_positions target_hidden_states next_token_ids token_indices_to_sample "
        "common_attn_metadata",
    ),
    (
        "ascend_forward_context.py",
        None,
        "set_ascend_forward_context",
        "attn_metadata vllm_config num_tokens num_actual_tokens is_draft_model draft_attn_metadatas",
    ),
    (
        "attention/attention_v1.py",
        "AscendAttentionMetadataBuilder",
        "build",
        "common_prefix_len common_attn_metadata",
    ),
    ("ascend_config.py", None, "get_ascend_config", ""),
    ("utils.py", None, "enable_sp", "vllm_config"),
    ("utils.py", None, "lmhead_tp_enable", ""),
)
# What they read or set on ``self``: file, class, attributes.
ATTRIBUTES = (
    (
        "spec_decode/llm_base_proposer.py",
        "AscendSpecDecodeBaseProposer",
        "use_cuda_graph model _draft_attn_layer_names",
    ),
    (
        "worker/model_runner_v1.py",
        "NPUModelRunner",
        "input_batch attn_groups drafter effective_drafter_max_model_len",
    ),
    ("worker/block_table.py", "BlockTable", "block_table slot_mapping"),
    ("worker/block_table.py", "MultiGroupBlockTable", "block_tables"),
    ("ascend_config.py", "AscendConfig", "enable_reduce_sample"),
)


class NotRun(Exception):
    """The check needs something that this machine or installation does not have."""


def need(*modules: str) -> None:
    for module in modules:
        try:
            importlib.import_module(module)
        except Exception as error:
            raise NotRun(f"{module} cannot be imported here ({first_line(error)})") from error


def first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines() or [""]
    return f"{type(error).__name__}: {lines[0]}"


def draft_class() -> str:
    """The registry has it, and its module imports."""
    need("vllm.model_executor.models.step3p5")
    from vllm.model_executor.models.registry import ModelRegistry

    return f"{ModelRegistry.models['Step3p5MTP'].load_model_cls().__name__}"


def draft_config(folder: Path) -> str:
    """Lists that were cropped to the main layers are whole again."""
    need("vllm.transformers_utils.repo_utils")
    from vllm.config.step3p7_mtp import text_config_with_draft_layers

    found = text_config_with_draft_layers(write_model(folder))
    if len(found.layer_types) != MAIN + DRAFT:
        raise AssertionError(
            f"{len(found.layer_types)} layer_types for {MAIN} layers and {DRAFT} draft layers"
        )
    return "its lists count the draft layers"


def write_model(folder: Path) -> Any:
    """``config.json`` alone, and what transformers makes of it."""
    layers = {"num_hidden_layers": MAIN, "num_nextn_predict_layers": DRAFT}
    whole = {"layer_types": ["full_attention"] * (MAIN + DRAFT), **layers}
    (folder / "config.json").write_text(json.dumps({"text_config": whole}), "utf-8")
    cropped = SimpleNamespace(layer_types=whole["layer_types"][:MAIN], model_type="step3p5", **layers)
    return SimpleNamespace(_name_or_path=str(folder), model_type="step3p7", text_config=cropped)


def drafter() -> str:
    need("vllm.v1.spec_decode.eagle")
    from vllm.v1.spec_decode.step3p7_mtp import Step3p7Drafter

    return f"{Step3p7Drafter.__name__} imports"


def method() -> str:
    """vllm-ascend's own way from the model's configuration to the draft's knows Step-3.7."""
    need("torch_npu", "vllm_ascend.patch.platform")
    from vllm.config.speculative import SpeculativeConfig

    override = SpeculativeConfig.hf_config_override
    if "text_config_with_draft_layers" not in override.__code__.co_names:
        raise AssertionError("hf_config_override does not know model_type step3p7")
    return "mtp is known for model_type step3p7"


def signatures() -> str:
    """Every name that the drafting relies on is in vllm-ascend's source, with its parameters."""
    absent = [*absent_methods(), *absent_attributes()]
    if absent:
        raise AssertionError("vllm-ascend has no " + ", no ".join(absent))
    return f"{len(METHODS)} methods and the attributes of {len(ATTRIBUTES)} classes are there"


def absent_methods() -> Iterator[str]:
    for file, owner, name, wanted in METHODS:
        found = next((node for node in body(file, owner) if getattr(node, "name", None) == name), None)
        if not isinstance(found, ast.FunctionDef):
            yield f"{owner or file}.{name}"
            continue
        parameters = [parameter.arg for parameter in (*found.args.args, *found.args.kwonlyargs)]
        missing = [parameter for parameter in wanted.split() if parameter not in parameters]
        if missing:
            yield f"parameter {missing[0]} of {owner or file}.{name}"


def absent_attributes() -> Iterator[str]:
    for file, owner, wanted in ATTRIBUTES:
        nodes = (node for part in body(file, owner) for node in ast.walk(part))
        found = {node.attr for node in nodes if isinstance(node, ast.Attribute) and is_self(node.value)}
        yield from (f"{owner}.{name}" for name in wanted.split() if name not in found)


def body(file: str, owner: str | None) -> list[ast.stmt]:
    """The statements of a class, or of the whole file."""
    module = ast.parse(ascend(file).read_text("utf-8"))
    if owner is None:
        return module.body
    classes = (node for node in module.body if isinstance(node, ast.ClassDef) and node.name == owner)
    return next((node.body for node in classes), [])


def is_self(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and node.id == "self"


def ascend(file: str) -> Path:
    found = importlib.util.find_spec("vllm_ascend")
    if found is None or found.origin is None:
        raise NotRun("vllm_ascend is not installed here")
    return Path(found.origin).parent / file


def attempt(name: str, check: Callable[[], str]) -> dict[str, str]:
    try:
        return {"check": name, "status": "passed", "detail": check()}
    except NotRun as reason:
        return {"check": name, "status": "not run", "detail": str(reason)}
    except Exception as error:
        return {"check": name, "status": "failed", "detail": first_line(error)}


def main() -> None:
    answer_file, folder = Path(sys.argv[1]), Path(sys.argv[2])
    try:
        importlib.import_module("torch_npu")
    except Exception:
        # The Ascend platform plugin would fail on its import, and take vLLM with it.
        os.environ["VLLM_PLUGINS"] = ""
    answers = [
        attempt("draft class", draft_class),
        attempt("draft config", lambda: draft_config(folder)),
        attempt("drafting", drafter),
        attempt("method mtp", method),
        attempt("vllm-ascend", signatures),
    ]
    whole = answer_file.with_suffix(".part")
    whole.write_text(json.dumps(answers), "utf-8")
    whole.replace(answer_file)


if __name__ == "__main__":
    main()
