// Values with one number an element, a row, a column, a matrix: spread to each other, reduced.
#include "optgen/runtime/fused_cpu/include/program.h"

#ifndef __clang__  // a loop over three columns is to become a shuffle of vectors
#pragma GCC push_options
#pragma GCC optimize("O3")
#endif

namespace optgen {

// The axes of a value, as bits: a parameter is a batch of matrices over its last two dimensions.
enum Axes : int { NONE = 0, MATRIX = 1, ROW = 3, COLUMN = 5, TENSOR = 7 };

// How two partial results of a reduction are joined: NaN stays.
struct Sum {
    template <class C> static C join(C a, C b) { return a + b; }
};
struct Largest {
    template <class C> static C join(C a, C b) { return maximum(a, b); }
};

// So many elements may be written (and in a buffer read) beyond the end.
constexpr i64 PADDING = 64;

// Every number N times in a row. Compilers know how to shuffle vectors where N is a constant.
template <int N, class C>
void spread_by(const C* __restrict from, i64 count, C* __restrict to) {
    for (i64 i = 0; i < count; ++i)
        for (int k = 0; k < N; ++k) to[N * i + k] = from[i];
}

// Or W at a time: what is written beyond the last one is written again.
template <int W, class C>
void spread_many(const C* __restrict from, i64 count, i64 times, C* __restrict to) {
    for (i64 i = 0; i < count; ++i, to += times)
        for (i64 k = 0; k < times; k += W)
            for (int l = 0; l < W; ++l) to[k + l] = from[i];
}

template <class C>
APART void spread(const C* from, i64 count, i64 times, C* to) {
    if (times == 2) return spread_by<2>(from, count, to);
    if (times == 3) return spread_by<3>(from, count, to);
    if (times == 4) return spread_by<4>(from, count, to);
    if (times == 5) return spread_by<5>(from, count, to);
    if (times <= 8) return spread_many<8>(from, count, times, to);
    spread_many<16>(from, count, times, to);
}

// The columns' numbers of every matrix again for each of its rows.
template <int N, class C>
void repeat_square(const C* __restrict from, i64 matrices, C* __restrict to) {
    for (i64 m = 0; m < matrices; ++m)
        for (int r = 0; r < N; ++r)
            for (int c = 0; c < N; ++c) to[N * (N * m + r) + c] = from[N * m + c];
}

// Or W at a time: what is written beyond the last column is written again.
template <int W, class C>
void repeat_few(const C* __restrict from, i64 matrices, i64 rows, i64 columns, C* __restrict to) {
    const C* const end = from + matrices * columns;
    for (i64 m = 0; m < matrices; ++m, from += columns) {
        C all[W] = {};
        if (end - from >= W) __builtin_memcpy(all, from, sizeof all);
        else __builtin_memcpy(all, from, u64(end - from) * sizeof(C));
        for (i64 r = 0; r < rows; ++r, to += columns) __builtin_memcpy(to, all, sizeof all);
    }
}

template <class C>
APART void repeat(const C* from, i64 matrices, i64 rows, i64 columns, C* to) {
    if (rows == 3 && columns == 3) return repeat_square<3>(from, matrices, to);
    if (rows == 5 && columns == 5) return repeat_square<5>(from, matrices, to);
    if (columns <= 4) return repeat_few<4>(from, matrices, rows, columns, to);
    if (columns <= 8) return repeat_few<8>(from, matrices, rows, columns, to);
    if (columns <= 16) return repeat_few<16>(from, matrices, rows, columns, to);
    for (i64 m = 0; m < matrices; ++m, from += columns)
        for (i64 r = 0; r < rows; ++r, to += columns)
            __builtin_memcpy(to, from, u64(columns) * sizeof(C));
}

// All of some numbers, in lanes that are joined at the end: the order depends on n alone.
template <class Join, int LANES, class C>
double total_in(const C* x, i64 n) {
    double lanes[LANES] = {};
    i64 i = 0;
    for (; i + LANES <= n; i += LANES)
        for (int l = 0; l < LANES; ++l) lanes[l] = Join::join(lanes[l], double(x[i + l]));
    for (int l = 0; i + l < n; ++l) lanes[l] = Join::join(lanes[l], double(x[i + l]));
    for (int half = LANES / 2; half; half /= 2)
        for (int l = 0; l < half; ++l) lanes[l] = Join::join(lanes[l], lanes[l + half]);
    return lanes[0];
}

template <class Join, class C>
APART double total(const C* x, i64 n) {
    return total_in<Join, 32>(x, n);
}

// A number for each of some short rows.
template <class Join, int N, class C, class To>
void totals_of(const C* __restrict x, i64 rows, To* __restrict to) {
    for (i64 r = 0; r < rows; ++r, x += N) {
        To sum = x[0];
        for (int k = 1; k < N; ++k) sum = Join::join(sum, To(x[k]));
        to[r] = sum;
    }
}

template <class Join, class C, class To>
APART void row_totals(const C* x, i64 rows, i64 columns, To* to) {
    if (columns == 2) return totals_of<Join, 2>(x, rows, to);
    if (columns == 3) return totals_of<Join, 3>(x, rows, to);
    if (columns == 5) return totals_of<Join, 5>(x, rows, to);
    if (columns == 7) return totals_of<Join, 7>(x, rows, to);
    if (columns < 128)
        for (i64 r = 0; r < rows; ++r, x += columns) to[r] = To(total_in<Join, 8>(x, columns));
    else
        for (i64 r = 0; r < rows; ++r, x += columns) to[r] = To(total<Join>(x, columns));
}

// Rows are joined into a row of partial results.
template <class Join, class C>
APART void join_rows(const C* __restrict x, i64 rows, i64 columns, double* __restrict to) {
    if (columns == 1) {
        *to = Join::join(*to, total<Join>(x, rows));
        return;
    }
    i64 r = 0;
    for (; r + 4 <= rows; r += 4, x += 4 * columns)
        for (i64 c = 0; c < columns; ++c) {
            const double left = Join::join(double(x[c]), double(x[c + columns]));
            const double right = Join::join(double(x[c + 2 * columns]), double(x[c + 3 * columns]));
            to[c] = Join::join(to[c], Join::join(left, right));
        }
    for (; r < rows; ++r, x += columns)
        for (i64 c = 0; c < columns; ++c) to[c] = Join::join(to[c], double(x[c]));
}

// A number for each column of some matrices. W columns at a time if there are few: what is written
// beyond the last one is written again.
template <class Join, int W, class C>
void few_column_totals(const C* x, i64 matrices, i64 rows, i64 columns, C* to) {
    for (i64 m = 0; m < matrices; ++m, to += columns) {
        C sums[W];
        for (int l = 0; l < W; ++l) sums[l] = x[l];
        x += columns;
        for (i64 r = 1; r < rows; ++r, x += columns)
            for (int l = 0; l < W; ++l) sums[l] = Join::join(sums[l], x[l]);
        for (int l = 0; l < W; ++l) to[l] = sums[l];
    }
}

template <class Join, class C>
APART void column_totals(const C* x, i64 matrices, i64 rows, i64 columns, C* to, double* scratch) {
    const bool few = rows <= 8;
    if (few && columns <= 4) return few_column_totals<Join, 4>(x, matrices, rows, columns, to);
    if (few && columns <= 8) return few_column_totals<Join, 8>(x, matrices, rows, columns, to);
    for (i64 m = 0; m < matrices; ++m, x += rows * columns, to += columns) {
        for (i64 c = 0; c < columns; ++c) scratch[c] = 0;
        join_rows<Join>(x, rows, columns, scratch);
        for (i64 c = 0; c < columns; ++c) to[c] = C(scratch[c]);
    }
}

}  // namespace optgen

#ifndef __clang__
#pragma GCC pop_options
#endif
