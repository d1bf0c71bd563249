// Streams of 8 bits: an int8 code for each element, and a float32 scale for each block of elements.
// The scales stand behind the codes, at a multiple of 64 bytes. A code stands for a share: an
// element divided by its block's scale. The format is that of runtime/tensors/quantized.py, to
// the bit.
#include "optgen/runtime/fused_cpu/include/dtypes.h"

namespace optgen {

enum CodeMap { DYNAMIC, LINEAR };

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

// The fourth root of a share is computed from the share's bits, as in quantized.py: a quarter of
// these bits, plus this number, are the bits of 128 times the root.
constexpr int FOURTH_ROOT = 0x3f800000 - (0x3f800000 >> 2) + (7 << 23);
// Blocks with scales below SMALLEST_SCALE become zeros, and from TOO_LARGE_SCALE on NaN.
constexpr float SMALLEST_SCALE = 0x1p-100f, TOO_LARGE_SCALE = 0x1p126f;
// The sum of this number and a small number has the nearest integer, ties to even, in its low bits.
constexpr float ROUNDER = 0x1.8p23f;

// Returns the address of the scale of the block that begins at element `first`.
template <class T>
inline float* scale_at(T* stream, i64 elements, i64 first, i64 block) {
    const i64 codes = (elements + 63) & ~63LL;
    char* const at = reinterpret_cast<char*>(const_cast<signed char*>(stream)) + codes;
    return reinterpret_cast<float*>(at) + first / block;
}

// Returns the share that a code stands for.
template <CodeMap MAP>
INLINE float decoded_share(int code) {
    if constexpr (MAP == LINEAR) return float(code) * (1 / 127.0f);
    const int magnitude = __builtin_abs(code);
    const u32 share = u32(bit_cast<int>(float(magnitude + 1)) - FOURTH_ROOT) << 2;
    return bit_cast<float>((magnitude ? share : 0) | (u32(code) & 0x80000000));
}

// Returns the magnitude of the code for a share; ignores the sign of the share.
template <CodeMap MAP>
INLINE int encoded_share(float share) {
    const int bits = bit_cast<int>(share) & 0x7fffffff, low = bit_cast<int>(ROUNDER);
    if constexpr (MAP == LINEAR) return bit_cast<int>(bit_cast<float>(bits) * 127 + ROUNDER) - low;
    const float number = bit_cast<float>((bits >> 2) + FOURTH_ROOT) + ROUNDER;
    const int magnitude = bit_cast<int>(number) - (low + 1);
    return magnitude < 0 ? 0 : magnitude;
}

template <CodeMap MAP, class C>
INLINE void decode_block(
    const signed char* __restrict codes, float scale, i64 n, C* __restrict to) {
    for (i64 i = 0; i < n; ++i) to[i] = C(decoded_share<MAP>(codes[i]) * scale);
}

template <CodeMap MAP, class C>
INLINE void encode_signed(
    const C* __restrict from, float inverse_scale, i64 n, signed char* __restrict codes) {
    for (i64 i = 0; i < n; ++i) {
        const float number = float(from[i]);
        const int magnitude = encoded_share<MAP>(number * inverse_scale);
        codes[i] = static_cast<signed char>(bit_cast<int>(number) < 0 ? -magnitude : magnitude);
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
    const float scale = bit_cast<float>(largest);
    if (!(scale >= SMALLEST_SCALE && scale < TOO_LARGE_SCALE)) {
        for (i64 i = 0; i < n; ++i) codes[i] = 0;
        return scale < SMALLEST_SCALE ? 0 : __builtin_nanf("");
    }
    if (signs < 0) encode_signed<MAP>(from, 1 / scale, n, codes);
    else encode_unsigned<MAP>(from, 1 / scale, n, codes);
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

// Encodes n numbers as elements first, first + 1, ... of a stream: whole blocks, except for the
// last block of the tensor.
template <CodeMap MAP, class C>
NOINLINE void write_codes(const C* from, void* stream, i64 elements, i64 block, i64 first, i64 n) {
    signed char* const codes = static_cast<signed char*>(stream);
    float* scale = scale_at(codes, elements, first, block);
    for (i64 i = 0; i < n; i += block, ++scale)
        *scale = encode_block<MAP>(from + i, n - i < block ? n - i : block, codes + first + i);
}

template <class C>
void read_codes(BlockCodes format, const void* stream, i64 elements, i64 first, i64 n, C* to) {
    if (format.map == LINEAR) read_codes<LINEAR>(stream, elements, format.block, first, n, to);
    else read_codes<DYNAMIC>(stream, elements, format.block, first, n, to);
}

template <class C>
void write_codes(BlockCodes format, const C* from, void* stream, i64 elements, i64 first, i64 n) {
    if (format.map == LINEAR) write_codes<LINEAR>(from, stream, elements, format.block, first, n);
    else write_codes<DYNAMIC>(from, stream, elements, format.block, first, n);
}

}  // namespace optgen
