// Rows of segments in the GPUs' tables, and the numbers by which records name segments.
#include "symm_mem/segment/table_rows.hpp"

#include <gtest/gtest.h>

#include <cstdint>
#include <optional>

#include "symm_mem/group/segment_table.hpp"

namespace symm {
namespace {

TEST(TableRows, TheFirstThatAllHaveIsFound) {
  TableRows mine = TableRows::all();
  TableRows theirs = TableRows::all();
  for (int row = 0; row < kMaxSegments; ++row) {
    (row % 2 == 0 ? mine : theirs).erase(row);
    TableRows both = mine;
    both.keep(theirs);
    EXPECT_EQ(both.contains(row), false);
    EXPECT_EQ(both.first(), row + 1 < kMaxSegments ? std::optional<int>(row + 1) : std::nullopt);
  }
  mine.insert(200);
  theirs.insert(200);
  mine.keep(theirs);
  EXPECT_TRUE(mine.contains(200));
  EXPECT_FALSE(mine.contains(136));
  EXPECT_EQ(mine.first(), 200);
  EXPECT_EQ(TableRows{}.first(), std::nullopt);
}

// Also near the width of the record's word: none is 0, and neighbours differ.
TEST(SegmentTable, NoNumberIsNoneInARecord) {
  for (const std::uint64_t from :
       {std::uint64_t{1}, (std::uint64_t{1} << 32) - 4, (std::uint64_t{1} << 33) - 4}) {
    for (std::uint64_t number = from; number < from + 8; ++number) {
      EXPECT_NE(SegmentTable::in_record(number), 0u);
      EXPECT_NE(SegmentTable::in_record(number), SegmentTable::in_record(number + 1));
    }
  }
}

}  // namespace
}  // namespace symm
