// The types a stream may be stored in, and how elements get from one to another.

namespace optgen {

using i64 = long long;
using u64 = unsigned long long;
using u32 = unsigned int;
using u16 = unsigned short;

// One copy of a function, however many call it: a build takes half the time. g++ may not look into
// it from outside either: where it learns that a sweep has one row, it makes no vectors of it.
#ifdef __clang__
#define APART __attribute__((noinline))
#else
#define APART __attribute__((noipa))
#endif
// No copy: vectors are not passed between functions.
#define INLINE __attribute__((always_inline)) inline

// torch's numbers for the types a stream may be stored in; 0 where a tensor has no such stream.
enum Type : u32 { ABSENT = 0, FLOAT16 = 5, FLOAT32 = 6, FLOAT64 = 7, BFLOAT16 = 15 };
constexpr u32 EVERY_TYPE = 1 << FLOAT16 | 1 << FLOAT32 | 1 << FLOAT64 | 1 << BFLOAT16;

// So many numbers of float32 fill a line of the cache.
constexpr i64 LINE = 16;

inline u32 type_of(u64 types, int stream) { return (types >> (4 * stream)) & 15; }

// The type's size in memory.
inline i64 bytes_of(u32 type) {
    return type == ABSENT ? 0 : type == FLOAT64 ? 8 : type == FLOAT32 ? 4 : 2;
}

template <class To, class From>
INLINE To bits(From from) {
    static_assert(sizeof(To) == sizeof(From), "same size");
    To to;
    __builtin_memcpy(&to, &from, sizeof to);
    return to;
}

// Storage of 16-bit types. F is a number and U a word of its size, or both are vectors of them; a
// code stands in the lower half of its word. Rounding is to nearest even; NaN keeps its upper bits,
// as where the machine rounds.
struct bfloat16 {
    u16 code;

    template <class F, class U>
    static INLINE F widened(U code) {
        return bits<F>(code << 16);
    }

    template <class U, class F>
    static INLINE U narrowed(F x) {
        return rounded<U>(x) >> 16;
    }

    // The code in the upper half, and in the lower one what rounding leaves.
    template <class U, class F>
    static INLINE U rounded(F x) {
        const U u = bits<U>(x), finite = u + 0x7fff + ((u >> 16) & 1);
        return x != x ? u | 0x400000 : finite;
    }
};

struct float16 {
    u16 code;

    template <class F, class U>
    static INLINE F widened(U code) {
        const U magnitude = (code & 0x7fff) << 13;
        // The product moves the exponent and gives denormals their leading bit.
        const U finite = bits<U>(bits<F>(magnitude) * 0x1p112f);
        const U special = magnitude | 0x7f800000;
        return bits<F>((magnitude < 0x0f800000 ? finite : special) | (code & 0x8000) << 16);
    }

    template <class U, class F>
    static INLINE U narrowed(F x) {
        const U u = bits<U>(x), magnitude = u & 0x7fffffff;
        const U normal = (magnitude + 0xc8000fff + ((magnitude >> 13) & 1)) >> 13;
        // Adding 0.5 leaves a denormal's bits, rounded, at the low end.
        const U denormal = bits<U>(bits<F>(magnitude) + 0.5f) - 0x3f000000;
        const U special = x != x ? (magnitude >> 13 & 0x3ff) | 0x7e00 : U{} + 0x7c00;
        const U finite = magnitude < 0x38800000 ? denormal : normal;
        return (magnitude < 0x47800000 ? finite : special) | (u >> 16 & 0x8000);
    }
};

template <class S, class C>
inline C load(S x) { return C(S::template widened<float>(u32(x.code))); }
template <> inline float load(float x) { return x; }
template <> inline double load(float x) { return x; }
template <> inline float load(double x) { return float(x); }
template <> inline double load(double x) { return x; }

template <class S, class C>
inline S save(C x) { return {u16(S::template narrowed<u32>(float(x)))}; }
template <> inline float save(float x) { return x; }
template <> inline float save(double x) { return float(x); }
template <> inline double save(float x) { return x; }
template <> inline double save(double x) { return x; }

// Elements first, first + 1, ... of a stream, to and from a buffer of the type computed in.
template <class S, class C>
void read(const void* stream, i64 first, i64 n, C* __restrict to) {
    const S* __restrict from = static_cast<const S*>(stream) + first;
    for (i64 i = 0; i < n; ++i) to[i] = load<S, C>(from[i]);
}

// The type is one of those that have a bit in TYPES.
template <u32 TYPES = EVERY_TYPE, class C>
APART void read(u32 type, const void* stream, i64 first, i64 n, C* to) {
    if constexpr (TYPES >> FLOAT64 & 1)
        if (type == FLOAT64) return read<double>(stream, first, n, to);
    if constexpr (TYPES >> BFLOAT16 & 1)
        if (type == BFLOAT16) return read<bfloat16>(stream, first, n, to);
    if constexpr (TYPES >> FLOAT16 & 1)
        if (type == FLOAT16) return read<float16>(stream, first, n, to);
    if constexpr (TYPES >> FLOAT32 & 1)
        if (type == FLOAT32) return read<float>(stream, first, n, to);
}

template <class S, class C>
void write(const C* __restrict from, void* stream, i64 first, i64 n) {
    S* __restrict to = static_cast<S*>(stream) + first;
    for (i64 i = 0; i < n; ++i) to[i] = save<S, C>(from[i]);
}

template <u32 TYPES = EVERY_TYPE, class C>
APART void write(u32 type, const C* from, void* stream, i64 first, i64 n) {
    if constexpr (TYPES >> FLOAT64 & 1)
        if (type == FLOAT64) return write<double>(from, stream, first, n);
    if constexpr (TYPES >> BFLOAT16 & 1)
        if (type == BFLOAT16) return write<bfloat16>(from, stream, first, n);
    if constexpr (TYPES >> FLOAT16 & 1)
        if (type == FLOAT16) return write<float16>(from, stream, first, n);
    if constexpr (TYPES >> FLOAT32 & 1)
        if (type == FLOAT32) return write<float>(from, stream, first, n);
}

// One number of any type.
inline double number_at(u32 type, const void* at) {
    switch (type) {
        case FLOAT32: return *static_cast<const float*>(at);
        case BFLOAT16: return load<bfloat16, double>(*static_cast<const bfloat16*>(at));
        case FLOAT16: return load<float16, double>(*static_cast<const float16*>(at));
        default: return *static_cast<const double*>(at);
    }
}

inline void set_number(u32 type, double x, void* at) {
    switch (type) {
        case FLOAT32: *static_cast<float*>(at) = float(x); return;
        case BFLOAT16: *static_cast<bfloat16*>(at) = save<bfloat16>(x); return;
        case FLOAT16: *static_cast<float16*>(at) = save<float16>(x); return;
        default: *static_cast<double*>(at) = x;
    }
}

// A scalar stream of one tensor: its step, or a scalar state.
struct Scalar {
    double value;
    u32 type;

    // x in the type of this scalar: torch computes an update of a 0-dim tensor in that type.
    double rounded(double x) const {
        switch (type) {
            case FLOAT32: return float(x);
            case BFLOAT16: return load<bfloat16, double>(save<bfloat16>(x));
            case FLOAT16: return load<float16, double>(save<float16>(x));
            default: return x;
        }
    }
};

inline bool operator==(const Scalar& a, const Scalar& b) {
    return a.value == b.value && a.type == b.type;
}

}  // namespace optgen
