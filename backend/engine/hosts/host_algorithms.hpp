// How each collective is carried out over several hosts.
//
// NOTE [Steps over hosts]
// small            every host combines or collects at its leader; the leaders exchange the data, in
//                  their heads where it fits; each leader tells its host
// all_reduce       by chunks: reduce_scatter in the host, one share a rail; over the rail each
//                  piece to the host that folds it, folded in the order of the hosts, and back;
//                  all_gather in the host. Two hosts, and small shares, exchange whole shares and
//                  fold them on every host, which is one exchange in place of two
// reduce           the same as far as the folds; pieces to the root's host, then to the root
// reduce_scatter   by chunks of each rank's share: reduce_scatter in the host for the ranks of one
//                  host after the other; partial results to their ranks, folded there
// all_gather       by chunks: the input to one rank of every other host; all_gather in the host for
//                  the ranks of one host after the other
// broadcast        by chunks: in the root's host; a share a rail to the others; all_gather there
// gather, scatter, all_to_all: in the host, and to each rank of another host what is for it
// Local legs of one chunk run while the engine moves the chunk before it.
//
// Values are combined in the order of the ranks inside a host and rounded, then in the order of the
// hosts; AVG divides at the end, PREMUL_SUM multiplies first. No step depends on the engine's own
// order, so every rank has the same bits for every size and over any engine.
//
// All are collective over the group, block and throw Error.
#pragma once

#include "backend/engine/hosts/host_legs.hpp"
#include "kernels/core/collective.hpp"

namespace symm {

// True where the leaders of the hosts exchange the data of a call. Follows from what all ranks
// share, as everything that chooses here.
bool goes_by_leaders(const HostLegs& legs, const CollectiveArgs& args);

// gather and scatter.
inline bool moves_to_or_from_root(CollectiveKind kind) {
  return kind == CollectiveKind::kGather || kind == CollectiveKind::kScatter;
}

void call_by_leaders(HostLegs& legs, const CollectiveArgs& args);
void reduce_over_rails(HostLegs& legs, const CollectiveArgs& args);
void reduce_scatter_over_rails(HostLegs& legs, const CollectiveArgs& args);
void all_gather_over_rails(HostLegs& legs, const CollectiveArgs& args);
void broadcast_over_rails(HostLegs& legs, const CollectiveArgs& args);
// gather, scatter and all_to_all.
void move_between_pairs(HostLegs& legs, const CollectiveArgs& args);

}  // namespace symm
