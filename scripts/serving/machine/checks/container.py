# SPDX-License-Identifier: Apache-2.0
"""What the container was given: shared memory, a user, room on the disk, ports."""

from __future__ import annotations

import re
from collections.abc import Iterable

from serving.findings import Finding

from .. import reference
from ..diagnosis import Check, Group, not_looked_at, note, ok, problem, warning
from ..host import Space
from ..patient import Patient
from ..sockets import Socket, owner

_TEMPORARY = "/tmp"  # noqa: S108 - it is measured, not written to
_MIB = 1 << 20
_GIB = 1 << 30

# vLLM 0.20.2's ring buffers in /dev/shm (multiproc_executor.py, shm_broadcast.py, parallel_state.py):
# 16 MiB x 10 from the engine to the workers, 24 MiB x 10 back from each worker, 4 MiB x 6 for the group.
_ONE_RING = 160 * _MIB
_ALL_RINGS = _ONE_RING + reference.CARDS * 240 * _MIB + 24 * _MIB

_USER_VARIABLES = ("LOGNAME", "USER", "LNAME", "USERNAME")
"""Where Python's getpass looks, in this order, before it asks for the passwd entry."""

_ROOM = 10 * _GIB
_LEAST_ROOM = 1 * _GIB

_HCCL_FIRST = 60000
_HCCL_COUNT = 16
_HCCL_BASES = range(1024, 65520 + 1)
_PORT = re.compile(r"(\d{1,5})(?:-(\d{1,5}))?", re.ASCII)
_LAST_PORT = 65535
_LAST_PRIVILEGED = 1023
_EPHEMERAL_DEFAULT = (32768, 60999)


def _shared_memory(patient: Patient) -> Iterable[Finding]:
    is_there = patient.host.is_folder(reference.SHARED_MEMORY)
    space = patient.host.space(reference.SHARED_MEMORY) if is_there else Space(0, 0)
    if space is None:
        return [not_looked_at(f"{reference.SHARED_MEMORY} cannot be measured")]
    found = (
        f"{reference.SHARED_MEMORY}: {_size(space.total)}, {_size(space.free)} free"
        if is_there
        else f"there is no {reference.SHARED_MEMORY}"
    )
    if space.free >= _ALL_RINGS:
        return [ok(found)]
    say = problem if space.free < _ONE_RING else warning
    return [
        say(
            found,
            expected=f"{_size(_ALL_RINGS)} or more",
            why=f"vLLM's message buffers for {reference.CARDS} workers grow to that; a full /dev/shm kills a "
            "worker with a bus error, first seen when several pictures come at once",
            cure="docker run --shm-size=16g ...    # Kubernetes: an emptyDir of medium Memory there",
        )
    ]


def _user(patient: Patient) -> Iterable[Finding]:
    host = patient.host
    if host.user:
        return [ok(f"uid {host.uid} is {host.user[0]}")]
    named = next((f"{name}={host.variable(name)}" for name in _USER_VARIABLES if host.variable(name)), "")
    if named:
        return [note(f"uid {host.uid} has no passwd entry; {named} stands in for it")]
    return [
        problem(
            f"uid {host.uid} has no passwd entry, and USER is unset",
            expected="an entry in /etc/passwd, or a name in USER",
            why="vLLM dies while it imports torch: KeyError: 'getpwuid(): uid not found'",
            cure=f"export USER=uid{host.uid} HOME=/tmp/home-{host.uid} && mkdir -p $HOME",
        )
    ]


def _home_folder(patient: Patient) -> Iterable[Finding]:
    closed = [folder for folder in _cache_folders(patient) if not _may_fill(patient, folder)]
    if not closed:
        return [ok(f"caches may be written below {patient.host.home}")]
    return [
        problem(
            f"uid {patient.host.uid} may not write to {', '.join(closed)}",
            expected="a home folder, or cache folders, that this user may write to",
            why="transformers copies configuration_step3p7.py there to run it, and vLLM compiles there",
            cure=f"export HOME=/tmp/home-{patient.host.uid} && mkdir -p $HOME",
        )
    ]


def _cache_folders(patient: Patient) -> list[str]:
    host = patient.host
    cache = host.variable("XDG_CACHE_HOME") or f"{host.home.rstrip('/')}/.cache"
    modules = host.variable("HF_HOME") or f"{cache}/huggingface"
    return [host.variable("VLLM_CACHE_ROOT") or f"{cache}/vllm", host.variable("HF_MODULES_CACHE") or modules]


def _may_fill(patient: Patient, folder: str) -> bool:
    there = patient.host.nearest(folder)
    return patient.host.is_folder(there) and patient.host.permits(there, write=True)


def _disk(patient: Patient) -> Iterable[Finding]:
    yield from _room_for_caches(patient)
    if patient.model is not None:
        yield from _room_for_weights(patient, str(patient.model))


