"""What ranks say to each other while a group is set up, spoken by the test: the record in the Store
and the frames on the sockets (NOTE [Peer record] and NOTE [Peer frames] of symm_mem/bootstrap)."""

import contextlib
import dataclasses
import fcntl
import os
import select
import socket
import struct
import time
from pathlib import Path

import torch.distributed as dist

HELLO = struct.Struct("<4I16sQ")
HELLO_MAGIC, HELLO_VERSION = 0x6F6C6568, 2
EXCHANGE = struct.Struct("<2IQ2I")
MOST_BYTES = 1 << 16
SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL

_HEAD = struct.Struct("<4I3QI2QI16s")
_FIELDS = ["magic", "version", "rank", "world_size", "pid", "start", "pid_namespace", "uid"]
_FIELDS += ["mount_namespace", "published", "joining", "nonce"]


def _sized(blob: bytes) -> bytes:
    return struct.pack("<I", len(blob)) + blob


@dataclasses.dataclass
class Record:
    """A peer record, field by field."""

    magic: int
    version: int
    rank: int
    world_size: int
    pid: int
    start: int
    pid_namespace: int
    uid: int
    mount_namespace: int
    published: int
    joining: int
    nonce: bytes
    boot_id: bytes
    socket_path: bytes
    payload: bytes

    def encode(self) -> bytes:
        head = _HEAD.pack(*(getattr(self, field) for field in _FIELDS))
        return head + _sized(self.boot_id) + _sized(self.socket_path) + _sized(self.payload)

    @classmethod
    def decode(cls, blob: bytes) -> "Record":
        fields, at, rest = _HEAD.unpack_from(blob), _HEAD.size, []
        for _ in range(3):
            (size,) = struct.unpack_from("<I", blob, at)
            rest.append(blob[at + 4 : at + 4 + size])
            at += 4 + size
        record = cls(*fields, *rest)
        assert record.encode() == blob, "the record is not laid out as the test knows it"
        return record


def is_record_key(key: str, rank: int) -> bool:
    return key.endswith(f"symm/peer/{rank}")


def stored_values(path: str) -> dict[str, bytes]:
    """What a FileStore's file holds, by key."""
    blob, parts, at = Path(path).read_bytes() if os.path.exists(path) else b"", [], 0
    while at + 4 <= len(blob):
        (size,) = struct.unpack_from("<I", blob, at)
        if at + 4 + size > len(blob):
            break
        parts.append(blob[at + 4 : at + 4 + size])
        at += 4 + size
    keys = [key.decode(errors="replace") for key in parts[0::2]]
    return dict(zip(keys, parts[1::2], strict=False))


def await_record(path: str, rank: int, limit: float = 10.0) -> tuple[str, Record]:
    """(key, record) of `rank`, once it is there."""
    deadline = time.monotonic() + limit
    while time.monotonic() < deadline:
        for key, value in stored_values(path).items():
            if is_record_key(key, rank):
                return key[1:], Record.decode(value)  # the file has "/" before it
        time.sleep(0.001)
    raise AssertionError(f"rank {rank} has published nothing")


def publish(path: str, key: str, value: bytes) -> None:
    dist.FileStore(path, -1).set(key, value)


def connect(record: Record) -> socket.socket:
    link = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    link.connect(record.socket_path)
    return link


def hello(rank: int, nonce: bytes, published: int = 0) -> bytes:
    return HELLO.pack(HELLO_MAGIC, HELLO_VERSION, rank, 0, nonce, published)


def send(link: socket.socket, blob: bytes, descriptors=()) -> None:
    """Nothing where the other side has closed: that is its answer."""
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        socket.send_fds(link, [blob], list(descriptors))


def receive(link: socket.socket, limit: float) -> tuple[bytes, list[int]]:
    """A frame and its descriptors; no bytes where the other side has closed, or says nothing."""
    if not select.select([link], [], [], limit)[0]:
        return b"", []
    try:
        blob, descriptors, _, _ = socket.recv_fds(link, MOST_BYTES, 4)
    except ConnectionResetError:
        return b"", []
    return blob, descriptors


def is_closed(link: socket.socket, limit: float = 5.0) -> bool:
    """Whether the other side closes within `limit`; drops what it sends."""
    deadline = time.monotonic() + limit
    while (left := deadline - time.monotonic()) > 0:
        if select.select([link], [], [], left)[0] and not receive(link, 0)[0]:
            return True
    return False


def memory(size: int, seals: int = SEALS, allocated: bool = True) -> int:
    """A memfd."""
    fd = os.memfd_create("symm_test", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, size)
    if allocated and size:
        os.posix_fallocate(fd, 0, size)
    if seals:
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, seals)
    return fd


def close_all(descriptors) -> None:
    for fd in descriptors:
        os.close(fd)
