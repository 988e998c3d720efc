"""Runs a program's text as the main module of N ranks, with everything that the end of an
interpreter does: atexit handlers, module teardown, destructors of the C++ libraries.

A helper interpreter (this file run as a program) imports torch once; each rank is a fork of it
that leaves the helper's loop and runs the program as its own last statement.
"""

import dataclasses
import gc
import json
import os
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
from pathlib import Path


@dataclasses.dataclass
class ScriptResult:
    exit_code: int | None  # negative: a signal; None: killed at the time limit
    stdout: str
    stderr: str
    seconds: float
    ended_at: float  # time.monotonic() when the process was found to have ended


class ScriptRunner:
    def __init__(self):
        self._helper = None

    def __call__(self, text, world_size=1, limit=30.0, env=None) -> list[ScriptResult]:
        """Runs `text` with sys.argv = [name, rank, path of a FileStore]. With `env` the helper is
        a fresh one, so that variables read at `import torch` count."""
        if env:
            helper = self._start(env)
            try:
                return self._run(helper, text, world_size, limit)
            finally:
                self._stop(helper)
        if self._helper is None or self._helper.poll() is not None:
            self._helper = self._start({})
        return self._run(self._helper, text, world_size, limit)

    def close(self):
        if self._helper is not None:
            self._stop(self._helper)

    def _start(self, env):
        return subprocess.Popen(
            [sys.executable, str(Path(__file__).resolve())],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, **env},
            text=True,
        )

    def _stop(self, helper):
        helper.stdin.close()
        helper.stdout.close()
        helper.wait(timeout=10)

    def _run(self, helper, text, world_size, limit):
        with tempfile.TemporaryDirectory(prefix="symm_script_") as folder:
            request = {"folder": folder, "world_size": world_size, "limit": limit}
            request["text"] = textwrap.dedent(text)
            helper.stdin.write(json.dumps(request) + "\n")
            helper.stdin.flush()
            return [ScriptResult(**fields) for fields in json.loads(helper.stdout.readline())]


def _fork_rank(request, rank) -> int:
    """The pid in the helper, 0 in the rank."""
    pid = os.fork()
    if pid == 0:
        for number, name in ((1, "out"), (2, "err")):
            fd = os.open(f"{request['folder']}/{name}{rank}", os.O_CREAT | os.O_WRONLY)
            os.dup2(fd, number)
            os.close(fd)
        null = os.open(os.devnull, os.O_RDONLY)
        os.dup2(null, 0)
    return pid


def _wait_for(pids, limit):
    """[(exit code or None, when it ended)] by rank."""
    start, ended = time.monotonic(), {}
    while len(ended) < len(pids):
        late = time.monotonic() - start > limit
        for rank, pid in enumerate(pids):
            if rank in ended:
                continue
            if late:
                os.kill(pid, signal.SIGKILL)
            done, status = os.waitpid(pid, 0 if late else os.WNOHANG)
            if done:
                code = None if late else os.waitstatus_to_exitcode(status)
                ended[rank] = (code, time.monotonic())
        time.sleep(0.002)
    return [ended[rank] for rank in range(len(pids))]


def serve():
    """The helper's loop. Returns (program text, rank, folder) in a rank, None at the end."""
    for line in sys.stdin:
        request = json.loads(line)
        start, pids = time.monotonic(), []
        for rank in range(request["world_size"]):
            pid = _fork_rank(request, rank)
            if pid == 0:
                return request["text"], rank, request["folder"]
            pids.append(pid)
        results = []
        for rank, (code, ended_at) in enumerate(_wait_for(pids, request["limit"])):
            texts = [
                Path(request["folder"], f"{name}{rank}").read_text(errors="replace")
                for name in ("out", "err")
            ]
            result = ScriptResult(code, *texts, ended_at - start, ended_at)
            results.append(dataclasses.asdict(result))
        print(json.dumps(results), flush=True)
    return None


if __name__ == "__main__":
    import torch.distributed  # noqa: F401

    gc.freeze()  # or each rank would look through all of it when it ends
    work = serve()
    if work is not None:
        program, rank_text, run_folder = work[0], str(work[1]), work[2]
        sys.argv = ["program", rank_text, f"{run_folder}/store"]
        exec(compile(program, "program", "exec"), {"__name__": "__main__"})
