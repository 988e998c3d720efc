"""Where in the code the orders and waits stand that the models break: a file, a function, a line.

Snippets are found behind their function's name; test_model_sites.py sees to it, and that every line
of these files that orders memory is named here or in NOT_MODELLED.
"""

from __future__ import annotations

from typing import NamedTuple


class Site(NamedTuple):
    """`function` is a piece of its first line; `code` a piece of the line that orders or waits."""

    file: str
    function: str
    code: str


HOST = "kernels/cpu/host_executor.cpp"
WAIT = "kernels/cpu/wait.cpp"
MEETING = "kernels/gpu/device/block_meeting.cuh"
WIRE = "kernels/gpu/wire/wire_block.cuh"
TILE = "kernels/gpu/wire/tile.cuh"
ROUTE = "kernels/gpu/wire/route.cuh"
FEW_TILES = "kernels/gpu/wire/few_tiles.cuh"
FEW_TILES_CALLS = "kernels/gpu/wire/few_tiles_calls.cuh"
LONE_MESSAGE = "kernels/gpu/wire/lone_message.cuh"
LANE = "kernels/gpu/wire/lane.cuh"
BULK = "kernels/gpu/wire/bulk.cuh"
CHUNK = "kernels/gpu/wire/chunk.cuh"
TRANSFER = "kernels/gpu/entry/transfer.cu"
BOXES = "kernels/gpu/wire/message_boxes.cuh"
CHUNKS = "kernels/gpu/wire/message_chunks.cuh"
MESSAGE = "kernels/gpu/wire/message.cuh"
PAD = "kernels/protocol/signal_pad.hpp"
MAILBOX = "backend/engine/host/mailbox_progress.cpp"
CALLS = "backend/engine/device/device_trace.cpp"
RECORDS = "backend/engine/group/call_record.cpp"
GIVE_UP = "kernels/gpu/device/wait.cuh"
SIGNAL = "kernels/gpu/device/signal.cuh"
END = "kernels/gpu/device/call_end.cuh"
GROUP = "symm_mem/group/local_group.cpp"
EXCHANGE = "symm_mem/group/local_exchange.cpp"

# How a thread of a GPU finds that a counter of a peer has come far enough; the second is AMD's.
REACHED = [
    Site(GIVE_UP, "bool counter_reached(", "acquire_if(counter,"),
    Site("kernels/core/atomics.hpp", "bool acquire_if(", "test(load_acquire(address))"),
    Site("kernels/core/atomics.hpp", "bool acquire_if(", "acquire_fence()"),
]

AWAIT_MEETING = Site(MEETING, "bool await(", "counter_reached(theirs, number)")

# The same in a lane, for a chunk and for a slot, and how a lane tells of them.
AWAIT = Site(LANE, "bool await(const", "counter_reached(counter, target)")
AWAIT_CHUNK = [Site(LANE, "bool await_chunk(", ".filled, number + 1"), AWAIT, *REACHED]
AWAIT_SLOT = [Site(LANE, "bool await_slot(", ".freed, number + 1 - kBulkSlots"), AWAIT, *REACHED]
POST_CHUNK = Site(LANE, "void post_chunk(", "filled, number + 1)")
FREE_SLOT = Site(LANE, "void free_slot(", ".freed, number + 1)")
FREE_LAST_SLOT = [
    Site(LANE, "void free_last_slot(", "free_slot(hop, sender, first - 1)"),
    FREE_SLOT,
]

# By which the host waits for a counter of a peer.
HOST_WAIT = Site(HOST, "bool HostExecutor::wait(", "wait_for(line, target")

