// The process groups that exist, so that a process can end while some of them are in use.
//
// NOTE [End of the process]
// A program may return from main, call exit() or end by an exception without destroying its groups,
// with operations in flight. Threads that then still run would touch destroyed objects, or keep the
// process from ending. interrupt_live_groups() ends all of them first. It is registered with
// std::atexit when the first group is made; a host with an earlier end of its own (Python's
// interpreter is gone by then, and callbacks may need it) calls it before that.
#pragma once

#include <memory>

namespace symm {

class GroupEngine;

// Does not keep the group alive. Thread safe.
void add_live_group(const std::shared_ptr<GroupEngine>& group);

// GroupEngine::interrupt() for every group of this process that still exists. Idempotent.
void interrupt_live_groups();

}  // namespace symm
