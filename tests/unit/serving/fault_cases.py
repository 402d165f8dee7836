# SPDX-License-Identifier: Apache-2.0
"""Error texts from the field, numbers and paths replaced, each with the row that must know it."""

from __future__ import annotations

CASES = [
    (
        "custom-operators-missing",
        "AttributeError: '_OpNamespace' '_C_ascend' object has no attribute 'weak_ref_tensor'",
    ),
    (
        "operators-of-another-cann",
        "WARNING [camem.py:66] Failed to import vllm_ascend_C:/vllm-workspace/vllm-ascend/vllm_ascend/"
        "libvllm_ascend_kernels.so: undefined symbol: aclrtCtxGetCurrentDefaultStream. Sleep mode will be "
        "disabled.",
    ),
    ("operator-package-missing", "ModuleNotFoundError: No module named 'custom_ops'"),
    ("operator-package-missing", "ModuleNotFoundError: No module named 'custom_transformer'"),
    (
        "static-tls-full",
        "ImportError: /usr/local/lib/python3.11/site-packages/scikit_learn.libs/libgomp-d22c30c5.so.1.0.0: "
        "cannot allocate memory in static TLS block",
    ),
    (
        "cann-environment-broken",
        "RuntimeError: SetPrecisionMode:build/CMakeFiles/torch_npu.dir/compiler_depend.ts:156 NPU function "
        "error: at_npu::native::AclSetCompileopt(aclCompileOpt::ACL_PRECISION_MODE, precision_mode), error "
        "code is 500001",
    ),
    (
        "operator-not-in-cann",
        "RuntimeError: aclnnGroupedMatmulV4 or aclnnGroupedMatmulV4GetWorkspaceSize not in libopapi.so, or "
        "libopapi.so not found.",
    ),
    ("torch-npu-broken", "ModuleNotFoundError: No module named 'torch_npu._C'"),
    (
        "hccl-init-parameter",
        "RuntimeError: createHCCLComm:ProcessGroupHCCL.cpp:2014 HCCL function error: "
        "hcclCommInitRootInfoConfig(numRanks, &rootInfo, rank, config, &(comm->hcclComm_)), error code is 1",
    ),
    (
        "hccl-not-supported",
        "RuntimeError: createHCCLComm:ProcessGroupHCCL.cpp:2014 HCCL function error: "
        "hcclCommInitRootInfoConfig(numRanks, &rootInfo, rank, config, &(comm->hcclComm_)), error code is 5",
    ),
    (
        "card-link-down",
        "EI0009: [PID: 812] Transport init error. Reason: [createLink] link to remote rank 3 failed",
    ),
    (
        "start-timeout",
        "TimeoutError: Timed out waiting for engines to send initial message on input socket.",
    ),
    ("worker-call-timeout", "TimeoutError: RPC call to execute_model timed out."),
    (
        "graph-capture-fails",
        "RuntimeError: capture_begin:NPUGraph.cpp:180 NPU function error: "
        "c10_npu::acl::AclmdlRICaptureBegin(capture_stream_, capture_mode), error code is 207005",
    ),
    ("no-room-at-all", "Available memory: 0, total memory: 65452113920"),
    ("card-occupied", "RuntimeError: Initialize:NPU error, Device is occupied, device id 3"),
    (
        "operator-refuses",
        "RuntimeError: npu_grouped_matmul:OpApi.cpp:85 NPU function error: call aclnnGroupedMatmulV5 failed, "
        "error code is 161002",
    ),
    (
        "operator-not-compiled",
        "EZ9999: Inner Error! RuntimeError: call aclnnFusedInferAttentionScoreV3 failed, error code 561103",
    ),
    ("device-memory-full", "[ERROR] RUNTIME(812,python3): rtMalloc failed, ret=207001"),
    ("device-memory-full", "NPU function error: aclrtMalloc(ptr, size, policy), error code is 207001"),
    (
        "card-number",
        "RuntimeError: SetDevice:NPUFunctions.cpp:113 NPU function error: aclrtSetDevice(device), error "
        "code is 107001",
    ),
    (
        "kernel-died",
        "RuntimeError: synchronize:NPUStream.cpp:463 NPU function error: aicore exception, error code is "
        "507015",
    ),
    (
        "asynchronous-error",
        "RuntimeError: The Inner error is reported as above. The process exits for this inner error, and the "
        "current working operator name is SelfAttentionOperation.",
    ),
    (
        "compiler-left-behind",
        "[ERROR] TBE Subprocess[task_distribute] raise error[], main process disappeared!",
    ),
    (
        "waiting-for-worker",
        "INFO 12-01 01:08:07 [shm_broadcast.py:466] No available block found in 60 second.",
    ),
    ("picture-not-fetched", "    raise asyncio.TimeoutError"),
    ("picture-not-fetched", "fastapi.exceptions.HTTPException: 400: image url fetch timed out"),
    (
        "parser-unknown",
        "KeyError: 'invalid tool call parser: step3p7 (chose from { deepseek_v3,hermes,step3,step3p5 })'",
    ),
    (
        "processor-not-found",
        "OSError: Can't load image processor for '/data/Step-3.7-Flash'. If you were trying to load it from "
        "a hub, make sure you don't have a local directory with the same name.",
    ),
    (
        "versions-disagree",
        "ValueError: 'aimv2' is already used by a Transformers config, pick another name.",
    ),
    (
        "folder-not-mounted",
        "huggingface_hub.errors.HFValidationError: Repo id must be in the form 'repo_name' or "
        "'namespace/repo_name': '/data/Step-3.7-Flash'. Use `repo_type` argument if needed.",
    ),
    ("too-many-pictures", "ValueError: At most 1 image(s) may be provided in one prompt."),
    (
        "request-too-long",
        "This model's maximum context length is 131072 tokens. However, you requested 140000 tokens "
        "(130000 in the messages, 10000 in the completion).",
    ),
    (
        "gpu-code-path",
        "RuntimeError: Expected all tensors to be on the same device, but found at least two devices, npu:0 "
        "and cpu!",
    ),
    ("shared-memory-full", "Fatal Python error: Bus error"),
    (
        "disk-was-full",
        "RuntimeError: [enforce fail at inline_container.cc:672] . unexpected pos 704 vs 598",
    ),
    ("shard-incomplete", "safetensors_rust.SafetensorError: MetadataIncompleteBuffer"),
    ("no-platform", "RuntimeError: Failed to infer device type, please set the environment variable"),
    (
        "ray-actor-died",
        "ray.exceptions.RayActorError: The actor died unexpectedly before finishing this task.",
    ),
]

