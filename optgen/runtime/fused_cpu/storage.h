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

// torch's numbers for the types a stream may be stored in; 0 where a tensor has no such stream.
enum Type : u32 { ABSENT = 0, FLOAT16 = 5, FLOAT32 = 6, FLOAT64 = 7, BFLOAT16 = 15 };

inline u32 type_of(u64 types, int stream) { return (types >> (4 * stream)) & 15; }

// The type's size in memory.
inline i64 bytes_of(u32 type) {
    return type == ABSENT ? 0 : type == FLOAT64 ? 8 : type == FLOAT32 ? 4 : 2;
}

template <class To, class From>
inline To bits(From from) {
    static_assert(sizeof(To) == sizeof(From), "same size");
    To to;
    __builtin_memcpy(&to, &from, sizeof to);
    return to;
}

// Storage of 16-bit types, written so that compilers vectorise it. Rounding is to nearest even.
struct bfloat16 {
    u16 code;
    static float load(bfloat16 x) { return bits<float>(u32(x.code) << 16); }
    static bfloat16 save(float x) {
        const u32 u = bits<u32>(x);
        const u32 rounded = (u + 0x7fff + ((u >> 16) & 1)) >> 16;
        return {u16((u & 0x7fffffff) > 0x7f800000 ? 0x7fc0 : rounded)};
    }
};

struct float16 {
    u16 code;
    static float load(float16 x) {
        const u32 magnitude = u32(x.code & 0x7fff) << 13;
        // The product moves the exponent and gives denormals their leading bit.
        const u32 finite = bits<u32>(bits<float>(magnitude) * 0x1p112f);
        const u32 special = magnitude | 0x7f800000;
        return bits<float>((magnitude < 0x0f800000 ? finite : special) | u32(x.code & 0x8000) << 16);
    }
    static float16 save(float x) {
        const u32 u = bits<u32>(x), magnitude = u & 0x7fffffff;
        const u32 normal = (magnitude + 0xc8000fff + ((magnitude >> 13) & 1)) >> 13;
        // Adding 0.5 leaves a denormal's bits, rounded, at the low end.
        const u32 denormal = bits<u32>(bits<float>(magnitude) + 0.5f) - 0x3f000000;
        const u32 special = magnitude > 0x7f800000 ? 0x7e00 : 0x7c00;
        const u32 finite = magnitude < 0x38800000 ? denormal : normal;
        return {u16((magnitude < 0x47800000 ? finite : special) | (u >> 16 & 0x8000))};
    }
};

template <class S, class C>
inline C load(S x) { return C(S::load(x)); }
template <> inline float load(float x) { return x; }
template <> inline double load(float x) { return x; }
template <> inline float load(double x) { return float(x); }
template <> inline double load(double x) { return x; }

template <class S, class C>
inline S save(C x) { return S::save(float(x)); }
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

template <class C>
APART void read(u32 type, const void* stream, i64 first, i64 n, C* to) {
    if (type == FLOAT32) read<float>(stream, first, n, to);
    else if (type == FLOAT64) read<double>(stream, first, n, to);
    else if (type == BFLOAT16) read<bfloat16>(stream, first, n, to);
    else read<float16>(stream, first, n, to);
}

template <class S, class C>
void write(const C* __restrict from, void* stream, i64 first, i64 n) {
    S* __restrict to = static_cast<S*>(stream) + first;
    for (i64 i = 0; i < n; ++i) to[i] = save<S, C>(from[i]);
}

template <class C>
APART void write(u32 type, const C* from, void* stream, i64 first, i64 n) {
    if (type == FLOAT32) write<float>(from, stream, first, n);
    else if (type == FLOAT64) write<double>(from, stream, first, n);
    else if (type == BFLOAT16) write<bfloat16>(from, stream, first, n);
    else write<float16>(from, stream, first, n);
}

// A scalar stream of one tensor: its step, or a scalar state.
struct Scalar {
    double value;
    u32 type;

    // x in the type of this scalar: torch computes an update of a 0-dim tensor in that type.
    double rounded(double x) const {
        switch (type) {
            case FLOAT32: return float(x);
            case BFLOAT16: return bfloat16::load(bfloat16::save(float(x)));
            case FLOAT16: return float16::load(float16::save(float(x)));
            default: return x;
        }
    }
};

inline bool operator==(const Scalar& a, const Scalar& b) {
    return a.value == b.value && a.type == b.type;
}

}  // namespace optgen
