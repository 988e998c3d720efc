"""Models of the protocols other than chunk pipelines; each docstring names the code it follows."""

from __future__ import annotations

from program import ACQUIRE, RELAXED, RELEASE, SEQ_CST, Program, Thread

Pairs = set[tuple[int, int]]


def everybody(world: int) -> Pairs:
    """Sender and receiver of each message of a call in which all ranks send to all."""
    return {(a, b) for a in range(world) for b in range(world) if a != b}


def one_to_all(world: int, root: int) -> Pairs:
    """Of a broadcast or a scatter."""
    return {(root, b) for b in range(world) if b != root}


def all_to_one(world: int, root: int) -> Pairs:
    """Of a gather or a reduce."""
    return {(a, root) for a in range(world) if a != root}


def wire_calls(
    name: str, world: int, calls: list[Pairs], sets: int = 2, words: int = 2, fault: str = ""
) -> Program:
    """WireBlock of kernels/gpu/wire/wire_block.cuh: one tile for each pair of a call.

    A word is data and epoch in one, so its value stands for both; that a line of a LineTile is seen
    whole is an axiom. `sets`: boxes a sender, by parity of the epoch. Faults: "split" puts data and
    epoch into words of their own; "early" stores `done` before the boxes were read; "heard" takes a
    rank that was heard in an epoch for one that has ended it; "silent" stores no `done`; "absent"
    leaves a rank out of a call in which it has no part. Such a rank waits for nobody:
    end_idle_blocks of kernels/gpu/wire/route.cuh.
    """
    program = Program(f"wire calls, {name}, {world} ranks")
    program.first_choice_only = world > 2
    for rank in range(world):
        thread = program.thread()
        peers = [p for p in range(world) if p != rank]
        for epoch, pairs in enumerate(calls, 1):
            if not any(rank in pair for pair in pairs):
                if fault != "absent":
                    _end_wire_call(thread, rank, peers, epoch)
                continue
            _credit(thread, rank, calls, epoch, fault == "heard")
            receivers = [p for p in peers if (rank, p) in pairs]
            for peer in receivers:  # send()
                for word in range(words):
                    thread.store(("buffer", peer, rank, epoch % sets, word), epoch)
            quiet = [p for p in peers if p not in receivers and fault != "silent"]
            if fault == "early":
                _end_wire_call(thread, rank, quiet, epoch)
            for peer in peers:  # receive()
                for word in range(words):
                    if (peer, rank) in pairs:
                        _receive(thread, ("buffer", rank, peer, epoch % sets, word), epoch, fault)
            if fault != "early":
                _end_wire_call(thread, rank, quiet, epoch)
    if fault == "split":
        _split_words(program)
    return program


def _credit(thread: Thread, rank: int, calls: list[Pairs], epoch: int, eager: bool = False) -> None:
    """ready(): waits for `done` of the peers that were not heard lately."""
    for peer in range(len({r for pairs in calls for pair in pairs for r in pair})):
        if peer == rank:
            continue
        earlier = enumerate(calls[: epoch - 1], 1)
        heard = max((e for e, pairs in earlier if (peer, rank) in pairs), default=0)
        if heard + (0 if eager else -1) < epoch - 2:
            thread.wait_ge(("done", peer, rank), epoch - 2, RELAXED, "wire credit", grants=True)


def _receive(thread: Thread, place: tuple[object, ...], epoch: int, fault: str) -> None:
    thread.wait_eq(place, epoch)
    if fault == "split":
        thread.load(("data", *place), 0)
        thread.expect(0, epoch)


def _split_words(program: Program) -> None:
    """Stores the data of each word before its epoch, into a location of its own."""
    buffers = {index: name for name, index in program.locations.items() if name[0] == "buffer"}
    for ops in program.threads:
        split = []
        for op in ops:
            if op.kind == "STORE" and op.a in buffers:
                data = program.locations.setdefault(
                    ("data", *buffers[op.a]), len(program.locations)
                )
                split.append(type(op)("STORE", data, op.b))
            split.append(op)
        ops[:] = split


def _end_wire_call(thread: Thread, rank: int, quiet: list[int], epoch: int) -> None:
    for peer in quiet:  # end()
        thread.store(("done", rank, peer), epoch)


