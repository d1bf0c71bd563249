// Several float32 numbers at once, which the sweep of an elementwise rule computes with as if they
// were one. A branch that is the same for all of them stays a branch.
#include "optgen/runtime/fused_cpu/words.h"

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

    INLINE Floats operator-() const { return {-a, -b}; }
    INLINE Mask operator!() const { return {a == 0, b == 0}; }
    friend INLINE Floats operator+(Floats x, Floats y) { return {x.a + y.a, x.b + y.b}; }
    friend INLINE Floats operator-(Floats x, Floats y) { return {x.a - y.a, x.b - y.b}; }
    friend INLINE Floats operator*(Floats x, Floats y) { return {x.a * y.a, x.b * y.b}; }
    friend INLINE Floats operator/(Floats x, Floats y) { return {x.a / y.a, x.b / y.b}; }
    friend INLINE Mask operator<(Floats x, Floats y) { return {x.a < y.a, x.b < y.b}; }
    friend INLINE Mask operator>(Floats x, Floats y) { return {x.a > y.a, x.b > y.b}; }
    friend INLINE Mask operator<=(Floats x, Floats y) { return {x.a <= y.a, x.b <= y.b}; }
    friend INLINE Mask operator>=(Floats x, Floats y) { return {x.a >= y.a, x.b >= y.b}; }
    friend INLINE Mask operator==(Floats x, Floats y) { return {x.a == y.a, x.b == y.b}; }
    friend INLINE Mask operator!=(Floats x, Floats y) { return {x.a != y.a, x.b != y.b}; }
};

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

INLINE Floats maximum(Floats x, Floats y) { return where<Floats>(x != x, x, larger(x, y)); }
INLINE Floats minimum(Floats x, Floats y) { return where<Floats>(x != x, x, smaller(x, y)); }
INLINE Floats clamp(Floats x, Floats low, Floats high) {
    const Floats raised = where<Floats>(low != low, low, larger(low, x));
    return where<Floats>(high != high, high, smaller(high, raised));
}
// 1 with the sign of a number.
INLINE Vector unit(Vector x) {
    return bits<Vector>((bits<Words>(x) & 0x80000000) | bits<Words>(1.0f - Vector{}));
}
INLINE Floats sign(Floats x) { return where<Floats>(abs(x) > 0, {unit(x.a), unit(x.b)}, 0); }
INLINE Floats lerp(Floats start, Floats end, Floats weight) {
    const Floats way = end - start;
    return where<Floats>(weight < 0.5f, start + weight * way, end - way * (1 - weight));
}

// Opaque to the compiler, which would otherwise compute it anew for every vector.
template <>
INLINE auto flag<Floats>(bool condition) {
    int value = condition;
    __asm__("" : "+r"(value));
    return value;
}

INLINE double load(const double* from) { return *from; }
INLINE void store(double* to, double x) { *to = x; }

INLINE float load(const float* from) { return *from; }
INLINE void store(float* to, float x) { *to = x; }

}  // namespace optgen
