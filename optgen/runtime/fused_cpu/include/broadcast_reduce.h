// Broadcast and reduction over axes: elements, rows, columns, matrices.
#include "optgen/runtime/fused_cpu/include/scalar_program.h"

#ifndef __clang__  // only -O3 turns a loop over three columns into vector shuffles
#pragma GCC push_options
#pragma GCC optimize("O3")
#endif

namespace optgen {

// Axes of a value, as bits. A parameter is a batch of matrices over its last two dimensions.
enum Axes : int { NONE = 0, MATRIX = 1, ROW = 3, COLUMN = 5, TENSOR = 7 };

// Reduction operators: `combine` joins two partial results. Partial results of numbers of type C
// have the type Partial<C>. 0 is neutral, because all maxima are of absolute values. NaN
// propagates.
struct Sum {
    template <class C> using Partial = double;
    template <class C> INLINE static C combine(C a, C b) { return a + b; }
};
// Compares bits, which vectorizes well: of two numbers without a sign, the larger number has the
// larger bits, and NaN has the largest bits.
struct Max {
    template <class C> using Partial = C;
    INLINE static float combine(float a, float b) { return larger<u32>(a, b); }
    INLINE static double combine(double a, double b) { return larger<u64>(a, b); }

    template <class Bits, class C>
    INLINE static C larger(C a, C b) {
        const Bits x = bit_cast<Bits>(a), y = bit_cast<Bits>(b);
        return bit_cast<C>(x > y ? x : y);
    }
};

// Number of elements beyond the end of a buffer that may be written and read.
constexpr i64 PADDING = 64;

// Repeats every number N times. With a constant N, compilers vectorize the loop with shuffles.
template <int N, class C>
void repeat_interleave_by(const C* __restrict from, i64 count, C* __restrict to) {
    for (i64 i = 0; i < count; ++i)
        for (int k = 0; k < N; ++k) to[N * i + k] = from[i];
}

// Repeats every number `times` times. Writes W copies at a time, up to W - 1 too many, which the
// next number overwrites.
template <int W, class C>
void repeat_interleave_in_runs(const C* __restrict from, i64 count, i64 times, C* __restrict to) {
    for (i64 i = 0; i < count; ++i, to += times)
        for (i64 k = 0; k < times; k += W)
            for (int l = 0; l < W; ++l) to[k + l] = from[i];
}

template <class C>
NOINLINE void repeat_interleave(const C* from, i64 count, i64 times, C* to) {
    if (times == 2) return repeat_interleave_by<2>(from, count, to);
    if (times == 3) return repeat_interleave_by<3>(from, count, to);
    if (times == 4) return repeat_interleave_by<4>(from, count, to);
    if (times == 5) return repeat_interleave_by<5>(from, count, to);
    if (times <= 8) return repeat_interleave_in_runs<8>(from, count, times, to);
    repeat_interleave_in_runs<16>(from, count, times, to);
}

// Repeats the column values of every matrix once per row. The matrices are N by N.
template <int N, class C>
void repeat_rows_square(const C* __restrict from, i64 matrices, C* __restrict to) {
    for (i64 m = 0; m < matrices; ++m)
        for (int r = 0; r < N; ++r)
            for (int c = 0; c < N; ++c) to[N * (N * m + r) + c] = from[N * m + c];
}

// Repeats the column values of every matrix once per row. The matrices have at most W columns, and
// every row is written with W numbers. The next row overwrites the excess.
template <int W, class C>
void repeat_rows_narrow(
    const C* __restrict from, i64 matrices, i64 rows, i64 columns, C* __restrict to) {
    const C* const end = from + matrices * columns;
    for (i64 m = 0; m < matrices; ++m, from += columns) {
        C row[W] = {};
        if (end - from >= W) __builtin_memcpy(row, from, sizeof row);
        else __builtin_memcpy(row, from, u64(end - from) * sizeof(C));
        for (i64 r = 0; r < rows; ++r, to += columns) __builtin_memcpy(to, row, sizeof row);
    }
}

template <class C>
NOINLINE void repeat_rows(const C* from, i64 matrices, i64 rows, i64 columns, C* to) {
    if (rows == 3 && columns == 3) return repeat_rows_square<3>(from, matrices, to);
    if (rows == 5 && columns == 5) return repeat_rows_square<5>(from, matrices, to);
    if (columns <= 4) return repeat_rows_narrow<4>(from, matrices, rows, columns, to);
    if (columns <= 8) return repeat_rows_narrow<8>(from, matrices, rows, columns, to);
    if (columns <= 16) return repeat_rows_narrow<16>(from, matrices, rows, columns, to);
    for (i64 m = 0; m < matrices; ++m, from += columns)
        for (i64 r = 0; r < rows; ++r, to += columns)
            __builtin_memcpy(to, from, u64(columns) * sizeof(C));
}

// Reduces n numbers in lanes, and combines the lanes at the end: the order depends on n alone.
template <class Op, int LANES, class C>
double reduce_in_lanes(const C* x, i64 n) {
    using P = typename Op::template Partial<C>;
    P lanes[LANES] = {};
    i64 i = 0;
    for (; i + LANES <= n; i += LANES)
        for (int l = 0; l < LANES; ++l) lanes[l] = Op::combine(lanes[l], P(x[i + l]));
    for (int l = 0; i + l < n; ++l) lanes[l] = Op::combine(lanes[l], P(x[i + l]));
    for (int half = LANES / 2; half; half /= 2)
        for (int l = 0; l < half; ++l) lanes[l] = Op::combine(lanes[l], lanes[l + half]);
    return lanes[0];
}

template <class Op, class C>
NOINLINE double reduce_all(const C* x, i64 n) {
    return reduce_in_lanes<Op, 32>(x, n);
}

// Reduces each row of N numbers to one number.
template <class Op, int N, class C, class To>
void reduce_short_rows(const C* __restrict x, i64 rows, To* __restrict to) {
    for (i64 r = 0; r < rows; ++r, x += N) {
        To result = x[0];
        for (int k = 1; k < N; ++k) result = Op::combine(result, To(x[k]));
        to[r] = result;
    }
}

template <class Op, class C, class To>
NOINLINE void reduce_rows(const C* x, i64 rows, i64 columns, To* to) {
    if (columns == 2) return reduce_short_rows<Op, 2>(x, rows, to);
    if (columns == 3) return reduce_short_rows<Op, 3>(x, rows, to);
    if (columns == 5) return reduce_short_rows<Op, 5>(x, rows, to);
    if (columns == 7) return reduce_short_rows<Op, 7>(x, rows, to);
    if (columns < 128)
        for (i64 r = 0; r < rows; ++r, x += columns) to[r] = To(reduce_in_lanes<Op, 8>(x, columns));
    else
        for (i64 r = 0; r < rows; ++r, x += columns) to[r] = To(reduce_all<Op>(x, columns));
}

// Reduces each column of some rows, and combines the result with the column's partial result.
template <class Op, class C>
NOINLINE void accumulate_columns(
    const C* __restrict x, i64 rows, i64 columns, double* __restrict to) {
    if (columns == 1) {
        *to = Op::combine(*to, reduce_all<Op>(x, rows));
        return;
    }
    using P = typename Op::template Partial<C>;
    i64 r = 0;
    for (; r + 4 <= rows; r += 4, x += 4 * columns)
        for (i64 c = 0; c < columns; ++c) {
            const P left = Op::combine(P(x[c]), P(x[c + columns]));
            const P right = Op::combine(P(x[c + 2 * columns]), P(x[c + 3 * columns]));
            to[c] = Op::combine(to[c], double(Op::combine(left, right)));
        }
    for (; r < rows; ++r, x += columns)
        for (i64 c = 0; c < columns; ++c) to[c] = Op::combine(to[c], double(x[c]));
}

// Reduces each column of some matrices with at most W columns to one number. Writes W numbers
// for every matrix, and the next matrix overwrites the excess.
template <class Op, int W, class C>
void reduce_few_columns(const C* x, i64 matrices, i64 rows, i64 columns, C* to) {
    for (i64 m = 0; m < matrices; ++m, to += columns) {
        C results[W];
        for (int l = 0; l < W; ++l) results[l] = x[l];
        x += columns;
        for (i64 r = 1; r < rows; ++r, x += columns)
            for (int l = 0; l < W; ++l) results[l] = Op::combine(results[l], x[l]);
        for (int l = 0; l < W; ++l) to[l] = results[l];
    }
}

template <class Op, class C>
NOINLINE void reduce_columns(
    const C* x, i64 matrices, i64 rows, i64 columns, C* to, double* scratch) {
    const bool few_rows = rows <= 8;
    if (few_rows && columns <= 4) return reduce_few_columns<Op, 4>(x, matrices, rows, columns, to);
    if (few_rows && columns <= 8) return reduce_few_columns<Op, 8>(x, matrices, rows, columns, to);
    for (i64 m = 0; m < matrices; ++m, x += rows * columns, to += columns) {
        for (i64 c = 0; c < columns; ++c) scratch[c] = 0;
        accumulate_columns<Op>(x, rows, columns, scratch);
        for (i64 c = 0; c < columns; ++c) to[c] = C(scratch[c]);
    }
}

}  // namespace optgen

#ifndef __clang__
#pragma GCC pop_options
#endif
