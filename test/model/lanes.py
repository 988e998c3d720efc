"""Models of lanes: chunks through slots, by warps of one role each.

Lane of kernels/gpu/wire/lane.cuh and Bulk of kernels/gpu/wire/bulk.cuh. A warp is a thread of the
model, or two, which share the units of a chunk; several calls follow each other on the stream of
each rank, whose counts go on. All calls are in place where the kernels allow it: a sender reads
what a placer of its rank writes, so that the races of warps that never wait for each other show.
"""

from __future__ import annotations

from lane_calls import LaneCall
from program import ACQUIRE, RELEASE, Program, Thread

SLOTS = 2  # kBulkSlots of kernels/protocol/device_layout.hpp; test_model_sites.py compares


class LaneModel:
    """Builds the program of one lane of all ranks."""

    def __init__(
        self,
        name: str,
        world: int,
        calls: list[LaneCall],
        wide: str = "",
        peers: int = 1,
        wrap: int = 0,
        every_message: bool = False,
        fault: str = "",
    ) -> None:
        """wide: the roles whose warps have two threads. peers: that a warp serves in a step.

        wrap: where the counts wrap. every_message: as of a PipelineModel. Faults: "posted
        early" and "freed early", before the chunk was copied; "a credit too many", one more than
        there are slots; "counts begin anew" with each call; "last slot kept": nobody gives back
        that of a call's last chunk; "one header a pair"; "peers apart":
        all steps of a peer before those of the next; "places first": one warp a rank, whose roles
        come in the wrong order.
        """
        self.world = world
        self.calls = calls
        self.wide = wide.split()
        self.units = 2 if wide else 1  # of a chunk
        self.peers = peers
        self.fault = fault
        self.program = Program(f"lane, {name}, {world} ranks")
        self.program.name += f", 2 threads a {wide.replace(' ', ' and a ')}" if wide else ""
        self.program.name += f", {peers} peers a warp" if peers > 1 else ""
        self.program.name += f", counts wrap at {wrap}" if wrap else ""
        self.program.first_choice_only = not every_message
        self.program.wrap = wrap
        for rank in range(world):
            self._add_rank(rank)

    def _add_rank(self, rank: int) -> None:
        """The warps of a rank that have a part in some call."""
        around = [(rank + i) % self.world for i in range(1, self.world)]
        counts = _Counts(rank)
        warps: list[_Warp] = []
        for role, ring in ((_Sender, around), (_Middle, [rank]), (_Placer, around[::-1])):
            for begin in range(0, len(ring), self.peers):
                warp = role(self, rank, ring[begin : begin + self.peers], counts)
                if any(warp.pieces(call) for call in self.calls):
                    warps.append(warp)
        if self.fault == "places first":
            warps.reverse()
            thread = self.program.thread()
            threads = [thread]
            for warp in warps:
                warp.threads = [thread]
        else:
            for warp in warps:
                wide = warp.role in self.wide
                warp.threads = [self.program.thread() for _ in range(2 if wide else 1)]
            threads = [thread for warp in warps for thread in warp.threads]
        for number, call in enumerate(self.calls, 1):
            if self.fault == "counts begin anew":
                counts.values.clear()
            for warp in warps:
                warp.play(call, number)
            if number < len(self.calls) and len(threads) > 1:  # a kernel follows another
                for thread in threads:
                    thread.block_barrier(("stream", rank), len(threads))


class _Counts:
    """BulkCount of a rank, by hop, peer and "sent" or "received"; warps hand it on by call."""

    def __init__(self, rank: int) -> None:
        self._rank = rank
        self.values: dict[tuple[int, int, str], int] = {}

    def load(self, thread: Thread, *key: object) -> int:
        """The count, which the thread reads in the device's memory."""
        count = self.values.get(key, 0)
        thread.read(("count", self._rank, *key), count)
        return count

    def save(self, thread: Thread, count: int, *key: object) -> None:
        """What the thread writes there."""
        self.values[key] = count
        thread.write(("count", self._rank, *key), count)


