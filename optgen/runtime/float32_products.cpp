// Products of matrices in float32, for processors with AVX-512.
//
// C = A B is computed in tiles of 16 rows and 16 columns, whose sums stay in registers. The rows of
// A and the columns of B are packed in groups of 16, padded with zeros: a group has one vector for
// each k of the sums. Sums of 256 products are added up in C. If B = A', only the tiles from the
// diagonal down are computed, and mirrored. An element is computed by one thread in one order, so
// that results are the same for any number of threads.

#include <immintrin.h>

#include "optgen/runtime/fused_cpu/include/tensor_table.h"
#include "optgen/runtime/fused_cpu/include/transpose.h"

namespace optgen {
namespace {

constexpr i64 LANES = 16;    // rows of a group
constexpr i64 DEPTH = 256;   // k of a group: the groups of a tile fit into the L1 cache
constexpr i64 HEIGHT = 512;  // rows of A that are packed at a time: they fit into the L2 cache

inline i64 smaller(i64 a, i64 b) { return a < b ? a : b; }
inline i64 larger(i64 a, i64 b) { return a > b ? a : b; }

// The first `count` lanes, of which there may be more or none.
inline __mmask16 lanes(i64 count) {
    return count >= LANES ? __mmask16(~0) : count > 0 ? __mmask16((1 << count) - 1) : 0;
}

// Rows of A, or columns of B. Elements are contiguous along one of the axes.
struct Lines {
    const float* data;
    i64 count, line_stride, k_stride;

    // Packs the group that begins at line `first`, for `depth` values of k from `k` on.
    void pack(i64 first, i64 k, i64 depth, float* group) const {
        const float* source = data + first * line_stride + k * k_stride;
        if (line_stride == 1) {
            for (i64 i = 0; i < depth; ++i)
                _mm512_store_ps(
                    group + i * LANES,
                    _mm512_maskz_loadu_ps(lanes(count - first), source + i * k_stride));
            return;
        }
        for (i64 i = 0; i < depth; i += LANES) {
            __m512i square[LANES];
            for (i64 line = 0; line < LANES; ++line)
                square[line] = first + line < count
                                   ? _mm512_maskz_loadu_epi32(
                                         lanes(depth - i), source + line * line_stride + i)
                                   : _mm512_setzero_si512();
            transpose<u32>(square);
            for (i64 j = 0; j < LANES; ++j)
                _mm512_store_si512(group + (i + j) * LANES, square[j]);
        }
    }
};

// Computes the sums of a tile: one vector for each row.
inline void multiply(const float* rows, const float* columns, i64 depth, __m512* tile) {
    __m512 sums[LANES];
#pragma GCC unroll 16
    for (int r = 0; r < LANES; ++r) sums[r] = _mm512_setzero_ps();
    for (i64 k = 0; k < depth; ++k, rows += LANES, columns += LANES) {
        const __m512 column = _mm512_load_ps(columns);
#pragma GCC unroll 16
        for (int r = 0; r < LANES; ++r)
            sums[r] = _mm512_fmadd_ps(_mm512_set1_ps(rows[r]), column, sums[r]);
    }
#pragma GCC unroll 16
    for (int r = 0; r < LANES; ++r) tile[r] = sums[r];
}

}  // namespace

// A product, in the order of the arguments of the Python class.
struct Product {
    Lines rows, columns;
    i64 inner;  // products of each sum
    float* out;
    bool is_symmetric;
    float* packed;  // a group of columns for each thread, then up to `HEIGHT` rows
    void (*barrier)();

    void run_thread(int id, int thread_count) const {
        const auto wait = [&] {
            if (thread_count > 1) barrier();
        };
        float* const panel = packed + id * LANES * DEPTH;
        float* const block = packed + thread_count * LANES * DEPTH;
        for (i64 k = 0; k < inner; k += DEPTH) {
            const i64 depth = smaller(DEPTH, inner - k);
            for (i64 top = 0; top < rows.count; top += HEIGHT) {
                const i64 end = smaller(top + HEIGHT, rows.count);
                for (i64 i = top + id * LANES; i < end; i += thread_count * LANES)
                    rows.pack(i, k, depth, block + (i - top) * DEPTH);
                wait();
                const i64 last = is_symmetric ? end : columns.count;
                for (i64 turn = 0;; ++turn) {
                    const i64 j = unit_of_turn(turn, id, thread_count) * LANES;
                    if (j >= last) break;
                    const bool is_packed = is_symmetric && j >= top;
                    const float* const group = is_packed ? block + (j - top) * DEPTH : panel;
                    if (!is_packed) columns.pack(j, k, depth, panel);
                    for (i64 i = is_symmetric ? larger(top, j) : top; i < end; i += LANES) {
                        __m512 tile[LANES];
                        multiply(block + (i - top) * DEPTH, group, depth, tile);
                        write(tile, i, j, k == 0, k + depth == inner);
                    }
                }
                wait();
            }
        }
    }

    void write(__m512* tile, i64 i, i64 j, bool is_first, bool is_last) const {
        const i64 height = smaller(LANES, rows.count - i), pitch = columns.count;
        const __mmask16 mask = lanes(pitch - j);
        float* const corner = out + i * pitch + j;
        for (i64 r = 0; r < height; ++r) {
            if (!is_first)
                tile[r] = _mm512_add_ps(tile[r], _mm512_maskz_loadu_ps(mask, corner + r * pitch));
            _mm512_mask_storeu_ps(corner + r * pitch, mask, tile[r]);
        }
        if (!is_symmetric || !is_last || i == j) return;
        __m512i square[LANES];
        for (i64 r = 0; r < LANES; ++r) square[r] = _mm512_castps_si512(tile[r]);
        transpose<u32>(square);
        for (i64 r = 0; r < LANES; ++r)  // a tile below the diagonal has all of its columns
            _mm512_mask_storeu_epi32(out + (j + r) * pitch + i, lanes(height), square[r]);
    }
};

}  // namespace optgen

// Returns how many numbers of memory a product takes on so many threads.
extern "C" optgen::i64 optgen_packed_numbers(optgen::i64 rows, int threads) {
    const optgen::i64 padded = (rows + optgen::LANES - 1) / optgen::LANES * optgen::LANES;
    return (threads * optgen::LANES + optgen::smaller(padded, optgen::HEIGHT)) * optgen::DEPTH;
}

extern "C" void optgen_float32_product(
    const optgen::Product* product, const optgen::Threads* threads) {
    optgen::Product work = *product;
    work.barrier = threads->barrier;
    // A thread more pays if there are products of some million numbers.
    const optgen::i64 products = work.rows.count * work.columns.count * work.inner;
    optgen::run_on_threads(work, *threads, 4 * products);
}
