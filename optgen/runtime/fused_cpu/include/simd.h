// SIMD type with several float32 lanes. Sweeps of elementwise rules compute with this type as if it
// were one number. A condition that is the same for all lanes stays a branch.
#include "optgen/runtime/fused_cpu/include/elementwise_ops.h"

#if defined(__AVX512BW__) && defined(__AVX512DQ__)
#define VECTOR_BYTES 64
#elif defined(__AVX2__)
#define VECTOR_BYTES 32
#else
#define VECTOR_BYTES 16
#endif

namespace optgen {

constexpr int VECTOR_LANES = VECTOR_BYTES / 4;
typedef float Vector __attribute__((vector_size(VECTOR_BYTES)));
typedef u32 VectorBits __attribute__((vector_size(VECTOR_BYTES)));
typedef int VectorMask __attribute__((vector_size(VECTOR_BYTES))); // per lane: all bits set or none

// Masks of a VectorPair's lanes.
struct MaskPair {
    VectorMask a, b;

    MaskPair() = default;
    INLINE MaskPair(VectorMask given_a, VectorMask given_b) : a(given_a), b(given_b) {}
    INLINE MaskPair(bool all) : a(VectorMask{} - int(all)), b(a) {}
    INLINE MaskPair operator!() const { return {~a, ~b}; }
    friend INLINE MaskPair operator&(MaskPair x, MaskPair y) { return {x.a & y.a, x.b & y.b}; }
    friend INLINE MaskPair operator|(MaskPair x, MaskPair y) { return {x.a | y.a, x.b | y.b}; }
};

// Two vectors, because 16-bit elements come in pairs: `a` has the elements from the lower halves of
// 32-bit words, and `b` the elements from the upper halves. So loads and stores need no shuffles.
struct VectorPair {
    Vector a, b;

    VectorPair() = default;
    INLINE VectorPair(Vector given_a, Vector given_b) : a(given_a), b(given_b) {}
    INLINE VectorPair(float x) : a(x - Vector{}), b(a) {} // exact for -0, too
    INLINE VectorPair(double x) : VectorPair(float(x)) {}
    INLINE VectorPair(int x) : VectorPair(float(x)) {}
    INLINE VectorPair(MaskPair x)
        : a(x.a ? 1.0f - Vector{} : Vector{}), b(x.b ? 1.0f - Vector{} : Vector{}) {}
};

INLINE VectorPair operator-(VectorPair x) { return {-x.a, -x.b}; }
INLINE MaskPair operator!(VectorPair x) { return {x.a == 0, x.b == 0}; }
INLINE VectorPair operator+(VectorPair x, VectorPair y) { return {x.a + y.a, x.b + y.b}; }
INLINE VectorPair operator-(VectorPair x, VectorPair y) { return {x.a - y.a, x.b - y.b}; }
INLINE VectorPair operator/(VectorPair x, VectorPair y) { return {x.a / y.a, x.b / y.b}; }
INLINE MaskPair operator<(VectorPair x, VectorPair y) { return {x.a < y.a, x.b < y.b}; }
INLINE MaskPair operator>(VectorPair x, VectorPair y) { return {x.a > y.a, x.b > y.b}; }
INLINE MaskPair operator<=(VectorPair x, VectorPair y) { return {x.a <= y.a, x.b <= y.b}; }
INLINE MaskPair operator>=(VectorPair x, VectorPair y) { return {x.a >= y.a, x.b >= y.b}; }
INLINE MaskPair operator==(VectorPair x, VectorPair y) { return {x.a == y.a, x.b == y.b}; }
INLINE MaskPair operator!=(VectorPair x, VectorPair y) { return {x.a != y.a, x.b != y.b}; }

// Product whose rounding is deferred. A sum with a product is one fused multiply-add if the CPU has
// that instruction. In a sum of two products, only the second product is rounded before the
// addition.
struct DeferredProduct {
    VectorPair x, y;

