// Random programs on groups that are made and left again: two groups a program, whose collectives
// run at the same time on a rank, one of them through its queue, beside messages. Every element is
// compared with what it must be. Ranks are threads.
//
// SYMM_SOAK_SECONDS sets how long, SYMM_SOAK_SEED the first program.
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <future>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "backend/engine/group_engine.hpp"
#include "backend/engine/host/mailbox_engine.hpp"
#include "kernels/core/decimal.hpp"
#include "test/support/collective_cases.hpp"
#include "test/support/memory_store.hpp"
#include "test/support/rank_threads.hpp"

namespace symm {
namespace {

using Clock = std::chrono::steady_clock;
using Bytes = std::vector<std::uint8_t>;

constexpr std::chrono::milliseconds kSoakTimeout{60'000};

std::uint64_t number_from_environment(const char* name, std::uint64_t otherwise) {
  const char* const value = std::getenv(name);
  return value == nullptr ? otherwise : parse_decimal<std::uint64_t>(value).value_or(otherwise);
}

struct Step {
  CollectiveKind kind;
  std::size_t count;
  int root;
};

// What all ranks do: two groups of the same ranks, each with steps of its own.
struct Program {
  explicit Program(std::uint64_t seed) {
    std::mt19937_64 random(seed);
    const auto below = [&](std::size_t limit) { return random() % limit; };
    constexpr std::array kAlgorithms = {Algorithm::kAuto,    Algorithm::kAuto,
                                        Algorithm::kOneShot, Algorithm::kTwoShot,
                                        Algorithm::kRing,    Algorithm::kPipelined};
    constexpr std::array<std::size_t, 9> kEdges = {0,      1,      31,     1'024,  16'383,
                                                   16'384, 16'385, 65'537, 200'003};
    world = 2 + static_cast<int>(below(4));
    algorithm = kAlgorithms[below(kAlgorithms.size())];
    workspace_bytes = (std::size_t{512} << below(5)) * 1024;
    for (std::vector<Step>& steps : groups) {
      for (std::size_t n = 3 + below(12); n > 0; --n) {
        steps.push_back({static_cast<CollectiveKind>(below(kCollectiveKindCount)),
                         below(2) == 0 ? kEdges[below(kEdges.size())] : below(3'000),
                         static_cast<int>(below(static_cast<std::size_t>(world)))});
      }
    }
    for (std::size_t n = below(8); n > 0; --n) messages.push_back(below(2) * 60'000 + below(1'000));
  }

  int world = 0;
  Algorithm algorithm = Algorithm::kAuto;
  std::size_t workspace_bytes = 0;
  std::array<std::vector<Step>, 2> groups;
  std::vector<std::size_t> messages;  // bytes of each that a rank sends to the next one
};

CommunicatorConfig config_of(const Program& program, int rank, const std::string& name) {
  CommunicatorConfig config;
  config.group_name = name;
  config.rank = rank;
  config.world_size = program.world;
  config.timeout = kSoakTimeout;
  config.algorithm = program.algorithm;
  config.workspace_bytes = program.workspace_bytes;
  return config;
}

// Through the queue, as an asynchronous call; the others follow on the caller's thread.
void run_queued(GroupEngine& engine, const CollectiveArgs& args) {
  std::promise<void> done;
  engine.queue().post([&](const Error* stopped) {
    try {
      if (stopped != nullptr) throw Error(*stopped);
      engine.communicator().run(args);
      done.set_value();
    } catch (...) {
      done.set_exception(std::current_exception());
    }
  });
  done.get_future().get();
}

Bytes message_content(int from, std::size_t number, std::size_t bytes) {
  Bytes data(bytes);
  for (std::size_t i = 0; i < bytes; ++i) {
    data[i] = static_cast<std::uint8_t>(i * 31 + i / 251 + number * 7 +
                                        static_cast<std::size_t>(from) * 89);
  }
  return data;
}

void exchange_messages(Communicator& communicator, const std::vector<std::size_t>& sizes) {
  const int me = communicator.rank();
  const int world = communicator.world_size();
  const int from = (me + world - 1) % world;
  std::vector<Bytes> sent;
  std::vector<Bytes> received;
  std::vector<Message> messages;
  for (std::size_t k = 0; k < sizes.size(); ++k) {
    sent.push_back(message_content(me, k, sizes[k]));
    received.emplace_back(sizes[k], std::uint8_t{0xee});
  }
  for (std::size_t k = 0; k < sizes.size(); ++k) {
    const auto tag = static_cast<std::int64_t>(k % 3);
    messages.push_back({{received[k].data(), sizes[k], tag, from, false}, {}});
    messages.push_back({{sent[k].data(), sizes[k], tag, (me + 1) % world, true}, {}});
  }
  MailboxEngine& mailboxes = communicator.point_to_point();
  if (sizes.size() % 2 == 1) mailboxes.progress_in_background();
  for (const auto& transfer : mailboxes.start_batch(std::move(messages), {})) {
    mailboxes.wait(*transfer, {});
  }
  for (std::size_t k = 0; k < sizes.size(); ++k) {
    ASSERT_EQ(received[k], message_content(from, k, sizes[k])) << "message " << k;
  }
}

void carry_out(const std::vector<Step>& steps, GroupEngine& engine, bool queued, int first_round) {
  Communicator& communicator = engine.communicator();
  int round = first_round;
  for (const Step& step : steps) {
    test::CollectiveCase one(communicator.rank(), communicator.world_size(), ++round,
                             [&](const CollectiveArgs& args) {
                               if (queued && round % 3 != 0) {
                                 run_queued(engine, args);
                               } else {
                                 communicator.run(args);
                               }
                             });
    one.check(step.kind, step.count, step.root);
  }
}

// The part of one rank, on two threads.
void run_rank(const Program& program, int rank, KeyValueStore& one, KeyValueStore& two) {
  const auto first = GroupEngine::create(one, config_of(program, rank, "one"));
  const auto second = GroupEngine::create(two, config_of(program, rank, "two"));
  std::exception_ptr failure;
  std::thread beside([&] {
    try {
      carry_out(program.groups[1], *second, true, 100);
      exchange_messages(second->communicator(), program.messages);
    } catch (...) {
      failure = std::current_exception();
    }
  });
  try {
    carry_out(program.groups[0], *first, false, 0);
    exchange_messages(first->communicator(), program.messages);
  } catch (...) {
    beside.join();
    throw;
  }
  beside.join();
  if (failure) std::rethrow_exception(failure);
  first->shutdown();
  second->shutdown();
}

TEST(Soak, RandomProgramsOfTwoGroupsAtATime) {
  const std::chrono::seconds length(number_from_environment("SYMM_SOAK_SECONDS", 1));
  const std::uint64_t first_seed = number_from_environment("SYMM_SOAK_SEED", 1);
  // Seeds of one run are apart from those of the next.
  std::uint64_t seed = first_seed * 1'000'000;
  std::size_t calls = 0;
  const auto end = Clock::now() + length;
  do {
    SCOPED_TRACE("seed " + std::to_string(seed));
    const Program program(seed++);
    test::MemoryStore one;
    test::MemoryStore two;
    test::run_ranks(program.world, [&](int rank) { run_rank(program, rank, one, two); });
    calls += program.groups[0].size() + program.groups[1].size() + 2 * program.messages.size();
    ASSERT_FALSE(HasFailure()) << "seed " << seed - 1;
  } while (Clock::now() < end);
  std::printf("%llu programs from seed %llu, %zu calls a rank\n",
              static_cast<unsigned long long>(seed - first_seed * 1'000'000),
              static_cast<unsigned long long>(first_seed), calls);
}

}  // namespace
}  // namespace symm