class _Warp:
    """One warp of a rank in all calls."""

    role = ""
    way = ""

    def __init__(self, model: LaneModel, rank: int, peers: list[int], counts: _Counts) -> None:
        self._model = model
        self._rank = rank
        self._peers = peers
        self._counts = counts
        self.threads: list[Thread] = []
        self._last: set[int] = set()  # the peers of whose pieces this step has the last chunk

    def pieces(self, call: LaneCall) -> dict[int, int]:
        """The chunks of the pieces that the warp moves, by peer."""
        raise NotImplementedError

    def _hop(self, call: LaneCall) -> int:
        return 0

    def _begin(self, call: LaneCall, first: dict[int, int]) -> None:
        """`first`: the number of the call's first chunk, by peer."""

    def _step(self, call: LaneCall, number: int, step: int, chunk: dict[int, int]) -> None:
        """`chunk`: its number, by peer."""
        raise NotImplementedError

    def play(self, call: LaneCall, number: int) -> None:
        """Call `number`, from 1, as Bulk::move: in a step a chunk of each peer's piece."""
        pieces = self.pieces(call)
        first = {peer: self._load_count(call, peer) for peer in pieces}
        self._begin(call, {peer: n for peer, n in first.items() if pieces[peer] > 0})
        steps = range(max(pieces.values(), default=0))
        turns = [[p for p, chunks in pieces.items() if step < chunks] for step in steps]
        order = [(step, peers) for step, peers in enumerate(turns)]
        if self._model.fault == "peers apart":
            order = [(step, [p]) for p, chunks in pieces.items() for step in range(chunks)]
        for step, peers in order:
            self._last = {peer for peer in peers if step + 1 == pieces[peer]}
            self._step(call, number, step, {peer: first[peer] + step for peer in peers})
        for peer, chunks in pieces.items():
            self._save_count(call, peer, first[peer] + chunks)

    def _of(self, peer: int) -> Thread:
        """The thread that waits and signals for a peer."""
        return self.threads[peer % len(self.threads)]

    def _load_count(self, call: LaneCall, peer: int) -> int:
        return self._counts.load(self._of(peer), self._hop(call), peer, self.way)

    def _save_count(self, call: LaneCall, peer: int, count: int) -> None:
        self._counts.save(self._of(peer), count, self._hop(call), peer, self.way)

    def _barrier(self, site: str) -> None:
        """Of the warp."""
        if len(self.threads) > 1:
            name = ("warp", self._rank, self.role, *self._peers)
            for thread in self.threads:
                thread.block_barrier(name, len(self.threads), site)

    def _slot(self, hop: int, owner: int, sender: int, chunk: int) -> tuple[object, ...]:
        return ("slot", hop, owner, sender, chunk % SLOTS)

    def _header(self, hop: int, owner: int, sender: int, chunk: int) -> tuple[object, ...]:
        slot = 0 if self._model.fault == "one header a pair" else chunk % SLOTS
        return ("header", hop, owner, sender, slot)

    # What thread i does for the units of a chunk.

    def _units(self, i: int) -> range:
        return range(i, self._model.units, len(self.threads))

    def _read_slot(self, i: int, slot: tuple[object, ...], chunk: int) -> None:
        """All units, also those that this thread does not move."""
        for unit in range(self._model.units):
            self.threads[i].read((*slot, unit), chunk + 1)

    def _write_slot(self, i: int, slot: tuple[object, ...], chunk: int) -> None:
        for unit in self._units(i):
            self.threads[i].write((*slot, unit), chunk + 1)

    # Waits and signals of one thread.

    def _await_chunk(self, thread: Thread, hop: int, peer: int, chunk: int, site: str) -> None:
        thread.wait_ge(("filled", hop, self._rank, peer), chunk + 1, ACQUIRE, site)

    def _await_slot(self, thread: Thread, hop: int, peer: int, chunk: int, site: str) -> None:
        needed = chunk + 1 - SLOTS - (self._model.fault == "a credit too many")
        thread.wait_ge(("freed", hop, self._rank, peer), needed, ACQUIRE, site, grants=True)

    def _post(self, thread: Thread, hop: int, peer: int, chunk: int, site: str) -> None:
        thread.write(self._header(hop, peer, self._rank, chunk), chunk + 1)
        thread.store(("filled", hop, peer, self._rank), chunk + 1, RELEASE, site)

    def _free(self, thread: Thread, hop: int, peer: int, chunk: int, site: str) -> None:
        thread.store(("freed", hop, peer, self._rank), chunk + 1, RELEASE, site)

    def _free_last(self, hop: int, first: dict[int, int], site: str) -> None:
        """That of the call before."""
        if self._model.fault != "last slot kept":
            for peer, n in first.items():
                self._free(self._of(peer), hop, peer, n - 1, site)


