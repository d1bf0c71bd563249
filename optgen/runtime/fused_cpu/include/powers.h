// Powers, exp, log and tanh. The C library's take one number at a time; those of float32 here are
// plain arithmetic and selects, so that loops vectorize.
//
// They compute in float64 where float32 would lose digits. Their error is below 0.6 of a unit in
// the last place. The numbers of the series are minimax polynomials, from Remez' algorithm. The
// functions of float64 are the C library's.
#include "optgen/runtime/fused_cpu/include/dtypes.h"

namespace optgen {

// Adding this number rounds to an integer, half to even. The integer is in the lowest bits then.
constexpr double TO_INTEGER = 0x1.8p52;

// Returns 2^x with an error below 4e-9 of the result, which is 0 or infinite as a float32 if x lies
// outside of [-200, 200].
INLINE double power_of_two(double x) {
    const double raised = x < -200 ? -200 : x, kept = raised > 200 ? 200 : raised;
    const double shifted = kept + TO_INTEGER, fraction = kept - (shifted - TO_INTEGER);
    const float r = float(fraction);
    float sum = 1.53211693e-4f;
    sum = sum * r + 1.33901559e-3f;
    sum = sum * r + 9.61852617e-3f;
    sum = sum * r + 5.55036227e-2f;
    sum = sum * r + 2.40226476e-1f;
    const double mantissa = 1 + fraction * (0.6931471805599453 + fraction * sum);
    return mantissa * bit_cast<double>((bit_cast<u64>(shifted) << 52) + bit_cast<u64>(1.0));
}

// Returns log2 of a positive finite number: its exponent, and the series of 2 artanh(s) / ln 2 for
// a fraction in [0.7, 1.42). The error is below 5e-12 of the result. A subnormal number is read as
// its bits, since processors may be told to take it for 0.
INLINE double log_of_two(float x) {
    const int given = bit_cast<int>(x);
    const bool is_subnormal = given < 0x00800000;
    const int bits = is_subnormal ? bit_cast<int>(float(given)) : given;
    const int exponent = (bits - 0x3f3504f3) >> 23; // from the root of 1/2
    const float fraction = bit_cast<float>(bits - exponent * 0x00800000);
    const float reciprocal = 1 / (fraction + 1);
    // A step of Newton's method turns the quotient of float32 into one of float64.
    const double difference = fraction - 1, quotient = difference * reciprocal;
    const double s = quotient + quotient * (1 - (difference + 2) * reciprocal), square = s * s;
    double sum = 0.340730124799972872;
    sum = sum * square + 0.411672717631693187;
    sum = sum * square + 0.577083584997529367;
    sum = sum * square + 0.961796673341558748;
    sum = sum * square + 2.88539008179008623;
    return sum * s + (is_subnormal ? exponent - 149 : exponent);
}

INLINE float exp(float x) { return float(power_of_two(x * 1.4426950408889634)); }
INLINE double exp(double x) { return __builtin_exp(x); }

INLINE float log(float x) {
    const float infinity = __builtin_inff(), size = __builtin_fabsf(x);
    const u32 code = bit_cast<u32>(x), size_code = bit_cast<u32>(size);
    const float finite = float(log_of_two(size) * 0.6931471805599453);
    const float positive = size_code < 0x7f800000 ? finite : size;
    const float not_negative = size_code == 0 ? -infinity : positive;
    return code > 0x80000000 ? __builtin_nanf("") : not_negative;
}
INLINE double log(double x) { return __builtin_log(x); }

// Small numbers have a series: 1 - exp(-2 x) would lose their digits.
INLINE float tanh(float x) {
    const float magnitude = __builtin_fabsf(x), square = x * x;
    float sum = 1.94254919e-2f;
    sum = sum * square - 5.37237042e-2f;
    sum = sum * square + 0.133323566f;
    sum = sum * square - 0.333333212f;
    const float small = magnitude + magnitude * square * sum;
    const double power = power_of_two(magnitude * -2.8853900817779268);
    const float large = float((1 - power) / (1 + power));
    return __builtin_copysignf(magnitude < 0.35f ? small : large, x);
}
INLINE double tanh(double x) { return __builtin_tanh(x); }

// What powers of numbers of type F need to know of their exponent.
template <class F>
struct Exponent {
    F y;
    explicit INLINE Exponent(F given) : y(given) {}
};
template <>
struct Exponent<float> {
    double kept; // within [-2^50, 2^50], which are even integers
    float unless_integer, of_nan, of_zero, of_infinity; // powers of such bases
    u32 if_odd; // the sign bit

