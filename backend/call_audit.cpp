#include "backend/call_audit.hpp"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/from_blob.h>

#include <span>

#include "backend/engine/record/content_hash.hpp"
#include "symm_mem/c10d/gpu_access.hpp"

namespace symm {

namespace {

void add_bytes(ContentHash& hash, at::Device device, const void* data, std::size_t bytes) {
  if (device.is_cpu() || bytes == 0) {
    hash.add({static_cast<const std::byte*>(data), bytes});
    return;
  }
  const at::NoGradGuard no_grad;
  const at::Tensor copy = at::from_blob(const_cast<void*>(data), {static_cast<std::int64_t>(bytes)},
                                        at::TensorOptions().dtype(at::kByte).device(device))
                              .cpu();
  hash.add({static_cast<const std::byte*>(copy.const_data_ptr()), bytes});
}

std::uint64_t hash_of(const CollectiveCall& call, const void* lone, std::span<const Part> parts) {
  const std::size_t element = dtype_bytes(call.args.dtype);
  ContentHash hash;
  if (lone != nullptr) add_bytes(hash, call.device, lone, call.args.count * element);
  for (const Part& part : parts) {
    add_bytes(hash, call.device, part.data, part.count * element);
  }
  return hash.value();
}

}  // namespace

std::shared_ptr<CallAudit> CallAudit::of_group(const std::string& name, int rank,
                                               const std::vector<std::int64_t>& global_ranks) {
  AuditFile* const file = AuditFile::of_process(global_ranks[static_cast<std::size_t>(rank)]);
  if (file == nullptr) return nullptr;
  return std::make_shared<CallAudit>(*file, file->add_group(name, rank, global_ranks), rank);
}

std::uint64_t CallAudit::input_hash(const CollectiveCall& call) const {
  const CollectiveArgs& args = call.args;
  if (call.device.is_cuda() && is_captured(call.device)) {
    throw Error(
        ErrorCode::kUnsupported, collective_name(args.kind),
        ": SYMM_AUDIT reads the tensors on the host, which cannot wait for a stream that is "
        "captured into a graph; unset SYMM_AUDIT, or run without the graph");
  }
  // A broadcast reads at its root alone; elsewhere its one buffer is about to be overwritten.
  const bool reads = args.kind != CollectiveKind::kBroadcast || args.root == rank_;
  return hash_of(call, reads ? args.input : nullptr, args.input_parts);
}

void CallAudit::write(const CollectiveCall& call, std::uint64_t sequence, std::uint64_t input) {
  file_.add({.group = group_,
             .place = call.device.is_cpu() ? "host" : "device",
             .sequence = sequence,
             .what = describe_audited(call.args),
             .input = input,
             .output = hash_of(call, call.args.output, call.args.output_parts)});
}

}  // namespace symm
