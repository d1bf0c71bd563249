// Rounding to the dtype that a parameter is stored in, which its machine epsilon tells. Loops over
// 16-bit streams compute with vectors. Loops over float32 and double also serve 16-bit parameters,
// whose elements come through buffers.
#include "optgen/runtime/fused_cpu/include/simd.h"

namespace optgen {

constexpr double BFLOAT16_EPS = 0x1p-7, FLOAT16_EPS = 0x1p-10, FLOAT32_EPS = 0x1p-23;

// Rounds as a store does: to nearest, ties to even. U is the unsigned integer of F's size.
template <class S, class U, class F>
INLINE F nearest_of(F x) { return S::template decoded<F>(S::template encoded<U>(x)); }

// Returns the largest number of a 16-bit dtype that is not above x.
template <class S, class U, class F>
INLINE F largest_not_above(F x) {
    const U code = S::template encoded<U>(x);
    const F nearest = S::template decoded<F>(code);
    // One less for a positive number, one more for a negative one; 0 is never above x, but -0 is.
    const F below = S::template decoded<F>(code + ((code >> 15 & 1) << 1) - 1);
    return nearest > x ? below : nearest;
}

inline float rounded_to(float x, float eps) {
    return eps == float(BFLOAT16_EPS)  ? nearest_of<bfloat16, u32>(x)
           : eps == float(FLOAT16_EPS) ? nearest_of<float16, u32>(x)
                                       : x;
}
inline double rounded_to(double x, double eps) {
    return eps < FLOAT32_EPS ? x : double(rounded_to(float(x), float(eps)));
}
INLINE VectorPair rounded_to(VectorPair x, VectorPair eps) {
    if (eps.a[0] == float(FLOAT16_EPS))
        return {nearest_of<float16, VectorBits>(x.a), nearest_of<float16, VectorBits>(x.b)};
    return {nearest_of<bfloat16, VectorBits>(x.a), nearest_of<bfloat16, VectorBits>(x.b)};
}

inline float rounded_down_to(float x, float eps) {
    return eps == float(BFLOAT16_EPS)  ? largest_not_above<bfloat16, u32>(x)
           : eps == float(FLOAT16_EPS) ? largest_not_above<float16, u32>(x)
                                       : x;
}
inline double rounded_down_to(double x, double eps) {
    if (eps < FLOAT32_EPS) return x;
    const float nearest = float(x);
    const u32 bits = bit_cast<u32>(nearest), below = bits + (bits >> 31 << 1) - 1;
    return rounded_down_to(nearest > x ? bit_cast<float>(below) : nearest, float(eps));
}
INLINE VectorPair rounded_down_to(VectorPair x, VectorPair eps) {
    if (eps.a[0] == float(FLOAT16_EPS))
        return {
            largest_not_above<float16, VectorBits>(x.a),
            largest_not_above<float16, VectorBits>(x.b)};
    return {
        largest_not_above<bfloat16, VectorBits>(x.a),
        largest_not_above<bfloat16, VectorBits>(x.b)};
}

inline float rounded_up_to(float x, float eps) { return -rounded_down_to(-x, eps); }
inline double rounded_up_to(double x, double eps) { return -rounded_down_to(-x, eps); }
INLINE VectorPair rounded_up_to(VectorPair x, VectorPair eps) { return -rounded_down_to(-x, eps); }

}  // namespace optgen
