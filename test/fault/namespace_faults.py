"""Ranks that may not look into each other: no ptrace and its relatives, no descriptors of other
processes, pid namespaces of their own. A group works all the same, and a death is noticed."""

import ctypes
import os
import pickle
import signal
import struct
import time

from harness import Setup
from limit_faults import CLONE_NEWNS, is_permitted, mount, unshare
from rank_processes import describe, start_ranks
from trials import Ending, Progress, Trial, fresh_setup, judge, loop

WORLD = 3
HANG = 10.0
CLONE_NEWPID, CLONE_NEWIPC, CLONE_NEWUTS = 0x20000000, 0x08000000, 0x04000000
PR_SET_DUMPABLE, PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP, SECCOMP_MODE_FILTER = 4, 38, 22, 2

_libc = ctypes.CDLL(None, use_errno=True)

# ptrace, process_vm_readv, process_vm_writev, kcmp, pidfd_open, pidfd_getfd, pidfd_send_signal.
_NUMBERS = {"x86_64": [101, 310, 311, 312, 434, 438, 424]}
_NUMBERS["aarch64"] = [117, 270, 271, 272, 434, 438, 424]
FORBIDDEN = _NUMBERS.get(os.uname().machine, [])


def _prctl(*arguments) -> None:
    if _libc.prctl(*(ctypes.c_ulong(value) for value in arguments)) != 0:
        raise OSError(ctypes.get_errno(), "prctl")


def _not_dumpable():
    """/proc/<pid> of this process belongs to root; nobody may attach to it."""
    _prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)


def _forbid_calls():
    """seccomp: the system calls that reach into other processes fail with EPERM."""
    load, jump_if_equal, give = 0x20, 0x15, 0x06  # BPF_LD|W|ABS, BPF_JMP|JEQ|K, BPF_RET|K
    allow, refuse = 0x7FFF0000, 0x00050000 | 1
    program = [(load, 0, 0, 0)]  # the number of the call
    for at, number in enumerate(FORBIDDEN):
        program.append((jump_if_equal, len(FORBIDDEN) - at, 0, number))
    program += [(give, 0, 0, allow), (give, 0, 0, refuse)]
    code = b"".join(struct.pack("<HBBI", *line) for line in program)
    memory = ctypes.create_string_buffer(code, len(code))
    header = struct.pack("<HxxxxxxQ", len(program), ctypes.addressof(memory))
    header = ctypes.create_string_buffer(header, len(header))
    _prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    _prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.addressof(header), 0, 0)
    # pidfd_getfd, to see that the filter is there.
    if _libc.syscall(FORBIDDEN[-2], 0, 0, 0) != -1 or ctypes.get_errno() != 1:
        raise OSError("the filter does not refuse")


def _nothing():
    pass


# (flags of unshare, what the process that runs the rank then does).
ALL_KINDS = {
    "not dumpable": (0, _not_dumpable),
    "calls forbidden": (0, _forbid_calls),
    "pid namespaces": (CLONE_NEWPID, _nothing),
    "pid namespaces, their own /proc": (CLONE_NEWPID, lambda: mount("proc", "/proc")),
    "pid, ipc, uts namespaces": (CLONE_NEWPID | CLONE_NEWIPC | CLONE_NEWUTS, _nothing),
    "pid and mount namespaces": (CLONE_NEWPID | CLONE_NEWNS, _nothing),
    "all of it": (CLONE_NEWPID, lambda: (mount("proc", "/proc"), _not_dumpable(), _forbid_calls())),
}


def _may(flags, prepare) -> bool:
    def attempt():
        unshare(flags)  # a pid namespace is that of its children
        if not is_permitted(prepare):
            raise OSError("not permitted")

    return is_permitted(attempt)


KINDS = [name for name, (flags, prepare) in ALL_KINDS.items() if _may(flags, prepare)]


def _confined_loop(rank, setup: Setup, kind, progress, word, count, pids) -> Ending | None:
    """loop() in a process of its own namespaces, whose pid, as seen from here, is put in `pids`."""
    flags, prepare = kind
    if flags == 0:
        prepare()
        pids.set(rank, os.getpid())
        return loop(rank, setup, progress, word, count)
    unshare(flags)
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            prepare()
            os.write(writer, pickle.dumps(loop(rank, setup, progress, word, count)))
        finally:
            os._exit(0)
    pids.set(rank, pid)
    os.close(writer)
    with os.fdopen(reader, "rb") as told:
        blob = told.read()
    os.waitpid(pid, 0)
    return pickle.loads(blob) if blob else None


def confined_ranks(index: int) -> Trial:
    """Right results, and a killed rank is named as anywhere else. On one rank only, or on all."""
    name = KINDS[index % len(KINDS)]
    confined = range(WORLD) if index // len(KINDS) % 2 == 0 else [index % WORLD]
    word, count = ["all_reduce", "send|recv", "all_to_all"][index // len(KINDS) % 3], 40_000
    victim = index // 2 % WORLD
    progress, pids = Progress(WORLD), Progress(WORLD)

    def body(rank, setup):
        kind = ALL_KINDS[name] if rank in confined else (0, _nothing)
        return _confined_loop(rank, setup, kind, progress, word, count, pids)

    with fresh_setup(WORLD) as setup:
        ranks = start_ranks(body, WORLD, (setup,))
        ready = progress.wait_for(20)
        killed = time.monotonic()
        if ready:
            os.kill(pids.get(victim), signal.SIGKILL)
        reports = ranks.finish(HANG)
    if not ready:
        return Trial(False, [], f"{name} on {list(confined)}: {describe(reports)}")
    trial = judge(reports, victim, word, killed, limit=1.0)
    wrong = [r.rank for r in reports if isinstance(r.value, Ending) and r.value.wrong]
    trial.passed = trial.passed and not wrong
    trial.detail = f"{name} on {list(confined)}: {trial.detail}"
    trial.facts = {"kinds": KINDS, "not_permitted_here": [k for k in ALL_KINDS if k not in KINDS]}
    return trial
