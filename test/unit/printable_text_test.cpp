// What is made of text from outside before a user sees it.
#include "symm_mem/process/printable_text.hpp"

#include <gtest/gtest.h>

#include <string>
#include <string_view>

namespace symm {
namespace {

using namespace std::string_literals;

TEST(PrintableText, LeavesTextAlone) {
  for (const auto* text : {"", "group \"0\": rank 1", "naïve Ärger 東京 🚀", "\xc2\xa0", "\\x00",
                           "\xed\x9f\xbf\xee\x80\x80\xf4\x8f\xbf\xbf"}) {
    EXPECT_EQ(printable(text), text);
  }
}

TEST(PrintableText, EscapesControlCharacters) {
  EXPECT_EQ(printable("a\nb\tc\x1b[31m\x7f"), "a\\x0ab\\x09c\\x1b[31m\\x7f");
  EXPECT_EQ(printable("end\0of"s), "end\\x00of");
  EXPECT_EQ(printable("\xc2\x85 \xc2\x9f"), "\\xc2\\x85 \\xc2\\x9f") << "U+0085 and U+009F";
}

TEST(PrintableText, EscapesWhatIsNotUtf8) {
  EXPECT_EQ(printable("caf\xe9!"), "caf\\xe9!");
  EXPECT_EQ(printable("\xff\xfe"), "\\xff\\xfe");
  EXPECT_EQ(printable("\x80 \xbf"), "\\x80 \\xbf") << "no beginning";
  EXPECT_EQ(printable("\xc0\xaf"), "\\xc0\\xaf") << "longer than it need be";
  EXPECT_EQ(printable("\xe0\x80\xaf"), "\\xe0\\x80\\xaf") << "longer than it need be";
  EXPECT_EQ(printable("\xed\xa0\x80"), "\\xed\\xa0\\x80") << "a surrogate";
  EXPECT_EQ(printable("\xf4\x90\x80\x80"), "\\xf4\\x90\\x80\\x80") << "beyond U+10FFFF";
  EXPECT_EQ(printable("\xf5\x80\x80\x80"), "\\xf5\\x80\\x80\\x80") << "beyond U+10FFFF";
  EXPECT_EQ(printable("\xe6\x9d\xb1\xe4\xba"), "\xe6\x9d\xb1\\xe4\\xba") << "cut in a character";
  EXPECT_EQ(printable("\xe4\x41"), "\\xe4"s + "A");
}

}  // namespace
}  // namespace symm