SITES: dict[str, list[Site]] = {
    "host open_slot": [Site(HOST, "HostExecutor::open_slot", "wait(done, needed"), HOST_WAIT],
    "host await": [
        Site(HOST, "HostExecutor::await(int", "wait(view_.controls[peer]->ready"),
        HOST_WAIT,
    ],
    "host publish": [Site(HOST, "HostExecutor::publish", "post(own_ready()")],
    "host read_done": [Site(HOST, "HostExecutor::read_done", "post(own_done()")],
    "host end": [
        Site(HOST, "HostExecutor::end", "wait(view_.controls[peer]->done"),
        HOST_WAIT,
    ],
    "meeting tell": [
        Site(MEETING, "void tell(", "release_before_barrier()"),
        Site(MEETING, "void tell(", "release_after_barrier()"),
        Site(MEETING, "void tell(", "store_relaxed(&(signal_at(peer_, group_.rank).*counter)"),
    ],
    "meeting enter": [
        Site(MEETING, "bool enter()", "await(&MeetingSignal::entered)"),
        AWAIT_MEETING,
        *REACHED,
    ],
    "meeting leave": [
        Site(MEETING, "bool leave()", "await(&MeetingSignal::done)"),
        AWAIT_MEETING,
        *REACHED,
    ],
    "wire credit": [
        Site(WIRE, "bool ready()", "has_reached(done_ + 2, epoch_)"),
        Site(
            WIRE, "WireBlock(const Params& params)", "done_ = load_relaxed(done_at(rank(), peer))"
        ),
        Site(WIRE, "bool await_done(", "load_relaxed(done_at(rank(), peer)) + 2, epoch_"),
        Site(FEW_TILES, "bool run()", "has_done = load_relaxed(done_of_peer("),
        Site(FEW_TILES, "bool run()", "has_reached(has_done + 2, epoch_)"),
        Site(FEW_TILES_CALLS, "bool await_end_of_epoch(", "load_relaxed(done) + 2, epoch"),
    ],
    "barrier before": [
        Site("kernels/gpu/entry/move.cu", "bool meet(", "release_earlier_work()"),
        Site(FEW_TILES, "bool run()", "if constexpr (kMeets) release_earlier_work()"),
    ],
    "barrier after": [
        Site("kernels/gpu/entry/move.cu", "bool meet(", "block.acquire_all()"),
        Site(WIRE, "void acquire_all(", "load_acquire(words + Tile::kFlagWord)"),
        Site(FEW_TILES, "bool place_all(", "acquire_all();"),
        Site(FEW_TILES, "void acquire_all(", "load_acquire(reinterpret_cast"),
    ],
    "chunk await slot": [
        Site(CHUNKS, "bool await_slot(", "counter_reached(freed, target)"),
        Site(CHUNKS, "bool send(", "await_slot(number, waiter)"),
        *REACHED,
    ],
    "chunk send wait": [Site(CHUNKS, "bool send(", "warp_all(")],
    "chunk send copied": [Site(CHUNKS, "memory_.peer_slot(number), data", "warp_barrier();")],
    "chunk post": [Site(CHUNKS, "void post_chunk(", "store_release(&theirs.filled, filled_with(")],
    "chunk await": [
        Site(CHUNKS, "bool await_chunk(", "has_chunk(signal, filled)"),
        Site(MESSAGE, "bool has_chunk(", "acquire_if(&signal.filled,"),
        *REACHED[1:],
    ],
    "chunk receive wait": [Site(CHUNKS, "bool receive(", "warp_all(")],
    "chunk receive copied": [Site(CHUNKS, "memory_.own_slot(number), bytes", "warp_barrier();")],
    "chunk free": [Site(CHUNKS, "bool receive(", "peer_signal(number).freed, number + 1)")],
    "p2p box credit": [
        Site(BOXES, "bool has_credit(", "count_ + 1 - kP2pBoxes"),
        Site(BOXES, "bool has_credit(", "has_reached(freed_, target)"),
        Site(BOXES, "bool has_credit(", "freed_ = load_relaxed("),
        Site(LONE_MESSAGE, "bool send(", "count_ + box_ + 1 - kP2pBoxes"),
        Site(LONE_MESSAGE, "bool send(", "has_reached(freed, target)"),
        Site(LONE_MESSAGE, "bool await_box(", "freed = load_relaxed(freed_word())"),
        Site(LONE_MESSAGE, "bool await_box(", "has_reached(freed, target)"),
    ],
    "lane send slot": [Site(BULK, "bool send(const", "lane_.await_slot(0"), *AWAIT_SLOT],
    "lane send wait": [Site(BULK, "bool send(const", "warp_all(")],
    "lane send copied": [Site(BULK, "bool send(const", "warp_barrier();")],
    "lane send post": [Site(BULK, "bool send(const", "lane_.post_chunk(0"), POST_CHUNK],
    "lane place chunk": [
        Site(BULK, "bool take_to_place(", "lane_.await_chunk("),
        *AWAIT_CHUNK,
    ],
    "lane place wait": [Site(BULK, "bool place(const", "warp_all(")],
    "lane place copied": [Site(BULK, "bool place(const", "warp_barrier();")],
    "lane place begin": [
        Site(BULK, "bool take_to_place(", "free_last_slot(hop()"),
        *FREE_LAST_SLOT,
    ],
    "lane place free": [Site(BULK, "bool place(const", "lane_.free_slot(hop()"), FREE_SLOT],
    "lane pass begin": [Site(BULK, "bool take(int", "lane_.free_last_slot(0"), *FREE_LAST_SLOT],
    "lane pass chunk": [
        Site(BULK, "bool pass_on(", "take(peer, piece_bytes"),
        Site(BULK, "bool take(int", "lane_.await_chunk("),
        *AWAIT_CHUNK,
    ],
    "lane pass slot": [Site(BULK, "bool pass_on(", "lane_.await_slot(1"), *AWAIT_SLOT],
    "lane pass wait": [Site(BULK, "bool pass_on(", "warp_all(")],
    "lane pass copied": [Site(BULK, "body(cut.bytes_of(piece_bytes, offset))", "warp_barrier();")],
    "lane pass tell": [
        Site(BULK, "body(cut.bytes_of(piece_bytes, offset))", "lane_.post_and_free("),
        Site(LANE, "void post_and_free(", "release_earlier_work();"),
        Site(LANE, "void post_and_free(", "if (posts) store_relaxed("),
        Site(LANE, "void post_and_free(", "if (frees) store_relaxed("),
    ],
    "lane announce": [
        Site(BULK, "bool take_to_place(", "lane_.announce("),
        Site(LANE, "void announce(", "release_earlier_work();"),
        Site(LANE, "void announce(", "store_target("),
    ],
    "lane target": [Site(LANE, "Destination destination(", "acquire_for_later_work();")],
    "lane end": [Site(BULK, "void run()", "block_all(")],
    "mailbox envelope room": [Site(MAILBOX, "::post_envelopes(", "peer_inbox->taken")],
    "mailbox envelope post": [Site(MAILBOX, "::post_envelopes(", "outbox->posted, posted + 1")],
    "mailbox envelope take": [Site(MAILBOX, "::take_envelopes(", "peer_outbox->posted")],
    "mailbox envelope free": [Site(MAILBOX, "::take_envelopes(", "inbox->taken, ++taken")],
    "mailbox clear-to-send room": [Site(MAILBOX, "::post_cts(", "peer_outbox->cts_taken")],
    "mailbox clear-to-send post": [
        Site(MAILBOX, "::post_cts(", "inbox->cts_posted, cts_posted + 1")
    ],
    "mailbox clear-to-send take": [Site(MAILBOX, "::take_cts(", "peer_inbox->cts_posted")],
    "mailbox clear-to-send free": [Site(MAILBOX, "::take_cts(", "outbox->cts_taken, ++taken")],
    "mailbox data room": [Site(MAILBOX, "::stream_out(", "peer_inbox->data_read")],
    "mailbox data post": [Site(MAILBOX, "::stream_out(", "outbox->data_written, written + bytes")],
    "mailbox data take": [Site(MAILBOX, "::stream_in(", "peer_outbox->data_written")],
    "mailbox data free": [Site(MAILBOX, "::stream_in(", "inbox->data_read, read + bytes")],
    "try_put": [Site(PAD, "bool try_put(", "compare_exchange_release(")],
    "try_take": [Site(PAD, "bool try_take(", "compare_exchange_acquire(")],
    "withdraw": [Site(PAD, "void withdraw(", "exchange_seq_cst(slot, kSignalWithdrawn)")],
    "raise": [
        Site(GROUP, "LocalGroup::fail(", "fence_before_writes()"),
        Site(GROUP, "LocalGroup::leave(", "fence_before_writes()"),
        Site(GROUP, "LocalGroup::failure(", "fence_before_writes()"),
        Site(EXCHANGE, "LocalGroup::give_up(", "fence_before_writes()"),
        Site(GIVE_UP, "void fail_group(", "release_earlier_work()"),
        Site("symm_mem/group/host_signals.cpp", "HostSignals::barrier(", "fence_before_writes()"),
    ],
    "look after reads": [
        Site("symm_mem/group/local_group.hpp", "bool stands(", "fence_after_reads()"),
        Site(EXCHANGE, "LocalGroup::exchange(Purpose", "fence_after_reads()"),
        Site(MEETING, "bool stands(", "acquire_for_later_work()"),
    ],
    "record clear": [Site(CALLS, "DeviceTrace::post", "place.sequence, std::uint64_t{0}")],
    "record words": [Site(CALLS, "DeviceTrace::post", "store_release(words_of(place) + i")],
    "record post": [Site(CALLS, "DeviceTrace::post", "place.sequence, record.sequence")],
    "record first look": [Site(RECORDS, "> read_device_call", "load_acquire(&place.sequence)")],
    "record copy": [Site(RECORDS, "> read_device_call", "load_acquire(from + i)")],
    "record second look": [
        Site(RECORDS, "words[i] = load_acquire", "load_acquire(&place.sequence) != sequence")
    ],
    "report fault": [
        Site(GIVE_UP, "void fail_group(", "store_release(&report.fault"),
        Site(SIGNAL, "void report(", "store_release(&report.fault"),
    ],
    "report look": [
        Site(
            "backend/engine/device/device_watchdog.cpp",
            "DeviceWatchdog",
            "load_acquire(&report.fault)",
        ),
        Site("kernels/gpu/launch/gpu_signal_kernels.cpp", "report", "load_acquire(&report.fault)"),
    ],
    "post exchange": [Site(WAIT, "void post(", "exchange_seq_cst(&line.value")],
    "post look": [Site(WAIT, "void wake_sleepers(", "load_seq_cst(&line.waiters)")],
    "wait_for": [
        Site(WAIT, "bool wait_for(", "load_acquire(&line.value), target)"),
        Site(WAIT, "bool wait_for(", "seen = load_acquire(&line.value)"),
    ],
    "sleep count": [Site(WAIT, "void sleep_on(", "fetch_add(&line.waiters, std::uint32_t{1})")],
    "sleep look": [Site(WAIT, "void sleep_on(", "load_seq_cst(&line.value) == seen")],
    "sleep uncount": [Site(WAIT, "void sleep_on(", "fetch_add(&line.waiters, ~std::uint32_t{0})")],
}

