// On which CPU the calling thread runs.
#pragma once

namespace symm {

// -1 where the kernel does not tell. The thread may be elsewhere when it returns.
int current_cpu();

// Takes the calling thread from `cpu` to another CPU that it may use; does nothing where there is
// none, or where it has done so less than a millisecond ago. The thread's affinity is the same
// afterwards. True where the thread was moved. Local.
bool leave_cpu(int cpu);

}  // namespace symm
