// Rounding to the dtype that a parameter is stored in, given by its machine epsilon `eps`.
// Loops over 16-bit streams compute with vectors. Loops over float32 and double also serve 16-bit
// parameters, whose elements come through buffers. Loops over streams of several dtypes compute
// with vectors too.
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
    // The next smaller number: its code is one less for a positive number, and one more for a
    // negative number. 0 is never above x, but -0 may be: its sign bit makes it count as negative.
    const F below = S::template decoded<F>(code + ((code >> 15 & 1) << 1) - 1);
    return nearest > x ? below : nearest;
}

// Cuts off the lower half of the bits of a float32. That moves a number towards zero, so a negative
// number is first moved away from zero.
template <class U, class F>
INLINE F largest_bfloat16_not_above(F x) {
    const U bits = bit_cast<U>(x);
    const F cut = bit_cast<F>((bits + ((0 - (bits >> 31)) & 0xffff)) & 0xffff0000);
    return x == x ? cut : x;
}

// Picks one of three values, all of which are computed first. g++ does not vectorize a loop with a
// select on a condition that is the same for all elements, but it vectorizes masks.
inline float select_by_eps(float eps, float in_bfloat16, float in_float16, float in_float32) {
    const u32 is_bfloat16 = 0 - u32(eps == float(BFLOAT16_EPS));
    const u32 is_float16 = 0 - u32(eps == float(FLOAT16_EPS));
    return bit_cast<float>(
        (bit_cast<u32>(in_bfloat16) & is_bfloat16) | (bit_cast<u32>(in_float16) & is_float16)
        | (bit_cast<u32>(in_float32) & ~(is_bfloat16 | is_float16)));
}

inline float rounded_to(float x, float eps) {
    return select_by_eps(eps, nearest_of<bfloat16, u32>(x), nearest_of<float16, u32>(x), x);
}
inline double rounded_to(double x, double eps) {
    return eps < FLOAT32_EPS ? x : double(rounded_to(float(x), float(eps)));
}
INLINE VectorPair rounded_to(VectorPair x, VectorPair eps) {
    if (eps.a[0] == float(FLOAT32_EPS)) return x;
    if (eps.a[0] == float(FLOAT16_EPS))
        return {nearest_of<float16, VectorBits>(x.a), nearest_of<float16, VectorBits>(x.b)};
    return {nearest_of<bfloat16, VectorBits>(x.a), nearest_of<bfloat16, VectorBits>(x.b)};
}

inline float rounded_down_to(float x, float eps) {
    return select_by_eps(
        eps, largest_bfloat16_not_above<u32>(x), largest_not_above<float16, u32>(x), x);
}
inline double rounded_down_to(double x, double eps) {
    if (eps < FLOAT32_EPS) return x;
    const float nearest = float(x);
    const u32 bits = bit_cast<u32>(nearest), below = bits + (bits >> 31 << 1) - 1;
    return rounded_down_to(nearest > x ? bit_cast<float>(below) : nearest, float(eps));
}
INLINE VectorPair rounded_down_to(VectorPair x, VectorPair eps) {
    if (eps.a[0] == float(FLOAT32_EPS)) return x;
    if (eps.a[0] == float(FLOAT16_EPS))
        return {
            largest_not_above<float16, VectorBits>(x.a),
            largest_not_above<float16, VectorBits>(x.b)};
    return {
        largest_bfloat16_not_above<VectorBits>(x.a), largest_bfloat16_not_above<VectorBits>(x.b)};
}

inline float rounded_up_to(float x, float eps) { return -rounded_down_to(-x, eps); }
inline double rounded_up_to(double x, double eps) { return -rounded_down_to(-x, eps); }
INLINE VectorPair rounded_up_to(VectorPair x, VectorPair eps) { return -rounded_down_to(-x, eps); }

