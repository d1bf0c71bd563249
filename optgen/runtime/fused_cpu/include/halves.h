// Several numbers of 16 bits, from memory and back, by the machine's own instructions where it has
// them. Written as such, since their names in compilers change from one version to the next.
#include "optgen/runtime/fused_cpu/include/floats.h"

namespace optgen {

// Whether vectors have the lower and the upper halves of words, or numbers in the order of memory.
template <class S>
constexpr bool IN_PAIRS = true;

INLINE Floats load(const bfloat16* from, i64 ahead) {
    Words pairs;
    __builtin_prefetch(from + ahead);
    __builtin_memcpy(&pairs, from, sizeof pairs);
    return {bits<Vector>(pairs << 16), bits<Vector>(pairs & 0xffff0000)};
}

INLINE Words paired(Floats x) {
    const Words low = bfloat16::rounded<Words>(x.a), high = bfloat16::rounded<Words>(x.b);
    return low >> 16 | (high & 0xffff0000);
}

#if defined(__AVX512BF16__) && VECTOR == 64
// Whether a number is smaller than any normal one, but not 0.
INLINE bool is_denormal(Vector x) {
    u16 found;
    __asm__("vfpclassps $0x20, %1, %0" : "=k"(found) : "v"(x));
    return found;
}

// The machine takes denormal numbers for 0.
INLINE void store(bfloat16* to, Floats x) {
    typedef u16 Codes __attribute__((vector_size(VECTOR)));
    const Codes order = {0, 16, 1, 17, 2,  18, 3,  19, 4,  20, 5,  21, 6,  22, 7,  23,
                         8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31};
    Codes codes;
    u32 mask, zeros;
    __asm__("vcvtne2ps2bf16 %1, %2, %0" : "=v"(codes) : "v"(x.a), "v"(x.b));
    __asm__("vpermw %1, %2, %0" : "=v"(codes) : "v"(codes), "v"(order));
    __asm__("vptestnmw %1, %2, %0" : "=k"(mask) : "v"(codes), "v"(Codes{} + 0x7fff));
    __asm__("kmovd %1, %0" : "=r"(zeros) : "k"(mask)); // faster than a test of the mask
    if (__builtin_expect(zeros != 0, false) && (is_denormal(x.a) || is_denormal(x.b)))
        codes = bits<Codes>(paired(x));
    __builtin_memcpy(to, &codes, sizeof codes);
}
#else
INLINE void store(bfloat16* to, Floats x) {
    const Words pairs = paired(x);
    __builtin_memcpy(to, &pairs, sizeof pairs);
}
#endif

#if defined(__F16C__) && VECTOR > 16
typedef u16 Half __attribute__((vector_size(VECTOR / 2)));
template <>
constexpr bool IN_PAIRS<float16> = false;

INLINE Vector widened(const float16* from) {
    Half codes;
    Vector x;
    __builtin_memcpy(&codes, from, sizeof codes);
    __asm__("vcvtph2ps %1, %0" : "=v"(x) : "v"(codes));
    return x;
}
INLINE void narrow(Vector x, float16* to) {
    Half codes;
    __asm__("vcvtps2ph $0, %1, %0" : "=v"(codes) : "v"(x));
    __builtin_memcpy(to, &codes, sizeof codes);
}

INLINE Floats load(const float16* from, i64 ahead) {
    __builtin_prefetch(from + ahead);
    return {widened(from), widened(from + WIDTH)};
}
INLINE void store(float16* to, Floats x) {
    narrow(x.a, to);
    narrow(x.b, to + WIDTH);
}
#else
INLINE Floats load(const float16* from, i64 ahead) {
    Words pairs;
    __builtin_prefetch(from + ahead);
    __builtin_memcpy(&pairs, from, sizeof pairs);
    const Words low = pairs & 0xffff, high = pairs >> 16;
    return {float16::widened<Vector>(low), float16::widened<Vector>(high)};
}
INLINE void store(float16* to, Floats x) {
    const Words low = float16::narrowed<Words>(x.a), high = float16::narrowed<Words>(x.b);
    const Words pairs = low | high << 16;
    __builtin_memcpy(to, &pairs, sizeof pairs);
}
#endif

// Stores what it was given one turn later. What depends on a root or a division waits for it, and
// meanwhile holds the places that the next elements need: so theirs are begun before it.
template <class S>
struct Late {
    S* place = nullptr;
    Floats kept;

    INLINE void store(S* to, Floats x) {
        if (place) optgen::store(place, kept);
        place = to;
        kept = x;
    }
    INLINE ~Late() {
        if (place) optgen::store(place, kept);
    }
};
template <>
struct Late<float> {
    INLINE void store(float* to, float x) { *to = x; }
};
template <>
struct Late<double> {
    INLINE void store(double* to, double x) { *to = x; }
};

}  // namespace optgen
