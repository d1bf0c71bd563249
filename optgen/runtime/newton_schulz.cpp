// Newton-Schulz iterations of matrices in bfloat16, for processors with AVX512_BF16.
//
// A matrix X has m rows and n >= m columns. With s near the mean of the diagonal of X X', an
// iteration by the numbers a, b and c is
//   E = X X' - s I,   P = c E E + (b + 2 c s) E,   X <- P X + (a + b s + c s s) X.
// E and P are symmetric: panels of 32 columns are computed from the diagonal down, and mirrored.
//
// The rows of all matrices here begin on 64 bytes and are padded with zeros, so that no loop over
// columns has a remainder. A panel of the right factor is packed in pairs of rows: an instruction
// multiplies 16 pairs, and adds both products in float32. Results are the same for any number of
// threads.

#include <immintrin.h>

#include "optgen/runtime/fused_cpu/include/tensor_table.h"
#include "optgen/runtime/fused_cpu/include/transpose.h"

namespace optgen {
namespace {

using bf16 = unsigned short;

constexpr i64 WIDTH = 32;        // columns of a panel: two vectors of pairs
constexpr int HEIGHT = 12;       // rows of a tile: 24 sums and two vectors of a panel in registers
constexpr i64 SAMPLE = 4;        // one row of so many tells the mean of the diagonal
constexpr i64 PAIRS = WIDTH / 2; // pairs of a row that a vector holds

inline i64 padded(i64 n) { return (n + WIDTH - 1) / WIDTH * WIDTH; }

struct Matrix {
    bf16* data;
    i64 rows, pitch;  // the pitch is a multiple of WIDTH

    bf16* row(i64 i) const { return data + i * pitch; }
};

inline __m512 to_float(__m256i x) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(x), 16));
}

inline __m256i to_bf16(__m512 x) { return (__m256i)_mm512_cvtneps_pbh(x); }

inline __m256i load16(const bf16* x) { return _mm256_loadu_si256((const __m256i*)x); }
inline void store16(bf16* x, __m256i value) { _mm256_storeu_si256((__m256i*)x, value); }

// Packs columns [first, first + WIDTH) of X.
void pack_columns(const Matrix& x, i64 first, __m512i* panel) {
    for (i64 i = 0; i < x.rows; i += 2, panel += 2) {
        __m512i a = _mm512_load_si512(x.row(i) + first);
        __m512i b = _mm512_setzero_si512();
        if (i + 1 < x.rows) b = _mm512_load_si512(x.row(i + 1) + first);
        interleave(a, b, bf16());
        panel[0] = a, panel[1] = b;
    }
}

// Packs columns [first, first + WIDTH) of X', that is rows of X.
void pack_rows(const Matrix& x, i64 first, __m512i* panel) {
    for (int half = 0; half < 2; ++half, first += PAIRS)
        for (i64 column = 0; column < x.pitch; column += WIDTH) {
            __m512i rows[PAIRS];
            for (i64 i = 0; i < PAIRS; ++i)
                rows[i] = first + i < x.rows ? _mm512_load_si512(x.row(first + i) + column)
                                             : _mm512_setzero_si512();
            transpose<u32>(rows);
            for (i64 i = 0; i < PAIRS; ++i) panel[(column / 2 + i) * 2 + half] = rows[i];
        }
}

// What becomes of a sum at row i and column j: alpha * sum + beta * source, less s if i = j.
struct Finish {
    float alpha, beta, shift;
    const Matrix* source;  // null if beta is 0
};

