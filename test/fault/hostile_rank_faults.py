"""A rank that has joined by the rules and then speaks the protocol wrongly: garbage, forged memory,
silence. Rank 1 is played by the test; ranks 0 and 2 are real and must not crash, hang or believe
it."""

import contextlib
import dataclasses
import fcntl
import mmap
import os
import random
import select
import socket
import tempfile
import time
from pathlib import Path

import torch
import torch.distributed as dist

import peer_protocol as protocol
from harness import BACKEND, Setup
from peer_protocol import EXCHANGE, SEALS, Record
from rank_processes import describe, start_ranks
from trials import Ending, Trial, quiet, what_is_missing

WORLD, ME = 3, 1
TIMEOUT = 1.0
HANG = 5.0
PATIENCE = 2 * TIMEOUT + HANG  # of the played rank
# What every error must name: its kind, the group and the rank that is to blame.
WORDS = [r"symm \[\w+\]", r"group ['\"]0", rf"ranks? [0-9, ]*\b{ME}\b"]


def _real_rank(rank, setup):
    torch.set_num_threads(1)
    quiet()
    started = time.monotonic()
    try:
        setup.init(rank)
        dist.all_reduce(torch.ones(1000))
        dist.all_reduce(torch.ones(300_000))  # more memory is shared for this one
        dist.destroy_process_group()
    except Exception as error:
        return Ending(0, 0, started, time.monotonic(), f"{type(error).__name__}: {error}")
    return Ending(1, 0, started, time.monotonic())


@dataclasses.dataclass
class Frame:
    """What is about to be sent in place of the right frame."""

    blob: bytes
    descriptors: list[int]
    rng: random.Random


# What a rank may send instead of a frame. Each gives frames as (bytes, descriptors), or CLOSE.
CLOSE = "close"


def _header(**fields):
    """The frame with another header."""

    def lie(frame):
        names = ["magic", "flags", "number", "length", "stream"]
        values = dict(zip(names, EXCHANGE.unpack_from(frame.blob), strict=True))
        for name, change in fields.items():
            values[name] = change(values[name])
        return [(EXCHANGE.pack(*values.values()) + frame.blob[EXCHANGE.size :], frame.descriptors)]

    return lie


def _message_flipped(frame):
    blob = bytearray(frame.blob)
    for _ in range(frame.rng.randint(1, 8)):
        blob[frame.rng.randrange(EXCHANGE.size, len(blob))] ^= 1 << frame.rng.randrange(8)
    return [(bytes(blob), frame.descriptors)]


def _random_message(frame):
    return [
        (frame.blob[: EXCHANGE.size] + frame.rng.randbytes(len(frame.blob) - EXCHANGE.size), [])
    ]


OF_ANY_FRAME = {
    "silence": lambda frame: [],
    "close": lambda frame: [CLOSE],
    "one byte": lambda frame: [(b"x", [])],
    "random bytes": lambda frame: [(frame.rng.randbytes(len(frame.blob)), [])],
    "truncated": lambda frame: [(frame.blob[: frame.rng.randrange(1, len(frame.blob))], [])],
    "oversize": lambda frame: [(frame.blob + bytes(5000), frame.descriptors)],
    "64 KiB": lambda frame: [(frame.rng.randbytes(60_000), [])],
    "close behind it": lambda frame: [(frame.blob, frame.descriptors), CLOSE],
    "two descriptors": lambda frame: [(frame.blob, [*frame.descriptors, 0, 0][:2])],
    "four descriptors": lambda frame: [(frame.blob, [0, 0, 0, 0])],
}
OF_AN_EXCHANGE = {
    "wrong magic": _header(magic=lambda magic: magic ^ 1),
    "unknown flag": _header(flags=lambda flags: flags | 4),
    "descriptor promised or denied": _header(flags=lambda flags: flags ^ 1),
    "post or exchange": _header(flags=lambda flags: flags ^ 2),
    "an older number": _header(number=lambda number: (number - 1) % 2**64),
    "a newer number": _header(number=lambda number: (number + 1) % 2**64),
    "huge length": _header(length=lambda length: 0xFFFFFFFF),
    "shorter length": _header(length=lambda length: max(length - 1, 0)),
    "another stream": _header(stream=lambda stream: stream ^ 1),
    "unknown stream": _header(stream=lambda stream: 77),
    "message flipped": _message_flipped,
    "random message": _random_message,
    "twice": lambda frame: [(frame.blob, frame.descriptors)] * 2,
    "forty times": lambda frame: [(frame.blob, frame.descriptors)] * 40,
}


def _forged(make):
    """The frame with another descriptor, made by `make(bytes that it should have)`."""

    def lie(frame):
        size = os.fstat(frame.descriptors[0]).st_size
        return [(frame.blob, [make(size)])]

    return lie


def _file(size):
    with tempfile.TemporaryFile() as file:
        os.posix_fallocate(file.fileno(), 0, size)
        return os.dup(file.fileno())