    INLINE operator VectorPair() const { return {x.a * y.a, x.b * y.b}; }
};
#ifdef __FMA__
INLINE Vector multiply_add(Vector x, Vector y, Vector z) {
    __asm__("vfmadd231ps %2, %1, %0" : "+v"(z) : "v"(x), "v"(y));
    return z;
}
INLINE Vector negated_multiply_add(Vector z, Vector x, Vector y) {
    __asm__("vfnmadd231ps %2, %1, %0" : "+v"(z) : "v"(x), "v"(y));
    return z;
}
#elif defined(__ARM_FEATURE_FMA)
INLINE Vector multiply_add(Vector x, Vector y, Vector z) {
    __asm__("fmla %0.4s, %1.4s, %2.4s" : "+w"(z) : "w"(x), "w"(y));
    return z;
}
INLINE Vector negated_multiply_add(Vector z, Vector x, Vector y) {
    __asm__("fmls %0.4s, %1.4s, %2.4s" : "+w"(z) : "w"(x), "w"(y));
    return z;
}
#else
INLINE Vector multiply_add(Vector x, Vector y, Vector z) { return x * y + z; }
INLINE Vector negated_multiply_add(Vector z, Vector x, Vector y) { return z - x * y; }
#endif

INLINE DeferredProduct operator*(VectorPair x, VectorPair y) { return {x, y}; }
INLINE VectorPair operator+(DeferredProduct p, VectorPair z) {
    return {multiply_add(p.x.a, p.y.a, z.a), multiply_add(p.x.b, p.y.b, z.b)};
}
INLINE VectorPair operator+(VectorPair z, DeferredProduct p) { return p + z; }
INLINE VectorPair operator+(DeferredProduct p, DeferredProduct q) { return p + VectorPair(q); }
INLINE VectorPair operator-(DeferredProduct p, VectorPair z) { return p + -z; }
INLINE VectorPair operator-(VectorPair z, DeferredProduct p) {
    return {negated_multiply_add(z.a, p.x.a, p.y.a), negated_multiply_add(z.b, p.x.b, p.y.b)};
}
INLINE VectorPair operator-(DeferredProduct p, DeferredProduct q) { return p - VectorPair(q); }

// Compute type for elements stored as S, and the number of its lanes.
template <class S>
struct ComputeTypeOf { using Type = VectorPair; };
template <>
struct ComputeTypeOf<float> { using Type = float; };
template <>
struct ComputeTypeOf<double> { using Type = double; };
template <class S>
using ComputeType = typename ComputeTypeOf<S>::Type;
template <class C>
constexpr int LANES = 1;
template <>
constexpr int LANES<VectorPair> = 2 * VECTOR_LANES;

template <class C>
INLINE C where(MaskPair condition, C x, C y) {
    return {condition.a ? x.a : y.a, condition.b ? x.b : y.b};
}
template <class C>
INLINE C where(VectorPair condition, C x, C y) {
    return where<C>(condition != 0, x, y);
}

// The pragma keeps g++ from unrolling the loops of short vectors before it vectorizes them.
template <class Function>
INLINE Vector per_lane(Vector x, Function function) {
    float numbers[VECTOR_LANES];
    __builtin_memcpy(numbers, &x, sizeof x);
    #pragma omp simd
    for (int i = 0; i < VECTOR_LANES; ++i) numbers[i] = function(numbers[i]);
    __builtin_memcpy(&x, numbers, sizeof x);
    return x;
}
template <float op(float)>
INLINE Vector per_lane(Vector x) {
    return per_lane(x, [](float number) __attribute__((always_inline)) { return op(number); });
}

// The numbers are opaque to the compiler: it would make branches of conditions on a lane that all
// iterations share, and not vectorize the loop.
template <float op(float, float)>
INLINE Vector per_lane(Vector x, Vector y) {
    float numbers[VECTOR_LANES], others[VECTOR_LANES];
    __builtin_memcpy(numbers, &x, sizeof x);
    __builtin_memcpy(others, &y, sizeof y);
    __asm__("" : "+m"(numbers), "+m"(others));
    #pragma omp simd
    for (int i = 0; i < VECTOR_LANES; ++i) numbers[i] = op(numbers[i], others[i]);
    __builtin_memcpy(&x, numbers, sizeof x);
    return x;
}

INLINE VectorPair sqrt(VectorPair x) { return {per_lane<sqrt>(x.a), per_lane<sqrt>(x.b)}; }
INLINE VectorPair exp(VectorPair x) { return {per_lane<exp>(x.a), per_lane<exp>(x.b)}; }
INLINE VectorPair log(VectorPair x) { return {per_lane<log>(x.a), per_lane<log>(x.b)}; }
INLINE VectorPair tanh(VectorPair x) { return {per_lane<tanh>(x.a), per_lane<tanh>(x.b)}; }
INLINE VectorPair sin(VectorPair x) { return {per_lane<sin>(x.a), per_lane<sin>(x.b)}; }
INLINE VectorPair cos(VectorPair x) { return {per_lane<cos>(x.a), per_lane<cos>(x.b)}; }
INLINE VectorPair floor(VectorPair x) { return {per_lane<floor>(x.a), per_lane<floor>(x.b)}; }
INLINE VectorPair ceil(VectorPair x) { return {per_lane<ceil>(x.a), per_lane<ceil>(x.b)}; }
INLINE VectorPair round(VectorPair x) { return {per_lane<round>(x.a), per_lane<round>(x.b)}; }
INLINE VectorPair atan2(VectorPair y, VectorPair x) {
    return {per_lane<atan2>(y.a, x.a), per_lane<atan2>(y.b, x.b)};
}
INLINE VectorPair pow(VectorPair x, VectorPair y) {
    return {per_lane<pow>(x.a, y.a), per_lane<pow>(x.b, y.b)};
}
template <bool IS_SIMPLE>
INLINE VectorPair pow(VectorPair x, const Power<VectorPair>& y) {
    const PowerOf<float, u32>& of_one = y;
    const auto power = [&](float number) __attribute__((always_inline)) {
        return pow<IS_SIMPLE>(number, of_one);
    };
    return {per_lane(x.a, power), per_lane(x.b, power)};
}
INLINE VectorPair mod(VectorPair x, VectorPair y) {
    return {per_lane<mod>(x.a, y.a), per_lane<mod>(x.b, y.b)};
}
INLINE Vector abs(Vector x) { return bit_cast<Vector>(bit_cast<VectorBits>(x) & 0x7fffffff); }
INLINE VectorPair abs(VectorPair x) { return {abs(x.a), abs(x.b)}; }

// The CPU's maximum and minimum instructions: they return the second operand if the operands are
// equal or one of them is NaN.
INLINE Vector vector_max(Vector x, Vector y) {
#ifdef __AVX__
    Vector z;
    __asm__("vmaxps %2, %1, %0" : "=v"(z) : "v"(x), "v"(y));
    return z;
#else
    return x > y ? x : y;
#endif
}
INLINE Vector vector_min(Vector x, Vector y) {
#ifdef __AVX__
    Vector z;
    __asm__("vminps %2, %1, %0" : "=v"(z) : "v"(x), "v"(y));
    return z;
#else
    return x < y ? x : y;
#endif
}
INLINE VectorPair vector_max(VectorPair x, VectorPair y) {
    return {vector_max(x.a, y.a), vector_max(x.b, y.b)};
}
INLINE VectorPair vector_min(VectorPair x, VectorPair y) {
    return {vector_min(x.a, y.a), vector_min(x.b, y.b)};
}

#if VECTOR_BYTES == 64
// Replaces each lane of `otherwise` as the class of x in this lane demands. `digits` has one
// hexadecimal digit per class, from the right: quiet NaN, signaling NaN, 0, 1, -infinity, infinity,
// negative, positive. Digit 0 keeps the lane, 2 takes the NaN of x, and 8, 9, a give 0, -1 and 1.
INLINE Vector fixup_by_class(Vector otherwise, Vector x, u32 digits) {
    const VectorBits table = VectorBits{} + digits;
    __asm__("vfixupimmps $0, %2, %1, %0" : "+v"(otherwise) : "v"(x), "v"(table));
    return otherwise;
}
INLINE Vector propagate_nan(Vector otherwise, Vector x) {
    return fixup_by_class(otherwise, x, 0x22);
}
INLINE Vector sign(Vector x) { return fixup_by_class(x, x, 0xa9a9a888); }
#else
INLINE Vector propagate_nan(Vector otherwise, Vector x) { return x != x ? x : otherwise; }
INLINE Vector sign(Vector x) {
    const VectorBits sign_bits = bit_cast<VectorBits>(x) & 0x80000000;
    const VectorBits one = sign_bits | bit_cast<VectorBits>(1.0f - Vector{});
    return abs(x) > 0 ? bit_cast<Vector>(one) : Vector{};
}
#endif

INLINE VectorPair propagate_nan(VectorPair x, VectorPair y) {
    return {propagate_nan(x.a, y.a), propagate_nan(x.b, y.b)};
}
INLINE VectorPair sign(VectorPair x) { return {sign(x.a), sign(x.b)}; }
INLINE VectorPair maximum(VectorPair x, VectorPair y) { return propagate_nan(vector_max(x, y), x); }
INLINE VectorPair minimum(VectorPair x, VectorPair y) { return propagate_nan(vector_min(x, y), x); }
INLINE VectorPair clamp(VectorPair x, VectorPair low, VectorPair high) {
    const MaskPair unordered = (low != low) | (high != high);
    const VectorPair nan_or_zero = where<VectorPair>(unordered, __builtin_nanf(""), -0.0f);
    // NaN bounds are tested once, before the loop.
    return vector_min(high, vector_max(low, x)) + nan_or_zero;
}
INLINE VectorPair lerp(VectorPair start, VectorPair end, VectorPair weight) {
    const VectorPair distance = end - start;
    return where<VectorPair>(
        weight < 0.5f, start + weight * distance, end - distance * (1 - weight));
}

// Without these overloads, products would match the templates for one number.
INLINE VectorPair maximum(DeferredProduct x, DeferredProduct y) {
    return maximum(VectorPair(x), VectorPair(y));
}
INLINE VectorPair minimum(DeferredProduct x, DeferredProduct y) {
    return minimum(VectorPair(x), VectorPair(y));
}
INLINE VectorPair clamp(DeferredProduct x, DeferredProduct y, DeferredProduct z) {
    return clamp(VectorPair(x), y, z);
}
INLINE VectorPair lerp(DeferredProduct x, DeferredProduct y, DeferredProduct z) {
    return lerp(VectorPair(x), y, z);
}

// The flag is opaque to the compiler, which would otherwise recompute the condition per vector.
template <>
INLINE auto flag<VectorPair>(bool condition) {
    int value = condition;
    __asm__("" : "+r"(value));
    return value;
}

// Flag whose branch stays a branch; the unlikely code lies outside of the loop.
struct UnlikelyFlag {
    int value;
    INLINE bool operator!=(int other) const { return __builtin_expect(value != other, false); }
};
template <>
INLINE auto rare_flag<VectorPair>(bool condition) {
    return UnlikelyFlag{flag<VectorPair>(condition)};
}

// Codes of 16 bits, twice as many as a vector has lanes.
typedef u16 Codes __attribute__((vector_size(VECTOR_BYTES)));

template <class S>
constexpr bool IS_BFLOAT16 = false;
template <>
constexpr bool IS_BFLOAT16<bfloat16> = true;

// Returns the numbers of bfloat16 whose codes are the lower and the upper halves of words.
INLINE VectorPair decoded_pair(VectorBits pairs) {
    return {bit_cast<Vector>(pairs << 16), bit_cast<Vector>(pairs & 0xffff0000)};
}
// Returns the codes of numbers that bfloat16 represents exactly.
INLINE VectorBits codes_of(VectorPair x) {
    return bit_cast<VectorBits>(x.a) >> 16 | (bit_cast<VectorBits>(x.b) & 0xffff0000);
}

INLINE double load(const double* from, i64) { return *from; }
INLINE void store(double* to, double x) { *to = x; }

INLINE float load(const float* from, i64) { return *from; }
INLINE void store(float* to, float x) { *to = x; }

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

// Picks lanes from two vectors side by side, in an order: a member of LaneOrders. V is a vector of
// floats or of integers. clang wants the indices as constants: else it moves lane by lane.
#ifdef __clang__
template <class, int... I>
struct Indices {};
template <auto ORDER, class V, int... I>
INLINE V shuffled_by(V x, V y, Indices<int, I...>) {
    return __builtin_shufflevector(x, y, (LANE_ORDERS.*ORDER)[I]...);
}
template <auto ORDER, class V>
INLINE V shuffled(V x, V y) {
    return shuffled_by<ORDER>(x, y, __make_integer_seq<Indices, int, VECTOR_LANES>());
}
#else
template <auto ORDER, class V>
INLINE V shuffled(V x, V y) {
    return __builtin_shuffle(x, y, lane_indices(LANE_ORDERS.*ORDER));
}
#endif

INLINE VectorPair& operator+=(VectorPair& x, VectorPair y) { return x = x + y; }
#pragma omp declare reduction(+ : VectorPair : omp_out += omp_in) \
    initializer(omp_priv = VectorPair(0))

// Returns the sum of all lanes of a loop's accumulator.
INLINE float lane_sum(float x) { return x; }
INLINE double lane_sum(double x) { return x; }
INLINE float lane_sum(VectorPair x) {
    Vector sum = x.a + x.b;
    for (int half = VECTOR_LANES / 2; half; half /= 2) {
#ifdef __clang__
        Vector rotated;
        for (int i = 0; i < VECTOR_LANES; ++i) rotated[i] = sum[(i + half) % VECTOR_LANES];
        sum += rotated;
#else
        sum += __builtin_shuffle(sum, lane_indices(LANE_ORDERS.in_order) + half);
#endif
    }
    return sum[0];
}

}  // namespace optgen