def copy_barriers(world: int, calls: int = 3) -> Program:
    """Entry and exit barriers around copies into the peers' outputs.

    copies_barrier_kernel of kernels/gpu/entry/move.cu, in which everybody hears everybody.
    """
    program = Program(f"copies between barriers, {world} ranks")
    program.first_choice_only = world > 2
    for rank in range(world):
        thread = program.thread()
        peers = [p for p in range(world) if p != rank]
        for call in range(1, calls + 1):
            _barrier(thread, rank, peers, 2 * call - 1)
            for peer in peers:  # copy engines
                thread.write(("output", peer, rank), call)
            _barrier(thread, rank, peers, 2 * call)
            for peer in peers:  # later work of the stream
                thread.read(("output", rank, peer), call)
    return program


def _barrier(thread: Thread, rank: int, peers: list[int], epoch: int) -> None:
    thread.fence(RELEASE, "barrier before")
    for peer in peers:
        thread.store(("buffer", peer, rank, epoch % 2), epoch)
    for peer in peers:
        thread.wait_eq(("buffer", rank, peer, epoch % 2), epoch)
    thread.fence(ACQUIRE, "barrier after")


def meetings(world: int, threads: int, calls: int = 2, fault: str = "") -> Program:
    """Blocks of all ranks that meet before and after they touch each other's memory.

    BlockMeeting of kernels/gpu/device/block_meeting.cuh around accesses as those of multimem: every
    thread of a block reads its part of the peers' inputs and writes it to their outputs. With one
    thread a rank it serves all peers, else thread p serves peer p. Faults: "no barrier" of the
    block between its accesses and what it tells; "leaves alone", without a wait for `done`.
    """
    program = Program(f"meetings, {world} ranks, {threads} threads", first_choice_only=True)
    for rank in range(world):
        for me in range(threads):
            thread = program.thread()
            peers = [p for p in range(world) if p != rank]
            served = [p for p in peers if threads == 1 or p % threads == me]
            for call in range(1, calls + 1):
                thread.write(("input", rank, me), call)  # what came before on the stream
                for peer in served:
                    thread.write(("location", peer, rank), call)
                _tell(thread, rank, served, ("entered", call), threads, fault)
                for peer in served:
                    entered = ("entered", peer, rank)
                    thread.wait_ge(entered, call, ACQUIRE, "meeting enter", grants=True)
                    thread.read(("location", rank, peer), call)
                thread.block_barrier(("block", rank), threads)
                for peer in peers:
                    thread.read(("input", peer, me), call)
                    thread.write(("output", peer, rank, me), call)
                _tell(thread, rank, served, ("done", call), threads, fault)
                for peer in served if fault != "leaves alone" else []:
                    done = ("done", peer, rank)
                    thread.wait_ge(done, call, ACQUIRE, "meeting leave", grants=True)
                thread.block_barrier(("block", rank), threads)
                for peer in peers:  # what comes behind on the stream
                    thread.read(("output", rank, peer, me), call)
    return program


def _tell(
    thread: Thread, rank: int, peers: list[int], what: tuple[str, int], threads: int, fault: str
) -> None:
    if fault != "no barrier":
        thread.block_barrier(("block", rank), threads)
    for peer in peers:
        thread.fence(RELEASE, "meeting tell")
        thread.store((what[0], rank, peer), what[1])


def mailbox_pipeline(name: str, capacity: int, count: int) -> Program:
    """One of the three streams of a mailbox, in backend/engine/host/mailbox_progress.cpp.

    "envelope": post_envelopes and take_envelopes; "clear-to-send": post_cts and take_cts; "data":
    stream_out and stream_in, a piece of the ring being a place.
    """
    program = Program(f"mailbox {name}, {capacity} places")
    writer, reader = program.thread(), program.thread()
    for n in range(count):
        writer.wait_ge("taken", n + 1 - capacity, ACQUIRE, f"mailbox {name} room", grants=True)
        writer.write(("place", n % capacity), n + 1)
        writer.store("written", n + 1, RELEASE, f"mailbox {name} post")
        reader.wait_ge("written", n + 1, ACQUIRE, f"mailbox {name} take")
        reader.read(("place", n % capacity), n + 1)
        reader.store("taken", n + 1, RELEASE, f"mailbox {name} free")
    return program


