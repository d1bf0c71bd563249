// Storage dtypes of streams, and the conversion of elements between storage and compute dtypes.

namespace optgen {

using i64 = long long;
using u64 = unsigned long long;
using u32 = unsigned int;
using u16 = unsigned short;

// Keeps one copy of a function, however many functions call it: this halves the build time. noipa
// also hides the function's callers from g++. If g++ learns that a sweep has one row, it does not
// vectorize the sweep.
#ifdef __clang__
#define NOINLINE __attribute__((noinline))
#else
#define NOINLINE __attribute__((noipa))
#endif
// Forces inlining, because vectors are not passed between functions.
#define INLINE __attribute__((always_inline)) inline

// torch's codes of the dtypes that a stream may have; ABSENT if a tensor has no such stream.
// INT8 is a stream of codes (block_codes.h).
enum Dtype : u32 { ABSENT = 0, INT8 = 1, FLOAT16 = 5, FLOAT32 = 6, FLOAT64 = 7, BFLOAT16 = 15 };
// The dtypes that kernels compute with or convert. INT8 is none of them: a code is no number.
constexpr u32 ALL_DTYPES = 1 << FLOAT16 | 1 << FLOAT32 | 1 << FLOAT64 | 1 << BFLOAT16;

// Dtypes that the streams of a library may have, a bit each (dtype_variants.py). Code for other
// dtypes is not compiled. 16-bit dtypes are computed in float32, which then has a bit too.
#ifdef OPTGEN_TYPES
constexpr u32 COMPILED_DTYPES = OPTGEN_TYPES;
#else
constexpr u32 COMPILED_DTYPES = ALL_DTYPES;
#endif

template <u32 DTYPE>
constexpr bool IS_COMPILED = COMPILED_DTYPES >> DTYPE & 1;

// Number of float32 elements in a cache line of 64 bytes.
inline constexpr i64 CACHE_LINE = 16;

inline u32 dtype_of(u64 dtypes, int stream) { return (dtypes >> (4 * stream)) & 15; }

// Returns the bytes of one element.
inline i64 itemsize(u32 dtype) {
    if (dtype == ABSENT) return 0;
    if (dtype == INT8) return 1;
    return dtype == FLOAT64 ? 8 : dtype == FLOAT32 ? 4 : 2;
}

constexpr i64 rounded_up(i64 n, i64 unit) { return (n + unit - 1) / unit * unit; }
constexpr i64 min(i64 a, i64 b) { return a < b ? a : b; }
constexpr i64 max(i64 a, i64 b) { return a > b ? a : b; }

template <class To, class From>
INLINE To bit_cast(From from) {
    static_assert(sizeof(To) == sizeof(From), "types of different sizes");
    To to;
    __builtin_memcpy(&to, &from, sizeof to);
    return to;
}

// Storage of the 16-bit dtypes. F is a float and U an unsigned integer of its size, or both are
// vectors of these, with a code in the lower half of each U. Conversions round to nearest even. NaN
// keeps its upper bits, as it does where the CPU converts.
struct bfloat16 {
    u16 code;

    template <class F, class U>
    static INLINE F decoded(U code) {
        return bit_cast<F>(code << 16);
    }

    template <class U, class F>
    static INLINE U encoded(F x) {
        return rounded_bits<U>(x) >> 16;
    }

    // Returns the code in the upper half. The lower half holds bits that rounding leaves over.
    template <class U, class F>
    static INLINE U rounded_bits(F x) {
        const U u = bit_cast<U>(x), finite = u + 0x7fff + ((u >> 16) & 1);
        return x != x ? u | 0x400000 : finite;
    }
};

struct float16 {
    u16 code;

    template <class F, class U>
    static INLINE F decoded(U code) {
        const U magnitude = (code & 0x7fff) << 13;
        // The product adjusts the exponent and normalizes subnormal numbers.
        const U finite = bit_cast<U>(bit_cast<F>(magnitude) * 0x1p112f);
        const U special = magnitude | 0x7f800000;
        return bit_cast<F>((magnitude < 0x0f800000 ? finite : special) | (code & 0x8000) << 16);
    }

