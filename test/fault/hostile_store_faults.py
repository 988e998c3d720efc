"""A Store that lies: what one rank, or every rank, reads of another one's record is not what that
rank has published."""

import datetime
import random
import time

import torch
import torch.distributed as dist

from harness import BACKEND
from peer_protocol import Record, is_record_key
from rank_processes import describe, start_ranks
from trials import Ending, Trial, fresh_setup, quiet, what_is_missing

WORLD = 3
TIMEOUT = 1.0
HANG = 5.0


def _changed(**fields):
    def change(record: Record, rng) -> bytes:
        for name, value in fields.items():
            setattr(record, name, value(getattr(record, name), rng) if callable(value) else value)
        return record.encode()

    return change


def _flipped(record, rng):
    blob = bytearray(record.encode())
    for _ in range(rng.randint(1, 4)):
        blob[rng.randrange(len(blob))] ^= 1 << rng.randrange(8)
    return bytes(blob)


def _huge_length(record, rng):
    """One of the three lengths says up to 4 GiB."""
    blob, which = bytearray(record.encode()), rng.randrange(3)
    at = 64 + 16 + [0, 4 + len(record.boot_id), 8 + len(record.boot_id + record.socket_path)][which]
    blob[at : at + 4] = rng.choice([0xFFFFFFFF, 0x7FFFFFFF, len(blob), 1 << 20]).to_bytes(
        4, "little"
    )
    return bytes(blob)


def _spliced(record, rng):
    blob = record.encode()
    a, b = sorted(rng.choices(range(len(blob)), k=2))
    return blob[:a] + blob[b:] + rng.randbytes(rng.randrange(64))


# What the value becomes, given the record and random numbers.
LIES = {
    "bits flipped": _flipped,
    "random bytes": lambda record, rng: rng.randbytes(rng.randrange(600)),
    "truncated": lambda record, rng: record.encode()[: rng.randrange(len(record.encode()))],
    "longer": lambda record, rng: record.encode() + rng.randbytes(rng.randint(1, 5000)),
    "huge length": _huge_length,
    "huge value": lambda record, rng: rng.randbytes(1 << 20),
    "empty": lambda record, rng: b"",
    "spliced": _spliced,
    "another pid": _changed(
        pid=lambda pid, rng: rng.choice([1, -1, 0, 2**31, 2**63, pid + 1]) % 2**64
    ),
    "another start": _changed(start=lambda start, rng: rng.randrange(2**63)),
    "another user": _changed(uid=lambda uid, rng: rng.randrange(2**32)),
    "another nonce": _changed(nonce=lambda nonce, rng: rng.randbytes(16)),
    "another rank": _changed(rank=lambda rank, rng: rng.choice([0, 2, 3, 2**31, 2**32 - 1])),
    "another size": _changed(world_size=lambda size, rng: rng.choice([0, 1, 2, 4, 2**32 - 1])),
    "another boot id": _changed(boot_id=lambda boot, rng: bytes(reversed(boot))),
    "wild boot id": _changed(boot_id=lambda boot, rng: rng.randbytes(rng.randrange(80))),
    "another time": _changed(published=lambda time, rng: rng.choice([0, 1, 2**64 - 1, time + 1])),
    "not joining": _changed(joining=lambda joining, rng: rng.choice([0, 2, 2**32 - 1])),
    "another version": _changed(version=lambda version, rng: rng.choice([0, 1, 2**32 - 1])),
    "another socket": _changed(socket_path=lambda path, rng: path[:-1] + b"x"),
    "no socket": _changed(socket_path=lambda path, rng: rng.choice([b"/dev/null", b"/", b"/tmp"])),
    "wild socket": _changed(socket_path=lambda path, rng: rng.randbytes(rng.randrange(120))),
    "long socket": _changed(socket_path=lambda path, rng: b"/" + b"x" * rng.randint(100, 5000)),
    "no payload": _changed(payload=b""),
    "wild payload": _changed(payload=lambda p, rng: rng.randbytes(rng.randrange(2 * len(p) + 1))),
    "huge payload": _changed(payload=lambda p, rng: rng.randbytes(rng.choice([65_536, 65_537]))),
}


class LyingStore(dist.Store):
    """Another store, but for what it says of a rank."""

    def __init__(self, store, of, lie, seed):
        super().__init__()
        self.store, self.of, self.lie, self.seed = store, of, lie, seed

    def set(self, key, value):
        self.store.set(key, value)

    def get(self, key):
        value = self.store.get(key)
        if not is_record_key(key, self.of):
            return value
        return self.lie(Record.decode(value), random.Random(self.seed))

    def check(self, keys):
        return self.store.check(keys)

    def wait(self, keys, timeout=None):
        self.store.wait(keys, timeout or datetime.timedelta(seconds=TIMEOUT))

    def add(self, key, value):
        return self.store.add(key, value)


def _join_and_sum(rank, path, liar_of, told, name, seed):
    torch.set_num_threads(1)
    quiet()
    store = dist.FileStore(path, -1)
    if rank in told:
        store = LyingStore(store, liar_of, LIES[name], seed)
    started = time.monotonic()
    try:
        dist.init_process_group(
            BACKEND,
            store=store,
            rank=rank,
            world_size=WORLD,
            timeout=datetime.timedelta(seconds=TIMEOUT),
        )
        tensor = torch.full((1000,), rank + 1.0)
        dist.all_reduce(tensor)
        wrong = int(tensor[0] != 6.0 or tensor[-1] != 6.0)
        dist.destroy_process_group()
    except Exception as error:
        text = f"{type(error).__name__}: {error}"
        return Ending(0, 0, started, time.monotonic(), text)
    return Ending(1, wrong, started, time.monotonic())


# A lie by which a group may come about all the same: it changes nothing that is relied upon, or
# what it hides is read elsewhere.
def _judge_rank(report, limit) -> str:
    if not isinstance(report.value, Ending):
        return describe([report])
    took = report.value.ended - report.value.started
    if report.value.wrong:
        return "a wrong sum"
    if took > limit:
        return f"ended after {took:.2f} s: {report.value.error}"
    if report.value.error is None:
        return ""
    return what_is_missing(report.value.error, [r"symm \[\w+\]", r"ranks? \d"])


def hostile_store(index: int) -> Trial:
    """Every rank raises an error that names a rank in time, or all have a group that works; no
    process crashes, whatever is read."""
    name = list(LIES)[index % len(LIES)]
    around = index // len(LIES)
    liar_of = around % WORLD
    # Those that are lied to: all, the rank itself, or the others.
    told = [range(WORLD), [liar_of], [r for r in range(WORLD) if r != liar_of]][around // WORLD % 3]
    with fresh_setup(WORLD) as setup:
        ranks = start_ranks(
            _join_and_sum, WORLD, (setup.store_path, liar_of, list(told), name, index)
        )
        reports = ranks.finish(2 * TIMEOUT + HANG)
    problems = [
        f"{name} of rank {liar_of}, told to {list(told)}, seed {index}: rank {r.rank}: {problem}"
        for r in reports
        if (problem := _judge_rank(r, 2 * TIMEOUT + 1))
    ]
    endings = [r.value for r in reports if isinstance(r.value, Ending)]
    if len({ending.error is None for ending in endings}) > 1 and not problems:
        done = [e.error for e in endings]
        problems = [f"{name} of rank {liar_of}: only some have a group: {done}"]
    return Trial(not problems, [e.ended - e.started for e in endings], "\n".join(problems))