def mailbox_trays(trays: int, count: int, copied_late: bool = False) -> Program:
    """The trays of an outbox, in backend/engine/host/mailbox_progress.cpp: post_outside, take_tray.

    A tray is filled before its envelope is posted, and free once the clear-to-send is taken that
    the receiver posts when it has copied. ``copied_late``: it copies after that.
    """
    program = Program(f"mailbox trays, {trays}")
    sender, receiver = program.thread(), program.thread()
    for n in range(count):
        take = "mailbox clear-to-send take"
        sender.wait_ge("cleared", n + 1 - trays, ACQUIRE, take, grants=True)
        sender.write(("tray", n % trays), n + 1)
        sender.store("posted", n + 1, RELEASE, "mailbox envelope post")
        receiver.wait_ge("posted", n + 1, ACQUIRE, "mailbox envelope take")
        if not copied_late:
            receiver.read(("tray", n % trays), n + 1)
        receiver.store("cleared", n + 1, RELEASE, "mailbox clear-to-send post")
        if copied_late:
            receiver.read(("tray", n % trays), n + 1)
    return program


def pad_barriers(world: int, threads_a_rank: bool, rounds: int = 3, fault: str = "") -> Program:
    """Barriers on a signal pad between writing one's data and reading the peers', and after it.

    try_put and try_take of kernels/protocol/signal_pad.hpp, used as by HostSignals::barrier, or
    with a thread for each peer as by signal_barrier of kernels/gpu/device/signal.cuh. Fault
    "blind": a put does not wait until the signal before it was taken.
    """
    kind = "a thread a peer" if threads_a_rank else "one thread a rank"
    program = Program(f"pad barriers, {kind}, {world} ranks")
    for rank in range(world):
        peers = [p for p in range(world) if p != rank]
        groups = [[p] for p in peers] if threads_a_rank else [peers]
        for number, group in enumerate(groups):
            thread = program.thread()
            for turn in range(1, rounds + 1):
                if number == 0:
                    thread.write(("data", rank), turn)
                _pad_barrier(thread, rank, group, len(groups), fault)
                for peer in group:
                    thread.read(("data", peer), turn)
                _pad_barrier(thread, rank, group, len(groups), fault)
    return program


def _pad_barrier(thread: Thread, rank: int, peers: list[int], threads: int, fault: str) -> None:
    if threads > 1:  # a kernel begins after all of what came before it on the stream
        thread.block_barrier(("block", rank), threads)
    for peer in peers:
        if fault == "blind":
            thread.store(("pad", peer, rank), 1, RELEASE)
        else:
            thread.swap(("pad", peer, rank), 0, 1, RELEASE, "try_put")
    for peer in peers:
        thread.swap(("pad", rank, peer), 1, 0, ACQUIRE, "try_take")
    if threads > 1:
        thread.block_barrier(("block", rank), threads)


def pad_messages(count: int = 4) -> Program:
    """Data handed over by put and wait, and handed back by another channel's signal."""
    program = Program("pad put and wait, 2 ranks")
    giver, taker = program.thread(), program.thread()
    for n in range(1, count + 1):
        giver.write("data", n)
        giver.swap("filled", 0, 1, RELEASE, "try_put")
        giver.swap("read", 1, 0, ACQUIRE, "try_take")
        taker.swap("filled", 1, 0, ACQUIRE, "try_take")
        taker.read("data", n)
        taker.swap("read", 0, 1, RELEASE, "try_put")
    return program


def reads_of_a_rank_that_gives_up(fault: str = "") -> Program:
    """An owner gives up and uses its memory again, while a reader reads it and tells of it.

    HostExecutor::reads_hold between the reads and what tells of them, LocalGroup::stands, fail,
    leave and failure; the same of LocalGroup::exchange and give_up, a message being the memory.
    Faults: "before": the look comes before the reads; "after": it comes after the telling.
    """
    program = Program("memory of a rank that gives up")
    owner, reader, third = program.thread(), program.thread(), program.thread()
    for word in range(2):
        owner.store(("memory", word), 1)
    owner.store("ready", 1, RELEASE)
    owner.store("gave up", 1)
    owner.fence(RELEASE, "raise")
    for word in range(2):
        owner.store(("memory", word), 2)

    def look() -> None:
        reader.fence(ACQUIRE, "look after reads")
        reader.load("gave up", 2)

    def tell() -> None:
        for value in (1, 2):
            reader.if_equal(1, value, lambda value=value: reader.store("result", value))
        reader.store("told", 1, RELEASE)

    def hold() -> None:
        reader.expect(0, 1)
        reader.expect(1, 1)
        if fault != "after":
            tell()

    reader.wait_ge("ready", 1, ACQUIRE)
    if fault == "before":
        look()
    for word in range(2):
        reader.load(("memory", word), word)
    if fault == "after":
        tell()
    if fault != "before":
        look()
    reader.if_equal(2, 0, hold)

    def told() -> None:
        third.load("result", 1)
        third.expect(1, 1)

    third.load("told", 0, ACQUIRE)
    third.if_equal(0, 1, told)
    return program


