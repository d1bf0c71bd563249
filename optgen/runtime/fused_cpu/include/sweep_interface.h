// The interface to the sweep library (toolchain/sweep_library.cpp). Sweeps know rules only by their
// descriptors. So the library is separate from the kernel, and two compiler processes build them at
// the same time.

// Vectorization is the only optimization of -O2 and -O3 that is kept. The others double the build
// time, and speed up only the loops of broadcast_reduce.h over few rows or columns.
#ifndef __clang__
#pragma GCC optimize("O1", "tree-vectorize", "vect-cost-model=dynamic")
#endif
#include "optgen/runtime/fused_cpu/include/rule_descriptor.h"

namespace optgen {

// Functions for the compute dtype C.
template <class C>
struct SweepFunctions {
    // Returns how many elements of scratch memory a thread needs.
    i64 (*scratch_elements)(const RuleDescriptor<C>&, const TensorPlan&);
    void (*run)(
        const RuleDescriptor<C>&, const TensorContext<C>&, const Pass&, const Footprint&,
        bool is_first_pass, C* scratch, i64 block);
};

// Functions by compute dtype; null for a dtype that is not compiled.
struct SweepTable {
    const SweepFunctions<float>* in_float;
    const SweepFunctions<double>* in_double;

    const SweepFunctions<float>& of(float) const { return *in_float; }
    const SweepFunctions<double>& of(double) const { return *in_double; }
};

}  // namespace optgen