template <int ROWS>
void tile(
    const Matrix& left, i64 row, const __m512i* panel, i64 pairs, i64 column, const Finish& finish,
    const Matrix& out) {
    __m512 sums[ROWS][2];
#pragma GCC unroll 12
    for (int r = 0; r < ROWS; ++r) sums[r][0] = sums[r][1] = _mm512_setzero_ps();
    const int* a = (const int*)left.row(row);
    const i64 pitch = left.pitch / 2;
    for (i64 k = 0; k < pairs; ++k) {
        const __m512bh b0 = (__m512bh)panel[2 * k], b1 = (__m512bh)panel[2 * k + 1];
#pragma GCC unroll 12
        for (int r = 0; r < ROWS; ++r) {
            const __m512bh x = (__m512bh)_mm512_set1_epi32(a[r * pitch + k]);
            sums[r][0] = _mm512_dpbf16_ps(sums[r][0], x, b0);
            sums[r][1] = _mm512_dpbf16_ps(sums[r][1], x, b1);
        }
    }
    const __m512 alpha = _mm512_set1_ps(finish.alpha), beta = _mm512_set1_ps(finish.beta);
#pragma GCC unroll 12
    for (int r = 0; r < ROWS; ++r)
#pragma GCC unroll 2
        for (int half = 0; half < 2; ++half) {
            const i64 j = column + half * PAIRS;
            __m512 value = _mm512_mul_ps(alpha, sums[r][half]);
            if (finish.source) {
                const __m512 source = to_float(load16(finish.source->row(row + r) + j));
                value = _mm512_fmadd_ps(beta, source, value);
            }
            const i64 lane = row + r - j;
            if (finish.shift != 0 && lane >= 0 && lane < PAIRS)
                value = _mm512_mask_sub_ps(
                    value, __mmask16(1u << lane), value, _mm512_set1_ps(finish.shift));
            store16(out.row(row + r) + j, to_bf16(value));
        }
}

template <int ROWS>
void last_tile(
    int rows, const Matrix& left, i64 row, const __m512i* panel, i64 pairs, i64 column,
    const Finish& finish, const Matrix& out) {
    if constexpr (ROWS > 0) {
        if (rows == ROWS) tile<ROWS>(left, row, panel, pairs, column, finish, out);
        else last_tile<ROWS - 1>(rows, left, row, panel, pairs, column, finish, out);
    }
}

// Writes the rows of `left` from `row` on, times a packed panel, to the panel's columns of `out`.
void multiply(
    const Matrix& left, i64 row, const __m512i* panel, i64 pairs, i64 column, const Finish& finish,
    const Matrix& out) {
    for (; row + HEIGHT <= left.rows; row += HEIGHT)
        tile<HEIGHT>(left, row, panel, pairs, column, finish, out);
    last_tile<HEIGHT - 1>(int(left.rows - row), left, row, panel, pairs, column, finish, out);
}

// Copies what lies below a panel's square on the diagonal to the right of the square.
void mirror(const Matrix& x, i64 column) {
    for (i64 i = column + WIDTH; i < x.rows; i += WIDTH) {
        __m512i rows[WIDTH];
        for (i64 r = 0; r < WIDTH; ++r)
            rows[r] = i + r < x.rows ? _mm512_load_si512(x.row(i + r) + column)
                                     : _mm512_setzero_si512();
        transpose<bf16>(rows);
        for (i64 r = 0; r < WIDTH; ++r) _mm512_store_si512(x.row(column + r) + i, rows[r]);
    }
}

// Elements of a vector's worth of columns that exist, as bits.
inline u32 mask_of(i64 columns) { return columns >= WIDTH ? ~0u : (1u << columns) - 1; }

inline __m512 load(const float* x, u32 mask) { return _mm512_maskz_loadu_ps(__mmask16(mask), x); }
inline __m512 load(const bf16* x, u32 mask) {
    return to_float(_mm256_maskz_loadu_epi16(__mmask16(mask), x));
}

// Returns up to 32 elements, divided, with zeros behind them.
template <class T>
inline __m512i load_divided(const T* x, i64 columns, __m512 divisor) {
    const u32 mask = mask_of(columns);
    const __m256i low = to_bf16(_mm512_div_ps(load(x, mask), divisor));
    const __m256i high = to_bf16(_mm512_div_ps(load(x + PAIRS, mask >> PAIRS), divisor));
    return _mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1);
}

template <class T>
double sum_of_squares(const T* x, i64 n) {
    __m512d sums[2] = {_mm512_setzero_pd(), _mm512_setzero_pd()};
    for (i64 i = 0; i < n; i += PAIRS) {
        const __m512 value = load(x + i, mask_of(n - i));
        const __m512d low = _mm512_cvtps_pd(_mm512_castps512_ps256(value));
        const __m512d high = _mm512_cvtps_pd(_mm512_extractf32x8_ps(value, 1));
        sums[0] = _mm512_fmadd_pd(low, low, sums[0]);
        sums[1] = _mm512_fmadd_pd(high, high, sums[1]);
    }
    return _mm512_reduce_add_pd(_mm512_add_pd(sums[0], sums[1]));
}

inline i64 smaller(i64 a, i64 b) { return a < b ? a : b; }

