// Streams of 8 bits: an int8 code for each element, and a float32 scale for each block of elements.
// The scales stand behind the codes, at a multiple of 64 bytes. The format is that of
// runtime/tensors/block_codes.py, to the bit.
#include "optgen/runtime/fused_cpu/include/dtypes.h"

namespace optgen {

enum CodeMap { DYNAMIC, LINEAR };

// Codes of a stream: the elements that share a scale, and the values that codes stand for. A stream
// that never has codes has no elements in a block.
struct BlockCodes {
    i64 block;
    CodeMap map;
};

constexpr int BITS_OF_ONE = 0x3f800000, CODE_OFFSET = BITS_OF_ONE - (BITS_OF_ONE >> 2);
constexpr float SMALLEST_SCALE = 0x1p-100f, TOO_LARGE_SCALE = 0x1p126f;

// Returns the scale of the block that begins at an element.
template <class T>
inline float* scale_at(T* stream, i64 elements, i64 first, i64 block) {
    const i64 codes = (elements + 63) & ~63LL;
    char* const at = reinterpret_cast<char*>(const_cast<signed char*>(stream)) + codes;
    return reinterpret_cast<float*>(at) + first / block;
}

template <CodeMap MAP>
INLINE float decoded_share(int code) {
    if constexpr (MAP == LINEAR) return float(code) * (1 / 127.0f);
    const int sign = code >> 31, magnitude = (code ^ sign) - sign;
    const u32 fourth = bit_cast<u32>(float(magnitude + 1) * 0x1p-7f);
    const u32 share = (fourth - u32(CODE_OFFSET)) << 2 | (u32(sign) << 31);
    return bit_cast<float>(magnitude ? share : 0);
}

// Returns the code of a number whose magnitude is this share of its scale. NOT_ZERO: in a block
// without negative numbers, only 0 has code 0.
template <CodeMap MAP, bool NOT_ZERO>
INLINE int encoded_share(float share, float number) {
    int magnitude;
    if constexpr (MAP == LINEAR) magnitude = int(__builtin_rintf(share * 127));
    else {
        const int fourth = (bit_cast<int>(share) >> 2) + CODE_OFFSET;
        magnitude = int(__builtin_rintf(bit_cast<float>(fourth) * 128)) - 1;
        magnitude = magnitude < 0 ? 0 : magnitude;
    }
    if constexpr (NOT_ZERO) {
        const int least = number > 0 ? 1 : 0;
        return magnitude < least ? least : magnitude;
    }
    const int sign = bit_cast<int>(number) >> 31;
    return (magnitude ^ sign) - sign;
}

template <CodeMap MAP, class C>
INLINE void decode_block(const signed char* __restrict codes, float scale, i64 n, C* __restrict to) {
    for (i64 i = 0; i < n; ++i) to[i] = C(decoded_share<MAP>(codes[i]) * scale);
}

template <CodeMap MAP, bool NOT_ZERO, class C>
INLINE void encode_numbers(
    const C* __restrict from, float inverse, i64 n, signed char* __restrict codes) {
    for (i64 i = 0; i < n; ++i) {
        const float number = float(from[i]), share = __builtin_fabsf(number) * inverse;
        codes[i] = static_cast<signed char>(encoded_share<MAP, NOT_ZERO>(share, number));
    }
}

// Encodes a block; returns its scale. The bits of magnitudes are ordered as the magnitudes are.
template <CodeMap MAP, class C>
INLINE float encode_block(const C* __restrict from, i64 n, signed char* __restrict codes) {
    int largest = 0, negative = 0;
    for (i64 i = 0; i < n; ++i) {
        const float number = float(from[i]);
        const int magnitude = bit_cast<int>(number) & 0x7fffffff;
        largest = magnitude > largest ? magnitude : largest;
        negative |= number < 0 ? 1 : 0;
    }
    const float scale = bit_cast<float>(largest);
    if (!(scale >= SMALLEST_SCALE && scale < TOO_LARGE_SCALE)) {
        __builtin_memset(codes, 0, u64(n));
        return scale < SMALLEST_SCALE ? 0 : __builtin_nanf("");
    }
    if (negative) encode_numbers<MAP, false>(from, 1 / scale, n, codes);
    else encode_numbers<MAP, true>(from, 1 / scale, n, codes);
    return scale;
}

// Decodes elements first, first + 1, ... of a stream; `first` begins a block.
template <CodeMap MAP, class C>
NOINLINE void read_codes(const void* stream, i64 elements, i64 block, i64 first, i64 n, C* to) {
    const signed char* const codes = static_cast<const signed char*>(stream);
    const float* scale = scale_at(codes, elements, first, block);
    for (i64 i = 0; i < n; i += block, ++scale)
        decode_block<MAP>(codes + first + i, *scale, n - i < block ? n - i : block, to + i);
}

// Encodes n numbers as elements first, first + 1, ... of a stream: whole blocks, except for the last
// block of the tensor.
template <CodeMap MAP, class C>
NOINLINE void write_codes(const C* from, void* stream, i64 elements, i64 block, i64 first, i64 n) {
    signed char* const codes = static_cast<signed char*>(stream);
    float* scale = scale_at(codes, elements, first, block);
    for (i64 i = 0; i < n; i += block, ++scale)
        *scale = encode_block<MAP>(from + i, n - i < block ? n - i : block, codes + first + i);
}

template <class C>
void read_codes(BlockCodes how, const void* stream, i64 elements, i64 first, i64 n, C* to) {
    if (how.map == LINEAR) read_codes<LINEAR>(stream, elements, how.block, first, n, to);
    else read_codes<DYNAMIC>(stream, elements, how.block, first, n, to);
}

template <class C>
void write_codes(BlockCodes how, const C* from, void* stream, i64 elements, i64 first, i64 n) {
    if (how.map == LINEAR) write_codes<LINEAR>(from, stream, elements, how.block, first, n);
    else write_codes<DYNAMIC>(from, stream, elements, how.block, first, n);
}

}  // namespace optgen
