// How a sweep over a block of a tensor is called. Sweeps know rules as tables, so they are a library
// of their own (sweeps.cpp) that a second compiler builds meanwhile.

// A build takes half the time without what -O2 and -O3 do beside making vectors, and only what
// axes.h does with few rows or columns is faster with it.
#ifndef __clang__
#pragma GCC optimize("O1", "tree-vectorize", "vect-cost-model=dynamic")
#endif
#include "optgen/runtime/fused_cpu/include/outline.h"

namespace optgen {

// In the type computed in.
template <class C>
struct Sweeping {
    i64 (*scratch)(const Outline<C>&, const Job&); // how many numbers a thread needs
    void (*run)(
        const Outline<C>&, const Subject<C>&, const Pass&, const Reach&, bool first, C* scratch,
        i64 block);
};

// Null for a type that no tensor is computed with in.
struct Sweeps {
    const Sweeping<float>* in_float;
    const Sweeping<double>* in_double;

    const Sweeping<float>& of(float) const { return *in_float; }
    const Sweeping<double>& of(double) const { return *in_double; }
};

}  // namespace optgen
