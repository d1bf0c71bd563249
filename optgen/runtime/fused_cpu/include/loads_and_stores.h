// Loads and stores of loops over elements: prefetching, conversion of 16-bit vectors, streams of
// several dtypes, delayed stores, and the arrays of rules with phases.
#include "optgen/runtime/fused_cpu/include/simd.h"

namespace optgen {

// Prefetch distance, in elements, of loads in a loop over n elements of dtype S; 0 for none. Only
// long loops over 16-bit dtypes prefetch at their loads: the CPU's own prefetchers stop at the end
// of each page. A short loop would mostly fetch memory beyond its tensors. In loops over float32,
// such a prefetch would keep g++ from vectorizing.
template <class S>
INLINE i64 prefetch_distance(i64 n) { return LANES<ComputeType<S>> > 1 && n >= 8192 ? 1024 : 0; }

// A long loop over float32 runs strip by strip. Before each strip it prefetches the cache lines of
// all streams that lie PREFETCH_AHEAD elements further on. A shorter loop has no strips: its
// tensors may be in the caches. Loops over 16-bit dtypes have no strips, because they prefetch at
// their loads. Returns the length of a strip, which is n for a loop without strips.
constexpr i64 MIN_PREFETCHED_LOOP = 1 << 21, PREFETCH_STRIP = 256, PREFETCH_AHEAD = 384; // elements
template <class S>
INLINE i64 prefetch_strip(i64 n) { return n; }
template <>
INLINE i64 prefetch_strip<float>(i64 n) { return n < MIN_PREFETCHED_LOOP ? n : PREFETCH_STRIP; }
template <class S>
INLINE void prefetch(const S* at) { __builtin_prefetch(at + PREFETCH_AHEAD); }

// Prefetches a range of bytes. Inlined: compilers remove a call of a function that only prefetches.
INLINE void prefetch_range(const void* at, i64 bytes) {
    for (i64 i = 0; i < bytes; i += 64) __builtin_prefetch(static_cast<const char*>(at) + i);
}

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
#elif defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC)
INLINE void store(bfloat16* to, VectorPair x) {
    Codes codes, odd;
    __asm__("bfcvtn %0.4h, %1.4s" : "=w"(codes) : "w"(x.a));
    __asm__("bfcvtn %0.4h, %1.4s" : "=w"(odd) : "w"(x.b));
    __asm__("zip1 %0.8h, %1.8h, %2.8h" : "=w"(codes) : "w"(codes), "w"(odd));
    __builtin_memcpy(to, &codes, sizeof codes);
}
INLINE void store_in_order(bfloat16* to, VectorPair x) {
    Codes codes;
    __asm__("bfcvtn %0.4h, %1.4s" : "=w"(codes) : "w"(x.a));
    __asm__("bfcvtn2 %0.8h, %1.4s" : "+w"(codes) : "w"(x.b));
    __builtin_memcpy(to, &codes, sizeof codes);
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

// Stands for the storage dtype in a loop whose streams have several: float32, bfloat16, float16.
struct Mixed;

// Position in a stream whose dtype is known only at run time.
struct MixedStream {
    char* address = nullptr;
    u32 dtype = ABSENT;

    explicit operator bool() const { return address; }
    INLINE MixedStream operator+(i64 elements) const {
        return {address + elements * itemsize(dtype), dtype};
    }
};

// The elements of a stream of storage dtype S, as a loop gets them.
template <class S>
struct StreamOf { using Type = S* __restrict; };
template <>
struct StreamOf<Mixed> { using Type = MixedStream; };
template <>
struct StreamOf<const Mixed> { using Type = MixedStream; };
template <class S>
using Stream = typename StreamOf<S>::Type;

// Returns memory as a stream with the dtype of stream `like`; null if `like` is absent.
template <class S>
INLINE S* stream_at(void* memory, const S* like) {
    return like ? static_cast<S*>(memory) : nullptr;
}
INLINE MixedStream stream_at(void* memory, MixedStream like) {
    return {like ? static_cast<char*>(memory) : nullptr, like.dtype};
}

template <class S>
INLINE void copy_elements(S* to, const S* from, i64 n) {
    __builtin_memcpy(to, from, u64(n) * sizeof(S));
}
INLINE void copy_elements(MixedStream to, MixedStream from, i64 n) {
    __builtin_memcpy(to.address, from.address, u64(n * itemsize(from.dtype)));
}

// Vectors of mixed streams hold elements in memory order, because vectors of float32 streams do.
template <>
constexpr bool DEINTERLEAVED<Mixed> = false;

// An element of float32 takes twice the memory, so the distance has half as many elements.
template <>
INLINE i64 prefetch_distance<Mixed>(i64 n) { return n >= 8192 ? 512 : 0; }

INLINE VectorPair load(MixedStream from, i64 ahead) {
    __builtin_prefetch((from + ahead).address);
    if (from.dtype == BFLOAT16) return load_in_order(reinterpret_cast<bfloat16*>(from.address));
    if (from.dtype == FLOAT16) return load_in_order(reinterpret_cast<float16*>(from.address));
    __builtin_prefetch((from + ahead + VECTOR_LANES).address);
    VectorPair x;
    __builtin_memcpy(&x, from.address, sizeof x);
    return x;
}
INLINE void store(MixedStream to, VectorPair x) {
    if (to.dtype == BFLOAT16) return store_in_order(reinterpret_cast<bfloat16*>(to.address), x);
    if (to.dtype == FLOAT16) return store_in_order(reinterpret_cast<float16*>(to.address), x);
    __builtin_memcpy(to.address, &x, sizeof x);
}
INLINE void prefetch(MixedStream at) { __builtin_prefetch((at + PREFETCH_AHEAD).address); }

// Stores each value one iteration late. A store waits for its value, which may depend on a root or
// a division, and occupies the CPU's instruction window meanwhile. If the store comes an iteration
// later, the CPU can start with the next elements before the store.
template <class S>
struct DelayedStore {
    Stream<S> address = {};
    VectorPair value;

    INLINE void store(Stream<S> to, VectorPair x) {
        if (address) optgen::store(address, value);
        address = to;
        value = x;
    }
    INLINE ~DelayedStore() {
        if (address) optgen::store(address, value);
    }
};
template <>
struct DelayedStore<float> {
    INLINE void store(float* to, float x) { *to = x; }
};
template <>
struct DelayedStore<double> {
    INLINE void store(double* to, double x) { *to = x; }
};

// Delayed store of a value that the rule has rounded to the parameter's dtype. In a loop over
// bfloat16, the parameter is bfloat16 too. So the value is kept as codes, and the store converts
// nothing.
template <class S>
struct RoundedStore : DelayedStore<S> {};
template <>
struct RoundedStore<bfloat16> {
    bfloat16* address = nullptr;
    VectorBits codes;

    INLINE void store(bfloat16* to, VectorPair x) {
        write();
        address = to;
        codes = codes_of(x);
    }
    INLINE void write() const {
        if (address) __builtin_memcpy(address, &codes, sizeof codes);
    }
    INLINE ~RoundedStore() { write(); }
};

template <class S>
INLINE void store_rounded(Stream<S> to, ComputeType<S> x) {
    if constexpr (IS_BFLOAT16<S>) {
        const VectorBits codes = codes_of(x);
        __builtin_memcpy(to, &codes, sizeof codes);
    } else {
        store(to, x);
    }
}

// Untyped address of a value's numbers: a stream in its storage dtype, or computed numbers.
struct Pointer {
    void* at;

    template <class T>
    INLINE operator T*() const { return static_cast<T*>(at); }
    Pointer plus(i64 bytes) const { return {static_cast<char*>(at) + bytes}; }
};

template <class C>
struct ComputeScalarOf { using Type = C; };
template <>
struct ComputeScalarOf<VectorPair> { using Type = float; };
template <class S>
using ComputeScalar = typename ComputeScalarOf<ComputeType<S>>::Type;

template <class S>
INLINE VectorPair load_lanes(const S* from) { return load(from, 0); }

// Loads float32 numbers in the lane order of a stream of S.
template <class S>
INLINE VectorPair load_lanes(const float* from) {
    VectorPair x;
    __builtin_memcpy(&x.a, from, VECTOR_BYTES);
    __builtin_memcpy(&x.b, from + VECTOR_LANES, VECTOR_BYTES);
    if (!DEINTERLEAVED<S>) return x;
    return {shuffled<&LaneOrders::even>(x.a, x.b),
            shuffled<&LaneOrders::odd>(x.a, x.b)};
}

template <class S>
INLINE void store_lanes(S* to, VectorPair x) { store(to, x); }

template <class S>
INLINE void store_lanes(float* to, VectorPair x) {
    if (DEINTERLEAVED<S>)
        x = {shuffled<&LaneOrders::lower>(x.a, x.b),
             shuffled<&LaneOrders::upper>(x.a, x.b)};
    __builtin_memcpy(to, &x.a, VECTOR_BYTES);
    __builtin_memcpy(to + VECTOR_LANES, &x.b, VECTOR_BYTES);
}

// Loads as many numbers of an array as C has lanes.
template <class S, class C, class T>
INLINE C load_as(const T* from) {
    if constexpr (LANES<C> > 1) return load_lanes<S>(from);
    else {
        C x = decode<T, C>(*from);
        // The rest of a row does not fill a vector: a loop over it must not be vectorized.
        if constexpr (LANES<ComputeType<S>> > 1) __asm__("" : "+m"(x));
        return x;
    }
}

// Loads a value that several elements share. EXPANDED: the array has a number for every element,
// and the numbers from `next` on are loaded. Otherwise the number at `index` goes to all lanes.
template <class S, class C, bool EXPANDED, class T>
INLINE C broadcast(const T* from, i64 next, i64 index) {
    if constexpr (EXPANDED) return load_as<S, C>(from + next);
    else return C(from[index]);
}

template <class S, class C, class T>
INLINE void store_as(T* to, C x) {
    if constexpr (LANES<C> > 1) store_lanes<S>(to, x);
    else *to = encode<T, C>(x);
}

template <class S, class C>
INLINE void add_to(ComputeScalar<S>* to, C x) { store_as<S>(to, C(load_as<S, C>(to) + x)); }

}  // namespace optgen
