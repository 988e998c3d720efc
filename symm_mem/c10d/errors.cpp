#include "symm_mem/c10d/errors.hpp"

#include <c10/util/Exception.h>

#include <atomic>
#include <string>

#include "symm_mem/process/printable_text.hpp"

namespace symm {
namespace {

std::atomic<WrongArgumentHook> wrong_argument_hook{nullptr};

}  // namespace

void set_wrong_argument_hook(WrongArgumentHook hook) { wrong_argument_hook.store(hook); }

void throw_torch_error(const Error& error) {
  const c10::SourceLocation where{__func__, __FILE__, static_cast<std::uint32_t>(__LINE__)};
  const std::string message =
      std::string("symm [") + error_code_name(error.code()) + "]: " + printable(error.what());
  switch (error.code()) {
    case ErrorCode::kInvalidArgument:
    case ErrorCode::kInvalidType:
      if (const WrongArgumentHook hook = wrong_argument_hook.load()) hook(message, error.code());
      if (error.code() == ErrorCode::kInvalidType) throw c10::TypeError(where, message);
      throw c10::ValueError(where, message);
    case ErrorCode::kUnsupported:
      throw c10::NotImplementedError(where, message);
    default:
      throw c10::DistBackendError(where, message);
  }
}

std::exception_ptr torch_error(const Error& error) {
  try {
    throw_torch_error(error);
  } catch (...) {
    return std::current_exception();
  }
}

}  // namespace symm
