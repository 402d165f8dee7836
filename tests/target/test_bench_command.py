# SPDX-License-Identifier: Apache-2.0
"""Every option that ``kit bench`` gives ``vllm bench serve`` is one of vLLM 0.20.2's own."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

from serving.measure.bench import BenchRequest, serve_command
from serving.measure.bench_figures import Row
from serving.measure.bench_server import Server

PARSE = """
import json, sys
from vllm.benchmarks.serve import add_cli_args
from vllm.utils.argparse_utils import FlexibleArgumentParser
parser = FlexibleArgumentParser()
add_cli_args(parser)
found = vars(parser.parse_args(sys.argv[1:]))
print(json.dumps({name: str(value) for name, value in found.items()}))
"""


def test_vllm_understands_the_command_as_it_is_meant(sandbox_python: Path, tmp_path: Path) -> None:
    server = Server("http://127.0.0.1:8000", "step3p7", "/models/Step-3.7-Flash", 4096, "0.20.2")
    row = Row(1024, 512, 20)
    command = serve_command("vllm", server, Path("/models/Step-3.7-Flash"), row, 80, row.output_len, 7)
    assert command[:3] == ["vllm", "bench", "serve"]

    run = subprocess.run(
        [sandbox_python, "-P", "-c", PARSE, *command[3:]],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        timeout=300,
        check=False,
    )
    assert run.returncode == 0, run.stderr[-2000:]

    parsed = json.loads(run.stdout.splitlines()[-1])
    expected = {
        "backend": "openai", "base_url": server.url, "endpoint": "/v1/completions",
        "served_model_name": "step3p7",
        "tokenizer": server.root, "trust_remote_code": "True", "dataset_name": "random",
        "random_input_len": "1024", "random_output_len": "512", "random_prefix_len": "0",
        "num_prompts": "80", "max_concurrency": "20", "temperature": "0.0", "seed": "7",
        "request_rate": "inf",
    }  # fmt: skip
    assert {name: parsed[name] for name in expected} == expected
    assert BenchRequest(server.url, tmp_path).rounds * 20 == 80
