// What a mistake raises is the same in C++ and in Python: memory_mistakes.json says what, and
// test_memory_mistakes.py makes the same ones.
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <fstream>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <string>

#include <symm/SymmetricTensor.hpp>
#include <symm/memory_provider.hpp>
#include "test/libtorch/group_ranks.hpp"
#include "test/support/environment.hpp"

namespace symm::test {
namespace {

// "ValueError: the text".
std::string raised_by(const std::function<void()>& call) {
  try {
    call();
  } catch (const c10::ValueError& error) {
    return std::string("ValueError: ") + error.what_without_backtrace();
  } catch (const c10::NotImplementedError& error) {
    return std::string("NotImplementedError: ") + error.what_without_backtrace();
  } catch (const std::exception& error) {
    return std::string("another exception: ") + error.what();
  }
  return "nothing";
}

std::map<std::string, std::string> make_mistakes() {
  std::map<std::string, std::string> found;
  const auto options = torch::dtype(torch::kFloat);
  const auto empty_on = [&](const char* device) {
    SymmetricTensor::empty({3}, options.device(torch::Device(device)), kGroup);
  };
  found["choose an unknown provider"] = raised_by([] { memory_provider("ncl"); });
  {
    const ScopedVariable variable("SYMM_MEMORY_PROVIDER", "ncl");
    found["set the variable to an unknown provider"] = raised_by([] { memory_provider(); });
  }
  found["choose a provider that this torch has not"] = raised_by([] { memory_provider("cuda"); });
  found["allocate on a device without symmetric memory"] = raised_by([&] { empty_on("meta"); });
  found["allocate on a GPU that this torch has not"] = raised_by([&] { empty_on("cuda:0"); });

  const auto shared = SymmetricTensor::empty({4, 5}, options, kGroup);
  found["choose another provider after an allocation"] = raised_by([] { memory_provider("cuda"); });
  found["share with an unknown group"] =
      raised_by([&] { SymmetricTensor(shared.local(), "no such group"); });
  found["share a tensor that is not contiguous"] =
      raised_by([&] { SymmetricTensor(shared.local().t(), kGroup); });
  found["share ordinary memory"] = raised_by([] { SymmetricTensor(torch::ones({7}), kGroup); });
  found["read the tensor of no rank"] = raised_by([&] { shared.remote(1); });
  found["read the signal pad of no rank"] = raised_by([&] { shared.signal_pad(-1); });
  found["signal no rank"] = raised_by([&] { shared.put_signal(1); });
  found["wait for no rank"] = raised_by([&] { shared.wait_signal(1); });
  return found;
}

TEST(MistakesTest, RaiseWhatTheyRaiseInPython) {
  if (c10::impl::hasDeviceGuardImpl(c10::kCUDA)) GTEST_SKIP() << "this torch has CUDA";
  std::ifstream file(SYMM_TEST_MISTAKES);
  const auto table = nlohmann::json::parse(file);
  std::map<std::string, std::string> expected;
  for (const auto& [mistake, raised] : table.items()) {
    expected[mistake] =
        raised["exception"].get<std::string>() + ": " + raised["text"].get<std::string>();
  }
  run_ranks(1, [&](int) {
    const auto found = make_mistakes();
    EXPECT_EQ(found.size(), expected.size());
    for (const auto& [mistake, raised] : found) EXPECT_EQ(raised, expected[mistake]) << mistake;
  });
}

}  // namespace
}  // namespace symm::test
