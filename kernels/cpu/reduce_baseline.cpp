// Reduction kernels for every processor of the architecture.
#define SYMM_REDUCE_ISA baseline
#include "kernels/cpu/reduce_impl.hpp"

const symm::ReduceTable symm::kReduceTableBaseline = symm::baseline::kTable;
