// Symmetric memory on the host: sealed memfds.
//
// NOTE [Sealed memory]
// A memfd has no name, so nothing is left behind by a killed process. It is allocated in full
// before it is sealed against shrinking and growing, and an importer checks all three facts
// (size, seals, allocated blocks), so that touching a mapping never raises SIGBUS.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <string>
#include <utility>

#include "kernels/core/error.hpp"
#include "kernels/core/platform.hpp"
#include "symm_mem/device/device_runtime.hpp"
#include "symm_mem/process/available_memory.hpp"
#include "symm_mem/process/fork_guard.hpp"
#include "symm_mem/process/guarded_descriptor.hpp"
#include "symm_mem/process/system_error.hpp"

namespace symm {
namespace {

constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
constexpr int kWriteSeals = F_SEAL_WRITE | F_SEAL_FUTURE_WRITE;

// fallocate() undoes its work when a signal arrives; chunks let a process with a busy timer get
// on.
constexpr std::size_t kAllocationPiece = std::size_t{64} << 20;

std::size_t page_bytes() {
  static const std::size_t bytes = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  return bytes;
}

class HostMemory final : public PhysicalMemory {
 public:
  HostMemory(GuardedDescriptor descriptor, std::size_t bytes)
      : descriptor_(std::move(descriptor)), bytes_(bytes) {}

  std::size_t bytes() const override { return bytes_; }
  int descriptor() const { return descriptor_.get(); }
  void close_handle() noexcept override { descriptor_.reset(); }

 private:
  GuardedDescriptor descriptor_;
  std::size_t bytes_;
};

class HostRange final : public AddressRange {
 public:
  explicit HostRange(std::size_t bytes) : bytes_(bytes) {
    void* const base =
        ::mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (base == MAP_FAILED) {
      throw_system_error("reserving " + std::to_string(bytes) + " bytes of address space", errno);
    }
    base_ = static_cast<std::byte*>(base);
  }
  ~HostRange() override {
    // A child keeps what it found: its tensors may be in mappings of this range.
    if (generation_ == fork_generation()) ::munmap(base_, bytes_);
  }
  HostRange(const HostRange&) = delete;
  HostRange& operator=(const HostRange&) = delete;

  std::byte* base() const override { return base_; }
  std::size_t bytes() const override { return bytes_; }

 private:
  std::byte* base_ = nullptr;
  std::size_t bytes_;
  std::uint32_t generation_ = fork_generation();
};

class HostMapping final : public Mapping {
 public:
  // `range` may be null: then the kernel chooses the place.
  HostMapping(std::shared_ptr<PhysicalMemory> memory, std::shared_ptr<AddressRange> range,
              std::size_t offset)
      : memory_(std::move(memory)), range_(std::move(range)) {
    void* const wanted = range_ ? range_->base() + offset : nullptr;
    const int flags = MAP_SHARED | (range_ ? MAP_FIXED : 0);
    const int fd = static_cast<const HostMemory&>(*memory_).descriptor();
    ForkHold hold;
    void* const base = ::mmap(wanted, bytes(), PROT_READ | PROT_WRITE, flags, fd, 0);
    if (base == MAP_FAILED) {
      throw_system_error("mapping " + std::to_string(bytes()) + " bytes of shared memory", errno);
    }
    base_ = static_cast<std::byte*>(base);
    try {
      hold.view_privately_in_child(base_, bytes(), fd);
    } catch (...) {
      unmap();
      throw;
    }
  }
  ~HostMapping() override {
    if (generation_ != fork_generation()) return;
    ForkHold hold;
    hold.end_private_view(base_);
    unmap();
  }
  HostMapping(const HostMapping&) = delete;
  HostMapping& operator=(const HostMapping&) = delete;

  std::byte* base() const override { return base_; }
  std::size_t bytes() const override { return memory_->bytes(); }
  std::shared_ptr<AddressRange> range() const override { return range_; }

 private:
  // Inside a range the reservation is put back, else another thread's mmap could land there.
  void unmap() noexcept {
    if (range_) {
      constexpr int kFlags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED;
      static_cast<void>(::mmap(base_, bytes(), PROT_NONE, kFlags, -1, 0));
    } else {
      ::munmap(base_, bytes());
    }
  }

