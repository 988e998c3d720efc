#include "backend/engine/hosts/call_note.hpp"

#include <cstring>
#include <type_traits>

#include "backend/engine/group/call_record.hpp"

namespace symm {
namespace {

// FNV-1a over whole words.
struct WordHash {
  void add(std::uint64_t word) { value = (value ^ word) * 0x100000001b3U; }
  std::uint64_t value = 0xcbf29ce484222325U;
};

std::string text_of_note(const CallNote& note) {
  const auto kind = static_cast<std::size_t>(note.kind);
  const std::string_view name =
      kind < kCollectiveKindNames.size() ? kCollectiveKindNames[kind] : "another call";
  const auto dtype = static_cast<Dtype>(note.dtype);
  return text_of(name, " number ", note.sequence, " of ", note.count, " elements (",
                 note.dtype < kDtypeCount ? dtype_name(dtype) : "another dtype", ", operator ",
                 note.op, ", root ", note.root, ")");
}

}  // namespace

CallNote note_of(const CollectiveArgs& args, std::uint64_t sequence) {
  CallNote note;
  note.sequence = sequence;
  if (args.kind != CollectiveKind::kAllToAll) note.count = args.count;
  if (const auto list = common_list(args); !list.empty()) {
    note.count = 0;
    for (const Part& part : list) note.count += part.count;
    note.counts_hash = hash_counts(list);
  }
  note.kind = static_cast<std::uint32_t>(args.kind);
  note.dtype = static_cast<std::uint32_t>(args.dtype);
  if (reduces(args.kind)) note.op = static_cast<std::uint32_t>(args.op);
  if (has_root(args.kind)) note.root = static_cast<std::uint32_t>(args.root);
  note.layout = args.layout;
  return note;
}

std::uint32_t hash_of(const CallNote& note) {
  WordHash hash;
  for (const std::uint64_t word : {note.sequence, note.count, note.counts_hash}) hash.add(word);
  for (const std::uint32_t word : {note.kind, note.dtype, note.op, note.root, note.layout}) {
    hash.add(word);
  }
  const auto folded = static_cast<std::uint32_t>(hash.value ^ (hash.value >> 32));
  return folded == 0 ? 1 : folded;
}

bool same_note(const CallNote& a, const CallNote& b) {
  static_assert(std::has_unique_object_representations_v<CallNote>);
  return std::memcmp(&a, &b, sizeof(CallNote)) == 0;
}

Error different_notes(const std::string& who, const CallNote& theirs, const CallNote& mine) {
  return Error(ErrorCode::kMismatch, "ranks made different calls: ", who, " made ",
               text_of_note(theirs), ", this one ", text_of_note(mine));
}

}  // namespace symm
