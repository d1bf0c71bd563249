// Several float32 numbers at once, which the sweep of an elementwise rule computes with as if they
// were one. A branch that is the same for all of them stays a branch.
#include "optgen/runtime/fused_cpu/include/words.h"

#if defined(__AVX512BW__) && defined(__AVX512DQ__)
#define VECTOR 64
#elif defined(__AVX2__)
#define VECTOR 32
#else
#define VECTOR 16
#endif

namespace optgen {

constexpr int WIDTH = VECTOR / 4;
typedef float Vector __attribute__((vector_size(VECTOR)));
typedef u32 Words __attribute__((vector_size(VECTOR)));
typedef int Choice __attribute__((vector_size(VECTOR))); // of each number: all bits, or none

// Two vectors of the machine. 16-bit numbers come in pairs: `a` has the lower halves of 32-bit
// words and `b` the upper ones, so that no number changes its place on the way there and back.
struct Mask {
    Choice a, b;

    Mask() = default;
    INLINE Mask(Choice given_a, Choice given_b) : a(given_a), b(given_b) {}
    INLINE Mask(bool all) : a(Choice{} - int(all)), b(a) {}
    INLINE Mask operator!() const { return {~a, ~b}; }
    friend INLINE Mask operator&(Mask x, Mask y) { return {x.a & y.a, x.b & y.b}; }
    friend INLINE Mask operator|(Mask x, Mask y) { return {x.a | y.a, x.b | y.b}; }
};

struct Floats {
    Vector a, b;

    Floats() = default;
    INLINE Floats(Vector given_a, Vector given_b) : a(given_a), b(given_b) {}
    INLINE Floats(float x) : a(x - Vector{}), b(a) {} // of -0, too
    INLINE Floats(double x) : Floats(float(x)) {}
    INLINE Floats(int x) : Floats(float(x)) {}
    INLINE Floats(Mask x)
        : a(x.a ? 1.0f - Vector{} : Vector{}), b(x.b ? 1.0f - Vector{} : Vector{}) {}

};

INLINE Floats operator-(Floats x) { return {-x.a, -x.b}; }
INLINE Mask operator!(Floats x) { return {x.a == 0, x.b == 0}; }
INLINE Floats operator+(Floats x, Floats y) { return {x.a + y.a, x.b + y.b}; }
INLINE Floats operator-(Floats x, Floats y) { return {x.a - y.a, x.b - y.b}; }
INLINE Floats operator/(Floats x, Floats y) { return {x.a / y.a, x.b / y.b}; }
INLINE Mask operator<(Floats x, Floats y) { return {x.a < y.a, x.b < y.b}; }
INLINE Mask operator>(Floats x, Floats y) { return {x.a > y.a, x.b > y.b}; }
INLINE Mask operator<=(Floats x, Floats y) { return {x.a <= y.a, x.b <= y.b}; }
INLINE Mask operator>=(Floats x, Floats y) { return {x.a >= y.a, x.b >= y.b}; }
INLINE Mask operator==(Floats x, Floats y) { return {x.a == y.a, x.b == y.b}; }
INLINE Mask operator!=(Floats x, Floats y) { return {x.a != y.a, x.b != y.b}; }

// A product that is rounded when it is used; or with what it is added to, where the machine does
// both at once. Of two products the first one is not rounded by itself.
struct Product {
    Floats x, y;

