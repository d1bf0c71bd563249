// Shuffles of a vector's float32 lanes.
#include "optgen/runtime/fused_cpu/include/simd.h"

namespace optgen {

// Lane indices for shuffles: memory order, and the orders to and from deinterleaved pairs.
constexpr struct LaneOrders {
    int all[VECTOR_LANES], even[VECTOR_LANES], odd[VECTOR_LANES];
    int lower[VECTOR_LANES], upper[VECTOR_LANES];

    constexpr LaneOrders() : all(), even(), odd(), lower(), upper() {
        for (int i = 0; i < VECTOR_LANES; ++i) {
            all[i] = i, even[i] = 2 * i, odd[i] = 2 * i + 1;
            lower[i] = i / 2 + i % 2 * VECTOR_LANES, upper[i] = lower[i] + VECTOR_LANES / 2;
        }
    }
} LANE_ORDERS;

INLINE VectorMask lane_indices(const int* numbers) {
    VectorMask found;
    __builtin_memcpy(&found, numbers, sizeof found);
    return found;
}

// Picks lanes from two vectors side by side.
INLINE Vector shuffled(Vector x, Vector y, VectorMask lanes) {
#ifdef __clang__
    for (int i = 0; i < VECTOR_LANES; ++i)
        lanes[i] = bit_cast<int>(
            lanes[i] < VECTOR_LANES ? x[lanes[i]] : y[lanes[i] - VECTOR_LANES]);
    return bit_cast<Vector>(lanes);
#else
    return __builtin_shuffle(x, y, lanes);
#endif
}

}  // namespace optgen
