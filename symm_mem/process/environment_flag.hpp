// Environment variables that are 0 or 1. Local; the environment is read each time.
#pragma once

namespace symm {

// True for "1", false for "0"; `unset` where the variable is not there. Throws
// Error(kInvalidArgument) that names it for anything else.
bool flag_in_environment(const char* name, bool unset);

}  // namespace symm