// Threads that compute one matrix.
struct Team {
    int id, count;
    void (*barrier)();

    void wait() const {
        if (count > 1) barrier();
    }
};

}  // namespace

// Matrices of one shape, and what to compute of them; the Python class has the same fields.
struct Work {
    i64 matrix_count;
    const void* const* operands;  // in float32 or bfloat16, row after row
    bf16* const* results;         // in the same shape
    i64 operands_are_float32;
    i64 rows, columns;  // rows <= columns; those of the transposed matrix if it is tall
    i64 is_tall;
    i64 steps;
    const double* coefficients;  // a, b and c of each step
    double divisor;              // 0: the norm, but no less than `least`
    double least;
    const bf16* first;  // E of the first step, whose s is `shift`; or null. For one matrix
    double shift;
    char* workspace;
    i64 workspace_size;  // bytes for each team
    i64 teams;           // 1: all threads compute a matrix together; else each thread alone
};

namespace {

// Memory of a team, in the order in which `workspace_bytes` counts it.
struct Workspace {
    Matrix x, y, square, polynomial;
    double* squares;  // of each line of the operand; then of sampled rows
    __m512i* panels;  // one for each thread
    i64 panel_vectors;

    Workspace(const Work& work, char* memory) {
        const i64 rows = work.rows, pitch = padded(work.columns), short_pitch = padded(rows);
        auto take = [&](i64 bytes) {
            char* const start = memory;
            memory += (bytes + 63) / 64 * 64;
            return start;
        };
        x = {reinterpret_cast<bf16*>(take(rows * pitch * 2)), rows, pitch};
        y = {reinterpret_cast<bf16*>(take(rows * pitch * 2)), rows, pitch};
        square = {reinterpret_cast<bf16*>(take(rows * short_pitch * 2)), rows, short_pitch};
        polynomial = {reinterpret_cast<bf16*>(take(rows * short_pitch * 2)), rows, short_pitch};
        squares = reinterpret_cast<double*>(take(work.columns * 8));
        panel_vectors = pitch;
        panels = reinterpret_cast<__m512i*>(memory);
    }
};

// Iterations of one matrix, on all threads of a team.
struct Iteration {
    const Work& work;
    const Team& team;
    Workspace memory;
    __m512i* panel;

    Iteration(const Work& given_work, const Team& given_team, char* workspace)
        : work(given_work), team(given_team), memory(given_work, workspace),
          panel(memory.panels + team.id * memory.panel_vectors) {}

    double sum(i64 count) const {
        double total = 0;
        for (i64 i = 0; i < count; ++i) total += memory.squares[i];
        return total;
    }

    template <class T>
    void read(const T* operand) {
        const i64 lines = work.is_tall ? work.columns : work.rows;
        const i64 length = work.is_tall ? work.rows : work.columns;
        double divisor = work.divisor;
        if (divisor == 0) {
            for (i64 i = team.id; i < lines; i += team.count)
                memory.squares[i] = sum_of_squares(operand + i * length, length);
            team.wait();
            divisor = __builtin_sqrt(sum(lines));
            if (divisor < work.least) divisor = work.least;
            team.wait();
        }
        const __m512 by = _mm512_set1_ps(float(divisor));
        for (i64 i = team.id * WIDTH; i < padded(lines); i += team.count * WIDTH)
            for (i64 j = 0; j < padded(length); j += WIDTH) {
                __m512i block[WIDTH];
                for (i64 r = 0; r < WIDTH; ++r)
                    block[r] = i + r < lines
                                   ? load_divided(operand + (i + r) * length + j, length - j, by)
                                   : _mm512_setzero_si512();
                if (work.is_tall) transpose<bf16>(block);
                const i64 row = work.is_tall ? j : i, column = work.is_tall ? i : j;
                for (i64 r = 0; r < smaller(WIDTH, memory.x.rows - row); ++r)
                    _mm512_store_si512(memory.x.row(row + r) + column, block[r]);
            }
        team.wait();
    }

