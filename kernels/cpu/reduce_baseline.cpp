// Reduction kernels for every processor of the architecture.
#define SYMM_REDUCE_ISA baseline
#include "kernels/cpu/reduce_impl.hpp"

namespace symm {

const ReduceTable kReduceTableBaseline = baseline::kTable;

}  // namespace symm
