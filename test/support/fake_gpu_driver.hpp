// What the stand-in for the CUDA driver lets a test set and see. One struct, exported as
// `fake_gpu_driver_state`.
#pragma once

namespace symm::test {

enum class FakeMulticastStep {
  kNone,
  kGranularity,
  kCreate,
  kExport,
  kImport,
  kAddDevice,
  kBind,
  kMap,
  kAccess
};

// Set by the test.
struct FakeGpuDriverSettings {
  int version = 13000;
  int device_count = 2;
  int vmm_supported = 1;
  int posix_offered = 1;
  int fabric_offered = 0;          // the attribute
  int fabric_permitted = 0;        // creation with fabric handles
  unsigned multicast_devices = 0;  // bit i: device i has multicast
  unsigned unlinked_devices = 0;   // bit i: device i has no NVLink
  unsigned old_devices = 0;        // bit i: device i has compute capability 8.0, not 9.0
  unsigned long long multicast_granule = 2ull << 20;
  // The step that fails for a multicast object on `fail_device`.
  FakeMulticastStep fail_step = FakeMulticastStep::kNone;
  int fail_device = 0;
  int fail_access = 0;   // granting access to a mapping fails
  int ranges_whole = 0;  // asked for the range around an address, the driver gives too much
  unsigned long long free_bytes = 1ull << 30;
};

struct FakeGpuDriverState : FakeGpuDriverSettings {
  // Kept by the stand-in.
  int handles = 0;   // created or imported and not released
  int ranges = 0;    // reserved and not freed
  int mappings = 0;  // mapped and not unmapped
  int retained = 0;  // primary contexts
  int fabric_tries = 0;
  int fabric_imports = 0;
  int posix_imports = 0;
  int multicast_calls = 0;     // of any entry for multicast
  int multicast_creates = 0;   // that went well
  int multicast_bindings = 0;  // bound and not unbound
  int multicast_early = 0;     // bindings before all devices were there: the driver would block
  int device_waits = 0;        // synchronisations of a whole device
  int calls_elsewhere = 0;     // calls without this device's context, or while captures forbid them
};

}  // namespace symm::test