    explicit INLINE Exponent(float y) {
        const double raised = y < -0x1p50f ? -0x1p50 : double(y);
        kept = raised > 0x1p50 ? 0x1p50 : raised;
        const double shifted = kept + TO_INTEGER;
        const u32 is_integer = -u32(shifted - TO_INTEGER == kept);
        const u32 is_zero = -u32(y == 0), is_positive = -u32(y > 0), is_negative = -u32(y < 0);
        const u32 infinity = 0x7f800000, nan = 0x7fc00000, one = 0x3f800000;
        unless_integer = bit_cast<float>((is_integer & 0x80000000) | (~is_integer & nan));
        if_odd = is_integer & u32(bit_cast<u64>(shifted)) << 31;
        const u32 nan_or_one = (is_zero & one) | (~is_zero & nan);
        of_nan = bit_cast<float>(nan_or_one);
        const u32 neither = nan_or_one & ~(is_positive | is_negative);
        of_zero = bit_cast<float>((is_negative & infinity) | neither);
        of_infinity = bit_cast<float>((is_positive & infinity) | neither);
    }
};

// The special cases are C's.
INLINE float pow(float x, const Exponent<float>& y) {
    const float size = __builtin_fabsf(x);
    const u32 code = bit_cast<u32>(x), size_code = bit_cast<u32>(size);
    const float finite = float(power_of_two(y.kept * log_of_two(size)));
    const u32 is_inf = -u32(size_code == 0x7f800000), is_zero = -u32(size_code == 0);
    const u32 is_nan = -u32(size_code > 0x7f800000), is_one = -u32(code == 0x3f800000);
    const u32 power = (is_inf & bit_cast<u32>(y.of_infinity)) | (is_zero & bit_cast<u32>(y.of_zero))
        | (~(is_inf | is_zero) & bit_cast<u32>(finite)) | (code & y.if_odd);
    const u32 is_negative = u32(int(code) >> 31) & ~(is_inf | is_zero);
    const u32 unless_integer = bit_cast<u32>(y.unless_integer);
    const u32 addend = (is_negative & unless_integer) | (~is_negative & 0x80000000);
    const u32 real = bit_cast<u32>(bit_cast<float>(power) + bit_cast<float>(addend));
    return bit_cast<float>((is_one & 0x3f800000) | (is_nan & bit_cast<u32>(y.of_nan))
        | (~(is_one | is_nan) & real));
}
INLINE double pow(double x, const Exponent<double>& y) { return __builtin_pow(x, y.y); }
INLINE float pow(float x, float y) { return pow(x, Exponent<float>(y)); }
INLINE double pow(double x, double y) { return __builtin_pow(x, y); }

// Power with the exponent that all elements of a loop share. U is an unsigned integer of F's size.
// Exponents for which torch takes a root, products or a reciprocal are simple; masks choose among
// these, and between these and others. All is opaque to the compiler: it would make branches of the
// conditions on the exponent, and not vectorize the loop.
template <class F, class U>
struct PowerOf {
    Exponent<F> exponent;
    U is_zero, is_half, is_one, is_two, is_three, is_negative; // of the exponent: all bits or none
    U simple;
    bool is_simple;

    explicit INLINE PowerOf(F y) : exponent(y) {
        const F size = y < 0 ? -y : y;
        is_zero = -U(size == 0), is_half = -U(size == F(0.5)), is_one = -U(size == 1);
        is_two = -U(size == 2), is_three = -U(y == 3), is_negative = -U(y < 0);
        simple = is_zero | is_half | is_one | is_two | is_three;
        is_simple = simple != 0;
        __asm__("" : "+m"(*this));
    }

    INLINE F simple_power(F x, F root) const {
        const F square = x * x;
        const F power = bit_cast<F>(
            (bit_cast<U>(F(1)) & is_zero) | (bit_cast<U>(root) & is_half)
            | (bit_cast<U>(x) & is_one) | (bit_cast<U>(square) & is_two)
            | (bit_cast<U>(square * x) & is_three));
        return bit_cast<F>(
            (bit_cast<U>(power) & ~is_negative) | (bit_cast<U>(1 / power) & is_negative));
    }
};

// C is the loop's compute type: double, float, or lanes of float.
template <class C>
struct Power : PowerOf<float, u32> {
    explicit INLINE Power(double y) : PowerOf(float(y)) {}
};
template <>
struct Power<double> : PowerOf<double, u64> {
    explicit INLINE Power(double y) : PowerOf(y) {}
};

// Without IS_SIMPLE, the exponent may be simple or not.
template <bool IS_SIMPLE, class F, class U>
INLINE F power(F x, F root, const PowerOf<F, U>& y) {
    const F simple = y.simple_power(x, root);
    if constexpr (IS_SIMPLE) return simple;
    const U other = bit_cast<U>(pow(x, y.exponent));
    return bit_cast<F>((bit_cast<U>(simple) & y.simple) | (other & ~y.simple));
}
template <bool IS_SIMPLE>
INLINE float pow(float x, const PowerOf<float, u32>& y) {
    return power<IS_SIMPLE>(x, __builtin_sqrtf(x), y);
}
template <bool IS_SIMPLE>
INLINE double pow(double x, const PowerOf<double, u64>& y) {
    return power<IS_SIMPLE>(x, __builtin_sqrt(x), y);
}

}  // namespace optgen
