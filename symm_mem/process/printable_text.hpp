// Text from outside (names, paths, what peers and drivers say) on its way to a user.
#pragma once

#include <string>
#include <string_view>

namespace symm {

// `text` as valid UTF-8 on one line: \xNN in place of every byte that is no part of a character,
// and of those of control characters (U+0000 to U+001F, U+007F to U+009F). Local, thread safe.
std::string printable(std::string_view text);

}  // namespace symm