class _Sender(_Warp):
    """Bulk::send."""

    role = "sender"
    way = "sent"

    def pieces(self, call: LaneCall) -> dict[int, int]:
        pairs = {p: call.first.get((self._rank, p)) for p in self._peers}
        return {p: n for p, n in pairs.items() if n is not None}

    def _step(self, call: LaneCall, number: int, step: int, chunk: dict[int, int]) -> None:
        turn = 10 * number + step
        for peer, n in chunk.items():
            thread = self._of(peer)
            self._await_slot(thread, 0, peer, n, "lane send slot")
            thread.write(("shared", self._rank, self.role, peer), turn)  # BulkShared
        self._barrier("lane send wait")
        early = self._model.fault == "posted early"
        if early:
            self._post_all(chunk)
        for i, thread in enumerate(self.threads):
            for peer, n in chunk.items():
                thread.read(("shared", self._rank, self.role, peer), turn)
                self._copy(i, call, number, step, peer, n)
        self._barrier("lane send copied")
        if not early:
            self._post_all(chunk)

    def _post_all(self, chunk: dict[int, int]) -> None:
        for peer, n in chunk.items():
            self._post(self._of(peer), 0, peer, n, "lane send post")

    def _copy(self, i: int, call: LaneCall, number: int, step: int, peer: int, chunk: int) -> None:
        """What thread i does of it."""
        thread = self.threads[i]
        for unit in self._units(i):
            if call.same:
                thread.read(("own", self._rank, step, unit), 0)
            else:  # a piece that nobody else sends, which the user has written
                cell = ("memory", self._rank, peer, step, unit)
                thread.write(cell, 2 * number - 1)
                thread.read(cell, 2 * number - 1)
        self._write_slot(i, self._slot(0, peer, self._rank, chunk), chunk)


class _Placer(_Warp):
    """Bulk::place."""

    role = "placer"
    way = "received"

    def _hop(self, call: LaneCall) -> int:
        return 1 if call.passed else 0

    def pieces(self, call: LaneCall) -> dict[int, int]:
        placed = call.placed()
        pairs = {p: placed.get((p, self._rank)) for p in self._peers}
        return {p: n for p, n in pairs.items() if n is not None}

    def _step(self, call: LaneCall, number: int, step: int, chunk: dict[int, int]) -> None:
        hop = self._hop(call)
        turn = 10 * number + step
        for peer, n in chunk.items():
            thread = self._of(peer)
            self._await_chunk(thread, hop, peer, n, "lane place chunk")
            if step == 0:
                thread.read(self._header(hop, self._rank, peer, n), n + 1)
            thread.write(("shared", self._rank, self.role, peer), turn)  # BulkShared
        self._barrier("lane place wait")
        early = self._model.fault == "freed early"
        if early:
            self._free_all(hop, chunk)
        for i, thread in enumerate(self.threads):
            for peer, n in chunk.items():
                thread.read(("shared", self._rank, self.role, peer), turn)
                self._read_slot(i, self._slot(hop, self._rank, peer, n), n)
                # Not the units that thread i of a sender reads: nothing may depend on it.
                for unit in self._units(len(self.threads) - 1 - i):
                    thread.write(("memory", self._rank, peer, step, unit), 2 * number)
        self._barrier("lane place copied")
        if not early:
            self._free_all(hop, chunk)

    def _begin(self, call: LaneCall, first: dict[int, int]) -> None:
        self._free_last(self._hop(call), first, "lane place begin")

    def _free_all(self, hop: int, chunk: dict[int, int]) -> None:
        for peer, n in chunk.items():
            if peer not in self._last:
                self._free(self._of(peer), hop, peer, n, "lane place free")


