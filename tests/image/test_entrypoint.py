# SPDX-License-Identifier: Apache-2.0
"""The entry point, in a container, without a terminal."""

from __future__ import annotations

import json

import pytest

from image.buildah import Container

PRINT_ENVIRONMENT = ("python3", "-c", "import json, os; print(json.dumps(dict(os.environ)))")
UBUNTU_JEMALLOC = "/usr/lib/x86_64-linux-gnu/libjemalloc.so.2"
OPENEULER_JEMALLOC = "/usr/lib64/libjemalloc.so.2"
DRIVER = "/usr/local/Ascend/driver/lib64"


def environment_of(container: Container, user: str = "", **given: str) -> dict[str, str]:
    """What the command of a container sees."""
    done = container.start(*PRINT_ENVIRONMENT, user=user, environment=given)
    assert done.returncode == 0, done.stderr
    found: dict[str, str] = json.loads(done.stdout)
    return found


def library_path(environment: dict[str, str]) -> list[str]:
    return [folder.rstrip("/") for folder in environment["LD_LIBRARY_PATH"].split(":") if folder]


def test_a_start_has_all_that_an_interactive_shell_gets_from_bashrc(container: Container) -> None:
    container.shell(f"mkdir -p {DRIVER}")
    script = (
        "PS1=$; source /root/.bashrc >&2; python3 -c 'import json, os; print(json.dumps(dict(os.environ)))'"
    )
    shell = json.loads(container.run("bash", "-c", script).stdout)

    found = environment_of(container)

    assert found["LD_PRELOAD"] == shell["LD_PRELOAD"].rstrip(":") == UBUNTU_JEMALLOC
    assert set(library_path(shell)) <= set(library_path(found))
    names = {"STANDIN_TOOLKIT", "STANDIN_BISHENG", "STANDIN_ATB", "TASK_QUEUE_ENABLE", "ATB_HOME_PATH"}
    assert {name: found[name] for name in names} == {name: shell[name] for name in names}


def test_without_the_entry_point_jemalloc_and_the_last_folder_are_missing(container: Container) -> None:
    found: dict[str, str] = json.loads(container.run(*PRINT_ENVIRONMENT).stdout)

    assert "LD_PRELOAD" not in found
    assert "/usr/local/lib" not in library_path(found)


def test_the_command_runs_with_jemalloc(container: Container) -> None:
    done = container.start("grep", "-c", "libjemalloc", "/proc/self/maps")

    assert int(done.stdout) > 0


def test_jemalloc_is_found_where_openeuler_has_it(container: Container) -> None:
    container.shell(f"mv $(readlink -f {UBUNTU_JEMALLOC}) {OPENEULER_JEMALLOC}; rm -f {UBUNTU_JEMALLOC}")

    assert environment_of(container)["LD_PRELOAD"] == OPENEULER_JEMALLOC


def test_jemalloc_is_found_where_ubuntu_has_it_on_aarch64(container: Container) -> None:
    place = "/usr/lib/aarch64-linux-gnu"
    container.shell(
        f"mkdir -p {place}; mv $(readlink -f {UBUNTU_JEMALLOC}) {place}/libjemalloc.so.2\n"
        f"rm -f {UBUNTU_JEMALLOC}\n"
        "printf '#!/bin/sh\\necho aarch64\\n' > /usr/local/bin/uname; chmod +x /usr/local/bin/uname"
    )

    assert environment_of(container)["LD_PRELOAD"] == f"{place}/libjemalloc.so.2"


def test_without_jemalloc_nothing_is_preloaded(container: Container) -> None:
    container.shell(f"rm -f {UBUNTU_JEMALLOC}*")

    assert "LD_PRELOAD" not in environment_of(container)


@pytest.mark.parametrize("separator", [":", " "])
def test_other_preloaded_libraries_are_kept(container: Container, separator: str) -> None:
    both = separator.join(["/lib/x86_64-linux-gnu/libdl.so.2", "/lib/x86_64-linux-gnu/libm.so.6"])

    assert environment_of(container, LD_PRELOAD=both)["LD_PRELOAD"] == f"{UBUNTU_JEMALLOC}:{both}"