def _read_only(size):
    fd = protocol.memory(size)
    again = os.open(f"/proc/self/fd/{fd}", os.O_RDONLY)
    os.close(fd)
    return again


OF_MEMORY = {
    "no descriptor": lambda frame: [(frame.blob, [])],
    "not sealed": _forged(lambda size: protocol.memory(size, seals=0)),
    "may shrink": _forged(lambda size: protocol.memory(size, seals=fcntl.F_SEAL_GROW)),
    "may be sealed": _forged(lambda size: protocol.memory(size, SEALS & ~fcntl.F_SEAL_SEAL)),
    "sealed against writes": _forged(
        lambda size: protocol.memory(size, SEALS | fcntl.F_SEAL_WRITE)
    ),
    "not allocated": _forged(lambda size: protocol.memory(size, allocated=False)),
    "too small": _forged(lambda size: protocol.memory(size - mmap.PAGESIZE)),
    "one byte of memory": _forged(lambda size: protocol.memory(1)),
    "empty memory": _forged(lambda size: protocol.memory(0)),
    "too large": _forged(lambda size: protocol.memory(size + mmap.PAGESIZE)),
    "read only": _forged(_read_only),
    "a file": _forged(_file),
    "a folder": _forged(lambda size: os.open("/", os.O_RDONLY)),
    "a path": _forged(lambda size: os.open("/", os.O_PATH)),
    "a pipe": _forged(lambda size: os.pipe()[0]),
    "a socket": _forged(lambda size: socket.socket().detach()),
    "/dev/zero": _forged(lambda size: os.open("/dev/zero", os.O_RDWR)),
    "/dev/null": _forged(lambda size: os.open("/dev/null", os.O_RDWR)),
}
OF_A_HELLO = {
    "silence": lambda blob, rng: b"",
    "random bytes": lambda blob, rng: rng.randbytes(len(blob)),
    "truncated": lambda blob, rng: blob[:20],
    "oversize": lambda blob, rng: blob + bytes(4096),
    "another rank": lambda blob, rng: blob[:8] + bytes([7, 0, 0, 0]) + blob[12:],
    "another nonce": lambda blob, rng: blob[:16] + rng.randbytes(16) + blob[32:],
    "another version": lambda blob, rng: blob[:4] + bytes([9, 0, 0, 0]) + blob[8:],
}
# What a rank may do to the memory that it shares, its own and the others', once it is a member.
OF_A_MEMBER = ["silence", "close", "noise", "own pages", "own memory", "all pages", "all memory"]
OF_A_MEMBER += ["other records", "other memory"]
# The first part of a rank's memory, sizeof(GroupPage): failure, lifecycle, metadata. What follows
# begins with signals and the records of calls.
PAGE = 28 << 10

# In this order are frames sent: the closing round, the post of the page, the status of that.
CLOSING, POST, STATUS = "closing round", "post", "status"
CASES = [("greeting", name) for name in OF_A_HELLO]
CASES += [("answer", name) for name in OF_A_HELLO]
CASES += [(stage, n) for stage in (CLOSING, POST, STATUS) for n in OF_ANY_FRAME | OF_AN_EXCHANGE]
CASES += [(POST, name) for name in OF_MEMORY]
CASES += [("member", name) for name in OF_A_MEMBER]
VARIANTS = len(CASES)
random.Random(0).shuffle(CASES)  # a few of them are of every stage
# Some lies change nothing that counts; the collective that follows raises all the same, since
# rank 1 never takes part.