    void write(bf16* result) const {
        const i64 lines = work.is_tall ? work.columns : work.rows;
        const i64 length = work.is_tall ? work.rows : work.columns;
        for (i64 i = team.id * WIDTH; i < lines; i += team.count * WIDTH)
            for (i64 j = 0; j < length; j += WIDTH) {
                const i64 row = work.is_tall ? j : i, column = work.is_tall ? i : j;
                __m512i block[WIDTH];
                for (i64 r = 0; r < WIDTH; ++r)
                    block[r] = row + r < memory.x.rows
                                   ? _mm512_load_si512(memory.x.row(row + r) + column)
                                   : _mm512_setzero_si512();
                if (work.is_tall) transpose<bf16>(block);
                for (i64 r = 0; r < smaller(WIDTH, lines - i); ++r)
                    _mm512_mask_storeu_epi16(
                        result + (i + r) * length + j, mask_of(length - j), block[r]);
            }
        team.wait();
    }

    // Computes left left', which is symmetric, to `out`.
    void multiply_by_transpose(const Matrix& left, const Finish& finish, const Matrix& out) const {
        for (i64 turn = 0;; ++turn) {
            const i64 j = unit_of_turn(turn, team.id, team.count) * WIDTH;
            if (j >= left.rows) break;
            pack_rows(left, j, panel);
            multiply(left, j, panel, left.pitch / 2, j, finish, out);
            mirror(out, j);
        }
        team.wait();
    }

    float mean_of_diagonal() const {
        const Matrix& x = memory.x;
        const i64 count = (x.rows + SAMPLE - 1) / SAMPLE;
        for (i64 i = team.id; i < count; i += team.count)
            memory.squares[i] = sum_of_squares(x.row(i * SAMPLE), x.pitch);
        team.wait();
        return float(sum(count) / double(count));
    }

    void step(double a, double b, double c, bool is_given) {
        const Matrix& x = memory.x;
        Matrix square = memory.square;
        double s = work.shift;
        if (is_given) square.data = const_cast<bf16*>(work.first);
        else {
            s = mean_of_diagonal();
            multiply_by_transpose(x, {1, 0, float(s), nullptr}, square);
        }
        const Matrix& polynomial = memory.polynomial;
        multiply_by_transpose(square, {float(c), float(b + 2 * c * s), 0, &square}, polynomial);
        const Finish finish{1, float(a + b * s + c * s * s), 0, &x};
        for (i64 j = team.id * WIDTH; j < x.pitch; j += team.count * WIDTH) {
            pack_columns(x, j, panel);
            multiply(polynomial, 0, panel, (x.rows + 1) / 2, j, finish, memory.y);
        }
        team.wait();
        const Matrix next = memory.y;
        memory.y = x, memory.x = next;
    }

    void run(i64 index) {
        const void* const operand = work.operands[index];
        if (work.operands_are_float32) read(static_cast<const float*>(operand));
        else read(static_cast<const bf16*>(operand));
        for (i64 k = 0; k < work.steps; ++k) {
            const double* abc = work.coefficients + 3 * k;
            step(abc[0], abc[1], abc[2], k == 0 && work.first);
        }
        write(work.results[index]);
    }
};

// Many matrices are divided among threads; few are computed by all threads together.
struct Run {
    const Work& work;
    const Threads& threads;

    void run_thread(int id, int count) const {
        if (work.teams == 1) {
            const Team team{id, count, threads.barrier};
            for (i64 i = 0; i < work.matrix_count; ++i)
                Iteration(work, team, work.workspace).run(i);
        } else {
            const Team alone{0, 1, nullptr};
            char* const workspace = work.workspace + id * work.workspace_size;
            for (i64 i = id; i < work.matrix_count; i += count)
                Iteration(work, alone, workspace).run(i);
        }
    }
};

}  // namespace
}  // namespace optgen

// Returns the bytes of a team's workspace, for panels of so many threads.
extern "C" optgen::i64 optgen_workspace_bytes(optgen::i64 rows, optgen::i64 columns, int threads) {
    using optgen::padded;
    const auto whole = [](optgen::i64 bytes) { return (bytes + 63) / 64 * 64; };
    return 2 * whole(rows * padded(columns) * 2) + 2 * whole(rows * padded(rows) * 2) +
           whole(columns * 8) + threads * padded(columns) * 64;
}

extern "C" void optgen_newton_schulz(const optgen::Work* work, const optgen::Threads* threads) {
    const optgen::Run run{*work, *threads};
    // A thread more pays if there are products of some million numbers.
    const optgen::i64 products = work->matrix_count * work->rows * work->rows * work->columns;
    optgen::run_on_threads(run, *threads, products * work->steps);
}
