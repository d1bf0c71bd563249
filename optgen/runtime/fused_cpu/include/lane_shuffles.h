// Shuffles of a vector's lanes of 32 bits.
#include "optgen/runtime/fused_cpu/include/simd.h"

namespace optgen {

// Lane indices for shuffles: memory order; `even` and `odd`, which deinterleave a pair; `lower` and
// `upper`, which interleave it again.
constexpr struct LaneOrders {
    int in_order[VECTOR_LANES], even[VECTOR_LANES], odd[VECTOR_LANES];
    int lower[VECTOR_LANES], upper[VECTOR_LANES];

    constexpr LaneOrders() : in_order(), even(), odd(), lower(), upper() {
        for (int i = 0; i < VECTOR_LANES; ++i) {
            in_order[i] = i, even[i] = 2 * i, odd[i] = 2 * i + 1;
            lower[i] = i / 2 + i % 2 * VECTOR_LANES, upper[i] = lower[i] + VECTOR_LANES / 2;
        }
    }
} LANE_ORDERS;

INLINE VectorMask lane_indices(const int* numbers) {
    VectorMask result;
    __builtin_memcpy(&result, numbers, sizeof result);
    return result;
}

// Picks lanes from two vectors side by side. V is a vector of floats or of integers.
template <class V>
INLINE V shuffled(V x, V y, VectorMask lanes) {
#ifdef __clang__
    V result;
    for (int i = 0; i < VECTOR_LANES; ++i)
        result[i] = lanes[i] < VECTOR_LANES ? x[lanes[i]] : y[lanes[i] - VECTOR_LANES];
    return result;
#else
    return __builtin_shuffle(x, y, lanes);
#endif
}

}  // namespace optgen
