// Two processes of one host sum a tensor over symm, without Python.
//
//   all_reduce <path of a file that does not exist yet>
//
// The ranks meet through a FileStore at that path; any c10d store serves, for instance a TCPStore.
// Exits with 0 if both ranks got the sum.
#include <sys/wait.h>
#include <torch/torch.h>
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <string>
#include <torch/csrc/distributed/c10d/FileStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <vector>

#include "backend/ProcessGroupSymm.hpp"

namespace {

constexpr int kWorldSize = 2;

// Returns whether this rank's result is the sum over the ranks.
bool run_rank(const std::string& path, int rank) {
  auto options = c10::make_intrusive<symm::ProcessGroupSymm::Options>();
  options->timeout = std::chrono::seconds(30);
  auto store = c10::make_intrusive<c10d::PrefixStore>(
      "example", c10::make_intrusive<c10d::FileStore>(path, kWorldSize));
  auto group = c10::make_intrusive<symm::ProcessGroupSymm>(store, rank, kWorldSize, options);

  std::vector<at::Tensor> tensors = {torch::arange(1000) + rank * 10000};
  group->allreduce(tensors, c10d::AllreduceOptions())->wait();

  const bool right = tensors[0].equal(2 * torch::arange(1000) + 10000);
  std::printf("rank %d: element 999 is %lld, %s\n", rank,
              static_cast<long long>(tensors[0][999].item<std::int64_t>()),
              right ? "right" : "WRONG");
  group->barrier(c10d::BarrierOptions())->wait();
  group->shutdown();
  return right;
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