def _room_for_caches(patient: Patient) -> Iterable[Finding]:
    host = patient.host
    enough = []
    for folder in dict.fromkeys([_TEMPORARY, *_cache_folders(patient)]):
        space = host.space(folder)
        if space is None:
            yield not_looked_at(f"{folder} cannot be measured")
        elif space.free >= _ROOM:
            enough.append(f"{folder}: {_size(space.free)}")
        else:
            yield (problem if space.free < _LEAST_ROOM else warning)(
                f"{folder}: {_size(space.free)} free",
                expected=f"{_size(_ROOM)} free",
                why="compiled graphs and kernels, logs and cores are written there while the server runs",
                cure=f"du -xh --max-depth=2 {host.nearest(folder)} | sort -h | tail",
            )
    if enough:
        yield ok(f"free in {', '.join(enough)}")


def _room_for_weights(patient: Patient, model: str) -> Iterable[Finding]:
    missing = reference.CHECKPOINT_BYTES - _weights(patient, model)
    if missing <= 0:
        return
    space = patient.host.space(model)
    if space is None:
        yield not_looked_at(f"{model} cannot be measured")
    elif space.free < missing:
        yield problem(
            f"{model}: {_size(space.free)} free",
            expected=f"{_size(missing)} for the shards that are still missing",
            why=f"the published checkpoint has {reference.CHECKPOINT_BYTES:,} bytes",
            cure=f"df -h {model}",
        )
    else:
        yield note(f"{model}: {_size(missing)} of weights are not there yet, {_size(space.free)} free")


def _weights(patient: Patient, model: str) -> int:
    names = [name for name in patient.host.names(model) if name.endswith(".safetensors")]
    return sum(patient.host.size(f"{model}/{name}") for name in names)


def _model_folder(patient: Patient) -> Iterable[Finding]:
    if patient.model is None:
        return [not_looked_at("no model folder was named (--model DIR)")]
    model = str(patient.model)
    if patient.host.permits(f"{model}/config.json", write=False):
        return [ok(f"{model} has a config.json; {{kit}} check-model {model} looks at the rest")]
    return [
        problem(
            f"{model}/config.json is not there, or uid {patient.host.uid} may not read it",
            expected="the folder that holds config.json and the shards, mounted into the container",
            why="vLLM takes a path without config.json for the name of a model to download",
            cure=f"ls -la {model}",
        )
    ]


def _serve_port(patient: Patient) -> Iterable[Finding]:
    port = patient.port
    if not 1 <= port <= _LAST_PORT:
        return [_bad_port(port)]
    if port <= _LAST_PRIVILEGED and patient.host.uid != 0:
        return [
            problem(
                f"port {port} as uid {patient.host.uid}",
                expected=f"a port above {_LAST_PRIVILEGED}",
                why="only root may listen on it",
                cure=f"{{kit}} doctor --port {reference.SERVE_PORT}",
            )
        ]
    if patient.sockets is None:
        return [not_looked_at("/proc/net/tcp cannot be read")]
    taken = [socket for socket in patient.sockets if socket.listens and socket.port == port]
    if not taken:
        return [ok(f"port {port} is free")]
    held = {socket.port for socket in patient.sockets if socket.holds_its_port}
    free = next(
        (p for p in [*range(port + 1, _LAST_PORT + 1), *range(_LAST_PRIVILEGED + 1, port)] if p not in held),
        0,
    )
    return [
        problem(
            f"port {port} is taken{_by(patient, taken[0])}",
            expected=f"nothing listens on {port}",
            why="vLLM stops with: [Errno 98] Address already in use",
            cure=f"vllm serve ... --port {free}    # or stop the other one",
        )
    ]


def _bad_port(port: int) -> Finding:
    return problem(
        f"port {port}",
        expected=f"a number from 1 to {_LAST_PORT}",
        why="there is no such port",
        cure=f"{{kit}} doctor --port {reference.SERVE_PORT}",
    )


def _by(patient: Patient, socket: Socket) -> str:
    name = owner(patient.host, socket)
    return f" by {name}" if name else ""


def _hccl_ports(patient: Patient) -> Iterable[Finding]:
    host = patient.host
    ranges = host.variable("HCCL_HOST_SOCKET_PORT_RANGE")
    if ranges == "auto":
        return [ok("HCCL_HOST_SOCKET_PORT_RANGE=auto: the system chooses free ones")]
    base = host.variable("HCCL_IF_BASE_PORT")
    variable = "HCCL_HOST_SOCKET_PORT_RANGE" if ranges else "HCCL_IF_BASE_PORT" if base else ""
    ports = _ranges(ranges) if ranges else _from_base(base) if base else _from_base(str(_HCCL_FIRST))
    if not ports:
        return [_bad_port_variable(variable, ranges or base)]
    if patient.sockets is None:
        return [not_looked_at("/proc/net/tcp cannot be read")]
    held = [s for s in patient.sockets if s.holds_its_port and s.port in ports]
    if held:
        return [_ports_held(patient, variable, ports, held)]
    return [_open_to_others(patient, ports) or ok(f"ports {min(ports)}-{max(ports)} are free")]


