// Stores of one iteration that take place in the next.
#include "optgen/runtime/fused_cpu/include/mixed_storage.h"

namespace optgen {

// Stores each value one iteration late. A store waits for its value, which may depend on a root or
// a division, and occupies the instruction window meanwhile. If it comes late, the next elements can
// start before it.
template <class S>
struct DelayedStore {
    Stream<S> address = {};
    VectorPair value;

    INLINE void store(Stream<S> to, VectorPair x) {
        if (address) optgen::store(address, value);
        address = to;
        value = x;
    }
    INLINE ~DelayedStore() {
        if (address) optgen::store(address, value);
    }
};
template <>
struct DelayedStore<float> {
    INLINE void store(float* to, float x) { *to = x; }
};
template <>
struct DelayedStore<double> {
    INLINE void store(double* to, double x) { *to = x; }
};

}  // namespace optgen
