// Stores that take place one iteration later than their values are computed.
#include "optgen/runtime/fused_cpu/include/mixed_storage.h"

namespace optgen {

// Stores each value one iteration late. A store waits for its value, which may depend on a root or
// a division, and occupies the CPU's instruction window meanwhile. If the store comes an iteration
// later, the CPU can start with the next elements before the store.
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

// Delayed store of a value that the rule has rounded to the parameter's dtype. In a loop over
// bfloat16, the parameter is bfloat16 too. So the value is kept as codes, and the store converts
// nothing.
template <class S>
struct RoundedStore : DelayedStore<S> {};
template <>
struct RoundedStore<bfloat16> {
    bfloat16* address = nullptr;
    VectorBits codes;

    INLINE void store(bfloat16* to, VectorPair x) {
        write();
        address = to;
        codes = codes_of(x);
    }
    INLINE void write() const {
        if (address) __builtin_memcpy(address, &codes, sizeof codes);
    }
    INLINE ~RoundedStore() { write(); }
};

template <class S>
INLINE void store_rounded(Stream<S> to, ComputeType<S> x) {
    if constexpr (IS_BFLOAT16<S>) {
        const VectorBits codes = codes_of(x);
        __builtin_memcpy(to, &codes, sizeof codes);
    } else {
        store(to, x);
    }
}

}  // namespace optgen