class PlayedRank:
    """Rank 1. It follows the protocol, copying what rank 0 says, up to the stage of the case."""

    def __init__(self, setup: Setup, case, seed: int):
        self.stage, self.lie = case
        self.rng = random.Random(seed)
        self.links: dict[int, socket.socket] = {}
        self.kept: list[int] = []  # descriptors
        self.struck = 0.0
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.path = setup.store_path

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for link in [self.listener, *self.links.values()]:
            link.close()
        for fd in self.kept:
            with contextlib.suppress(OSError):
                os.close(fd)

    def join(self, folder: str) -> None:
        key, zero = protocol.await_record(self.path, 0)
        self.listener.bind(os.path.join(folder, "s"))
        self.listener.listen(8)
        # LocalGroup's payload begins with the global rank.
        payload = ME.to_bytes(8, "little") + zero.payload[8:]
        self.record = dataclasses.replace(
            zero,
            rank=ME,
            pid=os.getpid(),
            published=time.clock_gettime_ns(time.CLOCK_BOOTTIME),
            nonce=self.rng.randbytes(16),
            socket_path=os.path.join(folder, "s").encode(),
            payload=payload,
        )
        protocol.publish(self.path, key[:-1] + str(ME), self.record.encode())
        _, two = protocol.await_record(self.path, 2)
        self._greet(zero)
        self._answer(two)

    def _hello(self, stage, to: Record) -> bytes:
        blob = protocol.hello(ME, to.nonce, self.record.published)
        if self.stage != stage:
            return blob
        self.struck = time.monotonic()
        return OF_A_HELLO[self.lie](blob, self.rng)

    def _greet(self, zero: Record) -> None:
        self.links[0] = protocol.connect(zero)
        if blob := self._hello("greeting", zero):
            protocol.send(self.links[0], blob)

    def _answer(self, two: Record) -> None:
        """Rank 2 connects to this one, and so do the probes of whoever waits."""
        deadline = time.monotonic() + PATIENCE
        while 2 not in self.links and time.monotonic() < deadline:
            if not select.select([self.listener], [], [], 0.1)[0]:
                continue
            link, _ = self.listener.accept()
            if len(protocol.receive(link, TIMEOUT)[0]) != protocol.HELLO.size:
                link.close()
                continue
            self.links[2] = link
            if blob := self._hello("answer", two):
                protocol.send(link, blob)

    def go_on(self) -> None:
        """The rounds of set-up, each as rank 0 sends it, up to the one of the case."""
        if not self._heard_hello():
            return
        for stage in (CLOSING, POST, STATUS):
            blob, descriptors = protocol.receive(self.links[0], PATIENCE)
            if not blob:
                return
            self.kept += descriptors
            right = Frame(blob, [self._own_memory(fd) for fd in descriptors], self.rng)
            if stage == self.stage:
                return self._send_lie(right)
            for link in self.links.values():
                protocol.send(link, right.blob, right.descriptors)
        if self.stage == "member":
            time.sleep(0.05)  # the real ranks are in their first collective
            self._be_a_bad_member()

    def _heard_hello(self) -> bool:
        return bool(protocol.receive(self.links[0], PATIENCE)[0])

    def _own_memory(self, theirs: int) -> int:
        fd = protocol.memory(os.fstat(theirs).st_size)
        self.kept.append(fd)
        return fd

    def _send_lie(self, right: Frame) -> None:
        self.struck = time.monotonic()
        lies = OF_ANY_FRAME | OF_AN_EXCHANGE | OF_MEMORY
        for what in lies[self.lie](right):
            for link in self.links.values():
                if what == CLOSE:
                    link.shutdown(socket.SHUT_RDWR)
                else:
                    protocol.send(link, *what)

    def _be_a_bad_member(self) -> None:
        self.struck = time.monotonic()
        if self.lie == "close":
            for link in self.links.values():
                link.close()
        elif self.lie == "noise":
            for _ in range(100):
                for link in self.links.values():
                    link.setblocking(False)
                    with contextlib.suppress(OSError):
                        link.send(self.rng.randbytes(self.rng.randrange(1, 4000)))
        elif self.lie != "silence":
            whose, what = self.lie.split()
            for fd in {"own": self.kept[-1:], "other": self.kept[:-1], "all": self.kept}[whose]:
                size = os.fstat(fd).st_size
                parts = {"pages": (0, PAGE), "records": (PAGE, size), "memory": (0, size)}
                begin, end = parts[what]
                with mmap.mmap(fd, size) as shared:
                    shared[begin:end] = self.rng.randbytes(end - begin)

    def stay(self, ranks, limit: float) -> None:
        """Keeps its connections until the others have ended."""
        ranks.collect(time.monotonic() + limit)


def hostile_rank(index: int) -> Trial:
    """Ranks 0 and 2 raise an error in time that names rank 1; neither dies."""
    case = CASES[index % len(CASES)]
    with tempfile.TemporaryDirectory(prefix="symm_fault_") as folder:
        setup = Setup(str(Path(folder, "store")), WORLD, BACKEND, TIMEOUT)
        began = time.monotonic()
        ranks = start_ranks(_real_rank_but_the_played, WORLD, (setup,))
        with PlayedRank(setup, case, index) as played:
            played.join(folder)
            played.go_on()
            played.stay(ranks, 2 * TIMEOUT + HANG)
            reports = ranks.finish(0)
    seconds, problems = [], []
    for report in reports:
        if report.rank == ME:
            continue
        if not isinstance(report.value, Ending):
            problems.append(describe([report]))
            continue
        took = report.value.ended - (played.struck or began)
        seconds.append(max(0.0, took))
        problem = what_is_missing(report.value.error, WORDS)
        if not problem and took > 2 * TIMEOUT + 1:
            problem = f"raised after {took:.2f} s: {report.value.error}"
        if problem:
            problems.append(f"rank {report.rank}: {problem}")
    if not played.struck:
        problems.append("the played rank did not get as far as that")
    label = f"{case[0]}, {case[1]}, seed {index}: "
    return Trial(not problems, seconds, "\n".join(label + problem for problem in problems))


def _real_rank_but_the_played(rank, setup):
    return None if rank == ME else _real_rank(rank, setup)
