// What the stand-in for the CUDA driver lets a test set and see. One struct, exported as
// `fake_gpu_driver_state`.
#pragma once

namespace symm::test {

struct FakeGpuDriverState {
  // Set by the test.
  int version = 13000;
  int device_count = 2;
  int vmm_supported = 1;
  int fabric_offered = 0;  // the attribute; creation with fabric handles is always refused
  int fail_access = 0;     // granting access to a mapping fails
  unsigned long long free_bytes = 1ull << 30;

  // Kept by the stand-in.
  int handles = 0;   // created or imported and not released
  int ranges = 0;    // reserved and not freed
  int mappings = 0;  // mapped and not unmapped
  int retained = 0;  // primary contexts
  int fabric_tries = 0;
  int device_waits = 0;     // synchronisations of a whole device
  int calls_elsewhere = 0;  // calls without this device's context, or while captures forbid them
};

}  // namespace symm::test