class _Middle(_Warp):
    """Bulk::pass_on; thread i waits and signals for the peers p with p mod threads = i."""

    role = "middle"

    def pieces(self, call: LaneCall) -> dict[int, int]:
        return {self._rank: call.passed[self._rank]} if self._rank in call.passed else {}

    def play(self, call: LaneCall, number: int) -> None:
        """Headers are read with every chunk, as for PREMUL_SUM."""
        heard = sorted(a for a, b in call.first if b == self._rank)
        told = sorted(b for a, b in call.second if a == self._rank)
        keys = [(0, p, "received") for p in heard] + [(1, p, "sent") for p in told]
        for chunks in self.pieces(call).values():
            first = {key[:2]: self._counts.load(self._of(key[1]), *key) for key in keys}
            if chunks > 0:
                received = {peer: n for (hop, peer), n in first.items() if hop == 0}
                self._free_last(0, received, "lane pass begin")
            for step in range(chunks):
                chunk = {key: count + step for key, count in first.items()}
                self._pass_on(call, number, step, chunk, step + 1 == chunks)
            for hop, peer, way in keys:
                self._counts.save(self._of(peer), first[hop, peer] + chunks, hop, peer, way)

    def _pass_on(
        self,
        call: LaneCall,
        number: int,
        step: int,
        chunk: dict[tuple[int, int], int],
        is_last: bool,
    ) -> None:
        turn = 10 * number + step
        for peer in range(self._model.world):
            thread = self._of(peer)
            if (0, peer) in chunk:
                self._await_chunk(thread, 0, peer, chunk[0, peer], "lane pass chunk")
                header = self._header(0, self._rank, peer, chunk[0, peer])
                thread.read(header, chunk[0, peer] + 1)
            if (1, peer) in chunk:
                self._await_slot(thread, 1, peer, chunk[1, peer], "lane pass slot")
            thread.write(("shared", self._rank, peer), turn)  # BulkShared
        self._barrier("lane pass wait")
        for i, thread in enumerate(self.threads):
            for peer in range(self._model.world):
                thread.read(("shared", self._rank, peer), turn)
            self._combine(i, call, number, step, chunk)
        self._barrier("lane pass copied")
        for peer in range(self._model.world):
            thread = self._of(peer)
            frees = (0, peer) in chunk and not is_last
            if (1, peer) in chunk:
                thread.write(self._header(1, peer, self._rank, chunk[1, peer]), chunk[1, peer] + 1)
            if frees or (1, peer) in chunk:
                thread.fence(RELEASE, "lane pass tell")
            if (1, peer) in chunk:
                thread.store(("filled", 1, peer, self._rank), chunk[1, peer] + 1)
            if frees:
                thread.store(("freed", 0, peer, self._rank), chunk[0, peer] + 1)

    def _combine(
        self, i: int, call: LaneCall, number: int, step: int, chunk: dict[tuple[int, int], int]
    ) -> None:
        """Or relays: what thread i does of it."""
        for (hop, peer), count in chunk.items():
            if hop == 0:
                self._read_slot(i, self._slot(0, self._rank, peer, count), count)
        for unit in self._units(i):
            cell = ("memory", self._rank, self._rank, step, unit)
            if call.same:  # what senders read as well
                cell = ("own", self._rank, step, unit)
            elif call.combines:  # the own piece, which the user has written
                self.threads[i].write(cell, 2 * number - 1)
                self.threads[i].read(cell, 2 * number - 1)
            self.threads[i].write(cell, 2 * number)
        for (hop, peer), count in chunk.items():
            if hop == 1:
                self._write_slot(i, self._slot(1, peer, self._rank, count), count)


def lane_sizes(sent: list[int], chunks: list[int], fault: str = "") -> Program:
    """A pair of ranks compares the sizes of its pieces, call by call.

    Lane::has_size and post_chunk. `sent`: the size of each call's piece at the sender, and
    `chunks` how many it has. The receiver looks at the first header of a call and must find what
    was sent in that call, whatever it expected itself. It goes on as if it had expected that; in
    the last call it did not, and gives up. Faults: "header": one header in place of one a slot;
    "silent": no chunk of an empty piece.
    """
    program = Program(f"lane, sizes {sent}, 2 ranks")
    sender, receiver = program.thread(), program.thread()
    number = 0
    for call, (size, count) in enumerate(zip(sent, chunks, strict=True), 1):
        agrees = call < len(sent)
        receiver.store("freed", number, RELEASE, "lane place begin")
        for step in range(count):
            header = ("header", 0 if fault == "header" else number % SLOTS)
            sender.wait_ge("freed", number + 1 - SLOTS, ACQUIRE, "lane send slot", grants=True)
            if not (fault == "silent" and size == 0):
                sender.store(header, size)
                sender.store("filled", number + 1, RELEASE, "lane send post")
            if step == 0 or agrees:
                receiver.wait_ge("filled", number + 1, ACQUIRE, "lane place chunk")
            if step == 0:
                receiver.load(header, 0)
                receiver.expect(0, size)
            if agrees and step + 1 < count:
                receiver.store("freed", number + 1, RELEASE, "lane place free")
            number += 1
    return program