def _ranges(text: str) -> frozenset[int]:
    """The ports of "60000-60050,60100"; empty for what CANN would not take either."""
    matches = [_PORT.fullmatch(part.strip()) for part in text.split(",")]
    bounds = [(int(match[1]), int(match[2] or match[1])) for match in matches if match]
    if len(bounds) < len(matches) or any(not 1 <= low <= high <= _LAST_PORT for low, high in bounds):
        return frozenset()
    return frozenset(port for low, high in bounds for port in range(low, high + 1))


def _from_base(text: str) -> frozenset[int]:
    match = _PORT.fullmatch(text)
    if match is None or match[2] or int(match[1]) not in _HCCL_BASES:
        return frozenset()
    return frozenset(range(int(match[1]), int(match[1]) + _HCCL_COUNT))


def _bad_port_variable(variable: str, value: str) -> Finding:
    expected = (
        "a number from 1024 to 65520"
        if variable == "HCCL_IF_BASE_PORT"
        else "auto, or ports as in 60000-60050"
    )
    return problem(
        f"{variable}={value}",
        expected=expected,
        why="HCCL does not start with a value that it cannot read, and no two cards can talk without it",
        cure=f"unset {variable}",
    )


def _ports_held(patient: Patient, variable: str, ports: frozenset[int], held: list[Socket]) -> Finding:
    first = min(held, key=lambda socket: (not socket.listens, socket.port))
    assert patient.sockets is not None  # noqa: S101 - the held ones came from there
    say = problem if first.listens else warning
    return say(
        f"port {first.port} is taken{_by(patient, first)}",
        expected=f"ports {min(ports)}-{max(ports)} free ({variable or 'the default of HCCL_IF_BASE_PORT'})",
        why="HCCL binds them when the workers connect: EJ0003, Failed to bind the IP port. A second service "
        "on the machine, or one outgoing connection, is enough",
        cure=f"export HCCL_IF_BASE_PORT={_free_base(patient.sockets)}"
        + (" && unset HCCL_HOST_SOCKET_PORT_RANGE" if variable == "HCCL_HOST_SOCKET_PORT_RANGE" else ""),
    )


def _free_base(sockets: tuple[Socket, ...]) -> int:
    """The first base above the ports of outgoing connections with all 16 ports free, else any such base."""
    held = {socket.port for socket in sockets if socket.holds_its_port}
    above, below = range(61000, 65520, _HCCL_COUNT), range(20000, 32768 - _HCCL_COUNT, _HCCL_COUNT)
    free = (base for base in [*above, *below] if held.isdisjoint(range(base, base + _HCCL_COUNT)))
    return next(free, 61000)


def _open_to_others(patient: Patient, ports: frozenset[int]) -> Finding | None:
    """A note where the kernel may give one of the ports to an outgoing connection at any moment."""
    low, high = _ephemeral(patient)
    reserved = _ranges((patient.host.text("/proc/sys/net/ipv4/ip_local_reserved_ports") or "").strip())
    loose = {port for port in ports if low <= port <= high} - reserved
    if not loose:
        return None
    span = f"{min(ports)}-{max(ports)}"
    return note(
        f"ports {span} are free, but {low}-{high} is where outgoing connections come from",
        expected=f"{span} reserved, or another base",
        why="one of them can be taken at any moment, and then the next start fails",
        cure=f"sysctl -w net.ipv4.ip_local_reserved_ports={span}    # or: export HCCL_IF_BASE_PORT=61000",
    )


def _ephemeral(patient: Patient) -> tuple[int, int]:
    words = (patient.host.text("/proc/sys/net/ipv4/ip_local_port_range") or "").split()
    numbers = [int(word) for word in words if _PORT.fullmatch(word) and "-" not in word]
    return (numbers[0], numbers[1]) if len(numbers) > 1 else _EPHEMERAL_DEFAULT


def _size(count: int) -> str:
    return f"{count / _GIB:.1f} GiB" if count >= _GIB else f"{count / _MIB:.0f} MiB"


CHECKS = (
    Check("shared-memory", "the size of /dev/shm", Group.CONTAINER, _shared_memory),
    Check("user", "the uid has a name", Group.CONTAINER, _user),
    Check("home-folder", "the caches may be written", Group.CONTAINER, _home_folder),
    Check("disk", "free room for caches, and with --model for the weights", Group.CONTAINER, _disk),
    Check("model-folder", "with --model: it is mounted and readable", Group.CONTAINER, _model_folder),
    Check("serve-port", "the port to serve on (--port) is free", Group.CONTAINER, _serve_port),
    Check(
        "hccl-ports", "the ports by which the cards find each other are free", Group.CONTAINER, _hccl_ports
    ),
)