    template <class U, class F>
    static INLINE U encoded(F x) {
        const U u = bit_cast<U>(x), magnitude = u & 0x7fffffff;
        const U normal = (magnitude + 0xc8000fff + ((magnitude >> 13) & 1)) >> 13;
        // Adding 0.5 leaves the rounded bits of a subnormal number at the low end.
        const U subnormal = bit_cast<U>(bit_cast<F>(magnitude) + 0.5f) - 0x3f000000;
        const U special = x != x ? (magnitude >> 13 & 0x3ff) | 0x7e00 : U{} + 0x7c00;
        const U finite = magnitude < 0x38800000 ? subnormal : normal;
        return (magnitude < 0x47800000 ? finite : special) | (u >> 16 & 0x8000);
    }
};

template <class S, class C>
inline C decode(S x) { return C(S::template decoded<float>(u32(x.code))); }
template <> inline float decode(float x) { return x; }
template <> inline double decode(float x) { return x; }
template <> inline float decode(double x) { return float(x); }
template <> inline double decode(double x) { return x; }

template <class S, class C>
inline S encode(C x) { return {u16(S::template encoded<u32>(float(x)))}; }
template <> inline float encode(float x) { return x; }
template <> inline float encode(double x) { return float(x); }
template <> inline double encode(float x) { return x; }
template <> inline double encode(double x) { return x; }

// Calls a function with a value of the storage type of a dtype, which has a bit in DTYPES.
template <u32 DTYPES = ALL_DTYPES, class Function>
INLINE void with_storage_type(u32 dtype, Function function) {
    if constexpr (DTYPES >> FLOAT64 & 1)
        if (dtype == FLOAT64) return function(double());
    if constexpr (DTYPES >> BFLOAT16 & 1)
        if (dtype == BFLOAT16) return function(bfloat16());
    if constexpr (DTYPES >> FLOAT16 & 1)
        if (dtype == FLOAT16) return function(float16());
    if constexpr (DTYPES >> FLOAT32 & 1)
        if (dtype == FLOAT32) return function(float());
}

// Converts elements first, first + 1, ... of a stream into a buffer of the compute dtype C.
template <class S, class C>
void read(const void* stream, i64 first, i64 n, C* __restrict to) {
    const S* __restrict from = static_cast<const S*>(stream) + first;
    for (i64 i = 0; i < n; ++i) to[i] = decode<S, C>(from[i]);
}
template <u32 DTYPES = ALL_DTYPES, class C>
NOINLINE void read(u32 dtype, const void* stream, i64 first, i64 n, C* to) {
    with_storage_type<DTYPES>(dtype, [&](auto s) { read<decltype(s)>(stream, first, n, to); });
}

// Converts n numbers of the compute dtype to elements first, first + 1, ... of a stream.
template <class S, class C>
void write(const C* __restrict from, void* stream, i64 first, i64 n) {
    S* __restrict to = static_cast<S*>(stream) + first;
    for (i64 i = 0; i < n; ++i) to[i] = encode<S, C>(from[i]);
}
template <u32 DTYPES = ALL_DTYPES, class C>
NOINLINE void write(u32 dtype, const C* from, void* stream, i64 first, i64 n) {
    with_storage_type<DTYPES>(dtype, [&](auto s) { write<decltype(s)>(from, stream, first, n); });
}

// Reads one number of any dtype.
inline double read_scalar(u32 dtype, const void* at) {
    double x = 0;
    with_storage_type(dtype, [&](auto s) { read<decltype(s)>(at, 0, 1, &x); });
    return x;
}

inline void write_scalar(u32 dtype, double x, void* at) {
    with_storage_type(dtype, [&](auto s) { write<decltype(s)>(&x, at, 0, 1); });
}

// Scalar cell of one tensor: its step count, or a scalar state.
struct Scalar {
    double value;
    u32 dtype;

    // Rounds x to this cell's dtype: torch updates a 0-dim tensor in the tensor's own dtype.
    double rounded_to_dtype(double x) const {
        with_storage_type(dtype, [&](auto s) {
            x = decode<decltype(s), double>(encode<decltype(s)>(x));
        });
        return x;
    }
};

inline bool operator==(const Scalar& a, const Scalar& b) {
    return a.value == b.value && a.dtype == b.dtype;
}

}  // namespace optgen
