// Squares of elements in registers, transposed. For processors with AVX-512.
#include <immintrin.h>

#include "optgen/runtime/fused_cpu/include/dtypes.h"

namespace optgen {

// Indices that interleave the first or the last halves of two vectors.
template <class T>
struct Interleave {
    static constexpr int LANES = 64 / sizeof(T);
    alignas(64) T first[LANES], last[LANES];

    constexpr Interleave() : first(), last() {
        for (int i = 0; i < LANES; ++i) {
            first[i] = T(i / 2 + (i % 2) * LANES);
            last[i] = T(first[i] + LANES / 2);
        }
    }
};
constexpr Interleave<unsigned short> SINGLES;
constexpr Interleave<u32> DOUBLES;

inline void interleave(__m512i& a, __m512i& b, unsigned short) {
    const __m512i first = _mm512_load_si512(SINGLES.first), last = _mm512_load_si512(SINGLES.last);
    const __m512i low = _mm512_permutex2var_epi16(a, first, b);
    b = _mm512_permutex2var_epi16(a, last, b);
    a = low;
}

inline void interleave(__m512i& a, __m512i& b, u32) {
    const __m512i first = _mm512_load_si512(DOUBLES.first), last = _mm512_load_si512(DOUBLES.last);
    const __m512i low = _mm512_permutex2var_epi32(a, first, b);
    b = _mm512_permutex2var_epi32(a, last, b);
    a = low;
}

// Transposes a square of elements of type T. Each round interleaves row i with row i + LANES / 2:
// as many rounds as a row index has bits exchange the row index and the column index.
template <class T>
inline void transpose(__m512i* rows) {
    constexpr int LANES = 64 / sizeof(T), HALF = LANES / 2;
    for (int round = 1; round < LANES; round *= 2) {
        __m512i next[LANES];
        for (int i = 0; i < HALF; ++i) {
            __m512i a = rows[i], b = rows[i + HALF];
            interleave(a, b, T());
            next[2 * i] = a, next[2 * i + 1] = b;
        }
        for (int i = 0; i < LANES; ++i) rows[i] = next[i];
    }
}

}  // namespace optgen