    INLINE operator Floats() const { return {x.a * y.a, x.b * y.b}; }
};
#ifdef __FMA__
INLINE Vector fused(Vector x, Vector y, Vector z) {
    __asm__("vfmadd231ps %2, %1, %0" : "+v"(z) : "v"(x), "v"(y));
    return z;
}
INLINE Vector fused_from(Vector z, Vector x, Vector y) {
    __asm__("vfnmadd231ps %2, %1, %0" : "+v"(z) : "v"(x), "v"(y));
    return z;
}
#else
INLINE Vector fused(Vector x, Vector y, Vector z) { return x * y + z; }
INLINE Vector fused_from(Vector z, Vector x, Vector y) { return z - x * y; }
#endif

INLINE Product operator*(Floats x, Floats y) { return {x, y}; }
INLINE Floats operator+(Product p, Floats z) {
    return {fused(p.x.a, p.y.a, z.a), fused(p.x.b, p.y.b, z.b)};
}
INLINE Floats operator+(Floats z, Product p) { return p + z; }
INLINE Floats operator+(Product p, Product q) { return p + Floats(q); }
INLINE Floats operator-(Product p, Floats z) { return p + -z; }
INLINE Floats operator-(Floats z, Product p) {
    return {fused_from(z.a, p.x.a, p.y.a), fused_from(z.b, p.x.b, p.y.b)};
}
INLINE Floats operator-(Product p, Product q) { return p - Floats(q); }

// What numbers stored as S are computed with, and how many of them at once.
template <class S>
struct Computing { using Type = Floats; };
template <>
struct Computing<float> { using Type = float; };
template <>
struct Computing<double> { using Type = double; };
template <class S>
using Computed = typename Computing<S>::Type;
template <class C>
constexpr int LANES = 1;
template <>
constexpr int LANES<Floats> = 2 * WIDTH;

template <class C>
INLINE C where(Mask condition, C x, C y) {
    return {condition.a ? x.a : y.a, condition.b ? x.b : y.b};
}
template <class C>
INLINE C where(Floats condition, C x, C y) {
    return where<C>(condition != 0, x, y);
}

template <float word(float)>
INLINE Vector each(Vector x) {
    float numbers[WIDTH];
    __builtin_memcpy(numbers, &x, sizeof x);
    for (float& number : numbers) number = word(number);
    __builtin_memcpy(&x, numbers, sizeof x);
    return x;
}

template <float word(float, float)>
INLINE Vector each(Vector x, Vector y) {
    float numbers[WIDTH], others[WIDTH];
    __builtin_memcpy(numbers, &x, sizeof x);
    __builtin_memcpy(others, &y, sizeof y);
    for (int i = 0; i < WIDTH; ++i) numbers[i] = word(numbers[i], others[i]);
    __builtin_memcpy(&x, numbers, sizeof x);
    return x;
}

INLINE Floats sqrt(Floats x) { return {each<sqrt>(x.a), each<sqrt>(x.b)}; }
INLINE Floats exp(Floats x) { return {each<exp>(x.a), each<exp>(x.b)}; }
INLINE Floats log(Floats x) { return {each<log>(x.a), each<log>(x.b)}; }
INLINE Floats pow(Floats x, Floats y) { return {each<pow>(x.a, y.a), each<pow>(x.b, y.b)}; }
INLINE Floats mod(Floats x, Floats y) { return {each<mod>(x.a, y.a), each<mod>(x.b, y.b)}; }
INLINE Vector abs(Vector x) { return bits<Vector>(bits<Words>(x) & 0x7fffffff); }
INLINE Floats abs(Floats x) { return {abs(x.a), abs(x.b)}; }

// As the machine compares: the first operand if it is the larger one; the second if not, which is
// also where they are equal or one is NaN.
INLINE Vector larger(Vector x, Vector y) {
#ifdef __AVX__
    Vector z;
    __asm__("vmaxps %2, %1, %0" : "=v"(z) : "v"(x), "v"(y));
    return z;
#else
    return x > y ? x : y;
#endif
}
INLINE Vector smaller(Vector x, Vector y) {
#ifdef __AVX__
    Vector z;
    __asm__("vminps %2, %1, %0" : "=v"(z) : "v"(x), "v"(y));
    return z;
#else
    return x < y ? x : y;
#endif
}
INLINE Floats larger(Floats x, Floats y) { return {larger(x.a, y.a), larger(x.b, y.b)}; }
INLINE Floats smaller(Floats x, Floats y) { return {smaller(x.a, y.a), smaller(x.b, y.b)}; }

#if VECTOR == 64
// What an instruction makes of a number's class: of its eight classes, each a digit from the right
// (two of NaN, 0, 1, the infinities, below 0, above), each digit 0 leaves what is there, 2 says NaN
// as it is, 8, 9 and a say 0, -1 and 1.
INLINE Vector by_class(Vector there, Vector x, u32 digits) {
    const Words table = Words{} + digits;
    __asm__("vfixupimmps $0, %2, %1, %0" : "+v"(there) : "v"(x), "v"(table));
    return there;
}
INLINE Vector or_nan(Vector there, Vector x) { return by_class(there, x, 0x22); }
INLINE Vector sign(Vector x) { return by_class(x, x, 0xa9a9a888); }
#else
INLINE Vector or_nan(Vector there, Vector x) { return x != x ? x : there; }
INLINE Vector sign(Vector x) {
    const Words one = (bits<Words>(x) & 0x80000000) | bits<Words>(1.0f - Vector{});
    return abs(x) > 0 ? bits<Vector>(one) : Vector{};
}
#endif

INLINE Floats or_nan(Floats x, Floats y) { return {or_nan(x.a, y.a), or_nan(x.b, y.b)}; }
INLINE Floats sign(Floats x) { return {sign(x.a), sign(x.b)}; }
INLINE Floats maximum(Floats x, Floats y) { return or_nan(larger(x, y), x); }
INLINE Floats minimum(Floats x, Floats y) { return or_nan(smaller(x, y), x); }
INLINE Floats clamp(Floats x, Floats low, Floats high) {
    const Floats nan = where<Floats>((low != low) | (high != high), __builtin_nanf(""), -0.0f);
    return smaller(high, larger(low, x)) + nan; // the bounds are asked once for all elements
}
INLINE Floats lerp(Floats start, Floats end, Floats weight) {
    const Floats way = end - start;
    return where<Floats>(weight < 0.5f, start + weight * way, end - way * (1 - weight));
}

// What else would be taken for the words of one number.
INLINE Floats maximum(Product x, Product y) { return maximum(Floats(x), Floats(y)); }
INLINE Floats minimum(Product x, Product y) { return minimum(Floats(x), Floats(y)); }
INLINE Floats clamp(Product x, Product y, Product z) { return clamp(Floats(x), y, z); }
INLINE Floats lerp(Product x, Product y, Product z) { return lerp(Floats(x), y, z); }

// Opaque to the compiler, which would otherwise compute it anew for every vector.
template <>
INLINE auto flag<Floats>(bool condition) {
    int value = condition;
    __asm__("" : "+r"(value));
    return value;
}

// A branch on it stays one, and where it leads lies beside the loop.
struct Rare {
    int value;
    INLINE bool operator!=(int other) const { return __builtin_expect(value != other, false); }
};
template <>
INLINE auto rare<Floats>(bool condition) { return Rare{flag<Floats>(condition)}; }

// How far ahead of itself a loop over n elements asks for memory. Prefetchers of the machine stop
// at the end of a page, which loops over 16-bit types reach soonest; g++ makes no vectors of a loop
// that asks by itself. A short loop would ask for what lies behind its tensors.
template <class S>
INLINE i64 lookahead(i64 n) { return LANES<Computed<S>> > 1 && n >= 8192 ? 1024 : 0; }

// In what strips a long loop of float32 asks for memory: lines of all streams in turn, well ahead.
// Of what the caches may hold nothing is asked, and loops over 16-bit types ask by themselves.
constexpr i64 LONG_LOOP = 1 << 21, BURST = 256, BURST_AHEAD = 384; // elements
template <class S>
INLINE i64 burst(i64 n) { return n; }
template <>
INLINE i64 burst<float>(i64 n) { return n < LONG_LOOP ? n : BURST; }
template <class S>
INLINE void ask(const S* at) { __builtin_prefetch(at + BURST_AHEAD); }

INLINE double load(const double* from, i64) { return *from; }
INLINE void store(double* to, double x) { *to = x; }

INLINE float load(const float* from, i64) { return *from; }
INLINE void store(float* to, float x) { *to = x; }

}  // namespace optgen
