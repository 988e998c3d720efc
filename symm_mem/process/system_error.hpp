// Turns errno into Error(kSystem), with the limit that was met and how to raise it.
#pragma once

#include <string>
#include <system_error>

namespace symm {

// "Too many open files; the limit of this process is 1024 (...)" for errno value `error`.
std::string describe_system_error(int error);

// Throws Error(kSystem, "<action> failed: <description>"). `action` is a phrase that names the
// size or the object, e.g. "allocating 4096 bytes of shared memory".
[[noreturn]] void throw_system_error(const std::string& action, int error);

// Throws Error(kSystem): no thread can be made. `users` need it, e.g. "asynchronous operations".
[[noreturn]] void throw_no_thread(const std::string& users, const std::system_error& error);

}  // namespace symm
