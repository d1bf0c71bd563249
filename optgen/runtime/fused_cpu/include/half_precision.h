// Conversion of fp16 and bf16 vectors to and from float32, with the CPU's instructions where they
// exist. The instructions are inline assembly, because compilers rename the intrinsics between
// versions.
#include "optgen/runtime/fused_cpu/include/prefetch.h"

namespace optgen {

typedef u16 HalfBits __attribute__((vector_size(VECTOR_BYTES / 2)));

// Whether the two vectors of a pair hold the elements of even and of odd index, instead of the
// first and the second half in memory order.
template <class S>
constexpr bool DEINTERLEAVED = true;

// Loads a pair, and prefetches the memory that lies `ahead` elements further on.
INLINE VectorPair load(const bfloat16* from, i64 ahead) {
    VectorBits pairs;
    __builtin_prefetch(from + ahead);
    __builtin_memcpy(&pairs, from, sizeof pairs);
    return decoded_pair(pairs);
}

INLINE Vector load_vector(const bfloat16* from) {
    HalfBits codes;
    __builtin_memcpy(&codes, from, sizeof codes);
    return bit_cast<Vector>(__builtin_convertvector(codes, VectorBits) << 16);
}
INLINE void store_vector(Vector x, bfloat16* to) {
    const VectorBits bits = bfloat16::rounded_bits<VectorBits>(x) >> 16;
    const HalfBits codes = __builtin_convertvector(bits, HalfBits);
    __builtin_memcpy(to, &codes, sizeof codes);
}

// Returns the codes of a deinterleaved pair in memory order.
INLINE VectorBits packed_codes(VectorPair x) {
    const VectorBits low = bfloat16::rounded_bits<VectorBits>(x.a);
    const VectorBits high = bfloat16::rounded_bits<VectorBits>(x.b);
    return low >> 16 | (high & 0xffff0000);
}

#if defined(__AVX512BF16__) && VECTOR_BYTES == 64
// Tells whether a lane is subnormal: not 0, but smaller than any normal number.
INLINE bool has_subnormal(Vector x) {
    u16 found;
    __asm__("vfpclassps $0x20, %1, %0" : "=k"(found) : "v"(x));
    return found;
}

// A mask in memory: loops with few registers left would otherwise compute the mask for each store.
alignas(VECTOR_BYTES) static const Codes ALL_BUT_SIGN = Codes{} + 0x7fff;

// Converts a pair: the codes of `a`, then those of `b`. The instruction flushes subnormal numbers
// to 0. Returns whether it has flushed a number, which is unlikely.
INLINE bool convert(VectorPair x, Codes& codes) {
    u32 mask, zeros;
    __asm__("vcvtne2ps2bf16 %1, %2, %0" : "=v"(codes) : "v"(x.a), "v"(x.b));
    __asm__("vptestnmw %1, %2, %0" : "=k"(mask) : "m"(ALL_BUT_SIGN), "v"(codes));
    __asm__("kmovd %1, %0" : "=r"(zeros) : "k"(mask)); // faster than testing the mask itself
    return __builtin_expect(zeros != 0, false) && (has_subnormal(x.a) || has_subnormal(x.b));
}

INLINE void store(bfloat16* to, VectorPair x) {
    const Codes order = {0, 16, 1, 17, 2,  18, 3,  19, 4,  20, 5,  21, 6,  22, 7,  23,
                         8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31};
    Codes codes;
    const bool flushed = convert(x, codes);
    __asm__("vpermw %1, %2, %0" : "=v"(codes) : "v"(codes), "v"(order));
    if (flushed) codes = bit_cast<Codes>(packed_codes(x));
    __builtin_memcpy(to, &codes, sizeof codes);
}
INLINE void store_in_order(bfloat16* to, VectorPair x) {
    Codes codes;
    if (convert(x, codes)) {
        store_vector(x.a, to);
        store_vector(x.b, to + VECTOR_LANES);
    } else {
        __builtin_memcpy(to, &codes, sizeof codes);
    }
}
#else
INLINE void store(bfloat16* to, VectorPair x) {
    const VectorBits pairs = packed_codes(x);
    __builtin_memcpy(to, &pairs, sizeof pairs);
}
#endif

#if defined(__F16C__) && VECTOR_BYTES > 16
template <>
constexpr bool DEINTERLEAVED<float16> = false;

INLINE Vector load_vector(const float16* from) {
    HalfBits codes;
    Vector x;
    __builtin_memcpy(&codes, from, sizeof codes);
    __asm__("vcvtph2ps %1, %0" : "=v"(x) : "v"(codes));
    return x;
}
INLINE void store_vector(Vector x, float16* to) {
    HalfBits codes;
    __asm__("vcvtps2ph $0, %1, %0" : "=v"(codes) : "v"(x));
    __builtin_memcpy(to, &codes, sizeof codes);
}
#else
INLINE Vector load_vector(const float16* from) {
    HalfBits codes;
    __builtin_memcpy(&codes, from, sizeof codes);
    return float16::decoded<Vector>(__builtin_convertvector(codes, VectorBits));
}
INLINE void store_vector(Vector x, float16* to) {
    const VectorBits bits = float16::encoded<VectorBits>(x);
    const HalfBits codes = __builtin_convertvector(bits, HalfBits);
    __builtin_memcpy(to, &codes, sizeof codes);
}

INLINE VectorPair load(const float16* from, i64 ahead) {
    VectorBits pairs;
    __builtin_prefetch(from + ahead);
    __builtin_memcpy(&pairs, from, sizeof pairs);
    const VectorBits low = pairs & 0xffff, high = pairs >> 16;
    return {float16::decoded<Vector>(low), float16::decoded<Vector>(high)};
}
INLINE void store(float16* to, VectorPair x) {
    const VectorBits low = float16::encoded<VectorBits>(x.a);
    const VectorBits high = float16::encoded<VectorBits>(x.b);
    const VectorBits pairs = low | high << 16;
    __builtin_memcpy(to, &pairs, sizeof pairs);
}
#endif

// Loads and stores a pair whose vectors hold elements in memory order.
template <class S>
INLINE VectorPair load_in_order(const S* from) {
    return {load_vector(from), load_vector(from + VECTOR_LANES)};
}
template <class S>
INLINE void store_in_order(S* to, VectorPair x) {
    store_vector(x.a, to);
    store_vector(x.b, to + VECTOR_LANES);
}

#if defined(__F16C__) && VECTOR_BYTES > 16
INLINE VectorPair load(const float16* from, i64 ahead) {
    __builtin_prefetch(from + ahead);
    return load_in_order(from);
}
INLINE void store(float16* to, VectorPair x) { store_in_order(to, x); }
#endif

}  // namespace optgen
