// Streams of codes: one or half a byte for each element, and a float32 scale for each block of
// elements. The scales stand behind the codes, at a multiple of 64 bytes. A code stands for a share:
// an element divided by its block's scale. The format is that of runtime/tensors/quantized.py, to
// the bit.
#include "optgen/runtime/fused_cpu/include/simd.h"

namespace optgen {

// Codes of DYNAMIC4 have 4 bits: a sign and three; or, in a block without negative numbers, those of
// UNSIGNED4, which are fifteenths, and then the scale is negated. No stream has the map UNSIGNED4.
enum CodeMap { DYNAMIC, LINEAR, E4M3, DYNAMIC4, UNSIGNED4 };

// Format of a stream's codes: how many elements share a scale, and which values codes stand for. If
// a stream never has codes, `block` is 0.
struct BlockCodes {
    i64 block;
    CodeMap map;
};

// Whether streams of a rule may have codes. Streams with codes go through buffers.
template <class R>
constexpr bool HAS_CODES = [] {
    for (const BlockCodes& format : R::CODES)
        if (format.block) return true;
    return false;
}();

// Largest number of elements of a block.
constexpr i64 MAX_BLOCK = 512;
// Base 2 logarithm of the number of shares of a dynamic map.
template <CodeMap MAP>
constexpr int SHARE_BITS = MAP == DYNAMIC4 ? 3 : 7;
// The fourth root of a share is computed from the share's bits, as in quantized.py: a quarter of
// these bits, plus this number, are the bits of the root times the number of shares.
template <CodeMap MAP>
constexpr int FOURTH_ROOT = 0x3f800000 - (0x3f800000 >> 2) + (SHARE_BITS<MAP> << 23);
// Blocks with scales below SMALLEST_SCALE become zeros, and from TOO_LARGE_SCALE on NaN.
constexpr float SMALLEST_SCALE = 0x1p-100f, TOO_LARGE_SCALE = 0x1p126f;
// The sum of this number and a small number has the nearest integer, ties to even, in its low bits.
constexpr float ROUNDER = 0x1.8p23f;

// A code of E4M3 is a number of float8_e4m3fn: its top bit is the sign, and its other bits are those
// of a float32 from bit 20 on, but for the bias of the exponent. Numbers below 2^-6 are multiples of
// 2^-9.
constexpr int E4M3_BIAS = 120 << 23, E4M3_SMALLEST_NORMAL = 0x3c800000;
// The share of the largest code.
template <CodeMap MAP>
constexpr float LARGEST_SHARE = MAP == E4M3 ? 448.0f : 1.0f;

// Returns the bytes of n codes.
inline i64 code_bytes(CodeMap map, i64 n) { return map == DYNAMIC4 ? (n + 1) / 2 : n; }

// Returns the address of the scale of the block that begins at element `first`.
template <CodeMap MAP, class T>
inline float* scale_at(T* stream, i64 elements, i64 first, i64 block) {
    const i64 codes = rounded_up(code_bytes(MAP, elements), 64);
    char* const at = reinterpret_cast<char*>(const_cast<signed char*>(stream)) + codes;
    return reinterpret_cast<float*>(at) + first / block;
}

// Returns the share that a code stands for.
template <CodeMap MAP>
INLINE float decoded_share(int code) {
    if constexpr (MAP == LINEAR) return float(code) * (1 / 127.0f);
    if constexpr (MAP == E4M3) {
        const int magnitude = code & 0x7f;
        const int subnormal = bit_cast<int>(float(magnitude) * 0x1p-9f);
        const int share = magnitude < 8 ? subnormal : (magnitude << 20) + E4M3_BIAS;
        return bit_cast<float>(u32(share) | (u32(code) & 0x80000000));
    }
    if constexpr (MAP == UNSIGNED4) return float(code) * (1 / 15.0f);
    const int magnitude = MAP == DYNAMIC4 ? code & 7 : __builtin_abs(code);
    const u32 sign = MAP == DYNAMIC4 ? u32(code) << 28 : u32(code);
    const u32 share = u32(bit_cast<int>(float(magnitude + 1)) - FOURTH_ROOT<MAP>) << 2;
    return bit_cast<float>((magnitude ? share : 0) | (sign & 0x80000000));
}

// Returns the magnitude of the code for a share; ignores the sign of the share. A share of UNSIGNED4
// is multiplied by 15.
template <CodeMap MAP>
INLINE int encoded_share(float share) {
    const int bits = bit_cast<int>(share) & 0x7fffffff, low = bit_cast<int>(ROUNDER);
    if constexpr (MAP == LINEAR) return bit_cast<int>(bit_cast<float>(bits) * 127 + ROUNDER) - low;
    if constexpr (MAP == UNSIGNED4) return bit_cast<int>(share + ROUNDER) - low;
    if constexpr (MAP == E4M3) { // a sum rounds to a multiple of 2^-9, ties to even
        const int subnormal = bit_cast<int>(bit_cast<float>(bits) + ROUNDER * 0x1p-9f);
        const int normal = (bits - E4M3_BIAS + 0x7ffff + (bits >> 20 & 1)) >> 20;
        return bits < E4M3_SMALLEST_NORMAL ? subnormal - bit_cast<int>(ROUNDER * 0x1p-9f) : normal;
    }
    const float number = bit_cast<float>((bits >> 2) + FOURTH_ROOT<MAP>) + ROUNDER;
    const int magnitude = bit_cast<int>(number) - (low + 1);
    return magnitude < 0 ? 0 : magnitude;
}

// Reads n codes of 4 bits. The first of a byte has the high bits.
INLINE void unpack(const signed char* __restrict pairs, i64 n, signed char* __restrict codes) {
    for (i64 i = 0; i < n / 2; ++i) {
        codes[2 * i] = pairs[i] >> 4 & 15;
        codes[2 * i + 1] = pairs[i] & 15;
    }
    if (n % 2) codes[n - 1] = pairs[n / 2] >> 4 & 15;
}

// Writes n codes of 4 bits; behind an odd last one, a code of 0.
INLINE void pack(signed char* __restrict codes, i64 n, signed char* __restrict pairs) {
    if (n % 2) codes[n] = 0;
    for (i64 i = 0; i < (n + 1) / 2; ++i)
        pairs[i] = static_cast<signed char>(codes[2 * i] << 4 | codes[2 * i + 1]);
}

template <CodeMap MAP, class C>
INLINE void decode_block(
    const signed char* __restrict codes, float scale, i64 n, C* __restrict to) {
    for (i64 i = 0; i < n; ++i) to[i] = C(decoded_share<MAP>(codes[i]) * scale);
}

// Decodes pairs by a table, if its 16 numbers fill one vector. Returns how many codes it decoded.
template <CodeMap MAP, class C>
INLINE i64 decode_by_table(const signed char*, float, i64, C*) { return 0; }
#if VECTOR_BYTES == 64 && !defined(__clang__)
template <CodeMap MAP>
INLINE i64 decode_by_table(const signed char* pairs, float scale, i64 n, float* __restrict to) {
    typedef unsigned char Pairs __attribute__((vector_size(VECTOR_LANES)));
    float numbers[VECTOR_LANES];
    for (int code = 0; code < VECTOR_LANES; ++code) numbers[code] = decoded_share<MAP>(code) * scale;
    Vector table;
    __builtin_memcpy(&table, numbers, sizeof table);
    const i64 count = n / (2 * VECTOR_LANES) * (2 * VECTOR_LANES);
    for (i64 i = 0; i < count; i += 2 * VECTOR_LANES) {
        Pairs bytes;
        __builtin_memcpy(&bytes, pairs + i / 2, sizeof bytes);
        VectorMask codes;
        // g++ would convert one byte at a time.
        __asm__("vpmovzxbd %1, %0" : "=v"(codes) : "v"(bytes));
        // An index counts modulo 16.
        const Vector first = __builtin_shuffle(table, codes >> 4);
        const Vector second = __builtin_shuffle(table, codes);
        const Vector lower = shuffled<&LaneOrders::lower>(first, second);
        const Vector upper = shuffled<&LaneOrders::upper>(first, second);
        __builtin_memcpy(to + i, &lower, sizeof lower);
        __builtin_memcpy(to + i + VECTOR_LANES, &upper, sizeof upper);
    }
    return count;
}
#endif

template <CodeMap MAP, class C>
INLINE void decode_pairs(const signed char* pairs, float scale, i64 n, C* to) {
    const i64 decoded = decode_by_table<MAP>(pairs, scale, n, to);
    if (decoded == n) return;
    signed char codes[MAX_BLOCK];
    unpack(pairs + decoded / 2, n - decoded, codes);
    decode_block<MAP>(codes, scale, n - decoded, to + decoded);
}

template <CodeMap MAP, class C>
INLINE void encode_signed(
    const C* __restrict from, float inverse_scale, i64 n, signed char* __restrict codes) {
    for (i64 i = 0; i < n; ++i) {
        const float number = float(from[i]);
        const int magnitude = encoded_share<MAP>(number * inverse_scale);
        const int negative =
            MAP == E4M3 ? magnitude - 128 : MAP == DYNAMIC4 ? magnitude + 8 : -magnitude;
        codes[i] = static_cast<signed char>(bit_cast<int>(number) < 0 ? negative : magnitude);
    }
}

// Encodes a block without negative numbers: only 0 has code 0.
template <CodeMap MAP, class C>
INLINE void encode_unsigned(
    const C* __restrict from, float inverse_scale, i64 n, signed char* __restrict codes) {
    for (i64 i = 0; i < n; ++i) {
        const float number = float(from[i]);
        const int magnitude = encoded_share<MAP>(number * inverse_scale);
        const int least_code = number > 0 ? 1 : 0;
        codes[i] = static_cast<signed char>(magnitude < least_code ? least_code : magnitude);
    }
}

// Encodes a block; returns its scale. The bits of magnitudes are ordered as the magnitudes are.
template <CodeMap MAP, class C>
INLINE float encode_block(const C* __restrict from, i64 n, signed char* __restrict codes) {
    int largest = 0, signs = 0;
    for (i64 i = 0; i < n; ++i) {
        const int bits = bit_cast<int>(float(from[i])), magnitude = bits & 0x7fffffff;
        largest = magnitude > largest ? magnitude : largest;
        signs |= bits;
    }
    const float magnitude = bit_cast<float>(largest), scale = magnitude / LARGEST_SHARE<MAP>;
    if (!(magnitude >= SMALLEST_SCALE && magnitude < TOO_LARGE_SCALE)) {
        for (i64 i = 0; i < code_bytes(MAP, n); ++i) codes[i] = 0;
        return magnitude < SMALLEST_SCALE ? 0 : __builtin_nanf("");
    }
    if constexpr (MAP == DYNAMIC4) {
        signed char single_codes[MAX_BLOCK];
        if (signs < 0) encode_signed<MAP>(from, 1 / scale, n, single_codes);
        else encode_unsigned<UNSIGNED4>(from, 15 / scale, n, single_codes);
        pack(single_codes, n, codes);
        return signs < 0 ? scale : -scale;
    }
    if (signs < 0) encode_signed<MAP>(from, 1 / scale, n, codes);
    else encode_unsigned<MAP>(from, 1 / scale, n, codes);
    return scale;
}

// Decodes elements first, first + 1, ... of a stream; `first` begins a block.
template <CodeMap MAP, class C>
NOINLINE void read_codes(const void* stream, i64 elements, i64 block, i64 first, i64 n, C* to) {
    const signed char* const codes = static_cast<const signed char*>(stream);
    const float* scale = scale_at<MAP>(codes, elements, first, block);
    for (i64 i = 0; i < n; i += block, ++scale) {
        const signed char* const at = codes + code_bytes(MAP, first + i);
        const i64 count = min(n - i, block);
        if constexpr (MAP != DYNAMIC4) decode_block<MAP>(at, *scale, count, to + i);
        else if (*scale < 0) decode_pairs<UNSIGNED4>(at, -*scale, count, to + i);
        else decode_pairs<DYNAMIC4>(at, *scale, count, to + i);
    }
}

// Encodes n numbers as elements first, first + 1, ... of a stream: whole blocks, except for the
// last block of the tensor.
template <CodeMap MAP, class C>
NOINLINE void write_codes(const C* from, void* stream, i64 elements, i64 block, i64 first, i64 n) {
    signed char* const codes = static_cast<signed char*>(stream);
    float* scale = scale_at<MAP>(codes, elements, first, block);
    for (i64 i = 0; i < n; i += block, ++scale)
        *scale = encode_block<MAP>(
            from + i, min(n - i, block), codes + code_bytes(MAP, first + i));
}

template <CodeMap MAP>
struct Constant {
    static constexpr CodeMap value = MAP;
};

// Calls a function with a map as a constant.
template <class F>
void with_map(CodeMap map, F function) {
    if (map == LINEAR) function(Constant<LINEAR>{});
    else if (map == E4M3) function(Constant<E4M3>{});
    else if (map == DYNAMIC4) function(Constant<DYNAMIC4>{});
    else function(Constant<DYNAMIC>{});
}

template <class C>
void read_codes(BlockCodes format, const void* stream, i64 elements, i64 first, i64 n, C* to) {
    with_map(format.map, [&](auto map) {
        read_codes<map.value>(stream, elements, format.block, first, n, to);
    });
}

template <class C>
void write_codes(BlockCodes format, const C* from, void* stream, i64 elements, i64 first, i64 n) {
    with_map(format.map, [&](auto map) {
        write_codes<map.value>(from, stream, elements, format.block, first, n);
    });
}

}  // namespace optgen
