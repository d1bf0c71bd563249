// Builtins of the spec language for one number. simd.h has the overloads for vectors.
#include "optgen/runtime/fused_cpu/include/powers.h"

namespace optgen {

inline float sqrt(float x) { return __builtin_sqrtf(x); }
inline double sqrt(double x) { return __builtin_sqrt(x); }
inline float sin(float x) { return __builtin_sinf(x); }
inline double sin(double x) { return __builtin_sin(x); }
inline float cos(float x) { return __builtin_cosf(x); }
inline double cos(double x) { return __builtin_cos(x); }
inline float atan2(float y, float x) { return __builtin_atan2f(y, x); }
inline double atan2(double y, double x) { return __builtin_atan2(y, x); }
inline float floor(float x) { return __builtin_floorf(x); }
inline double floor(double x) { return __builtin_floor(x); }
inline float ceil(float x) { return __builtin_ceilf(x); }
inline double ceil(double x) { return __builtin_ceil(x); }
// Half to even, in the CPU's rounding mode. `__builtin_round` would round half away from zero.
inline float round(float x) { return __builtin_rintf(x); }
inline double round(double x) { return __builtin_rint(x); }
inline float abs(float x) { return __builtin_fabsf(x); }
inline double abs(double x) { return __builtin_fabs(x); }
template <class C>
inline C where(bool condition, C x, C y) {
    return condition ? x : y;
}
// As in torch, sign(NaN) is 0, and maximum and minimum are NaN if an operand is NaN. All three are
// selects, because loops with fmax and fmin do not vectorize.
inline float sign(float x) { return abs(x) > 0 ? __builtin_copysignf(1, x) : 0; }
inline double sign(double x) { return abs(x) > 0 ? __builtin_copysign(1, x) : 0; }
template <class C>
inline C maximum(C a, C b) {
    const C maximal = a > b ? a : b; // one instruction; a condition with || would need two compares
    return a != a ? a : maximal;
}
template <class C>
inline C minimum(C a, C b) {
    const C minimal = a < b ? a : b;
    return a != a ? a : minimal;
}

template <class C>
inline C clamp(C x, C low, C high) {
    const C nan_or_zero = low != low || high != high ? C(__builtin_nan("")) : C(-0.0);
    const C raised = x < low ? low : x;
    // NaN bounds are tested once, outside the loop.
    return (raised > high ? high : raised) + nan_or_zero;
}

// Interpolates from the nearer end, as torch does: a weight of 1 gives exactly `end`.
template <class C>
inline C lerp(C start, C end, C weight) {
    const C distance = end - start;
    return weight < C(0.5) ? start + weight * distance : end - distance * (1 - weight);
}
// Returns the remainder with the sign of y, as in Python.
inline double mod(double x, double y) {
    const double remainder = __builtin_fmod(x, y);
    return remainder != 0 && (remainder < 0) != (y < 0) ? remainder + y : remainder;
}
inline float mod(float x, float y) { return float(mod(double(x), double(y))); }

// Predicates on a hyperparameter. Python passes None as one particular NaN (see rule.py).
inline bool is_none(double x) { return bit_cast<u64>(x) == 0x7ff80000004e4f4e; }
inline bool truth(double x) { return x != 0 && !is_none(x); }

// Turns a condition of a loop into 1 or 0 in the compute type, opaque to the compiler. The compiler
// then turns a branch on the flag into a select of vectors. A branch on a bool would keep the loop
// from being vectorized.
template <class C>
inline auto flag(bool condition) {
    C value = C(condition);
    __asm__("" : "+m"(value));
    return value;
}

// Flag that is off in most steps.
template <class C>
inline auto rare_flag(bool condition) { return flag<C>(condition); }

}  // namespace optgen
