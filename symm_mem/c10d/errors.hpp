// The one place where symm::Error becomes the exception that PyTorch users expect.
//
//   kInvalidArgument -> c10::ValueError            torch_symm.InvalidArgumentError in Python
//   kInvalidType     -> c10::TypeError             torch_symm.InvalidTypeError
//   kUnsupported     -> c10::NotImplementedError   NotImplementedError
//   everything else  -> c10::DistBackendError      torch.distributed.DistBackendError
//
// Names, paths and what a peer says may hold any bytes. Python decodes a message as UTF-8 and would
// raise UnicodeDecodeError in place of the exception, so the message is made printable here.
//
// What a signal handler of the program has raised goes on as it is.
#pragma once

#include <exception>
#include <string>
#include <utility>

#include "kernels/core/error.hpp"
#include "symm_mem/process/interrupt.hpp"

namespace symm {

// The call was wrong and nothing was sent: the group goes on, and the call does not count.
inline bool is_refusal(const Error& error) {
  return error.code() == ErrorCode::kInvalidArgument || error.code() == ErrorCode::kInvalidType ||
         error.code() == ErrorCode::kUnsupported;
}

// Throws, in place of c10's exception, what a language has for a wrong argument; `code` is
// kInvalidArgument or kInvalidType.
using WrongArgumentHook = void (*)(const std::string& message, ErrorCode code);
// At most once, before there is a group. Python's types are those that programs catch from other
// backends, and c10 has none that is several of them.
void set_wrong_argument_hook(WrongArgumentHook hook);

[[noreturn]] void throw_torch_error(const Error& error);

// The same exception, for a Work or a future to hold.
std::exception_ptr torch_error(const Error& error);

// Runs `body`, turning an Error that leaves it into PyTorch's exception. Costs nothing otherwise.
template <typename Body>
decltype(auto) with_torch_errors(Body&& body) {
  try {
    return std::forward<Body>(body)();
  } catch (const Error& error) {
    throw_torch_error(error);
  } catch (const Interrupted& interrupted) {
    std::rethrow_exception(interrupted.cause);
  }
}

}  // namespace symm
