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


def message_forms(forms: str, boxes: int, slots: int, fault: str = "") -> Program:
    """Short and long messages, by a block for boxes and a warp for chunks at each end.

    NOTE [Position of a message] in kernels/gpu/wire/message.cuh. `forms`: S, M or L by message; a
    short one has a box, one of many three, of which the first has its header, and a long one a
    chunk. Each receiver looks for the other form before it waits for its own, and finds none at its
    position. Fault "no position": that anything has come there counts.
    """
    program = Program(f"messages {forms} in two forms", first_choice_only=True)

    payload = 15  # of a box without a header

    def word(number: int, position: int) -> int:
        return 16 * (number + 1) + (0 if fault == "no position" else position)

    def look(thread: Thread, place: tuple[str, int], number: int, position: int) -> None:
        other = word(number, position)
        thread.load(place, 0)
        thread.if_equal(0, other, lambda: thread.expect(0, other + 1))

    sends_boxes, sends_chunks, takes_boxes, takes_chunks = (program.thread() for _ in range(4))
    box = chunk = 0
    for form in forms:
        position = box + chunk
        box_place, chunk_place = ("box", box % boxes), ("filled", chunk % slots)
        if form in "SM":
            look(takes_boxes, chunk_place, chunk, position)
            for content in [position] if form == "S" else [position, payload, payload]:
                place, filled = ("box", box % boxes), word(box, content)
                credit = box + 1 - boxes
                sends_boxes.wait_ge("freed", credit, RELAXED, "p2p box credit", grants=True)
                sends_boxes.store(place, filled)
                takes_boxes.wait_eq(place, filled)
                box += 1
                takes_boxes.store("freed", box)
        else:
            freed = ("chunk freed", chunk % slots)
            sends_chunks.wait_ge(freed, chunk + 1 - slots, ACQUIRE, "chunk await slot", grants=True)
            sends_chunks.write(("slot", chunk % slots), chunk + 1)
            sends_chunks.store(chunk_place, word(chunk, position), RELEASE, "chunk post")
            look(takes_chunks, box_place, box, position)
            takes_chunks.wait_eq(chunk_place, word(chunk, position), ACQUIRE, "chunk await")
            takes_chunks.read(("slot", chunk % slots), chunk + 1)
            chunk += 1
            takes_chunks.store(freed, chunk, RELEASE, "chunk free")
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