# Orders without which every property still holds in the model, and why. They are kept: they cost
# nothing where they stand, or another compiler or processor may need them.
NOT_NEEDED: dict[str, str] = {
    "record clear: not release": "a reader that sees the zero does not use the record",
    "record second look: not acquire": "nothing is read after it",
    "withdraw: not seq_cst": "in the model no load finds what is stored after it",
    "sleep look: not seq_cst": "the kernel looks again before it lets the thread sleep",
    "sleep uncount: not seq_cst": "a count that is too high costs a system call",
}

# Lines that order memory in the files above and belong to no model.
NOT_MODELLED: dict[str, dict[str, str]] = {
    HOST: {
        "load_acquire(&own_done().value)": "a rank's own counter, at its start",
        "value = load_acquire(&done.value)": "a later look at a counter that was waited for",
    },
    WAIT: {
        "fetch_add(&line.value": "ring_bell: post() with an addition in place of the exchange",
        "cpu)": "a hint that nothing depends on",
    },
    MEETING: {
        "store_relaxed_pair(words_of(": "locations are cells: shown to be free of races",
        "load_relaxed_pair(words_of(": "locations are cells: shown to be free of races",
        "load_relaxed(&theirs.dead)": "the owner's word itself: its fences are modelled",
    },
    TILE: {"relaxed_pair(words": "the words of tiles, which have no order"},
    WIRE: {
        "store_relaxed(done_at(": "modelled; it has no order: what ended are reads that returned",
        "sequence_(load_relaxed": "a rank's own counter",
        "params_.page)->": "progress that hosts read for messages only",
        "dead)": "a dead group's counters are left as they are",
        "local_.block_values[": "words without an order: each names its call",
        "ahead = load_relaxed(words": "a share of another size: an error's report",
    },
    ROUTE: {
        "store_relaxed(wire_done_at(": "as `done` of a block that fills no box and hears nobody",
        "sequence = load_relaxed(": "a rank's own counter",
        "&page->entered": "progress that hosts read for messages only",
        "dead) == 0": "a dead group's counters are left as they are",
        "release_earlier_work()": "poison, once the group is dead",
    },
    FEW_TILES: {
        "store_relaxed(global_pointer(params_.peers[p].done)": (
            "modelled; it has no order: what ended are reads that returned"
        ),
        "sequence_(load_relaxed": "a rank's own counter",
        "params_.page)->entered": "progress that hosts read for messages only",
        "local_.dead) == 0": "a dead group's counters are left as they are",
    },
    FEW_TILES_CALLS: {
        "store_relaxed(global_pointer(peer.done)": "as in ROUTE, of a block that has no part",
        "ahead = load_relaxed(words": "a share of another size: an error's report",
        "release_earlier_work()": "poison, once the group is dead",
    },
    LONE_MESSAGE: {
        "store_relaxed(freed_word()": (
            "modelled; it has no order: what ended are reads that returned"
        ),
        "freed = load_relaxed(freed_word())": "a first look; the wait is modelled",
        "device_fetch_add(ticket": "between the blocks of a launch",
        "message_.entered)": "progress that hosts read for messages only",
        "message_.completed)": "progress that hosts read for messages only",
        "->dead) == 0": "a dead group's counters are left as they are",
    },
    TRANSFER: {
        "device_fence()": "between the blocks of a launch",
        "device_fetch_add(ticket": "between the blocks of a launch",
        "&entered,": "progress that hosts read for messages only",
        "&completed,": "progress that hosts read for messages only",
        "local.dead": "a dead group's counters are left as they are",
    },
    BOXES: {
        "store_relaxed(&memory_.peer_freed(channel_)": (
            "modelled; it has no order: what ended are reads that returned"
        ),
        "freed_ = load_relaxed(&memory_.own_freed(channel_))": "a first look; the wait is modelled",
        "counter_reached(&chunk.filled": "a chunk where boxes are expected: an error's report",
    },
    CHUNKS: {
        "store_relaxed_pair(reinterpret_cast": "headers are cells: shown to be free of races",
    },
    LANE: {
        "load_relaxed(&bases[place])": "a table that the host has written before the call",
        "store_relaxed_pair(reinterpret_cast": "headers are cells: shown to be free of races",
        "load_relaxed_pair(": "headers are cells: shown to be free of races",
    },
    BULK: {
        "sequence = load_relaxed(": "a rank's own counter",
        "global_pointer(params_.page)->entered": "progress that hosts read for messages only",
        "dead) == 0": "a dead group's counters are left as they are; the vote on it orders nothing",
    },
    CHUNK: {},
    CALLS: {
        ".entered": "how far a peer is; the record is looked at by itself",
        "entered)": "how far a peer is; the record is looked at by itself",
        "completed)": "how far a peer is; for messages only",
    },
    GIVE_UP: {
        "bool counter_reached(": "the function that is modelled",
        "device_compare_exchange(": "who reports; a dead group's counters are left as they are",
        "load_relaxed(": "a look at a word that ends the wait",
    },
    SIGNAL: {
        "load_acquire(&params_.page->gone)": "who is gone; what it did before is looked for again",
        "try_put(slot)": "modelled as try_put",
        "try_take(slot)": "modelled as try_take",
        "device_compare_exchange(": "who reports; a dead group's counters are left as they are",
        "load_relaxed(": "a look at a word that ends the wait",
    },
    END: {
        "device_fetch_add(&local.sequence": "between the blocks of a launch",
        "&page->completed": "progress that hosts read for messages only",
        "local->dead)": "a dead group's counters are left as they are",
        "->abort)": "a look at a word that ends the wait",
        "device_fence()": "between the blocks of a launch",
        "device_fetch_add(ticket": "between the blocks of a launch",
        "page_of(group)": "progress that hosts read for messages only",
        "local_state(group).dead": "a dead group's counters are left as they are",
        "load_relaxed(&local.sequence)": "a rank's own counter",
    },
    PAD: {"bool try_": "the functions that are modelled"},
    MAILBOX: {"load_relaxed(": "a rank's own counter"},
}
