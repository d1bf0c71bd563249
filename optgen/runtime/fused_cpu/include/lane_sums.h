// Sums of a loop over vectors: the addition to an accumulator, and the sum over its lanes.
#include "optgen/runtime/fused_cpu/include/lane_shuffles.h"

namespace optgen {

INLINE VectorPair& operator+=(VectorPair& x, VectorPair y) { return x = x + y; }
#pragma omp declare reduction(+ : VectorPair : omp_out += omp_in) \
    initializer(omp_priv = VectorPair(0))

// Returns the sum of all lanes of a loop's accumulator.
INLINE float lane_sum(float x) { return x; }
INLINE double lane_sum(double x) { return x; }
INLINE float lane_sum(VectorPair x) {
    Vector sum = x.a + x.b;
    for (int half = VECTOR_LANES / 2; half; half /= 2)
        sum += shuffled(sum, sum, lane_indices(LANE_ORDERS.in_order) + half);
    return sum[0];
}

}  // namespace optgen
