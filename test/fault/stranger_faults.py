"""Strangers at a rank's socket and in its temporary folder while a group is set up: other users,
processes that do not know the nonce, squatters. They are refused, and disturb nobody."""

import os
import tempfile
import time
from pathlib import Path

import torch
import torch.distributed as dist

import peer_protocol as protocol
from harness import Setup
from rank_processes import describe, start_ranks
from trials import Trial

WORLD = 3
TIMEOUT = 10.0
NOBODY = 65534
IS_ROOT = os.geteuid() == 0


# A visit comes before all ranks are there. It gives what is to be done when they are: a function
# that returns "" or what is wrong.


def _say(make):
    """Connects and says `make(record)`, bytes and descriptors; the rank must close."""

    def visit(record):
        link = protocol.connect(record)
        protocol.send(link, *make(record))

        def check():
            with link:
                return "" if protocol.is_closed(link) else "the rank has not closed the connection"

        return check

    return visit


def _wrong_nonce(record):
    return protocol.hello(2, bytes([record.nonce[0] ^ 1]) + record.nonce[1:]), []


def _silent_crowd(record):
    links = [protocol.connect(record) for _ in range(100)]

    def check():
        problems = [not protocol.is_closed(link) for link in links]
        for link in links:
            link.close()
        return f"{sum(problems)} of the silent ones are still connected" if any(problems) else ""

    return check


def _hundred_of_garbage(record):
    for number in range(100):
        with protocol.connect(record) as link:
            protocol.send(link, os.urandom(1 + number * 40))
    return lambda: ""


def _as_nobody(visit):
    """`visit` and its check in a process of another user."""

    def visit_as_nobody(record):
        reader, writer = os.pipe()
        pid = os.fork()
        if pid == 0:
            try:
                os.setgroups([])
                os.setgid(NOBODY)
                os.setuid(NOBODY)
                check = visit(record)
                os.write(writer, b"-")
                problem = check()
            except BaseException as error:
                problem = f"-{type(error).__name__}: {error}"
            os.write(writer, problem.encode()[:4000])
            os._exit(0)
        os.close(writer)
        told = os.fdopen(reader)
        told.read(1)

        def check():
            with told:
                problem = told.read()
            os.waitpid(pid, 0)
            return problem

        return check

    return visit_as_nobody


def _kept_out(record):
    try:
        protocol.connect(record).close()
    except PermissionError:
        return lambda: ""
    return lambda: "another user has connected through a folder of mode 0700"


def _sees_nothing(record):
    try:
        names = os.listdir(os.path.dirname(record.socket_path))
    except PermissionError:
        return lambda: ""
    return lambda: f"another user reads {names}"


def _let_in(visit):
    """Another user's, where root has opened folder and socket to everybody."""

    def visit_through_an_open_door(record):
        path = Path(record.socket_path.decode())
        path.parent.chmod(0o755)
        path.chmod(0o666)
        return _as_nobody(visit)(record)

    return visit_through_an_open_door


# What a stranger does, and what a rank says about it on stderr.
STRANGERS = {
    "garbage": (_say(lambda record: (b"\1\2\3", [])), "malformed"),
    "oversize": (_say(lambda record: (b"A" * 5000, [])), "malformed"),
    "wrong nonce": (_say(_wrong_nonce), "nonce"),
    "its own rank": (_say(lambda r: (protocol.hello(r.rank, r.nonce), [])), "does not connect"),
    "no such rank": (_say(lambda r: (protocol.hello(2**32 - 1, r.nonce), [])), "does not connect"),
    "a descriptor": (_say(lambda r: (protocol.hello(2, r.nonce), [0])), "malformed"),
    "four descriptors": (_say(lambda r: (protocol.hello(2, r.nonce), [0] * 4)), "malformed"),
    "a silent crowd": (_silent_crowd, "does not say who it is"),
    "a hundred of garbage": (_hundred_of_garbage, "refused"),
}
if IS_ROOT:
    STRANGERS |= {
        "another user": (_as_nobody(_kept_out), ""),
        "another user looks": (_as_nobody(_sees_nothing), ""),
        "another user, let in": (
            _let_in(_say(lambda r: (protocol.hello(2, r.nonce), []))),
            "another user",
        ),
        "a descriptor of another user": (
            _let_in(_say(lambda r: (protocol.hello(2, r.nonce), [0]))),
            "another user",
        ),
    }


def _squat(folder: Path) -> list[Path]:
    """Names like those of a rank's folder; what must not be touched by those who clean up."""
    victim = folder / "victim"
    victim.mkdir()
    (victim / "s").write_text("not a socket of symm")
    boot_id = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii")
    prefix = f"symm-mesh-{boot_id[:8]}-"
    (folder / f"{prefix}link00").symlink_to(victim)
    (folder / f"{prefix}file00").write_text("a file")
    full = folder / f"{prefix}full00"
    full.mkdir()
    (full / "other").write_text("not of symm")
    untouched = [victim / "s", full / "other", folder / f"{prefix}file00"]
    if IS_ROOT:
        theirs = folder / f"{prefix}user00"
        theirs.mkdir()
        os.chown(theirs, NOBODY, NOBODY)
    return untouched


def _join_and_sum(rank, setup, folder, go):
    torch.set_num_threads(1)
    errors = os.open(folder / f"stderr{rank}", os.O_CREAT | os.O_WRONLY)
    os.dup2(errors, 2)
    while rank == 2 and not go.exists():
        time.sleep(0.001)
    setup.join(rank)
    problems = []
    for count in (100, 200_000):
        tensor = torch.full((count,), rank + 1.0)
        dist.all_reduce(tensor)
        problems += [] if bool((tensor == 6.0).all()) else [f"a wrong sum of {count}"]
    dist.destroy_process_group()
    return problems


def strangers_during_set_up(index: int) -> Trial:
    """Ranks 0 and 1 wait for rank 2, which comes when the strangers have been there."""
    name = list(STRANGERS)[index % len(STRANGERS)]
    visited = index // len(STRANGERS) % 2
    visit, word = STRANGERS[name]
    with tempfile.TemporaryDirectory(prefix="symm_fault_") as path:
        folder = Path(path)
        folder.chmod(0o755)  # else another user would fail at this one
        sockets = folder / "t"
        sockets.mkdir(mode=0o777)
        untouched = _squat(sockets)
        setup = Setup(
            str(folder / "store"), WORLD, timeout=TIMEOUT, env=(("TMPDIR", str(sockets)),)
        )
        ranks = start_ranks(_join_and_sum, WORLD, (setup, folder, folder / "go"))
        _, record = protocol.await_record(setup.store_path, visited)
        check = visit(record)
        (folder / "go").touch()  # a rank accepts once it has read every rank's record
        start = time.monotonic()
        problem = check()
        reports = ranks.finish(TIMEOUT)
        said = (folder / f"stderr{visited}").read_text(errors="replace")
        gone = [str(path) for path in untouched if not path.exists()]
    problems = [problem] if problem else []
    problems += [f"removed: {gone}"] if gone else []
    problems += [describe([r]) for r in reports if not r.returned or r.value]
    if word and f"symm: refused a connection: group '0', rank {visited}" not in said:
        problems.append(f"nothing was logged: {said!r}")
    elif word not in said:
        problems.append(f"{word!r} is not in what was logged: {said!r}")
    detail = "\n".join(f"{name} at rank {visited}: {line}" for line in problems)
    return Trial(not problems, [time.monotonic() - start], detail)
