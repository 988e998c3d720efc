// All ranks' copies of a symmetric tensor as one tensor.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace symm {

// A tensor of shape [world_size, *tensor.sizes()] whose slice r is rank r's copy of `tensor`, which
// is neither copied nor moved: stores of any rank into a slice are seen by all after a barrier.
// stride(0) is the size of the ranks' mapped memory in elements: the result is contiguous where
// the tensor fills an allocation of whole granules, else slices are apart by padding.
// The result keeps the memory of all ranks alive.
//
// Collective over the group: every rank must pass a contiguous tensor of the same shape and dtype
// at the same offset of its allocation, which must come from SYMM. The ranks compare that; where
// they differ, all raise DistBackendError (or ValueError for what only this rank did wrong) and go
// on. On a GPU, another memory provider raises NotImplementedError. Memory that has not joined the
// group does so now. Another call for memory that has a view maps nothing. Blocks without Python's
// interpreter lock.
at::Tensor contiguous_view(const at::Tensor& tensor, const std::string& group_name);

// Makes the memory of `tensor` symmetric in the group, as a rendezvous of PyTorch's API does;
// `symmetric`: registered for symmetric use as well (Allocation::share). False for memory that SYMM
// has not allocated. Collective; blocks without Python's interpreter lock.
bool share(const at::Tensor& tensor, const std::string& group_name, bool symmetric);

// Whether `tensor` is in memory of SYMM or of the provider in force, or in a registered user
// buffer (user_buffer.hpp), and, where a group is named, in memory that has joined it. Local.
// Throws what c10d throws for an unknown group, and NotImplementedError where a group is named and
// the tensor's provider keeps no record of groups.
bool is_symmetric(const at::Tensor& tensor, const std::optional<std::string>& group_name);

// Where `tensor` is in its allocation, of PyTorch's providers in its storage: {bytes from the
// start, bytes of it all}; nullopt for memory that the provider in force has not allocated. Local.
std::optional<std::pair<std::int64_t, std::int64_t>> place_of(const at::Tensor& tensor);

// Hands every rank of the group everybody's `message`, at most 4 KiB, by rank. Collective, in one
// order with rendezvous and contiguous_view; blocks without Python's interpreter lock.
std::vector<std::string> all_gather_message(const std::string& group_name,
                                            const std::string& message);

}  // namespace symm
