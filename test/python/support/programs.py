"""Runs modules and scripts as main programs in forks of this process, which has imported torch: a
fresh interpreter would spend two seconds of CPU time on that. What is about imports, or about the
end of an interpreter, needs a fresh one (see scripts.py)."""

import contextlib
import multiprocessing
import os
import runpy
import signal
import socket
import subprocess
import sys
import tempfile
from pathlib import Path


def _main(run, options, env, output, errors):
    for number, path in ((1, output), (2, errors)):
        with open(path, "wb") as file:
            os.dup2(file.fileno(), number)
    sys.stdout = open(1, "w", closefd=False, buffering=1)
    sys.stderr = open(2, "w", closefd=False, buffering=1)
    for name in set(os.environ) - set(env):
        del os.environ[name]
    os.environ.update(env)
    sys.argv[1:] = options
    try:
        run()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()


def _finish(processes, folder, command, timeout) -> list[subprocess.CompletedProcess]:
    try:
        for process in processes:
            process.join(timeout)
            if process.exitcode is None:
                raise subprocess.TimeoutExpired(command, timeout)
    finally:
        for process in processes:
            with contextlib.suppress(OSError):
                os.kill(process.pid, signal.SIGKILL)
            process.join()
    return [
        subprocess.CompletedProcess(
            command,
            process.exitcode,
            *(Path(folder, f"{name}{number}").read_text() for name in ("out", "err")),
        )
        for number, process in enumerate(processes)
    ]


def _run(run, options, environments, timeout) -> list[subprocess.CompletedProcess]:
    context = multiprocessing.get_context("fork")
    with tempfile.TemporaryDirectory(prefix="symm_program_") as folder:
        processes = []
        for number, env in enumerate(environments):
            files = (f"{folder}/out{number}", f"{folder}/err{number}")
            process = context.Process(target=_main, args=(run, options, env, *files))
            process.start()
            processes.append(process)
        return _finish(processes, folder, options, timeout)


def run_module(
    module: str, *options: str, env: dict | None = None, timeout: float = 100.0
) -> subprocess.CompletedProcess:
    """``python -m module options``; `env` is the whole environment."""

    def run():
        runpy.run_module(module, run_name="__main__", alter_sys=True)

    return _run(run, list(options), [dict(os.environ if env is None else env)], timeout)[0]


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def _environments(ranks: int, env: dict | None) -> list[dict]:
    """With the variables that torchrun sets."""
    job = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    for size in ("WORLD_SIZE", "LOCAL_WORLD_SIZE"):
        job[size] = str(ranks)
    return [
        {**(os.environ if env is None else env), **job, "RANK": str(rank), "LOCAL_RANK": str(rank)}
        for rank in range(ranks)
    ]


def run_script_on_ranks(
    script: Path, ranks: int, *options: str, env: dict | None = None, timeout: float = 100.0
) -> list[subprocess.CompletedProcess]:
    """The script as torchrun's ranks would run it."""

    def run():
        runpy.run_path(str(script), run_name="__main__")

    return _run(run, list(options), _environments(ranks, env), timeout)


def run_module_on_hosts(
    module: str, hosts: list[str], *options: str, timeout: float = 100.0
) -> list[subprocess.CompletedProcess]:
    """``torchrun -m module options``, with a rank on each of `hosts`."""
    environments = _environments(len(hosts), None)
    for environment, host in zip(environments, hosts, strict=True):
        environment["SYMM_HOST_ID"] = host

    def run():
        runpy.run_module(module, run_name="__main__", alter_sys=True)

    return _run(run, list(options), environments, timeout)
