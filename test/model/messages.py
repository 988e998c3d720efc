"""Models of messages between GPUs: chunks through slots, and tiles through boxes."""

from __future__ import annotations

import itertools

from program import ACQUIRE, RELAXED, RELEASE, Program, Thread


def message_chunks(
    slots: int, chunks: int, senders: int, receivers: int, wide: bool = False, **options: object
) -> Program:
    """Warps of two ranks that take the chunks of messages in turns, as many warps as each has.

    MessageChunks::send and MessageChunks::receive of kernels/gpu/wire/message_chunks.cuh. `wide`:
    a warp has two threads, of which each moves one half; else one, without the orders inside a
    warp. Options: `wrap`, where the numbers wrap; `fault` "one count": all slots share one pair of
    words; "posted early" or "freed early", before the chunk was copied; "a credit too many", one
    more than there are slots.
    """
    wrap, fault = options.get("wrap", 0), options.get("fault", "")
    program = Program(f"chunks through {slots} slots, {senders} and {receivers} warps")
    program.first_choice_only = True
    program.name += ", 2 threads a warp" if wide else ""
    program.name += f", numbers wrap at {wrap}" if wrap else ""
    program.wrap = wrap
    threads = range(2 if wide else 1)

    def word(name: str, n: int) -> tuple[str, int]:
        return (name, 0 if fault == "one count" else n % slots)

    def barrier(thread: Thread, warp: object, site: str) -> None:
        if wide:
            thread.block_barrier(warp, 2, site)

    for warp, me in itertools.product(range(senders), threads):
        thread = program.thread()
        for n in range(warp, chunks, senders):
            if me == 0:
                credit = slots + (fault == "a credit too many")
                thread.wait_ge(
                    word("freed", n), n + 1 - credit, ACQUIRE, "chunk await slot", grants=True
                )
            barrier(thread, ("sender", warp), "chunk send wait")
            if fault == "posted early" and me == 0:
                thread.store(word("filled", n), n + 1, RELEASE, "chunk post")
            thread.write(("slot", n % slots, me), n + 1)
            barrier(thread, ("sender", warp), "chunk send copied")
            if me == 0:
                thread.write(("header", n % slots), n + 1)
                if fault != "posted early":
                    thread.store(word("filled", n), n + 1, RELEASE, "chunk post")
    for warp, me in itertools.product(range(receivers), threads):
        thread = program.thread()
        for n in range(warp, chunks, receivers):
            if me == 0:
                thread.wait_ge(word("filled", n), n + 1, ACQUIRE, "chunk await", grants=True)
                thread.read(("header", n % slots), n + 1)
            barrier(thread, ("receiver", warp), "chunk receive wait")
            if fault == "freed early" and me == 0:
                thread.store(word("freed", n), n + 1, RELEASE, "chunk free")
            for half in threads:
                thread.read(("slot", n % slots, half), n + 1)
            barrier(thread, ("receiver", warp), "chunk receive copied")
            if me == 0 and fault != "freed early":
                thread.store(word("freed", n), n + 1, RELEASE, "chunk free")
    return program


def box_pipeline(slots: int, pieces: int, fault: str = "") -> Program:
    """A block of two threads hands pieces to a block of another rank through boxes of tiles.

    MessageBoxes::send and MessageBoxes::receive of kernels/gpu/wire/message_boxes.cuh. Each
    thread stores a word, data and epoch in one, when it has credit itself, and receives one. Fault
    "no barrier": the receiver's thread 0 frees the box when it has its own word.
    """
    program = Program(f"p2p channel of {slots} boxes, blocks of 2 threads", first_choice_only=True)
    for me in range(2):  # the sender
        thread = program.thread()
        for n in range(pieces):
            thread.wait_ge("freed", n + 1 - slots, RELAXED, "p2p box credit", grants=True)
            thread.store(("box", n % slots, me), n + 1)
    for me in range(2):  # the receiver
        thread = program.thread()
        for n in range(pieces):
            thread.wait_eq(("box", n % slots, me), n + 1)
            if fault != "no barrier":
                thread.block_barrier("receiver", 2)
            if me == 0:
                thread.store("freed", n + 1)
    return program