def pad_given_up(withdraws: bool = True) -> Program:
    """A rank gives up the barrier that ends a peer's reads, and uses its memory again.

    HostSignals::barrier of symm_mem/group/host_signals.cpp; each of the peer's tries is one.
    """
    program = Program("pad barrier that is given up, 2 ranks")
    owner, reader = program.thread(), program.thread()
    owner.store("memory", 1)
    owner.store("begun", 1, RELEASE)
    owner.swap("pad", 0, 1, RELEASE, "try_put")
    if withdraws:
        owner.exchange("pad", 2, SEQ_CST, "withdraw")
    owner.fence(RELEASE)
    owner.store("memory", 2)
    reader.wait_ge("begun", 1, ACQUIRE)
    reader.load("memory", 0)
    reader.try_swap("pad", 1, 0, ACQUIRE, "try_take")
    reader.if_equal(3, 1, lambda: reader.expect(0, 1))
    return program


def device_records(count: int = 3, words: int = 2) -> Program:
    """DeviceTrace::post and record of backend/engine/device/device_trace.cpp; a ring of one."""
    program = Program(f"device call records, {words} words, {count} calls in one place")
    writer, reader = program.thread(), program.thread()
    for sequence in range(1, count + 1):
        writer.store("sequence", 0, RELEASE, "record clear")
        for word in range(words):
            writer.store(("word", word), sequence, RELEASE, "record words")
        writer.store("sequence", sequence, RELEASE, "record post")
    first, second = 0, words + 1
    for sequence in range(1, count + 1):

        def copied(sequence: int = sequence) -> None:
            for word in range(words):
                reader.expect(1 + word, sequence)

        def found(sequence: int = sequence) -> None:
            for word in range(words):
                reader.load(("word", word), 1 + word, ACQUIRE, "record copy")
            reader.load("sequence", second, ACQUIRE, "record second look")
            reader.if_equal(second, sequence, lambda: copied(sequence))

        reader.load("sequence", first, ACQUIRE, "record first look")
        reader.if_equal(first, sequence, lambda sequence=sequence: found(sequence))
    return program


def report() -> Program:
    """Waiter::fail of kernels/gpu/device/wait.cuh; SignalThread::report is alike."""
    program = Program("reports of failures")
    writer, reader = program.thread(), program.thread()
    writer.write("fields", 1)
    writer.store("fault", 1, RELEASE, "report fault")
    reader.wait_ge("fault", 1, ACQUIRE, "report look")
    reader.read("fields", 1)
    return program


def wake_up(count: int = 3, sleeps: int = 2) -> Program:
    """post, sleep_on and wait_for of kernels/cpu/wait.cpp, with so many sleeps a signal.

    The sleeper's time limit is left out, so that a wake-up that is lost is a deadlock.
    """
    program = Program(f"sleep and wake, {count} signals, {sleeps} sleeps each")
    writer, sleeper = program.thread(), program.thread()
    for value in range(1, count + 1):
        writer.write(("data", value), 1)
        writer.exchange("value", value, SEQ_CST, "post exchange")
        writer.load("waiters", 0, SEQ_CST, "post look")
        writer.wake_if(0)

        def sleep(value: int = value) -> None:
            sleeper.add("waiters", 1, SEQ_CST, "sleep count")
            sleeper.load("value", 1, SEQ_CST, "sleep look")
            sleeper.if_equal(1, value - 1, lambda: sleeper.sleep("value", 0))
            sleeper.add("waiters", 255, SEQ_CST, "sleep uncount")

        for _ in range(sleeps):
            # What was seen last is one less than what is waited for, or no less.
            sleeper.load("value", 0, ACQUIRE, "wait_for")
            sleeper.if_equal(0, value - 1, sleep)
        sleeper.wait_ge("value", value, ACQUIRE, "wait_for")
        sleeper.read(("data", value), 1)
    return program