def lane_direct(chunks: list[int], fault: str = "") -> Program:
    """A pair of ranks, of which the receiver announces where its output is, call by call.

    Lane::destination and announce, Bulk::send and take_to_place. The sender stores to the output
    once it has seen the announcement, at whichever chunk that is, else to slots; the header says
    which. Between calls the receiver's user reads the output and writes to it. Faults: "late": the
    announcement comes before what the user does; "unnumbered": it names no call.
    """
    program = Program(f"lane, direct chunks {chunks}, 2 ranks")
    sender, receiver = program.thread(), program.thread()
    number = 0
    for call, count in enumerate(chunks, 1):
        target = 1 if fault == "unnumbered" else call
        announced = fault == "late"
        if announced:
            receiver.fence(RELEASE)
            receiver.store("target", target)
        for step in range(count):
            receiver.write(("memory", step), 2 * call - 1)  # the user
        receiver.store("freed", number, RELEASE, "lane place begin")
        if not announced:
            receiver.fence(RELEASE, "lane announce")
            receiver.store("target", target)
        for step in range(count):
            slot = number % SLOTS
            sender.wait_ge("freed", number + 1 - SLOTS, ACQUIRE, "lane send slot", grants=True)
            sender.load("target", 0)

            def directly(step: int = step, call: int = call, slot: int = slot) -> None:
                if step < SLOTS:
                    sender.fence(ACQUIRE, "lane target")
                sender.write(("memory", step), 2 * call)
                sender.store(("header", slot), 1)

            def by_slot(number: int = number, slot: int = slot) -> None:
                sender.write(("slot", slot), number + 1)
                sender.store(("header", slot), 0)

            sender.if_equal(0, target, directly)
            for other in range(call):
                if other != target:
                    sender.if_equal(0, other, by_slot)
            sender.store("filled", number + 1, RELEASE, "lane send post")
            receiver.wait_ge("filled", number + 1, ACQUIRE, "lane place chunk")
            receiver.load(("header", slot), 0)
            if step + 1 == count:
                receiver.store("target", 0)

            def place(number: int = number, step: int = step, call: int = call) -> None:
                receiver.read(("slot", number % SLOTS), number + 1)
                receiver.write(("memory", step), 2 * call)

            receiver.if_equal(0, 0, place)
            if step + 1 < count:
                receiver.store("freed", number + 1, RELEASE, "lane place free")
            number += 1
        for step in range(count):
            receiver.read(("memory", step), 2 * call)
    return program


def lane_given_up() -> Program:
    """A placer gives up and poisons an output that its rank may still be sending, in place.

    Bulk::run and poison: a sender and a placer of one rank, and the middle of a peer.
    """
    program = Program("lane that is given up, 2 ranks")
    sender, placer, middle = program.thread(), program.thread(), program.thread()
    for n in range(SLOTS):
        sender.read(("memory", n), 0)
        sender.write(("slot", 0, n), n + 1)
        sender.store("filled", n + 1, RELEASE)
        middle.wait_ge("filled", n + 1, ACQUIRE)
        middle.read(("slot", 0, n), n + 1)
        middle.write(("slot", 1, n), n + 1)
        middle.store("passed", n + 1, RELEASE)
    placer.load("passed", 0, ACQUIRE)  # what has come when it gives up

    def place(came: int) -> None:
        for n in range(came):
            placer.read(("slot", 1, n), n + 1)
            placer.write(("memory", n), 1)

    def poison() -> None:
        for n in range(SLOTS):
            placer.write(("memory", n), 2)

    for came in range(1, SLOTS + 1):
        placer.if_equal(0, came, lambda came=came: place(came))
    for thread in (sender, placer):
        thread.block_barrier("block", 2, "lane end")
    for came in range(SLOTS):
        placer.if_equal(0, came, poison)
    return program
