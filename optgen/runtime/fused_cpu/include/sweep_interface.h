// The interface to the sweep library (toolchain/sweep_library.cpp). Sweeps know rules only by their
// descriptors. So the library is separate, and a second compiler builds it at the same time.

// Beside vectorization, the passes of -O2 and -O3 double the build time. They make nothing faster
// except the loops of broadcast_reduce.h over few rows or columns.
#ifndef __clang__
#pragma GCC optimize("O1", "tree-vectorize", "vect-cost-model=dynamic")
#endif
#include "optgen/runtime/fused_cpu/include/rule_descriptor.h"

namespace optgen {

// Functions for the compute dtype C.
template <class C>
struct SweepFunctions {
    i64 (*scratch)(const RuleDescriptor<C>&, const TensorPlan&); // numbers that a thread needs
    void (*run)(
        const RuleDescriptor<C>&, const TensorContext<C>&, const Pass&, const Footprint&,
        bool first, C* scratch, i64 block);
};

// Functions by compute dtype; null for a dtype that is not compiled.
struct SweepTable {
    const SweepFunctions<float>* in_float;
    const SweepFunctions<double>* in_double;

    const SweepFunctions<float>& of(float) const { return *in_float; }
    const SweepFunctions<double>& of(double) const { return *in_double; }
};

}  // namespace optgen