KINDS = [
    (
        "symbol-of-another-version",
        "ImportError: /usr/lib/libtorch_npu.so: undefined symbol: _ZN2at4_ops5zeros",
    ),
    ("symbol-of-another-version", "ImportError: /lib/libc.so.6: version `GLIBC_2.38' not found"),
    ("library-missing", "OSError: libnuma.so.1: cannot open shared object file: No such file or directory"),
    ("cuda-library-wanted", "ImportError: libcudart.so.12: cannot open shared object file: No such file"),
    ("module-missing", "ModuleNotFoundError: No module named 'xgrammar'"),
    ("cann-python-missing", "ModuleNotFoundError: No module named 'acl'"),
    ("plugin-fails", "ERROR 12-01 [__init__.py:46] Failed to load plugin ascend"),
    (
        "kernel-compiler-fails",
        "triton.compiler.errors.MLIRCompilationError: bishengir-compile: error: no target",
    ),
    ("card-not-there", "NPU function error: aclrtSetDevice(device), error code is 507033"),
    ("stream-resources", "The Runtime has insufficient stream resources"),
    ("operator-fails", "RuntimeError: operator():RopeOperation setup failed!"),
    ("host-memory-full", "State: Terminated  Reason: OOMKilled  Exit Code: 137"),
    ("host-memory-full", "Killed"),
    (
        "rank-lost",
        "RuntimeError: [gloo/transport/tcp/pair.cc:534] Connection closed by peer [10.0.0.2]:20480",
    ),
    ("network-interface", "RuntimeError: Unable to find address for: eth9"),
    ("hccl-other-failure", "[ERROR] HcclAllReduce failed on stream"),
    ("not-permitted", "PermissionError: [Errno 13] Permission denied: '/dev/davinci_manager'"),
    ("too-many-files", "OSError: [Errno 24] Too many open files"),
    ("too-many-files", "RuntimeError: can't start new thread"),
    ("process-crashed", "Fatal Python error: Segmentation fault"),
    ("stopped-from-outside", "Warning  Unhealthy  kubelet  Liveness probe failed: connection refused"),
    ("image-not-there", "exec /usr/bin/bash: exec format error"),
    ("device-not-given", "0/3 nodes are available: 3 Insufficient huawei.com/Ascend910."),
    ("tokenizer-not-found", "Exception: data did not match any variant of untagged enum ModelWrapper"),
    (
        "quantisation-not-supported",
        "pydantic: Value error, fp8 quantization is currently not supported in npu.",
    ),
    (
        "size-does-not-divide",
        "ValueError: Total number of attention heads (64) must be divisible by tensor parallel size (7).",
    ),
    (
        "download-fails",
        "requests.exceptions.SSLError: HTTPSConnectionPool(host='huggingface.co'): Max retries exceeded",
    ),
    (
        "tool-choice-off",
        '"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set',
    ),
    ("request-invalid", "vllm.exceptions.VLLMValidationError: max_tokens must be at least 1, got 0."),
    ("not-authorised", '"POST /v1/chat/completions HTTP/1.1" 401 Unauthorized'),
    ("ended-by-exception", "[ERROR] 2025-06-17-01:09:15 (PID:3464) ERR99999 UNKNOWN applicaiton exception"),
    (
        "ray-resources",
        "ValueError: The number of required GPUs exceeds the total number of available GPUs in the "
        "placement group.",
    ),
    ("worker-hangs", "ERROR 12-01 [multiproc_executor.py:231] Executor failed."),
    (
        "few-open-files",
        "WARNING 12-07 [system_utils.py:299] Found ulimit of 20000 and failed to automatically increase. "
        "This can cause fd limit errors like `OSError: [Errno 24] Too many open files`.",
    ),
    (
        "left-at-the-end",
        "UserWarning: resource_tracker: There appear to be 2 leaked semaphore objects to clean",
    ),
    (
        "config-unreadable",
        "ValueError: Unrecognized model in /data/x. Should have a `model_type` key in its config",
    ),
    ("tensor-name-unknown", "KeyError: 'model.layers.0.mlp.experts.w13_weight_scale'"),
    ("docker-not-running", "Cannot connect to the Docker daemon at unix:///var/run/docker.sock."),
    ("disk-error", "OSError: [Errno 5] Input/output error: '/data/Step-3.7-Flash/model-00012.safetensors'"),
    ("build-fails", "ERROR: Failed building wheel for vllm-ascend"),
    ("graph-compilation-fails", "torch._dynamo.exc.BackendCompilerFailed: backend='VllmBackend' raised:"),
    ("flag-unknown", "vllm: error: unrecognized arguments: --enable-reasoning"),
    (
        "context-beyond-model",
        "ValueError: User-specified max_model_len (524288) is greater than the derived max_model_len (1)",
    ),
    (
        "custom-operators-missing",
        "AttributeError: '_OpNamespace' 'vllm' object has no attribute 'mla_forward'",
    ),
    ("gpu-code-path", "AttributeError: '_OpNamespace' '_C' object has no attribute 'rms_norm'"),
    ("card-not-there", "[ERROR] RUNTIME(1,python): [npu_driver.cc:5410] Call drvGetDevNum, drvRetCode=7."),
]

UNRELATED = """\
2026/12/01 01:08:07 [error] 31#31: *5 connect() failed (111: Connection refused) while connecting to upstream
2026/12/01 01:08:08 [error] 31#31: *6 upstream timed out (110: Connection timed out) while reading
10.0.0.1 - - [01/Dec/2026:01:08:08 +0000] "GET /v2/items HTTP/1.1" 502 Bad Gateway 401 Unauthorized
Dec  1 01:08:09 host sshd[507015]: error: maximum authentication attempts exceeded for root
Dec  1 01:08:09 host kernel: Out of memory: Killed process 207001 (java) total-vm:1kB
postgres: ERROR:  could not extend file "base/1": No space left on device
postgres: FATAL:  password authentication failed for user "web"
mkdir: cannot create directory '/data/x': Permission denied
OSError: [Errno 98] Address already in use
ModuleNotFoundError: No module named 'yaml'
celery: asyncio.TimeoutError
app: BadRequestError: "name": Field required
Segmentation fault (core dumped)
make: *** [Makefile:3: all] Error 137
systemd[1]: app.service: Main process exited, code=killed, status=9/KILL
redis: Connection reset by peer
INPUT queue: bad input, sorted in descending order
"""
