#include "symm_mem/segment/segment_rendezvous.hpp"

#include <algorithm>
#include <utility>

#include "kernels/core/error.hpp"

namespace symm {

SegmentRendezvous::SegmentRendezvous(const MeshRound& round, std::shared_ptr<LocalSegment> local,
                                     const TableRows& free_rows)
    : round_(round),
      local_(std::move(local)),
      runtime_(local_->runtime()),
      free_rows_(runtime_.kind() == DeviceKind::kHost ? TableRows{} : free_rows) {}

SegmentDescriptor SegmentRendezvous::describe() const {
  SegmentDescriptor descriptor;
  descriptor.device = static_cast<std::uint32_t>(runtime_.kind());
  descriptor.bytes = local_->bytes();
  descriptor.mapped_bytes = local_->mapped_bytes();
  descriptor.user_buffer = local_->is_user_buffer();
  descriptor.start = local_->chunks().start;
  descriptor.free_rows = free_rows_;
  descriptor.chunks = static_cast<std::uint32_t>(local_->chunks().chunks.size());
  descriptor.multicast =
      MulticastCapability::of(runtime_, local_->mapped_bytes(), round_.world_size());
  if (descriptor.user_buffer && descriptor.multicast.problem.empty()) {
    descriptor.multicast.problem = "memory that symm has not allocated has no multicast pointer";
  }
  return descriptor;
}

// Puts the handles of this rank's `chunk` into `descriptor`, or why there are none.
ExportedMemory SegmentRendezvous::export_chunk(std::size_t chunk,
                                               SegmentDescriptor& descriptor) const {
  ExportedMemory exported;
  const auto& chunks = local_->chunks().chunks;
  if (chunk >= chunks.size()) return exported;
  descriptor.chunk_bytes = chunks[chunk]->bytes();
  if (round_.world_size() > 1) {
    descriptor.error = try_step([&] { exported = export_by_every_kind(runtime_, *chunks[chunk]); });
  }
  descriptor.handles = exported.handles;
  return exported;
}

void SegmentRendezvous::post() {
  own_ = describe();
  const ExportedMemory exported = export_chunk(0, *own_);
  round_.post(own_->encode(), exported.descriptor.get());
}

std::vector<SegmentDescriptor> SegmentRendezvous::decode(
    const SegmentDescriptor& own, const std::vector<BootstrapMesh::Received>& received) const {
  std::vector<SegmentDescriptor> descriptors;
  for (int rank = 0; rank < round_.world_size(); ++rank) {
    const auto& message = received[static_cast<std::size_t>(rank)].message;
    descriptors.push_back(
        rank == round_.rank() ? own : SegmentDescriptor::decode(message, rank, names()));
  }
  return descriptors;
}

// A rank that has no such chunk counts as one that has handles of every kind.
HandleKind SegmentRendezvous::choose(std::size_t chunk,
                                     const std::vector<SegmentDescriptor>& descriptors) const {
  std::vector<HandleDescriptor> handles;
  for (std::size_t rank = 0; rank < descriptors.size(); ++rank) {
    const bool has_it = chunk < descriptors_[rank].chunks;
    handles.push_back(has_it ? descriptors[rank].handles
                             : HandleDescriptor{.has_descriptor = true, .fabric = FabricHandle{}});
  }
  return choose_handle_kind(handles, names());
}

void SegmentRendezvous::receive(std::size_t chunk,
                                const std::vector<SegmentDescriptor>& descriptors,
                                std::vector<BootstrapMesh::Received> received) {
  const HandleKind kind = choose(chunk, descriptors);
  if (chunk == 0) kind_ = kind;
  for (std::size_t rank = 0; rank < descriptors.size(); ++rank) {
    if (rank == static_cast<std::size_t>(round_.rank()) || chunk >= descriptors_[rank].chunks) {
      continue;
    }
    ChunkedMemory& memory = memories_[rank];
    const std::uint64_t bytes = descriptors[rank].chunk_bytes;
    if (bytes > descriptors_[rank].mapped_bytes - memory.bytes()) {
      throw Error(ErrorCode::kSecurity, "rendezvous: ", names().name(static_cast<int>(rank)),
                  " sent more memory than the ", descriptors_[rank].mapped_bytes,
                  " bytes that it has described");
    }
    const std::optional<Error> refused = try_step([&] {
      memory.chunks.push_back(runtime_.import_memory(
          handle_of(kind, descriptors[rank].handles, std::move(received[rank].descriptor)), bytes));
    });
    if (refused) {
      throw Error(refused->code(), "rendezvous: memory of ",
                  round_.mesh.rank_name(static_cast<int>(rank)), ": ", refused->what());
    }
  }
}

void SegmentRendezvous::check_complete() const {
  for (std::size_t rank = 0; rank < memories_.size(); ++rank) {
    if (memories_[rank].bytes() == descriptors_[rank].mapped_bytes) continue;
    throw Error(ErrorCode::kSecurity, "rendezvous: ", names().name(static_cast<int>(rank)),
                " described ", descriptors_[rank].mapped_bytes, " bytes and sent ",
                memories_[rank].bytes());
  }
}

// The same on every rank, since all have the same descriptors.
std::optional<int> SegmentRendezvous::choose_row() const {
  TableRows rows = TableRows::all();
  for (const SegmentDescriptor& descriptor : descriptors_) rows.keep(descriptor.free_rows);
  return rows.first();
}

// Throws the same on every rank where the segments do not fit together.
void SegmentRendezvous::open() {
  if (!own_) post();
  std::vector<BootstrapMesh::Received> received = round_.take_all();
  if (own_->error) throw Error(*own_->error);
  descriptors_ = decode(*own_, received);
  check_descriptors(descriptors_, names());
  memories_.resize(descriptors_.size());
  for (std::size_t rank = 0; rank < descriptors_.size(); ++rank) {
    memories_[rank].start = descriptors_[rank].start;
  }
  memories_[static_cast<std::size_t>(round_.rank())] = local_->chunks();
  if (round_.world_size() > 1) receive(0, descriptors_, std::move(received));
}

// Returns the error that this rank sends in the next round, which is the last one then. Throws
// where this was the last.
std::optional<Error> SegmentRendezvous::carry(std::size_t chunk) {
  SegmentDescriptor own;
  const ExportedMemory exported = export_chunk(chunk, own);
  std::vector<BootstrapMesh::Received> received;
  std::vector<SegmentDescriptor> descriptors;
  std::optional<Error> failed = try_step([&] {
    received = round_.exchange(own.encode(), exported.descriptor.get());
    descriptors = decode(own, received);
  });
  if (own.error) throw Error(*own.error);
  if (failed) return failed;
  throw_first_failure(descriptors, names());
  return try_step([&] { receive(chunk, descriptors, std::move(received)); });
}

// Called by every rank that has not thrown before.
void SegmentRendezvous::exchange_status(const std::optional<Error>& own) {
  SegmentDescriptor status;
  status.error = own;
  std::vector<SegmentDescriptor> descriptors;
  const std::optional<Error> late =
      try_step([&] { descriptors = decode(status, round_.exchange(status.encode())); });
  if (own) throw Error(*own);
  if (late) throw Error(*late);
  throw_first_failure(descriptors, names());
}

Multicast SegmentRendezvous::agree_on_multicast() const {
  std::vector<MulticastCapability> capabilities;
  for (const SegmentDescriptor& descriptor : descriptors_) {
    capabilities.push_back(descriptor.multicast);
  }
  return Multicast::agree(round_, capabilities, runtime_, local_->memory(), kind_);
}

std::shared_ptr<Segment> SegmentRendezvous::run(
    const std::function<void(const Segment& made)>& prepare) {
  std::shared_ptr<Segment> segment;
  std::optional<Error> own = try_step([&] { open(); });
  std::size_t chunks = 1;
  for (const SegmentDescriptor& descriptor : descriptors_) {
    chunks = std::max<std::size_t>(chunks, descriptor.chunks);
  }
  for (std::size_t chunk = 1; !own && chunk < chunks && round_.world_size() > 1; ++chunk) {
    own = carry(chunk);
  }
  if (!own) {
    own = try_step([&] {
      check_complete();
      segment.reset(new Segment(local_, round_.rank(), std::move(memories_), names(),
                                round_.position.number, choose_row()));
      if (prepare) prepare(*segment);
    });
  }
  exchange_status(own);
  segment->set_multicast(agree_on_multicast());
  return segment;
}

}  // namespace symm