// Rounds to one of the two neighbours of x in the dtype. For near <= |x| <= far, |x| becomes far
// where `chance * (far - near) < |x| - near`, and near elsewhere. A finite number beyond the
// largest becomes the largest.
template <class F>
INLINE F rounded_at_random_to(F x, F chance, F eps) {
    const F magnitude = abs(x);
    const F near = rounded_down_to(magnitude, eps), far = rounded_up_to(magnitude, eps);
    const bool is_far = (chance * (far - near) < magnitude - near) & (far != F(__builtin_inf()));
    const F rounded = is_far ? far : near;
    return x < 0 ? -rounded : x == 0 ? x : rounded;
}
// Rounds to bfloat16 as `rounded_at_random_to` does. `complement` is 65535 minus a 16-bit chance.
// The lower half of a float32's bits is (|x| - near) / (far - near) in steps of 2**-16. The sum of
// this half and `complement` carries where the chance is smaller than the half. x is a result of
// arithmetic: a NaN has a bit in the upper half.
INLINE Vector bfloat16_at_random(Vector x, VectorBits complement) {
    const VectorBits bits = bit_cast<VectorBits>(x);
    const VectorBits sum = (bits & 0x7fffffff) <= 0x7f7f0000 ? bits + complement : bits;
    return bit_cast<Vector>(sum & 0xffff0000);
}

// Masks and limits of bfloat16 in memory. Loops with few registers left would compute such
// constants for each vector, which takes longer than a load.
struct Bfloat16Constants {
    VectorBits upper_half = VectorBits{} + 0xffff0000;
    Codes largest_doubled = Codes{} + 2 * 0x7f7f, one = Codes{} + 1;
};
alignas(VECTOR_BYTES) static const Bfloat16Constants BFLOAT16_CONSTANTS;

// Hides the value of a constant from the compiler, which must then load it from memory.
template <class T>
INLINE const T& opaque(const T& constant) {
    const T* at = &constant;
    __asm__("" : "+r"(at));
    return *at;
}

// Rounds a VectorPair to bfloat16 as `rounded_at_random_to` does. The lower halves of `chances`
// belong to `a`, the upper halves to `b`. All lanes of 16 bits are compared at once.
INLINE VectorPair bfloat16_at_random(VectorPair x, VectorBits chances) {
    const Bfloat16Constants& constants = opaque(BFLOAT16_CONSTANTS);
    const VectorBits a = bit_cast<VectorBits>(x.a), b = bit_cast<VectorBits>(x.b);
    const Codes near = bit_cast<Codes>(a >> 16 | (b & constants.upper_half));
    const Codes rest = bit_cast<Codes>((a & ~constants.upper_half) | b << 16);
    const auto is_far = (rest > bit_cast<Codes>(chances)) & (near << 1 < constants.largest_doubled);
    return decoded_pair(bit_cast<VectorBits>(is_far ? near + constants.one : near));
}

// Returns 65535 minus a chance in steps of 2**-16. A chance outside of [0, 1) counts as the nearest
// chance in this range.
INLINE VectorBits complement_of(Vector chance) {
    const Vector most = 0xffff - Vector{}; // also the result for NaN
    const Vector number = vector_max(vector_min(chance * 0x1p16f, most), Vector{});
    return 0xffff - bit_cast<VectorBits>(__builtin_convertvector(number, VectorMask));
}

INLINE VectorPair rounded_at_random_to(VectorPair x, VectorPair chance, VectorPair eps) {
    if (eps.a[0] == float(BFLOAT16_EPS))
        return {bfloat16_at_random(x.a, complement_of(chance.a)),
                bfloat16_at_random(x.b, complement_of(chance.b))};
    const VectorPair magnitude = abs(x);
    const VectorPair near = rounded_down_to(magnitude, eps), far = rounded_up_to(magnitude, eps);
    const VectorPair limit = chance * (far - near);
    const MaskPair is_far = (limit < magnitude - near) & (far != VectorPair(__builtin_inff()));
    const VectorPair rounded = where<VectorPair>(is_far, far, near);
    return where<VectorPair>(x < 0, -rounded, where<VectorPair>(x == 0, x, rounded));
}

}  // namespace optgen
