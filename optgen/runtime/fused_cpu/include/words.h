// The words of the spec language, as a rule's arithmetic calls them.
#include "optgen/runtime/fused_cpu/include/storage.h"

namespace optgen {

// maximum and minimum are NaN where either operand is; sign(NaN) is 0. All as torch has them, and
// all selects: fmax and fmin do not vectorise.
inline float sqrt(float x) { return __builtin_sqrtf(x); }
inline double sqrt(double x) { return __builtin_sqrt(x); }
inline float exp(float x) { return __builtin_expf(x); }
inline double exp(double x) { return __builtin_exp(x); }
inline float log(float x) { return __builtin_logf(x); }
inline double log(double x) { return __builtin_log(x); }
inline float abs(float x) { return __builtin_fabsf(x); }
inline double abs(double x) { return __builtin_fabs(x); }
inline float pow(float x, float y) { return __builtin_powf(x, y); }
inline double pow(double x, double y) { return __builtin_pow(x, y); }
template <class C>
inline C where(bool condition, C x, C y) {
    return condition ? x : y;
}
inline float sign(float x) { return abs(x) > 0 ? __builtin_copysignf(1, x) : 0; }
inline double sign(double x) { return abs(x) > 0 ? __builtin_copysign(1, x) : 0; }
template <class C>
inline C maximum(C a, C b) {
    const C larger = a > b ? a : b; // one instruction, of which || would make two comparisons
    return a != a ? a : larger;
}
template <class C>
inline C minimum(C a, C b) {
    const C smaller = a < b ? a : b;
    return a != a ? a : smaller;
}

template <class C>
inline C clamp(C x, C low, C high) {
    const C nan = low != low || high != high ? C(__builtin_nan("")) : C(-0.0);
    const C raised = x < low ? low : x;
    return (raised > high ? high : raised) + nan; // the bounds are asked once for all elements
}

// From the nearer end, as torch computes it: a weight of 1 leaves nothing of the start.
template <class C>
inline C lerp(C start, C end, C weight) {
    const C way = end - start;
    return weight < C(0.5) ? start + weight * way : end - way * (1 - weight);
}
inline double mod(double x, double y) {
    const double rest = __builtin_fmod(x, y);
    return rest != 0 && (rest < 0) != (y < 0) ? rest + y : rest;
}
inline float mod(float x, float y) { return float(mod(double(x), double(y))); }

// Facts about a hyperparameter. None arrives as one NaN of many (rule.py); others are true.
inline bool is_none(double x) { return bits<u64>(x) == 0x7ff80000004e4f4e; }
inline bool truth(double x) { return x != 0 && !is_none(x); }

// What a loop over elements branches on, 1 or 0 in the type it computes in, of unknown origin to the
// compiler: a branch on it becomes a select of vectors, a branch on a bool keeps a loop from becoming
// one of vectors at all.
template <class C>
inline auto flag(bool condition) {
    C value = C(condition);
    __asm__("" : "+m"(value));
    return value;
}

// One that is off in most steps.
template <class C>
inline auto rare(bool condition) { return flag<C>(condition); }

}  // namespace optgen