  std::shared_ptr<PhysicalMemory> memory_;
  std::shared_ptr<AddressRange> range_;
  std::byte* base_ = nullptr;
  std::uint32_t generation_ = fork_generation();
};

std::string allocation_phrase(std::size_t bytes) {
  return "allocating " + std::to_string(bytes) + " bytes of shared memory";
}

// Refuses what could only end in SIGXFSZ.
void check_file_size(std::size_t bytes) {
  rlimit limit{};
  if (::getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY &&
      bytes > limit.rlim_cur) {
    throw_system_error(allocation_phrase(bytes), EFBIG);
  }
}

// Others take memory too meanwhile, so each piece is looked at: what is too much ends in the
// out-of-memory killer, not in an error.
void fill_with_pages(int fd, std::size_t bytes) {
  for (std::size_t done = 0; done < bytes;) {
    check_available_memory(allocation_phrase(bytes), bytes - done);
    const std::size_t chunk = std::min(kAllocationPiece, bytes - done);
    if (::fallocate(fd, 0, static_cast<off_t>(done), static_cast<off_t>(chunk)) == 0) {
      done += chunk;
    } else if (errno != EINTR) {
      throw_system_error(allocation_phrase(bytes), errno);
    }
  }
}

template <typename... Why>
[[noreturn]] void refuse_import(const Why&... why) {
  throw Error(ErrorCode::kSecurity, "refused a peer's memory descriptor: ", why...);
}

void check_import(int fd, std::size_t bytes) {
  struct stat status {};
  if (::fstat(fd, &status) != 0) {
    refuse_import("it is not an open descriptor (", describe_system_error(errno), ")");
  }
  const int seals = ::fcntl(fd, F_GET_SEALS);
  if (seals < 0) refuse_import("it is not a memfd");
  if ((seals & kSeals) != kSeals || (seals & kWriteSeals) != 0) {
    refuse_import(
        "expected a writable memfd that is sealed against shrinking, growing and further "
        "seals, got seals ",
        seals);
  }
  if ((::fcntl(fd, F_GETFL) & O_ACCMODE) != O_RDWR) {
    refuse_import("it is not open for reading and writing");
  }
  if (status.st_size < 0 || static_cast<std::size_t>(status.st_size) != bytes) {
    refuse_import("expected ", bytes, " bytes, it has ", status.st_size);
  }
  constexpr std::size_t kBlock = 512;  // the unit of st_blocks, whatever the file system
  const std::size_t allocated = static_cast<std::size_t>(status.st_blocks) * kBlock;
  if (allocated < bytes) {
    refuse_import("expected ", bytes, " allocated bytes, it has ", allocated);
  }
}

class HostRuntime final : public DeviceRuntime {
 public:
  DeviceKind kind() const override { return DeviceKind::kHost; }
  std::size_t granularity() const override { return page_bytes(); }

  std::shared_ptr<PhysicalMemory> allocate(std::size_t bytes) override {
    if (bytes == 0) {
      throw Error(ErrorCode::kInvalidArgument, "allocate: bytes must be at least 1, got 0");
    }
    // Before rounding up, which would wrap for sizes near the end of the address space.
    check_file_size(bytes);
    check_available_memory(allocation_phrase(bytes), bytes);
    const std::size_t rounded = align_up(bytes, page_bytes());
    GuardedDescriptor memory = GuardedDescriptor::open(
        [] { return ::memfd_create("symm", MFD_CLOEXEC | MFD_ALLOW_SEALING); });
    if (!memory.valid()) throw_system_error(allocation_phrase(rounded), errno);
    fill_with_pages(memory.get(), rounded);
    if (::fcntl(memory.get(), F_ADD_SEALS, kSeals) != 0) {
      throw_system_error("sealing " + std::to_string(rounded) + " bytes of shared memory", errno);
    }
    return std::make_shared<HostMemory>(std::move(memory), rounded);
  }

  HandleKinds handle_kinds(const PhysicalMemory&) override { return {.descriptor = true}; }

  MemoryHandle export_memory(const PhysicalMemory& memory, HandleKind kind) override {
    if (kind != HandleKind::kDescriptor) {
      throw Error(ErrorCode::kUnsupported, "export_memory: host memory has no fabric handles");
    }
    const int fd = static_cast<const HostMemory&>(memory).descriptor();
    FileDescriptor copy(::fcntl(fd, F_DUPFD_CLOEXEC, 0));
    if (!copy.valid()) {
      throw_system_error("exporting " + std::to_string(memory.bytes()) + " bytes of shared memory",
                         errno);
    }
    return copy;
  }

  std::shared_ptr<PhysicalMemory> import_memory(MemoryHandle handle, std::size_t bytes) override {
    auto* const descriptor = std::get_if<FileDescriptor>(&handle);
    if (descriptor == nullptr) refuse_import("expected a descriptor, got a fabric handle");
    if (bytes == 0 || bytes % page_bytes() != 0) {
      refuse_import("expected a size that is a positive multiple of ", page_bytes(), " bytes, got ",
                    bytes);
    }
    check_import(descriptor->get(), bytes);
    return std::make_shared<HostMemory>(GuardedDescriptor(std::move(*descriptor)), bytes);
  }

  std::shared_ptr<AddressRange> reserve(std::size_t bytes) override {
    return std::make_shared<HostRange>(bytes);
  }

  std::shared_ptr<Mapping> map(std::shared_ptr<PhysicalMemory> memory) override {
    return std::make_shared<HostMapping>(std::move(memory), nullptr, 0);
  }

  std::shared_ptr<Mapping> map_at(std::shared_ptr<PhysicalMemory> memory,
                                  std::shared_ptr<AddressRange> range,
                                  std::size_t offset) override {
    check_place(*memory, *range, offset);
    return std::make_shared<HostMapping>(std::move(memory), std::move(range), offset);
  }

  void clear(std::byte* data, std::size_t bytes) override { std::memset(data, 0, bytes); }
};

}  // namespace

DeviceRuntime& host_runtime() {
  // Never destroyed: segments in static storage may outlive static destructors.
  static HostRuntime* const runtime = new HostRuntime;
  return *runtime;
}

}  // namespace symm
