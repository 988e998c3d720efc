// Two processes of one host sum a tensor over symm and write to each other's memory, without
// Python.
//
//   all_reduce <path of a file that does not exist yet>
//
// The ranks meet through a FileStore at that path; any c10d store serves, for instance a TCPStore.
// Exits with 0 if both ranks got what they should.
#include <sys/wait.h>
#include <torch/torch.h>
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <string>
#include <torch/csrc/distributed/c10d/FileStore.hpp>
#include <torch/csrc/distributed/c10d/GroupRegistry.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <vector>

#include <symm/ProcessGroupSymm.hpp>
#include <symm/SymmetricTensor.hpp>
#include <symm/memory_provider.hpp>

namespace {

constexpr int kWorldSize = 2;
constexpr char kGroup[] = "example";

// Returns whether this rank's result is the sum over the ranks.
bool sum(symm::ProcessGroupSymm& backend, int rank) {
  std::vector<at::Tensor> tensors = {torch::arange(1000) + rank * 10000};
  backend.allreduce(tensors, c10d::AllreduceOptions())->wait();
  const bool right = tensors[0].equal(2 * torch::arange(1000) + 10000);
  std::printf("rank %d: element 999 is %lld, %s\n", rank,
              static_cast<long long>(tensors[0][999].item<std::int64_t>()),
              right ? "right" : "WRONG");
  return right;
}

// Every rank writes to all ranks' memory; returns whether this one finds what they wrote.
bool exchange(int rank) {
  const auto tensor = symm::SymmetricTensor::empty({kWorldSize}, torch::kLong, kGroup);
  for (int peer = 0; peer < kWorldSize; ++peer) tensor.remote(peer)[rank].fill_(10 * peer + rank);
  tensor.barrier();
  const bool right = tensor.local().equal(torch::arange(kWorldSize) + 10 * rank);
  std::printf("rank %d: memory of %s, %s\n", rank, symm::memory_provider().c_str(),
              right ? "right" : "WRONG");
  return right;
}

bool run_rank(const std::string& path, int rank) {
  auto options = c10::make_intrusive<symm::ProcessGroupSymm::Options>();
  options->timeout = std::chrono::seconds(30);
  auto store = c10::make_intrusive<c10d::PrefixStore>(
      kGroup, c10::make_intrusive<c10d::FileStore>(path, kWorldSize));
  auto backend = c10::make_intrusive<symm::ProcessGroupSymm>(store, rank, kWorldSize, options);
  const bool summed = sum(*backend, rank);

  // Symmetric memory belongs to a group that c10d knows by its name.
  auto group = c10::make_intrusive<c10d::ProcessGroup>(store, rank, kWorldSize);
  group->setBackend(c10::kCPU, c10d::ProcessGroup::BackendType::CUSTOM, backend);
  group->setGroupName(kGroup);
  c10d::register_process_group(kGroup, group);
  const bool exchanged = exchange(rank);

  backend->barrier(c10d::BarrierOptions())->wait();
  c10d::unregister_process_group(kGroup);
  backend->shutdown();
  return summed && exchanged;
}

int exit_code_of_rank(const std::string& path, int rank) {
  try {
    return run_rank(path, rank) ? 0 : 1;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "rank %d: %s\n", rank, error.what());
    return 2;
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: %s <path of a file that does not exist yet>\n", argv[0]);
    return 2;
  }
  // The ranks are forked before anything of torch has started a thread.
  const pid_t child = fork();
  if (child < 0) {
    std::perror("fork");
    return 2;
  }
  const int code = exit_code_of_rank(argv[1], child == 0 ? 1 : 0);
  if (child == 0) return code;

  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) && WEXITSTATUS(status) == 0 ? code : 1;
}
