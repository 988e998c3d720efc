#include "test/gpu_emulated/emulated_block.hpp"

#include <sched.h>
#include <sys/mman.h>
#include <ucontext.h>

#include <algorithm>
#include <chrono>
#include <csetjmp>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <memory>
#include <utility>
#include <vector>

thread_local dim3 threadIdx;
thread_local dim3 blockIdx;
thread_local dim3 blockDim;
thread_local dim3 gridDim;

namespace symm::test {

namespace {

constexpr unsigned kWarp = 32;
constexpr std::size_t kStackBytes = 128 << 10;
// Other blocks must have their turn on the host's cores.
constexpr unsigned kTurnsBetweenYields = 64;

// Where threads meet: those of a warp, or of the block.
struct Meeting {
  unsigned members = 0;  // that have not ended
  unsigned arrived = 0;
  bool all = true;
  bool any = false;
  bool all_before = true;  // of the meeting that has ended last
  bool any_before = false;
  std::vector<unsigned> waiting;
};

struct Fiber {
  ucontext_t begin;
  std::jmp_buf place;  // where it goes on
  bool has_begun = false;
};

class Block {
 public:
  Block(dim3 threads, const std::function<void()>& body)
      : body_(body),
        count_(threads.x),
        fibers_(count_),
        warps_((count_ + kWarp - 1) / kWarp),
        lanes_(count_),
        stacks_(
            static_cast<std::byte*>(::mmap(nullptr, count_ * kStackBytes, PROT_READ | PROT_WRITE,
                                           MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0))) {
    if (stacks_ == MAP_FAILED) fail("no memory for the stacks of a block");
    whole_.members = count_;
    for (unsigned thread = 0; thread < count_; ++thread) {
      warps_[thread / kWarp].members += 1;
      ready_.push_back(thread);
      ucontext_t& fiber = fibers_[thread].begin;
      ::getcontext(&fiber);
      fiber.uc_stack.ss_sp = stacks_ + thread * kStackBytes;
      fiber.uc_stack.ss_size = kStackBytes;
      ::makecontext(&fiber, &Block::begin, 0);
    }
  }
  ~Block() { ::munmap(stacks_, count_ * kStackBytes); }
  Block(const Block&) = delete;
  Block& operator=(const Block&) = delete;

  static Block*& current() {
    static thread_local Block* block = nullptr;
    return block;
  }

  void run() {
    current() = this;
    while (!ready_.empty()) {
      take_turn();
      if (++turns_ % kTurnsBetweenYields == 0) ::sched_yield();
    }
    if (ended_ != count_) fail_standing();
    current() = nullptr;
  }

  // Others have their turn before this thread goes on.
  void yield() {
    ready_.push_back(running_);
    suspend();
  }
  // Until all members are here; then all_before and any_before are of their conditions.
  const Meeting& meet(Meeting& meeting, bool condition) {
    meeting.all = meeting.all && condition;
    meeting.any = meeting.any || condition;
    meeting.waiting.push_back(running_);
    meeting.arrived += 1;
    complete(meeting);
    suspend();
    return meeting;
  }
  Meeting& whole() { return whole_; }
  Meeting& warp() { return warps_[running_ / kWarp]; }
  std::uint64_t& lane(unsigned thread) { return lanes_[thread]; }
  unsigned running() const { return running_; }

 private:
  static void begin() {
    Block& block = *current();
    block.body_();
    block.end();
    _longjmp(block.back_, 1);
  }
  void end() {
    ended_ += 1;
    for (Meeting* meeting : {&whole_, &warp()}) {
      meeting->members -= 1;
      complete(*meeting);
    }
  }
  void complete(Meeting& meeting) {
    if (meeting.arrived == 0 || meeting.arrived != meeting.members) return;
    meeting.all_before = std::exchange(meeting.all, true);
    meeting.any_before = std::exchange(meeting.any, false);
    meeting.arrived = 0;
    // In their order: of a line of a tile the thread that stores the epoch comes last.
    std::ranges::sort(meeting.waiting);
    for (const unsigned thread : meeting.waiting) ready_.push_back(thread);
    meeting.waiting.clear();
  }
  void take_turn() {
    running_ = ready_.front();
    ready_.pop_front();
    threadIdx = dim3(running_, 0, 0);
    if (_setjmp(back_) != 0) return;
    Fiber& fiber = fibers_[running_];
    if (fiber.has_begun) _longjmp(fiber.place, 1);
    fiber.has_begun = true;
    ::setcontext(&fiber.begin);
  }
  // A jump where swapcontext() would ask the kernel for signals each time.
  void suspend() {
    if (_setjmp(fibers_[running_].place) == 0) _longjmp(back_, 1);
  }
  [[noreturn]] void fail_standing() const {
    std::fprintf(
        stderr,
        "emulated GPU: the threads of a block wait for each other: %u have ended, %u are at "
        "a barrier of the block, %u at one of their warp\n",
        ended_, whole_.arrived, count_ - ended_ - whole_.arrived);
    std::abort();
  }
  [[noreturn]] static void fail(const char* what) {
    std::fprintf(stderr, "emulated GPU: %s\n", what);
    std::abort();
  }

  const std::function<void()>& body_;
  const unsigned count_;
  std::vector<Fiber> fibers_;
  std::vector<Meeting> warps_;
  Meeting whole_;
  std::vector<std::uint64_t> lanes_;  // what threads give to a shuffle
  std::byte* const stacks_;
  std::deque<unsigned> ready_;
  std::jmp_buf back_;  // to run()
  unsigned running_ = 0;
  unsigned ended_ = 0;
  unsigned turns_ = 0;
};

}  // namespace

void run_block(dim3 index, dim3 grid, dim3 threads, const std::function<void()>& body) {
  blockIdx = index;
  gridDim = grid;
  blockDim = threads;
  Block(threads, body).run();
}

}  // namespace symm::test

using symm::test::Block;

void __syncthreads() { Block::current()->meet(Block::current()->whole(), true); }
int __syncthreads_and(int condition) {
  Block& block = *Block::current();
  return block.meet(block.whole(), condition != 0).all_before ? 1 : 0;
}
void __syncwarp(unsigned) { Block::current()->meet(Block::current()->warp(), true); }
int __all_sync(unsigned, int condition) {
  Block& block = *Block::current();
  return block.meet(block.warp(), condition != 0).all_before ? 1 : 0;
}
int __any_sync(unsigned, int condition) {
  Block& block = *Block::current();
  return block.meet(block.warp(), condition != 0).any_before ? 1 : 0;
}
std::uint64_t emulated_shuffle(std::uint64_t bits, int lane_mask) {
  Block& block = *Block::current();
  const unsigned thread = block.running();
  block.lane(thread) = bits;
  __syncwarp();
  const std::uint64_t other = block.lane(thread ^ static_cast<unsigned>(lane_mask));
  __syncwarp();
  return other;
}
void __trap() { std::abort(); }
std::uint64_t emulated_clock_ns() {
  Block::current()->yield();
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return static_cast<std::uint64_t>(
      std::chrono::duration_cast<std::chrono::nanoseconds>(now).count());
}