def test_jemalloc_is_not_preloaded_twice(container: Container) -> None:
    given = f"/lib/x86_64-linux-gnu/libm.so.6:{UBUNTU_JEMALLOC}"

    assert environment_of(container, LD_PRELOAD=given)["LD_PRELOAD"] == given


def test_a_preloaded_library_that_is_absent_is_named(container: Container) -> None:
    absent = "/usr/lib/aarch64-linux-gnu/libjemalloc.so.2"

    done = container.start(*PRINT_ENVIRONMENT, environment={"LD_PRELOAD": absent})

    assert f"entrypoint: LD_PRELOAD names {absent}, which is not there" in done.stderr
    assert json.loads(done.stdout)["LD_PRELOAD"] == f"{UBUNTU_JEMALLOC}:{absent}"


def test_the_drivers_libraries_come_first_and_once(container: Container) -> None:
    container.shell(f"mkdir -p {DRIVER}/driver {DRIVER}/common")

    found = library_path(environment_of(container, LD_LIBRARY_PATH="/mine:"))

    assert [f for f in found if f.startswith("/usr/local/Ascend/driver")] == [
        DRIVER,
        f"{DRIVER}/common",
        f"{DRIVER}/driver",
    ]
    assert found.index(f"{DRIVER}/driver") < found.index("/mine") < found.index("/usr/local/lib")


def test_a_container_without_cann_still_starts(container: Container) -> None:
    container.shell("rm -rf /usr/local/Ascend")

    done = container.start("echo", "here")

    assert (done.returncode, done.stdout, done.stderr) == (0, "here\n", "")


def test_a_script_of_cann_that_fails_is_named_and_the_command_runs(container: Container) -> None:
    container.shell("echo 'return 7' >> /usr/local/Ascend/ascend-toolkit/set_env.sh")

    done = container.start("echo", "here")

    assert (done.returncode, done.stdout) == (0, "here\n")
    assert "entrypoint: /usr/local/Ascend/ascend-toolkit/set_env.sh ended with exit code 7" in done.stderr


def test_the_commands_arguments_are_not_those_of_canns_scripts(container: Container) -> None:
    done = container.start(*PRINT_ENVIRONMENT, "--cxx_abi=0")

    assert json.loads(done.stdout)["STANDIN_ARGUMENTS"] == ""


def test_what_canns_scripts_print_does_not_mix_with_the_commands_output(container: Container) -> None:
    done = container.start("echo", "here")

    assert done.stdout == "here\n"
    assert "a line that set_env.sh prints" in done.stderr


def test_the_command_replaces_the_entry_point(container: Container) -> None:
    """Else a signal to stop would end the shell, not the server."""
    done = container.start("sh", "-c", "cat /proc/$$/comm /proc/$PPID/comm")

    own, parent = done.stdout.split()
    assert own == "sh"
    assert parent not in {"entrypoint.sh", "bash"}


def test_the_commands_exit_code_is_the_containers(container: Container) -> None:
    assert container.start("sh", "-c", "exit 42").returncode == 42


def test_without_a_command_the_entry_point_says_so(container: Container) -> None:
    done = container.run(*container.entrypoint)

    assert done.returncode == 2
    assert "entrypoint: no command was given" in done.stderr


def test_a_user_without_a_passwd_entry_gets_a_name_and_a_home(container: Container) -> None:
    script = "import getpass, pathlib; pathlib.Path.home().joinpath('x').touch(); print(getpass.getuser())"

    done = container.start("python3", "-c", script, user="12345")

    assert (done.returncode, done.stdout) == (0, "uid-12345\n"), done.stderr
    assert "entrypoint: user id 12345 has no passwd entry; it goes by the name uid-12345" in done.stderr


def test_without_the_entry_point_such_a_user_has_no_name(container: Container) -> None:
    done = container.run("python3", "-c", "import getpass; getpass.getuser()", user="12345")

    assert done.returncode != 0


def test_root_keeps_its_home(container: Container) -> None:
    found = environment_of(container, HOME="/root")

    assert found["HOME"] == "/root"
